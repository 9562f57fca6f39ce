"""Frames over a local socket: a JSON head and the bytes of several blobs, between this process and Flower's."""

import json
import socket
from collections.abc import Sequence
from typing import Any

_LONGEST_HEAD = 2**26


def send(connection: socket.socket, head: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Write one frame."""
    text = json.dumps({"head": head, "sizes": [len(blob) for blob in blobs]}).encode()
    connection.sendall(len(text).to_bytes(4, "big") + text)
    for blob in blobs:
        connection.sendall(blob)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[bytes]] | None:
    """Read one frame; None if the other side is gone."""
    start = _read(connection, 4)
    if start is None:
        return None
    length = int.from_bytes(start, "big")
    if length > _LONGEST_HEAD:
        raise ConnectionError("a frame that is none")
    text = _read(connection, length)
    if text is None:
        return None
    frame = json.loads(text)
    blobs = [_read(connection, size) for size in frame["sizes"]]
    if any(blob is None for blob in blobs):
        return None
    return frame["head"], [blob for blob in blobs if blob is not None]


def _read(connection: socket.socket, count: int) -> bytes | None:
    data, place = bytearray(count), 0
    view = memoryview(data)
    while place < count:
        got = connection.recv_into(view[place:])
        if not got:
            return None
        place += got
    return bytes(data)
