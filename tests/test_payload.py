"""Payloads: the bytes counted are the bytes sent, and what arrives is what was sent."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from semifed.params import expand_as
from semifed.payload import Partial, nbytes, pack, unpack

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def header(data: bytes) -> list[list[Any]]:
    length = int.from_bytes(data[4:12], "little")
    content: list[list[Any]] = json.loads(data[12 : 12 + length])
    return content


def bodies(data: bytes) -> int:
    return len(data) - 12 - int.from_bytes(data[4:12], "little")


def one(value: Tensor, sent: Tensor) -> dict[str, Any]:
    return {"part": Partial({"w": value}, {"w": sent})}


def assert_same(arrived: Any, sent: Any) -> None:
    """Equal trees; of a Partial what was sent is equal, and what was withheld is zero."""
    assert type(arrived) is type(sent)
    if isinstance(sent, Tensor):
        assert arrived.dtype == sent.dtype
        assert arrived.shape == sent.shape
        assert torch.equal(arrived, sent)
    elif isinstance(sent, Partial):
        assert_same(arrived.sent, sent.sent)
        masks = {name: expand_as(mask, sent.values[name]) for name, mask in sent.sent.items()}
        zeros = {name: torch.zeros_like(value) for name, value in sent.values.items()}
        assert_same(
            arrived.values, {name: value.where(masks[name], zeros[name]) for name, value in sent.values.items()}
        )
    else:
        assert list(arrived) == list(sent)
        for name, branch in sent.items():
            assert_same(arrived[name], branch)


def test_sizes_and_forms_by_hand() -> None:
    value = torch.arange(64.0).reshape(8, 8)
    none, few, half = (torch.zeros(8, 8, dtype=torch.bool) for _ in range(3))
    few[2, 5] = True
    half[:4] = True
    rows = torch.tensor([True] * 3 + [False] * 5)
    expected = {
        "whole": (value, 64 * 4),
        "scalar": (Partial({"w": value}, {"w": torch.tensor(True)}), 64 * 4),
        "withheld": (Partial({"w": value}, {"w": torch.tensor(False)}), 0),
        "none": (Partial({"w": value}, {"w": none}), 0),
        "index": (Partial({"w": value}, {"w": few}), 4 + 4),
        "bitmap": (Partial({"w": value}, {"w": half}), 64 // 8 + 32 * 4),
        "rows": (Partial({"w": value}, {"w": rows}), 1 + 3 * 8 * 4),
    }
    for name, (leaf, size) in expected.items():
        assert nbytes({"a": leaf}) == size, name
        assert bodies(pack({"a": leaf})) == size, name
    forms = [entry[3] for entry in header(pack({name: leaf for name, (leaf, _) in expected.items()}))]
    assert forms == ["whole", "whole", "nothing", "nothing", "index", "bitmap", "bitmap"]
    assert nbytes({name: leaf for name, (leaf, _) in expected.items()}) == sum(size for _, size in expected.values())


def test_the_bytes_of_a_message_are_fixed() -> None:
    entries = b'[[["net","w"],"int16",[2],"whole",4,null],[["p","q"],"uint8",[9],"bitmap",4,[9]]]'
    sent = torch.tensor([True, False, True, False, False, False, False, False, False])
    payload = {"net": {"w": torch.tensor([1, -2], dtype=torch.int16)}}
    partial = Partial({"q": torch.arange(7, 16, dtype=torch.uint8)}, {"q": sent})
    body = b"\x01\x00\xfe\xff" + b"\x05\x00" + b"\x07\x09"
    assert pack(payload | {"p": partial}) == b"SFP1" + len(entries).to_bytes(8, "little") + entries + body


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3, 4)], ids=str)
def test_every_type_and_shape_comes_back(dtype: str, shape: tuple[int, ...]) -> None:
    value = (torch.arange(24)[: torch.Size(shape).numel()] - 5).reshape(shape).to(getattr(torch, dtype))
    payload = {"a": value, "b": {"c": Partial({"w": value}, {"w": torch.tensor(False)})}}
    assert_same(unpack(pack(payload)), payload)


def test_strided_expanded_and_trained_tensors_are_sent_by_value() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    payload = {
        "strided": torch.arange(10)[::3],
        "turned": base.T,
        "expanded": torch.tensor(2.5).expand(4),
        "trained": torch.ones(3, requires_grad=True) * 2,
        "part": Partial({"w": base.T}, {"w": torch.tensor([True, False, True, False])}),
    }
    assert_same(unpack(pack(payload)), payload)


def test_a_mask_over_the_first_axes_stays_one() -> None:
    value, prefix = torch.arange(24).reshape(2, 3, 4), torch.tensor([[True, False, True], [False, True, False]])
    for sent in (prefix, prefix[:, :1], prefix[:1], prefix[0, 0], torch.tensor([[True, False, True]])):
        assert_same(unpack(pack(one(value, sent))), one(value, sent))
    hollow = one(torch.zeros(2, 0), torch.tensor([True, False]))
    assert_same(unpack(pack(hollow)), hollow)


def test_empty_branches_stay() -> None:
    payload = {"net": {}, "helpers": {"a": {}, "b": Partial({}, {})}, "x": torch.ones(1)}
    assert_same(unpack(pack(payload)), payload)
    assert nbytes(payload) == 4
    assert_same(unpack(pack({})), {})


def test_fill_takes_what_was_sent_and_the_rest_from_elsewhere() -> None:
    partial = Partial(
        {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([5.0])},
        {"a": torch.tensor([True, False]), "b": torch.tensor(False)},
    )
    filled = partial.fill({"a": torch.full((2, 2), 9.0), "b": torch.tensor([7.0])})
    assert filled["a"].tolist() == [[1, 2], [9, 9]]
    assert filled["b"].tolist() == [7]
    arrived: Partial = unpack(pack({"p": partial}))["p"]
    assert arrived.fill({"a": torch.full((2, 2), 9.0), "b": torch.tensor([7.0])})["a"].tolist() == [[1, 2], [9, 9]]


def test_what_is_no_payload_is_not_packed() -> None:
    with pytest.raises(TypeError, match="a payload is a dict, not Tensor"):
        pack(torch.ones(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a payload is a dict, not int"):
        pack({"a": 3})
    with pytest.raises(TypeError, match="text, not 3"):
        pack({"a": {3: torch.ones(1)}})
    with pytest.raises(TypeError, match=r"a/b: tensors of torch\.complex64"):
        nbytes({"a": {"b": torch.ones(1, dtype=torch.complex64)}})


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = getattr(torch, draw(st.sampled_from(DTYPES)))
    count = torch.Size(shape).numel()
    numbers = draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))
    return torch.tensor(numbers, dtype=torch.int64).to(dtype).reshape(shape)


@st.composite
def partials(draw: st.DrawFn) -> Partial:
    values = draw(st.dictionaries(st.text(max_size=3), tensors(), max_size=3))
    sent = {}
    for name, value in values.items():
        shape = [size if draw(st.booleans()) else 1 for size in value.shape[: draw(st.integers(0, value.dim()))]]
        count = torch.Size(shape).numel()
        chosen = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        sent[name] = torch.tensor(chosen, dtype=torch.bool).reshape(shape)
    return Partial(values, sent)


trees = st.recursive(tensors() | partials(), lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3))
payloads = st.dictionaries(st.text(max_size=3), trees, max_size=4)


@settings(max_examples=150, deadline=None)
@given(payload=payloads)
def test_any_payload_comes_back_in_as_many_bytes_as_counted(payload: dict[str, Any]) -> None:
    data = pack(payload)
    assert nbytes(payload) == bodies(data)
    assert_same(unpack(data), payload)
    assert pack(unpack(data)) == data
