"""How much one side of a federation takes from the other: seen before it is read, and before it is unfolded.

Flower sends a message in pieces, and a large array as a list of pieces in which the same one may stand many times:
five megabytes on the wire could become as many terabytes in memory.
"""

import json
from collections.abc import Mapping

from semifed.engine.wire import LetterError

PIECE = 5 * 2**20
"""Bytes of an array in one piece, as Flower cuts it."""

LARGEST_PIECE = 8 * 2**20
"""Bytes of one request or answer: a piece with what goes around it."""


def pieces(content: bytes) -> list[str]:
    """The names of the pieces that an object from outside is made of, in order; none if it is no array."""
    from flwr.supercore.inflatable.inflatable_object import (  # noqa: PLC0415
        get_object_head_values_from_object_content,
    )

    kind, children, _ = get_object_head_values_from_object_content(content)
    if kind != "Array":
        return []
    try:
        return [children[place] for place in json.loads(content.partition(b"\0")[2])["arraychunk_ids"]]
    except (KeyError, IndexError, TypeError, RecursionError):
        raise ValueError("an array that does not say what it is made of") from None


def check_unfolded(contents: Mapping[str, bytes], limit: int) -> None:
    """Refuse a message whose arrays, put together, would be over a limit."""
    total = sum(len(contents[name]) for content in contents.values() for name in pieces(content))
    if total > limit:
        raise LetterError(f"the message unfolds into {total:,} bytes, over the limit of {limit:,}")
