"""What crosses the network: trees of tensors of which parts may be withheld, their size, and their bytes.

A payload is a dict, or dicts in dicts, with tensors and `Partial`s as leaves. `nbytes` counts the values and
masks that travel; the small header (names, types, shapes) is the same every round and is not counted.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semifed.errors import SemifedError
from semifed.params import Params, expand_as

Bytes = bytes | memoryview

_MAGIC = b"SFP1"
_LONGEST_HEADER = 2**22
_MOST_AXES = 16  # of a tensor, and names on the way to it
_DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_NOTHING = torch.zeros(0, dtype=torch.bool)


class PayloadError(SemifedError):
    """Bytes that are not a payload, or one that is larger than allowed."""


class Partial(NamedTuple):
    """Values of which only those under `sent` cross the network.

    ``sent[name]`` is a bool tensor that broadcasts from the left: a scalar sends or withholds a whole
    tensor, a mask of the same shape single entries. Shapes stay fixed whatever is sent.
    """

    values: Params
    sent: Params

    def fill(self, otherwise: Params) -> Params:
        """The values that were sent, and `otherwise` in the gaps."""
        return {
            name: torch.where(expand_as(self.sent[name], value), value, otherwise[name])
            for name, value in self.values.items()
        }


def nbytes(payload: Mapping[str, Any]) -> int:
    """How many bytes of values and masks a payload puts on the wire."""
    return sum(entry.size for entry in _walk(payload, ()))


def pack(payload: Mapping[str, Any]) -> bytes:
    """A payload as bytes: magic, header length, JSON header, then the values in order."""
    entries = list(_walk(payload, ()))
    header = json.dumps([entry.header() for entry in entries], separators=(",", ":")).encode()
    bodies = (piece for entry in entries for piece in entry.body())
    return b"".join([_MAGIC, len(header).to_bytes(8, "little"), header, *bodies])


def unpack(data: bytes, limit: int = 2**31) -> dict[str, Any]:
    """The payload in these bytes; nothing is allocated before its size is known to be within `limit`."""
    if len(data) > limit:
        raise PayloadError(f"a message of {len(data):,} bytes is over the limit of {limit:,}")
    heads, end = _read_header(data)
    pieces = memoryview(data)  # whose slices are no copies
    if sum(head.memory for head in heads) > limit:
        raise PayloadError(f"the tensors of the message are over the limit of {limit:,} bytes")
    tree: dict[str, Any] = {}
    for head in heads:
        piece = pieces[end : end + head.length]
        if len(piece) != head.length:
            raise PayloadError(f"the message is cut short inside {head.place}")
        end += head.length
        head.plant(tree, piece)
    if end != len(data):
        raise PayloadError(f"the message has {len(data) - end} bytes too many")
    return tree


def _read_header(data: bytes) -> tuple[list["_Head"], int]:
    """What a message announces, and where its values begin."""
    if len(data) < 12 or data[:4] != _MAGIC:
        raise PayloadError("the message is not a payload of this version")
    length = int.from_bytes(data[4:12], "little")
    if length > _LONGEST_HEADER:
        raise PayloadError(f"the header of the message has {length:,} bytes, more than {_LONGEST_HEADER:,}")
    if 12 + length > len(data):
        raise PayloadError("the message is cut short inside its header")
    try:
        heads = json.loads(data[12 : 12 + length].decode())
        if not isinstance(heads, list):
            raise ValueError("it is not a list")
        return [_Head.read(head) for head in heads], 12 + length
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise PayloadError(f"the header of the message cannot be read: {error}") from None


def _walk(payload: Mapping[str, Any], path: tuple[str, ...]) -> Iterator["_Entry"]:
    """Every tensor of a payload, and every branch that holds none."""
    if not isinstance(payload, Mapping):
        raise TypeError(f"a payload is a dict, not {type(payload).__name__}")
    for name, branch in payload.items():
        own = (*path, name)
        if not isinstance(name, str):
            raise TypeError(f"a name in a payload is text, not {name!r}")
        if isinstance(branch, Tensor):
            yield _Entry.of(own, branch, None)
        elif isinstance(branch, Partial):
            for inner, value in branch.values.items():
                yield _Entry.of((*own, inner), value, branch.sent[inner])
            if not branch.values:
                yield _Entry(own, _NOTHING, _NOTHING, "empty", 0)
        else:
            yield from _walk(branch, own)
            if not branch:
                yield _Entry(own, _NOTHING, None, "empty", 0)


class _Entry(NamedTuple):
    """One tensor on its way out, and how it is written: whole, nothing, or the values sent behind a bitmap or indices.

    A branch without tensors is written too, as "empty", so that what arrives has the shape of what was sent.
    """

    path: tuple[str, ...]
    value: Tensor
    sent: Tensor | None  # of a Partial
    form: str
    size: int

    @staticmethod
    def of(path: tuple[str, ...], value: Tensor, sent: Tensor | None) -> "_Entry":
        if value.dtype not in _NAMES:
            raise TypeError(f"{'/'.join(path)}: tensors of {value.dtype} cannot be sent")
        if sent is None or bool(sent.all()):
            return _Entry(path, value, sent, "whole", value.numel() * value.element_size())
        chosen = int(sent.count_nonzero())
        if not chosen:
            return _Entry(path, value, sent, "nothing", 0)
        values = chosen * (value.numel() // sent.numel()) * value.element_size()
        bitmap, index = -(-sent.numel() // 8), 4 * chosen
        if index < bitmap and sent.numel() < 2**31:
            return _Entry(path, value, sent, "index", index + values)
        return _Entry(path, value, sent, "bitmap", bitmap + values)

    def header(self) -> list[Any]:
        sent = None if self.sent is None else list(self.sent.shape)
        return [list(self.path), _NAMES[self.value.dtype], list(self.value.shape), self.form, self.size, sent]

    def body(self) -> Iterator[Bytes]:
        if self.sent is None or self.form in ("whole", "nothing", "empty"):
            yield _bytes(self.value) if self.form == "whole" else b""
            return
        flat = self.sent.flatten()
        yield _bytes(flat.nonzero()[:, 0].to(torch.int32)) if self.form == "index" else _bits(flat)
        yield _bytes(self.value.flatten()[expand_as(self.sent, self.value).expand_as(self.value).flatten()])


class _Head(NamedTuple):
    """One tensor as the header of a message announces it, checked before anything is made."""

    path: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    form: str
    length: int
    sent: tuple[int, ...] | None  # the shape of a Partial's mask

    @property
    def place(self) -> str:
        return repr("/".join(self.path))[:80]

    @property
    def memory(self) -> int:
        """How many bytes the tensor and its mask take at most; an axis of length 0 does not hide the others."""
        return math.prod(max(size, 1) for size in self.shape) * (self.dtype.itemsize + (self.sent is not None))

    @staticmethod
    def read(head: Any) -> "_Head":
        path, dtype, shape, form, length, sent = head
        mask = [] if sent is None else sent
        if not all(isinstance(one, list) and len(one) <= _MOST_AXES for one in (head, path, shape, mask)):
            raise ValueError(f"an entry is malformed: {str(head)[:80]}")
        if len(path) < 1 + (sent is not None and form != "empty") or not all(isinstance(name, str) for name in path):
            raise ValueError(f"an entry has no name: {str(head)[:80]}")
        if not all(type(size) is int and 0 <= size < 2**40 for size in [*shape, *mask, length]):
            raise ValueError(f"an entry has an impossible size: {str(head)[:80]}")
        if len(mask) > len(shape) or not all(one in (1, size) for one, size in zip(mask, shape, strict=False)):
            raise ValueError(f"an entry has an impossible mask: {str(head)[:80]}")
        if form not in ("whole", "nothing", "empty", *(("index", "bitmap") if mask else ())):
            raise ValueError(f"an entry has an impossible form: {str(head)[:80]}")
        return _Head(tuple(path), _DTYPES[dtype], tuple(shape), form, length, None if sent is None else tuple(sent))

    def plant(self, tree: dict[str, Any], piece: Bytes) -> None:
        """Put what the bytes hold where the path says."""
        if self.form == "empty" and not piece:
            _plant(tree, self.path, {} if self.sent is None else Partial({}, {}))
            return
        value, sent = self.read_body(piece)
        if self.sent is None:
            _plant(tree, self.path, value)
        else:
            _plant_partial(tree, self.path, value, sent)

    def read_body(self, piece: Bytes) -> tuple[Tensor, Tensor]:
        """The value with zeros in the gaps, and what was sent."""
        if self.form not in ("index", "bitmap"):
            if self.length != (math.prod(self.shape) * self.dtype.itemsize if self.form == "whole" else 0):
                raise PayloadError(f"{self.place} has {self.length} bytes, which its shape does not fit")
            # What was withheld takes no memory, whatever shape it claims to have.
            value = self._values(piece) if piece else torch.zeros((), dtype=self.dtype).expand(self.shape)
            return value.reshape(self.shape), torch.full(self.sent or (), self.form == "whole")
        mask, rest = self._mask(piece)
        each = math.prod(self.shape) // max(mask.numel(), 1)
        if len(rest) != int(mask.sum()) * each * self.dtype.itemsize:
            raise PayloadError(f"{self.place} has not as many values as its mask says")
        value = torch.zeros(self.shape, dtype=self.dtype)
        value.view(-1)[expand_as(mask, value).expand_as(value).flatten()] = self._values(rest)
        return value, mask

    def _mask(self, piece: Bytes) -> tuple[Tensor, Bytes]:
        count = math.prod(self.sent or ())
        if self.form == "bitmap":
            length = -(-count // 8)
            if len(piece) < length:
                raise PayloadError(f"{self.place} is shorter than its mask")
            bits = _tensor(piece[:length], torch.uint8)[:, None] >> torch.arange(8, dtype=torch.uint8)
            return (bits.flatten()[:count] & 1).bool().reshape(self.sent or ()), piece[length:]
        each = math.prod(self.shape) // max(count, 1) * self.dtype.itemsize
        entries = len(piece) // (4 + each)
        index = _tensor(piece[: 4 * entries], torch.int32).long()
        if entries and not (int(index[0]) > -1 and int(index[-1]) < count and bool((index.diff() > 0).all())):
            raise PayloadError(f"{self.place} has indices outside its shape or out of order")
        mask = torch.zeros(count, dtype=torch.bool)
        mask[index] = True
        return mask.reshape(self.sent or ()), piece[4 * entries :]

    def _values(self, data: Bytes) -> Tensor:
        values = _tensor(data, self.dtype)
        if self.dtype is torch.bool and bool((values.view(torch.uint8) > 1).any()):
            raise PayloadError(f"{self.place} has bytes that are neither true nor false")
        return values


def _plant(tree: dict[str, Any], path: tuple[str, ...], leaf: Any) -> None:
    """Put a leaf where its path says."""
    *branches, name = path
    for branch in branches:
        tree = tree.setdefault(branch, {})
        if type(tree) is not dict:
            break
    if type(tree) is not dict or name in tree:
        raise PayloadError(f"{repr('/'.join(path))[:80]} stands twice in the message")
    tree[name] = leaf


def _plant_partial(tree: dict[str, Any], path: tuple[str, ...], value: Tensor, sent: Tensor) -> None:
    """Put a tensor into the Partial that its path leads to, which its first tensor makes."""
    *branches, name = path
    node: Any = tree
    for branch in branches:
        node = node.get(branch) if type(node) is dict else None
    if not isinstance(node, Partial):
        node = Partial({}, {})
        _plant(tree, tuple(branches), node)
    if name in node.values:
        raise PayloadError(f"{repr('/'.join(path))[:80]} stands twice in the message")
    node.values[name], node.sent[name] = value, sent


def _bytes(tensor: Tensor) -> Bytes:
    """The values as they lie in memory; no copy where they are on the CPU and in order."""
    return tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().data if tensor.numel() else b""


def _tensor(data: Bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _bits(mask: Tensor) -> Bytes:
    padded = torch.zeros(-(-mask.numel() // 8) * 8, dtype=torch.uint8)
    padded[: mask.numel()] = mask
    return _bytes((padded.reshape(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(1).to(torch.uint8))
