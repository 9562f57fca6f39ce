"""What crosses the network: trees of tensors of which parts may be withheld, their size, and their bytes.

A payload is a tree of dicts with tensors and `Partial`s as leaves. `nbytes` counts the values and masks
that travel; the small header (names, types, shapes) is the same every round and is not counted.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semifed.errors import SemifedError
from semifed.params import Params, expand_as

_MAGIC = b"SFP1"
_DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


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


def nbytes(payload: Any) -> int:
    """How many bytes of values and masks a payload puts on the wire."""
    return sum(_Entry.of(path, value, sent).size for path, value, sent in _walk(payload, ()))


def pack(payload: Any) -> bytes:
    """A payload as bytes: magic, header length, JSON header, then the values in order."""
    entries = [_Entry.of(path, value, sent) for path, value, sent in _walk(payload, ())]
    header = json.dumps([entry.header() for entry in entries], separators=(",", ":")).encode()
    return b"".join([_MAGIC, len(header).to_bytes(8, "little"), header, *(entry.body() for entry in entries)])


def unpack(data: bytes, limit: int = 2**31) -> Any:
    """The payload in these bytes; nothing is allocated before its size is known to be within `limit`."""
    if len(data) > limit:
        raise PayloadError(f"a message of {len(data):,} bytes is over the limit of {limit:,}")
    if len(data) < 12 or data[:4] != _MAGIC:
        raise PayloadError("the message is not a payload of this version")
    end = 12 + int.from_bytes(data[4:12], "little")
    if end > len(data):
        raise PayloadError("the message is cut short inside its header")
    try:
        heads = json.loads(data[12:end])
        entries = [_Head.read(head) for head in heads]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise PayloadError(f"the header of the message cannot be read: {error}") from None
    if sum(math.prod(entry.shape) * entry.dtype.itemsize for entry in entries) > limit:
        raise PayloadError(f"the tensors of the message are over the limit of {limit:,} bytes")
    tree: dict[str, Any] = {}
    partials: dict[tuple[str, ...], Partial] = {}
    for entry in entries:
        piece = data[end : end + entry.length]
        if len(piece) != entry.length:
            raise PayloadError(f"the message is cut short inside {entry.place}")
        end += entry.length
        value, sent = entry.read_body(piece)
        if entry.sent is None:
            _plant(tree, entry.path, value)
            continue
        parent, name = entry.path[:-1], entry.path[-1]
        if parent not in partials:
            partials[parent] = Partial({}, {})
            _plant(tree, parent, partials[parent])
        partials[parent].values[name], partials[parent].sent[name] = value, sent
    if end != len(data):
        raise PayloadError(f"the message has {len(data) - end} bytes too many")
    return tree


def _walk(payload: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor, Tensor | None]]:
    if isinstance(payload, Partial):
        for name, value in payload.values.items():
            yield (*path, name), value, payload.sent[name]
    elif isinstance(payload, Mapping):
        for name, branch in payload.items():
            yield from _walk(branch, (*path, name))
    else:
        yield path, payload, None


class _Entry(NamedTuple):
    """One tensor on its way out, and how it is written: whole, nothing, a bitmap or indices and the values sent."""

    path: tuple[str, ...]
    value: Tensor
    mask: Tensor | None  # of the value's shape, only for bitmap and index
    sent: Tensor | None  # of a Partial
    form: str
    size: int

    @staticmethod
    def of(path: tuple[str, ...], value: Tensor, sent: Tensor | None) -> "_Entry":
        whole = value.numel() * value.element_size()
        if sent is None or bool(sent.all()):
            return _Entry(path, value, None, sent, "whole", whole)
        if not bool(sent.any()):
            return _Entry(path, value, None, sent, "nothing", 0)
        mask = expand_as(sent, value).expand_as(value)
        values = int(mask.sum()) * value.element_size()
        bitmap, index = -(-value.numel() // 8) + values, 4 * int(mask.sum()) + values
        if index < bitmap and value.numel() < 2**31:
            return _Entry(path, value, mask, sent, "index", index)
        return _Entry(path, value, mask, sent, "bitmap", bitmap)

    def header(self) -> list[Any]:
        sent = None if self.sent is None else self.sent.dim()
        return [list(self.path), _NAMES[self.value.dtype], list(self.value.shape), self.form, self.size, sent]

    def body(self) -> bytes:
        if self.mask is None:
            return _bytes(self.value) if self.form == "whole" else b""
        flat = self.mask.flatten()
        where = _bytes(flat.nonzero()[:, 0].to(torch.int32)) if self.form == "index" else _bits(flat)
        return where + _bytes(self.value.flatten()[flat])


class _Head(NamedTuple):
    """One tensor as the header of a message announces it, checked before anything is made."""

    path: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    form: str
    length: int
    sent: int | None  # how many axes the mask of a Partial has

    @property
    def place(self) -> str:
        return "/".join(self.path)

    @staticmethod
    def read(head: Any) -> "_Head":
        path, dtype, shape, form, length, sent = head
        if not path or not all(isinstance(name, str) for name in path) or len(path) < 1 + (sent is not None):
            raise ValueError(f"an entry has no name: {str(head)[:80]}")
        if form not in ("whole", "nothing", "index", "bitmap"):
            raise ValueError(f"an entry is malformed: {str(head)[:80]}")
        sizes = [*shape, length]
        if len(shape) > 8 or not all(isinstance(size, int) and 0 <= size < 2**40 for size in sizes):
            raise ValueError(f"an entry has an impossible shape: {str(head)[:80]}")
        if sent is not None and not (isinstance(sent, int) and 0 <= sent <= len(shape)):
            raise ValueError(f"an entry has an impossible mask: {str(head)[:80]}")
        return _Head(tuple(path), _DTYPES[dtype], tuple(shape), form, length, sent)

    def read_body(self, piece: bytes) -> tuple[Tensor, Tensor]:
        """The value with zeros in the gaps, and what was sent."""
        count, item = math.prod(self.shape), self.dtype.itemsize
        if self.form in ("whole", "nothing"):
            if self.length != (count * item if self.form == "whole" else 0):
                raise PayloadError(f"{self.place} has {self.length} bytes, which its shape does not fit")
            value = _tensor(piece, self.dtype) if self.form == "whole" else torch.zeros(count, dtype=self.dtype)
            return value.reshape(self.shape), torch.full(self.shape[: self.sent or 0], self.form == "whole")
        mask, rest = self._mask(piece, count)
        values = _tensor(rest, self.dtype) if len(rest) % item == 0 else torch.empty(0)
        if len(rest) % item or len(values) != int(mask.sum()):
            raise PayloadError(f"{self.place} has not as many values as its mask says")
        value = torch.zeros(count, dtype=self.dtype)
        value[mask] = values
        kept = self.shape[: self.sent or 0]
        return value.reshape(self.shape), mask.reshape(*kept, -1)[..., 0]

    def _mask(self, piece: bytes, count: int) -> tuple[Tensor, bytes]:
        if self.form == "bitmap":
            length = -(-count // 8)
            if len(piece) < length:
                raise PayloadError(f"{self.place} is shorter than its mask")
            bits = (_tensor(piece[:length], torch.uint8)[:, None] >> torch.arange(8)) & 1
            return bits.flatten()[:count].bool(), piece[length:]
        entries, left = divmod(len(piece), 4 + self.dtype.itemsize)
        index = _tensor(piece[: 4 * entries], torch.int32).long()
        mask = torch.zeros(count, dtype=torch.bool)
        if left or (entries and not 0 <= int(index.min()) <= int(index.max()) < count):
            raise PayloadError(f"{self.place} has indices outside its shape")
        mask[index] = True
        return mask, piece[4 * entries :]


def _plant(tree: dict[str, Any], path: tuple[str, ...], leaf: Any) -> None:
    """Put a leaf where its path says."""
    *branches, name = path
    for branch in branches:
        tree = tree.setdefault(branch, {})
        if type(tree) is not dict:
            break
    if type(tree) is not dict or name in tree:
        raise PayloadError(f"{'/'.join(path)} stands twice in the message")
    tree[name] = leaf


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _tensor(data: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _bits(mask: Tensor) -> bytes:
    padded = torch.zeros(-(-mask.numel() // 8) * 8, dtype=torch.uint8)
    padded[: mask.numel()] = mask
    return _bytes((padded.reshape(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(1).to(torch.uint8))
