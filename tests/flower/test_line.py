"""A run over a bad line, and what the network costs."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flower.line import can_be_made, line
from flower.test_processes import compare, patient
from flower.world import World, free_port, world

pytest.importorskip("flwr")
pytestmark = pytest.mark.slow


@pytest.mark.skipif(not can_be_made(), reason="needs root, ip and /dev/net/tun")
def test_five_rounds_between_two_hosts_with_50_ms_and_one_packet_in_a_hundred_lost(tmp_path: Path) -> None:
    exp = patient("fedcon", "train.rounds=5")
    with line(0.05, 0.01) as cable, world(tmp_path / "world", exp, host="10.77.0.1") as between:
        serve = between.serve(prefix=cable.at(0))
        sites = [between.join(site, prefix=cable.at(1)) for site in "abc"]
        for process in (serve, *sites):
            between.end(process)
        compare(exp, between)
        assert cable.lost > 5
        print(f"\n{cable.packets} packets, {cable.lost} lost")  # noqa: T201


class Meter:
    """A plain TCP passage before the server that counts bytes both ways."""

    def __init__(self, port: int) -> None:
        self.port, self.bytes, self._to = free_port(), 0, port
        self._socket = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here = self._socket.accept()[0]
                try:
                    there = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    here.close()
                    continue
                for one, two in ((here, there), (there, here)):
                    threading.Thread(target=self._pass, args=(one, two), daemon=True).start()

    def _pass(self, one: socket.socket, two: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                self.bytes += len(data)
                two.sendall(data)
        for end in (one, two):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
                end.close()

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def metered(between: World) -> Iterator[Meter]:
    """Sites reach the server through a meter."""
    meter, real = Meter(between.port), between.port
    between.port = meter.port
    try:
        yield meter
    finally:
        between.port = real
        meter.close()


def test_what_a_round_costs_in_seconds_and_bytes(tmp_path: Path) -> None:
    """Sites with next to no work, and the net of CIFAR: payload against bytes on the wire, TLS and all."""
    work = ("client.epochs=1", "client.steps=1", "client.batch=2", "net=cifar-cnn", "train.rounds=6")
    exp = patient("fedsiam-d", *work, "method=fedavg", "train.evaluate_every=6")
    with world(tmp_path / "world", exp) as between:
        serve = between.serve()
        with metered(between) as meter:
            sites = [between.join(site) for site in "abc"]
            between.wait(lambda: len(between.rows()) >= 2, "two rounds")
            before, begun, done = meter.bytes, time.monotonic(), len(between.rows())
            for process in (serve, *sites):
                between.end(process)
            rows = between.rows()
            spent, payload = meter.bytes - before, sum(sum(row["bytes"].values()) for row in rows[done:])
        seconds = sorted(row["seconds"] for row in rows[1:])
        print(  # noqa: T201
            f"\nseconds a round {seconds[0]:.2f} to {seconds[-1]:.2f}, payload {payload:,} bytes, "
            f"on the wire {spent:,} ({spent / payload - 1:.2%} more), {time.monotonic() - begun:.0f} s"
        )
        assert spent < 1.03 * payload
