"""What is sent to a worker process arrives, however large it is, and once."""

import multiprocessing
import os
import threading
from typing import Any

import pytest

from semifed.engine.pipes import receive, send

LARGE = os.urandom(3_000_000)  # more than a pipe holds
OTHER = os.urandom(70_000)


def sent(message: Any) -> Any:
    here, there = multiprocessing.Pipe()
    sender = threading.Thread(target=send, args=(here, message))
    sender.start()
    try:
        return receive(there)
    finally:
        sender.join()
        here.close()
        there.close()


def test_bytes_arrive_in_their_places_among_all_else() -> None:
    message = (3, [(1, LARGE, b"", 2), (5, OTHER, b"x", 7)], {"notes": [1.5, "text"]})
    assert sent(message) == message


def test_what_stands_in_several_places_is_sent_once() -> None:
    chunk = sent([(0, LARGE, b"", 1), (1, LARGE, OTHER, 1)])
    assert chunk[0][1] is chunk[1][1]
    assert chunk == [(0, LARGE, b"", 1), (1, LARGE, OTHER, 1)]


def test_errors_arrive_too() -> None:
    error = sent(ValueError("why"))
    assert isinstance(error, ValueError)
    assert error.args == ("why",)


def test_a_process_that_is_gone_in_the_middle_is_an_end() -> None:
    here, there = multiprocessing.Pipe()

    def begin() -> None:
        here.send(([None], [len(LARGE)]))
        os.write(here.fileno(), LARGE[:1000])
        here.close()

    sender = threading.Thread(target=begin)
    sender.start()
    with pytest.raises(EOFError):
        receive(there)
    sender.join()
    there.close()
