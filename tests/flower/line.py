"""A bad line between two network namespaces: packets through this process, some late, some lost.

Two TUN devices, one in each namespace, and a thread that carries packets between them. It needs root and `ip`, but
no `netem`, which not every kernel has.
"""

import contextlib
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator

_TUNSETIFF, _TUN_NO_HEADER = 0x400454CA, 0x1001


def can_be_made() -> bool:
    return os.name == "posix" and os.geteuid() == 0 and bool(shutil.which("ip")) and os.access("/dev/net/tun", os.W_OK)


class Line:
    """Two hosts, 10.77.0.1 and 10.77.0.2."""

    def __init__(self, delay: float, loss: float) -> None:
        self.delay, self.loss, self.packets, self.lost = delay, loss, 0, 0
        stem = f"sf{os.getpid() % 100000}"
        self.hosts = (f"{stem}a", f"{stem}b")
        self._ends: list[int] = []
        self._over = threading.Event()
        try:
            for number, host in enumerate(self.hosts):
                self._make(host, f"{stem}t{number}", f"10.77.0.{number + 1}", f"10.77.0.{2 - number}")
            self._thread = threading.Thread(target=self._carry, daemon=True)
            self._thread.start()
        except BaseException:
            self.close()
            raise

    def at(self, host: int) -> tuple[str, ...]:
        """The beginning of a command that runs on a host."""
        return ("ip", "netns", "exec", self.hosts[host])

    def _make(self, host: str, device: str, own: str, other: str) -> None:
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self._ends.append(end)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", device.encode(), _TUN_NO_HEADER))
        _ip("netns", "add", host)
        _ip("link", "set", device, "netns", host)
        _ip("-n", host, "addr", "add", own, "peer", other, "dev", device)
        _ip("-n", host, "link", "set", device, "up")
        _ip("-n", host, "link", "set", "lo", "up")

    def _carry(self) -> None:
        chance, waiting, number = random.Random(1), list[tuple[float, int, int, bytes]](), 0
        while not self._over.is_set():
            pause = max(0.0, min(0.05, waiting[0][0] - time.monotonic())) if waiting else 0.05
            ready, _, _ = select.select(self._ends, [], [], pause)
            for end in ready:
                with contextlib.suppress(BlockingIOError):
                    packet = os.read(end, 65536)
                    self.packets += 1
                    if chance.random() < self.loss:
                        self.lost += 1
                        continue
                    number += 1
                    other = self._ends[1 - self._ends.index(end)]
                    heapq.heappush(waiting, (time.monotonic() + self.delay, number, other, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, other, packet = heapq.heappop(waiting)
                with contextlib.suppress(OSError):
                    os.write(other, packet)

    def close(self) -> None:
        self._over.set()
        if hasattr(self, "_thread"):
            self._thread.join()
        for end in self._ends:
            os.close(end)
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)  # noqa: S607


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)  # noqa: S607


@contextlib.contextmanager
def line(delay: float, loss: float) -> Iterator[Line]:
    made = Line(delay, loss)
    try:
        yield made
    finally:
        made.close()
