"""Memory that is freed stays with the process, where the C library can be told so.

Each step frees tensors as large as the net and asks for the same again. The GNU library hands blocks of that size back
to the system every time, and fetching them anew costs a large net a tenth of its step. A cohort's uploads side by side
are larger than any threshold that the library takes; with a large net it is told to hand back nothing at all.
"""

import ctypes
import functools

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # names of malloc.h
_LARGEST_BLOCK = 32 * 2**20  # the most that the library takes for a threshold
_KEEP_AT_MOST = 512 * 2**20
_KEEP_ALL = -1


def keep_freed_memory(all_of_it: bool = False) -> bool:
    """Ask for it; whether this library understands. Once all of it was asked for, that stays so."""
    understood = _ask(((_MMAP_THRESHOLD, _LARGEST_BLOCK), (_TRIM_THRESHOLD, _KEEP_AT_MOST)))
    return _ask(((_TRIM_THRESHOLD, _KEEP_ALL), (_MMAP_MAX, 0))) if understood and all_of_it else understood


@functools.cache  # once a process
def _ask(wanted: tuple[tuple[int, int], ...]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    return all(mallopt(*one) for one in wanted)
