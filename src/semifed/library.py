"""C++ sources of this package, built once on this machine by the compiler it has, and loaded. No torch headers.

What is built lies in ~/.cache/semifed/kernels under a hash of sources, flags and processor. It is written under
another name and renamed, so that processes which build at the same time do not disturb each other.
"""

import atexit
import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SWITCH = "SEMIFED_KERNELS"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-math-errno")
VARIANTS = (("-march=native",), ())
"""Tried in this order: a compiler that does not know its processor still builds the plain form."""

NATIVE = "compiled for this processor"
"""How the first of them is noted."""

HERE = Path(__file__).parent


class Library(NamedTuple):
    """A loaded library or None, and in a few words how it was built or why it was not."""

    code: ctypes.CDLL | None
    note: str


def switched_off() -> bool:
    """Whether the user wants plain torch; read at every call, so that it can be changed in a running process."""
    return os.environ.get(SWITCH, "").lower() == "off"


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Plain torch for as long as the block lasts."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


failures: list[str] = []
"""Why libraries that were asked for are not there."""


@functools.cache
def load(sources: tuple[str, ...], more: tuple[str, ...] = ()) -> Library:
    """The library of these sources (places in this package), from the cache or built now with more flags."""
    library = _load(sources, more)
    if library.code is None and library.note not in failures:
        failures.append(library.note)
    return library


def _load(sources: Sequence[str], more: Sequence[str]) -> Library:
    builds = [_Build([HERE / name for name in sources], (*FLAGS, *variant, *more)) for variant in VARIANTS]
    for build in builds:
        if (code := _open(build.path)) is not None:
            return Library(code, build.note)
    compiler = _find_compiler()
    if compiler is None:
        return Library(None, f"no C++ compiler: looked for {', '.join(COMPILERS)}")
    problem = ""
    for build in builds:
        path, problem = build.run(compiler)
        if path is not None and (code := _open(path)) is not None:
            return Library(code, build.note)
    return Library(None, f"{Path(compiler).name} failed: {problem or 'what it built does not load'}")


class _Build:
    """One way to build a library, and where the result belongs."""

    def __init__(self, sources: Sequence[Path], flags: Sequence[str]) -> None:
        self._sources, self._flags = sources, flags
        headers = sorted(header for folder in {path.parent for path in sources} for header in folder.glob("*.h"))
        texts = [path.read_bytes() for path in [*headers, *sources]]
        ingredients = [*texts, *(flag.encode() for flag in flags), _processor().encode()]
        digest = hashlib.blake2b(b"\0".join(ingredients), digest_size=10).hexdigest()
        self.path = _cache() / digest / "kernel.so"
        self.note = NATIVE if "-march=native" in flags else "compiled"

    def run(self, compiler: str) -> tuple[Path | None, str]:
        """The finished library, or what the compiler had to say."""
        path = self.path if _writable(self.path.parent) else Path(_own_folder(), self.path.parent.name + ".so")
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="unfinished-") as folder:
            unfinished = Path(folder, path.name)
            command = [compiler, *self._flags, "-o", str(unfinished), *map(str, self._sources)]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)  # noqa: S603
                unfinished.replace(path)
            except (OSError, subprocess.SubprocessError) as error:
                said = getattr(error, "stderr", None) or str(error)
                return None, next((line.strip() for line in said.splitlines() if "error" in line), said.strip()[:200])
        return path, ""


def _open(path: Path) -> ctypes.CDLL | None:
    """A library that is there and was made for a machine like this one."""
    try:
        return ctypes.CDLL(str(path)) if path.exists() else None
    except OSError:
        return None


def _find_compiler() -> str | None:
    wanted = [*os.environ.get("CXX", "").split()[:1], *COMPILERS]
    return next((found for name in wanted if (found := shutil.which(name))), None)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base, "semifed", "kernels")


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


@functools.cache
def _own_folder() -> str:
    """A folder for this process alone: nobody else can have put a library there."""
    folder = tempfile.mkdtemp(prefix="semifed-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _processor() -> str:
    """What makes a library built for one processor unfit for another; a home may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line for line in lines if line.partition("\t")[0].strip() in ("model name", "flags", "Features")]
    return "\n".join([platform.system(), platform.machine(), platform.processor(), *sorted(set(named))])
