"""What clients keep from visit to visit: in memory, or on disk for as many clients as there are.

On disk a round is one file, kept/000012.safetensors: what the clients of that round kept, so a round costs as much as
its cohort, however many clients there are. A checkpoint only says in which file each client's state lies; files are
never changed, and go when neither the newest checkpoint nor the one before it names them.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import safetensors
import torch
from torch import Tensor

from semifed.errors import RunError
from semifed.params import Params, Parts, flatten, unflatten
from semifed.results.files import digest, write_tensors


class Kept(Protocol):
    """What every client has kept up to some round; it does not change, a round makes a new one."""

    def get(self, client: int) -> Parts | None:
        """What a client has kept; None if it has not taken part yet."""
        ...

    def after(self, round: int, states: Mapping[int, Parts]) -> "Kept":
        """The same with what the clients of a round, counted from 1, have kept."""
        ...

    def state(self) -> Parts:
        """What a checkpoint has to know."""
        ...


@dataclass(frozen=True, eq=False)
class InMemory:
    """All states by client id."""

    states: Mapping[str, Parts]

    def get(self, client: int) -> Parts | None:
        """What a client has kept."""
        return self.states.get(str(client))

    def after(self, round: int, states: Mapping[int, Parts]) -> "InMemory":
        """The same with the states of a round."""
        return InMemory({**self.states, **{str(client): own for client, own in states.items()}})

    def state(self) -> Parts:
        """All of it."""
        return dict(self.states)


@dataclass(frozen=True, eq=False)
class OnDisk:
    """States in files by round, and for each client the round of its last visit, 0 for none."""

    folder: Path
    last: Tensor  # int64 [clients]

    def get(self, client: int) -> Parts | None:
        """What a client has kept, read from the file of its last visit."""
        round = int(self.last[client])
        return _read(_path(self.folder, round), client) if round else None

    def after(self, round: int, states: Mapping[int, Parts]) -> "OnDisk":
        """Write the states of a round."""
        if not states:
            return self
        flat = {client: flatten(own) for client, own in states.items()}
        tensors = {f"{client}/{name}": tensor for client, own in flat.items() for name, tensor in own.items()}
        checks = {str(client): digest(own) for client, own in flat.items()}
        _make(self.folder)
        write_tensors(_path(self.folder, round), tensors, {"clients": json.dumps(checks)})
        clients = torch.tensor(list(states))
        return replace(self, last=self.last.index_fill(0, clients, round))

    def state(self) -> Parts:
        """Where each client's state lies."""
        return {"last": self.last}


def rounds_of(state: Parts) -> set[int]:
    """The rounds whose files the state of a checkpoint needs."""
    last = state.get("kept", {}).get("last")
    return set() if last is None else set(last.unique().tolist()) - {0}


def rounds_in(folder: Path) -> set[int]:
    """The rounds that have a file."""
    return {int(path.stem) for path in folder.glob("*.safetensors") if path.stem.isdigit()}


def tidy(folder: Path, needed: Collection[int], newest: int) -> None:
    """Remove the files up to a round that nobody needs any more."""
    for round in rounds_in(folder):
        if round <= newest and round not in needed:
            _path(folder, round).unlink(missing_ok=True)


def _path(folder: Path, round: int) -> Path:
    return folder / f"{round:06d}.safetensors"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made: {error.strerror}; nothing that was there is lost") from None


def _read(path: Path, client: int) -> Parts:
    """One client's state; of the file only its part is read."""
    prefix = f"{client}/"
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            names = [name for name in json.loads(facts["names"]) if name.startswith(prefix)]
            flat: Params = {name.removeprefix(prefix): file.get_tensor(name).clone() for name in names}
            expected = json.loads(facts["clients"])[str(client)]
    except FileNotFoundError:
        raise RunError(f"{path}: is gone, which client {client} needs; put it back from a copy") from None
    except (safetensors.SafetensorError, OSError, ValueError, KeyError) as error:
        raise RunError(f"{path}: is damaged ({str(error).splitlines()[0]}); put it back from a copy") from None
    if digest(flat) != expected:
        raise RunError(f"{path}: is damaged (client {client}'s checksum does not fit); put it back from a copy")
    parts: Parts = unflatten(flat)
    return parts
