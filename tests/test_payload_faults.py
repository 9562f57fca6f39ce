"""Bytes that are no payload: always refused with the reason, never a crash, never a large allocation."""

import json
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from semifed.payload import Partial, PayloadError, pack, unpack


def message(entries: Any, body: bytes = b"") -> bytes:
    head = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return b"SFP1" + len(head).to_bytes(8, "little") + head + body


def sample() -> bytes:
    few = torch.zeros(100, dtype=torch.bool)
    few[[3, 70]] = True
    return pack(
        {
            "net": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(7), "f": torch.tensor([True, False])},
            "a": Partial({"x": torch.arange(100), "y": torch.ones(9)}, {"x": few, "y": torch.arange(9) > 3}),
            "e": {},
        }
    )


def test_every_cut_is_refused() -> None:
    data = sample()
    for length in range(len(data)):
        with pytest.raises(PayloadError):
            unpack(data[:length])
    with pytest.raises(PayloadError, match="1 bytes too many"):
        unpack(data + b"\0")


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_are_refused_or_read_but_never_crash(changes: list[tuple[int, int]]) -> None:
    data = bytearray(sample())
    for place, flip in changes:
        data[place % len(data)] ^= flip
    try:
        unpack(bytes(data), limit=10**6)
    except PayloadError:
        return


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: b"SFP1" + tail))
def test_random_bytes_are_refused(data: bytes) -> None:
    if data != b"SFP1\x02" + bytes(7) + b"[]":
        with pytest.raises(PayloadError):
            unpack(data)


sizes = st.integers(-1, 9) | st.sampled_from([2**31, 2**40, 2**63, 2**64, True, 1.5, None, "3"])
entries = st.tuples(
    st.lists(st.sampled_from(["a", "b", "c", "", 3]), max_size=3) | st.sampled_from(["abc", None, {}]),
    st.sampled_from(["float32", "uint8", "bool", "complex64", None, ["x"]]),
    st.lists(sizes, max_size=4) | st.sampled_from([None, "12", {}]),
    st.sampled_from(["whole", "nothing", "index", "bitmap", "empty", "zip", None, ["x"]]),
    sizes,
    st.none() | st.lists(sizes, max_size=4) | st.sampled_from([2, "", {}]),
)


@settings(max_examples=300, deadline=None)
@given(
    heads=st.lists(entries.map(list), max_size=3) | st.sampled_from([{}, 3, None, [3], ["abcdef"], [{}]]),
    body=st.binary(max_size=40),
)
def test_any_header_is_refused_or_read_but_never_crashes(heads: Any, body: bytes) -> None:
    try:
        unpack(message(heads, body), limit=10**6)
    except PayloadError:
        return


def entry(path: list[str], shape: list[int], form: str, length: int, sent: Any = None, dtype: str = "uint8") -> Any:
    return [path, dtype, shape, form, length, sent]


@pytest.mark.parametrize(
    ("entries", "body", "problem"),
    [
        ([entry(["a"], [2], "whole", 3)], bytes(3), "'a' has 3 bytes, which its shape does not fit"),
        ([entry(["a"], [2], "nothing", 2)], bytes(2), "'a' has 2 bytes"),
        ([entry(["a"], [2], "empty", 2)], bytes(2), "'a' has 2 bytes"),
        ([entry([], [2], "whole", 2)], bytes(2), "no name"),
        ([entry(["a"], [2], "nothing", 0, [])], b"", "no name"),
        ([entry(["a"] * 17, [2], "whole", 2)], bytes(2), "malformed"),
        ([entry(["a"], [1] * 17, "whole", 1)], bytes(1), "malformed"),
        ([entry(["a"], [2], "bitmap", 1)], bytes(1), "impossible form"),
        ([entry(["a", "b"], [2], "index", 0, [])], b"", "impossible form"),
        ([entry(["a", "b"], [4], "bitmap", 1, [3])], bytes(1), "impossible mask"),
        ([entry(["a", "b"], [2], "bitmap", 1, [2, 1])], bytes(1), "impossible mask"),
        ([entry(["a", "b"], [20], "bitmap", 2, [20])], bytes(2), "shorter than its mask"),
        ([entry(["a", "b"], [8], "bitmap", 2, [8])], b"\xff\x01", "not as many values"),
        ([entry(["a", "b"], [8], "index", 5, [8])], b"\x08\0\0\0\x01", "outside its shape"),
        ([entry(["a", "b"], [8], "index", 5, [8])], b"\xff\xff\xff\xff\x01", "outside its shape"),
        ([entry(["a", "b"], [8], "index", 10, [8])], b"\x02\0\0\0\x01\0\0\0\x05\x05", "out of order"),
        ([entry(["a", "b"], [8], "index", 10, [8])], b"\x02\0\0\0\x02\0\0\0\x05\x05", "out of order"),
        ([entry(["a", "b"], [8], "index", 6, [8])], b"\x02\0\0\0\x05\x05", "not as many values"),
        ([entry(["a"], [1], "whole", 1, dtype="bool")], b"\x02", "neither true nor false"),
        ([entry(["a"], [1], "whole", 1)] * 2, b"\x02\x02", "'a' stands twice"),
        ([entry(["a", "b"], [1], "nothing", 0, [])] * 2, b"", "'a/b' stands twice"),
        ([entry(["a"], [1], "nothing", 0), entry(["a", "b"], [1], "nothing", 0)], b"", "'a/b' stands twice"),
        ([entry(["a", "b"], [1], "nothing", 0), entry(["a"], [1], "nothing", 0)], b"", "'a' stands twice"),
        ([entry(["a", "b"], [1], "nothing", 0, []), entry(["a", "c"], [1], "nothing", 0)], b"", "'a/c' stands twice"),
        ([entry(["a", "c"], [1], "nothing", 0), entry(["a", "b"], [1], "nothing", 0, [])], b"", "'a' stands twice"),
        (b"[" * 100_000, b"", "cannot be read"),
        (b"\xff\xfe", b"", "cannot be read"),
        (b"[" + b"9" * 5000 + b"]", b"", "cannot be read"),
    ],
)
def test_malformed_messages_are_refused_with_the_reason(entries: Any, body: bytes, problem: str) -> None:
    with pytest.raises(PayloadError, match=problem):
        unpack(message(entries, body))


def test_another_version_is_not_read() -> None:
    with pytest.raises(PayloadError, match="not a payload of this version"):
        unpack(b"SFP2" + sample()[4:])


def test_absurd_sizes_are_refused_before_anything_is_made() -> None:
    huge: list[Any] = [
        entry(["a"], [2**39], "nothing", 0),
        entry(["a"], [2**39, 2**39, 0], "nothing", 0),
        entry(["a"], [2**30] * 16, "nothing", 0),
        entry(["a", "b"], [2**39], "index", 0, [2**39]),
        entry(["a"], [2**40], "nothing", 0),
    ]
    tracemalloc.start()
    try:
        for head in huge:
            with pytest.raises(PayloadError, match=r"limit of 2,147,483,648 bytes|impossible size"):
                unpack(message([head]))
        with pytest.raises(PayloadError, match="bytes, more than 4,194,304"):
            unpack(b"SFP1" + b"\xff" * 8 + b"[]")
        with pytest.raises(PayloadError, match="of 200 bytes is over the limit of 100"):
            unpack(bytes(200), limit=100)
        with pytest.raises(PayloadError, match="over the limit of 300 bytes"):
            unpack(
                pack({"a": torch.zeros(40), "b": torch.zeros(40)})[:0] + message([entry(["a"], [400], "nothing", 0)]),
                300,
            )
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_what_was_withheld_takes_no_memory() -> None:
    value: Tensor = unpack(message([entry(["a", "b"], [2**29], "nothing", 0, [])]))["a"].values["b"]
    assert value.shape == (2**29,)
    assert value.untyped_storage().nbytes() == 1


def test_names_of_a_stranger_are_quoted_in_the_reason() -> None:
    with pytest.raises(PayloadError) as caught:
        unpack(message([entry(["line\nbreak \x1b[31m"], [2], "whole", 3)], bytes(3)))
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
