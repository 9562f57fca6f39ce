"""Memory that is freed stays with the process, where the C library can be told so.

Each step frees tensors as large as the net and asks for the same again. The GNU library hands blocks of that size back
to the system every time, and fetching them anew costs a large net a tenth of its step.
"""

import ctypes
import functools

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of malloc.h
_LARGEST_BLOCK = 32 * 2**20  # the most that the library takes for a threshold
_KEEP_AT_MOST = 512 * 2**20


@functools.cache
def keep_freed_memory() -> bool:
    """Ask for it, once a process; whether this library understands."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_TRIM_THRESHOLD, _KEEP_AT_MOST))
