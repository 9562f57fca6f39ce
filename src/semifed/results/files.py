"""The files of a run: whole or not there, and known by a checksum."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from semifed import writing
from semifed.errors import RunError
from semifed.params import Params


def write_whole(path: Path, data: bytes) -> None:
    """Write a file of a run's folder, which nobody else writes to, so that it never exists in part."""
    try:
        writing.write_whole(path, data, path.with_name(f"{path.name}.partial"))
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}; nothing that was there is lost") from None


def move(path: Path, target: Path) -> None:
    """Give a file another name, in place of what had it before."""
    try:
        path.replace(target)
    except OSError as error:
        raise RunError(f"{path}: cannot be renamed to {target.name}: {error.strerror}; nothing is lost") from None


def write_json(path: Path, content: Any) -> None:
    """Write a readable JSON file; a name that is not UTF-8 is written with JSON's own escapes."""
    write_whole(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace"))


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, types, shapes and values, whatever the order."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(safetensors.torch.save({"": tensor.clone()}))
    return total.hexdigest()


def write_tensors(path: Path, tensors: Params, facts: Mapping[str, str]) -> None:
    """Write tensors and facts about them, with a checksum of both.

    The order of the names is a fact too, since the format has its own: sums over a net's parameters, such as
    the norm of a gradient, are the same to the last bit only in the same order.
    """
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    all_facts = {**facts, "names": json.dumps(list(own))}
    write_whole(path, safetensors.torch.save(own, {**all_facts, "sha256": _seal(own, all_facts)}))


def _seal(tensors: Params, facts: Mapping[str, str]) -> str:
    plain = json.dumps(dict(facts), sort_keys=True)
    return hashlib.sha256(f"{plain}\n{digest(tensors)}".encode()).hexdigest()


def append(path: Path, line: bytes) -> None:
    """Add a line to a file, durably; only a kill meanwhile can leave a part of it."""
    try:
        with path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}; nothing that was there is lost") from None


def read_tensors(path: Path) -> tuple[Params, dict[str, str]]:
    """The tensors and facts of a file, if they are what was written."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = dict(file.metadata() or {})
            names = json.loads(facts.get("names", "[]"))
            tensors = {name: file.get_tensor(name).clone() for name in names}  # in memory of its own, not the file's
    except FileNotFoundError:
        raise RunError(f"{path}: there is no such file") from None
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path}: is damaged ({str(error).splitlines()[0]})") from None
    if facts.pop("sha256", None) != _seal(tensors, facts):
        raise RunError(f"{path}: is damaged (its checksum does not fit)")
    return tensors, {name: fact for name, fact in facts.items() if name != "names"}
