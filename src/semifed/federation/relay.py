"""The ServerApp that Flower starts: it passes letters between the serving process and Flower's grid, nothing else.

The round loop lives in `semifed serve`, so it outlives this process and the SuperLink.
"""

import os
import socket
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from semifed.federation import frames

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:  # noqa: ARG001 - Flower passes both
    """Do what the serving process asks, until it is gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(os.environ["SEMIFED_RELAY"])
        while frame := frames.receive(connection):
            head, blobs = frame
            try:
                answer, out = _do(grid, head, blobs)
            except Exception as error:  # whatever it is, the serving process decides what comes of it
                answer, out = {"error": f"{type(error).__name__}: {error}"}, []
            frames.send(connection, answer, out)


def _do(grid: Grid, head: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    if head["do"] == "nodes":
        return {"nodes": list(grid.get_node_ids())}, []
    if head["do"] == "send":
        messages = [
            Message(letter_record(text, blobs[blob]), node, "train", ttl=head["seconds"])
            for node, text, blob in head["letters"]
        ]
        return {"receipts": list(grid.push_messages(messages))}, []
    return _collect(grid, head["receipts"])


def _collect(grid: Grid, receipts: list[str]) -> tuple[dict[str, Any], list[bytes]]:
    """Replies one by one, so that one which cannot be read does not hide the others."""
    found: dict[str, Any] = {}
    blobs: list[bytes] = []
    for receipt in receipts:
        try:
            for message in grid.pull_messages([receipt]):
                if message.has_error():
                    found[receipt] = {"lost": f"{message.error.reason}"}
                else:
                    text, body = read_record(message.content)
                    found[receipt] = {"text": text, "blob": len(blobs)}
                    blobs.append(body)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, UnicodeError) as error:
            found[receipt] = {"garbled": f"{type(error).__name__}: {error}"[:200]}
    return {"found": found}, blobs


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
