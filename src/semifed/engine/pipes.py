"""Messages to and from worker processes: the bytes of nets are written and read as they lie, all else is pickled.

A pipe of `multiprocessing` copies what it sends four times on the way: of a large net it takes half as long as a step.
"""

import io
import sys
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

Bytes = bytes | bytearray


class _Bulk(NamedTuple):
    """Stands for bytes that follow."""

    place: int


def send(pipe: Connection, message: Any) -> None:
    """Send lists and tuples of anything; bytes that stand in several places are sent once."""
    bulk: dict[int, tuple[_Bulk, bytes]] = {}
    light = _without(message, bulk)
    pipe.send((light, [len(data) for _, data in bulk.values()]))
    for _, data in bulk.values():
        _write(pipe, data)


def receive(pipe: Connection) -> Any:
    """The next message; what stood in several places is one object again."""
    light, sizes = pipe.recv()
    return _with(light, [_read(pipe, size) for size in sizes])


def _without(message: Any, bulk: dict[int, tuple[_Bulk, bytes]]) -> Any:
    if isinstance(message, bytes) and message:
        return bulk.setdefault(id(message), (_Bulk(len(bulk)), message))[0]
    return type(message)(_without(one, bulk) for one in message) if type(message) in (list, tuple) else message


def _with(message: Any, bulk: list[Bytes]) -> Any:
    if isinstance(message, _Bulk):
        return bulk[message.place]
    return type(message)(_with(one, bulk) for one in message) if type(message) in (list, tuple) else message


def _write(pipe: Connection, data: bytes) -> None:
    if sys.platform == "win32":  # whose pipes are no files
        pipe.send_bytes(data)
        return
    file, rest = io.FileIO(pipe.fileno(), "wb", closefd=False), memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _read(pipe: Connection, size: int) -> Bytes:
    if sys.platform == "win32":
        return pipe.recv_bytes()
    data = bytearray(size)
    file, rest = io.FileIO(pipe.fileno(), "rb", closefd=False), memoryview(data)
    while rest:
        got = file.readinto(rest)
        if not got:
            raise EOFError
        rest = rest[got:]
    return data
