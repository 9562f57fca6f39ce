"""Whether a run may go on: the same experiment, data, net and parts as before, and what else has changed since."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor

from semifed.engine.assemble import Assembly
from semifed.engine.environment import content, versions
from semifed.engine.rounds import Progress
from semifed.errors import SettingError
from semifed.experiment import Experiment
from semifed.federation_settings import WAITING
from semifed.nets.zoo import AUTO, NetSettings
from semifed.params import flatten
from semifed.results.folder import RunFolder, difference

_MAY_CHANGE = ("engine.name:", "engine.address:", "engine.workers:", "engine.start:", *WAITING)
"""What may differ on resume without a word, because the numbers stay the same to the last bit."""

_MUST_STAY = ("data:", "files.", "scenario.")
"""What may not differ even with --override, because the split of a run is made once."""


def in_same_form(experiment: Experiment, folder: RunFolder) -> Experiment:
    """What was chosen when the run began stands: the fastest form, and the net where none is named."""
    before, chosen = folder.experiment(), list[str]()
    if experiment.engine.mode == "fastest":
        engine = before.get("engine", {})
        chosen += [f"engine.{name}={engine[name]}" for name in ("mode", "layout") if name in engine]
    if isinstance(experiment.net, NetSettings) and experiment.net.name == AUTO and "name" in before.get("net", {}):
        chosen.append(f"net.name={before['net']['name']}")
    return experiment.replace(*chosen) if chosen else experiment


def changes(before: Mapping[str, Any], experiment: Experiment, override: bool) -> str:
    """What differs from the experiment so far, if it may."""
    with suppress(SettingError):  # settings that are newer than the run have their defaults
        before = Experiment.of(before).tables()
    changes = [one for one in difference(before, experiment.tables()) if not one.startswith(_MAY_CHANGE)]
    fixed = [one for one in changes if one.startswith(_MUST_STAY)]
    if fixed:
        raise SettingError(f"--resume: data and split stay as they are ({'; '.join(fixed)}); start a new run for that")
    if changes and not override:
        raise SettingError(f"--resume: the experiment has changed ({'; '.join(changes)}); undo it or say --override")
    return "; ".join(changes)


def check_same_content(folder: RunFolder, assembly: Assembly) -> None:
    """Look whether data and net, which a file only names, are those that the run was begun with."""
    before = folder.environment()
    for name, digest in content(assembly).items():
        if before.get(name) != digest:
            raise SettingError(f"--resume: the {name} is not what this run was begun with; use the same")


def check_fits(found: Progress, fresh: Progress, assembly: Assembly, kept_before: bool) -> None:
    """Look whether the parts of a checkpoint are those that the method and the net have."""
    have, need = flatten(found.server), flatten(fresh.server)
    for name, tensor in need.items():
        if name not in have or not _fits(have[name], tensor):
            raise SettingError(f"--resume: the checkpoint does not fit the net or the method: {name} differs; undo it")
    kept = next((own for client in found.visits.nonzero() if (own := found.kept.get(int(client)))), {})
    keeps = set(assembly.experiment.method.keeps)
    if kept_before and (not keeps or (kept and set(kept) != keeps)):
        raise SettingError("--resume: the clients have kept what another method needs; undo the change of method")


def _fits(found: Tensor, fresh: Tensor) -> bool:
    """The same shape and type; what begins empty is a list that grows (the divergences of FedSiam-D)."""
    grows = found.dim() == fresh.dim() and not fresh.numel()
    return found.dtype == fresh.dtype and (found.shape == fresh.shape or (grows and found.shape[1:] == fresh.shape[1:]))


def other_versions(folder: RunFolder) -> dict[str, str]:
    """The packages whose versions are not those of the run so far, as they are now."""
    before = folder.versions()
    return {name: now for name, now in versions().items() if before.get(name, now) != now}


def about_versions(folder: RunFolder, changed: Mapping[str, str]) -> tuple[str, ...]:
    """What to tell of them."""
    before = folder.versions()
    return tuple(
        f"the run goes on with {name} {now}, and was with {before[name]}: it may not repeat to the last bit"
        for name, now in changed.items()
    )
