"""A program whose clock is wrong: a small library, loaded before it, shifts the time of day for Python and OpenSSL."""

import shutil
import subprocess
from pathlib import Path

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long shift(void) { const char *text = getenv("CLOCK_SHIFT"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += shift();
  return code;
}
time_t time(time_t *place) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (place) *place = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(struct timeval *place, void *zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  place->tv_sec = now.tv_sec;
  place->tv_usec = now.tv_nsec / 1000;
  return 0;
}
"""


def can_be_made() -> bool:
    return bool(shutil.which("cc"))


def skewed(folder: Path, seconds: int) -> tuple[str, ...]:
    """The beginning of a command whose clock is so many seconds ahead."""
    source, library = folder / "skew.c", folder / "skew.so"
    if not library.exists():
        source.write_text(_SOURCE)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)  # noqa: S607
    return ("env", f"LD_PRELOAD={library}", f"CLOCK_SHIFT={seconds}")
