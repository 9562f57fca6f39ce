"""Differential privacy of whole clients: updates are cut to one length, and the mean gets noise (McMahan et al. 2018).

    cohort : every client by itself with probability clients_per_round / clients (Poisson sampling)
    sum    : of updates, each at most `clip` long, + normal noise of deviation noise * clip
    mean   : sum / clients_per_round, however many came; all clients weigh the same

The method gets one upload, of nobody: what an idle client would send, moved by that mean. So whatever it makes of it is
a function of numbers that the accountant has counted. Nothing else may depend on a single client: each reply is judged
by itself, every round counts, and flags, counters and masks are those of an idle client.
"""

import functools
import hashlib
import importlib
import importlib.util
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifed import keys
from semifed.engine.gate import Turn, idle_upload, update_norm
from semifed.engine.local import Task
from semifed.engine.updates import updates
from semifed.errors import SettingError
from semifed.experiment import Experiment
from semifed.methods.base import Visit
from semifed.nets.net import Net
from semifed.params import Parts, stack
from semifed.payload import Partial

ORDERS = (*range(2, 64), 128, 256, 512)
"""Of Renyi's divergences that the accountant goes by."""


def check_private(experiment: Experiment, net: Net) -> None:
    """Look whether privacy, if it is asked for, can be had here."""
    if not experiment.privacy.on:
        return
    if importlib.util.find_spec("dp_accounting") is None:
        raise SettingError("privacy: the accountant is not installed; do `pip install 'semifed[privacy]'`")
    first = net.init(0)
    buffers = [name for name in first if name not in net.weights(first) and first[name].is_floating_point()]
    if buffers:
        raise SettingError(
            f"net.norm: batch statistics ({buffers[0]}) do not stand noise; with [privacy] set net.norm=group"
        )
    _source(experiment)


def draw_private(experiment: Experiment, round: int, present: Sequence[int]) -> list[int]:
    """The clients of a round, each drawn by itself from those that are there; as many as wanted on average."""
    coins = _uniform(experiment, f"cohort {round}", experiment.scenario.clients)
    share = sampled_share(experiment)
    return [int(client) for client in sorted(present) if coins[client] < share]


def sampled_share(experiment: Experiment) -> float:
    """The probability with which a client is drawn for a round."""
    return experiment.train.clients_per_round / experiment.scenario.clients


def private_upload(
    experiment: Experiment, net: Net, server: Parts, sound: Sequence[Turn], round: int
) -> tuple[Parts, dict[str, Any]]:
    """The one upload that the method is to merge, stacked, and what the round's row says of it."""
    settings, method = experiment.privacy, experiment.method
    down = method.download(server, Visit(0, 0, round))
    nobody = Task(0, down, method.enroll(net, down, keys.key(experiment.seed, "enroll", 0)), 1)
    idle = idle_upload(method, net, nobody)
    sums = [torch.zeros_like(one, dtype=torch.float64) for one in updates(idle, idle)]
    shortened = 0
    for turn in sound:
        norm = update_norm(turn.outcome.up, turn.idle)
        factor = min(1.0, settings.clip / norm) if norm else 1.0
        shortened += factor < 1
        own = updates(turn.outcome.up, turn.idle)
        sums = [total + factor * update.double() for total, update in zip(sums, own, strict=True)]
    means = [
        (total + settings.noise * settings.clip * _normal(experiment, f"noise {round} {place}", total))
        / experiment.train.clients_per_round
        for place, total in enumerate(sums)
    ]
    return stack([_moved(idle, iter(means))]), {**spent(experiment, round + 1), "shortened": shortened}


def spent(experiment: Experiment, rounds: int) -> dict[str, float]:
    """What so many rounds have told of any one client: epsilon, at the delta of the experiment."""
    settings = experiment.privacy
    found = epsilon(sampled_share(experiment), settings.noise, rounds, settings.delta)
    return {"epsilon": found, "delta": settings.delta}


@functools.cache
def epsilon(share: float, noise: float, rounds: int, delta: float) -> float:
    """Of rounds of the sampled gaussian mechanism, where a client is added or removed."""
    import dp_accounting  # noqa: PLC0415  an extra
    from dp_accounting import rdp  # noqa: PLC0415

    accountant = rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    event = dp_accounting.GaussianDpEvent(noise)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(share, event) if share < 1 else event, rounds)
    return float(accountant.get_epsilon(delta))


def _moved(idle: Any, means: Iterator[Tensor]) -> Any:
    """An idle client's upload with these updates, all of it sent; flags and counters stay."""
    if isinstance(idle, Partial):
        return Partial(_moved(idle.values, means), {name: torch.ones_like(one) for name, one in idle.sent.items()})
    if isinstance(idle, Mapping):
        return {name: _moved(idle[name], means) for name in idle}
    return (idle.double() + next(means)).to(idle.dtype) if idle.is_floating_point() else idle


def _normal(experiment: Experiment, purpose: str, like: Tensor) -> Tensor:
    """Normal numbers in the shape of a tensor."""
    special = importlib.import_module("scipy.special")  # here, because it costs every start 0.3 s
    return torch.from_numpy(special.ndtri(_uniform(experiment, purpose, like.numel()))).reshape(like.shape).to(like)


def _uniform(experiment: Experiment, purpose: str, count: int) -> NDArray[np.float64]:
    """Numbers between 0 and 1 that only the source tells (SHAKE-256), the same whenever a round is held."""
    drawn = hashlib.shake_256(_source(experiment) + purpose.encode()).digest(8 * count)
    return ((np.frombuffer(drawn, "<u8") >> 11).astype(np.float64) + 0.5) * 2.0**-53


def _source(experiment: Experiment) -> bytes:
    """What all draws of a run come from, one length whatever the file's."""
    if not experiment.privacy.source:
        return hashlib.sha256(f"seed {experiment.seed}".encode()).digest()
    path = Path(experiment.privacy.source)
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SettingError(f"privacy.source: others may read {path}; do `chmod 600 {path}`")
        content = path.read_bytes()
    except OSError as error:
        raise SettingError(f"privacy.source: {path} cannot be read: {error.strerror}") from None
    if len(content) < 32:
        raise SettingError(f"privacy.source: {path} is shorter than 32 bytes; do `head -c 32 /dev/urandom > {path}`")
    return hashlib.sha256(content).digest()
