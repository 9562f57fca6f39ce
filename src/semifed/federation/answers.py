"""A site's view of the server's answers: none is read that is too large, compressed, or leads elsewhere."""

from collections.abc import Iterator

import httpx

from semifed.engine.wire import LetterError
from semifed.federation.bounds import LARGEST_PIECE


def be_careful(client: httpx.Client, direct: bool = False) -> None:
    """Have a client look at every answer before it is read; if `direct`, it uses no proxy of the environment."""
    if direct:
        client._mounts.clear()
    client.event_hooks, client.follow_redirects = {"response": [check_answer]}, False
    client.headers["accept-encoding"] = "identity"


def check_answer(response: httpx.Response) -> None:
    """Refuse an answer that is too large before it is read; one without a length is counted as it comes."""
    length = response.headers.get("content-length", "")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise LetterError("the server's answer is compressed, which nobody asked for")
    if length.isdigit() and int(length) > LARGEST_PIECE:
        raise LetterError(f"an answer of {int(length):,} bytes is over the limit of {LARGEST_PIECE:,}")
    if isinstance(response.stream, httpx.SyncByteStream):
        response.stream = _Counted(response.stream)


class _Counted(httpx.SyncByteStream):
    """The bytes of an answer, as long as there are not too many."""

    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        total = 0
        for data in self._stream:
            total += len(data)
            if total > LARGEST_PIECE:
                raise LetterError(f"an answer is over the limit of {LARGEST_PIECE:,} bytes")
            yield data

    def close(self) -> None:
        self._stream.close()
