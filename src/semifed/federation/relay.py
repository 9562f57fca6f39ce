"""The ServerApp that Flower starts: it passes letters between the serving process and Flower's grid, nothing else.

The round loop lives in `semifed serve`, so it outlives this process and the SuperLink.
"""

import os
import socket
import threading
from collections.abc import Collection
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from semifed.federation import frames

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:  # noqa: ARG001 - Flower passes both
    """Do what the serving process asks, until it is gone."""
    replies = Replies(grid)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(os.environ["SEMIFED_RELAY"])
        while frame := frames.receive(connection):
            head, blobs = frame
            try:
                answer, out = _do(grid, replies, head, blobs)
            except Exception as error:  # whatever it is, the serving process decides what comes of it
                answer, out = {"error": f"{type(error).__name__}: {error}"}, []
            frames.send(connection, answer, out)


def _do(grid: Grid, replies: "Replies", head: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    if head["do"] == "nodes":
        return {"nodes": list(grid.get_node_ids())}, []
    if head["do"] == "send":
        messages = [
            Message(letter_record(text, blobs[blob]), node, "train", ttl=head["seconds"])
            for node, text, blob in head["letters"]
        ]
        return {"receipts": list(grid.push_messages(messages))}, []
    return replies.collect(head["receipts"])


class Reply(NamedTuple):
    """What became of a receipt; `said` is None if there is nothing yet."""

    said: dict[str, Any] | None
    body: bytes = b""


class Replies:
    """Replies on their way in, each fetched by itself.

    Flower waits for minutes, and for hours if it is kept waiting, for the pieces of a reply whose sender was lost
    halfway; that must hold up nobody else, nor the server past its deadline.
    """

    def __init__(self, grid: Grid, patience: float = 1.0) -> None:
        self._grid, self._patience = grid, patience
        self._fetching: dict[str, Future[Reply]] = {}

    def collect(self, receipts: Collection[str]) -> tuple[dict[str, Any], list[bytes]]:
        """What has come for these receipts; what is still under way is there the next time."""
        for receipt in receipts:
            if receipt not in self._fetching:
                self._fetching[receipt] = _in_thread(self._grid, receipt)
        wait([self._fetching[receipt] for receipt in receipts], self._patience)
        found: dict[str, Any] = {}
        blobs: list[bytes] = []
        for receipt in [one for one, future in self._fetching.items() if future.done()]:
            reply = self._fetching.pop(receipt).result()
            if reply.said is not None and receipt in receipts:
                found[receipt] = {**reply.said, "blob": len(blobs)}
                blobs.append(reply.body)
        return {"found": found}, blobs


def _in_thread(grid: Grid, receipt: str) -> "Future[Reply]":
    future: Future[Reply] = Future()

    def run() -> None:
        try:
            future.set_result(_fetch(grid, receipt))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="reply", daemon=True).start()
    return future


def _fetch(grid: Grid, receipt: str) -> Reply:
    """One reply; one that cannot be read hides no other, but a link that is broken is an error for all."""
    try:
        for message in grid.pull_messages([receipt]):
            if message.has_error():
                return Reply({"lost": f"{message.error.reason}"})
            text, body = read_record(message.content)
            return Reply({"text": text}, body)
    except Exception as error:  # a site may send anything, and every reader has errors of its own
        if isinstance(error, OSError) or type(error).__module__.split(".")[0] in ("httpx", "httpcore", "grpc"):
            raise
        return Reply({"garbled": f"{type(error).__name__}: {error}"[:200]})
    return Reply(None)


def letter_record(text: str, body: bytes) -> RecordDict:
    """A letter as Flower's record; the body is an array, which travels in pieces of 5 MB."""
    array = Array("uint8", (len(body),), "semifed", body)
    return RecordDict({"head": ConfigRecord({"json": text}), "body": ArrayRecord({"bytes": array})})


def read_record(record: RecordDict) -> tuple[str, bytes]:
    """The letter in a record from outside."""
    text, array = record.config_records["head"]["json"], record.array_records["body"]["bytes"]
    if not isinstance(text, str) or not isinstance(array.data, bytes):
        raise TypeError("not a letter")
    return text, array.data
