"""Which samples carry labels: the budget in numbers per class, and its spread over the clients."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from semifed.data.partitions import UNUSED, Indices, Numbers, by_class, deal, deal_evenly, shuffled
from semifed.data.scenario_settings import POOR_SHARE, ScenarioSettings
from semifed.errors import DataError, SettingError

Mask = NDArray[np.bool_]

_REDEALT = ("noniid-2", "noniid-2-pairs")
_OWN_CLASSES = ("noniid-1", "noniid-1-pairs", *_REDEALT)
BALANCED_LABELS = ("types", "streaming")
_TINY = 1e-9


def in_proportion(available: Indices, total: int) -> Indices:
    """`total` divided among the classes by their size, largest remainders first; all in whole numbers."""
    size = max(int(available.sum()), 1)
    share, remainder = np.divmod(available * total, size)
    extra = np.argsort(-remainder, kind="stable")[: total - int(share.sum())]
    share[extra] += 1
    return share


def budget(settings: ScenarioSettings, available: Indices, classes: Sequence[str], rng: np.random.Generator) -> Indices:
    """How many labels each class gets: gamma in proportion to the classes, the other budgets the same for each."""
    name, amount = settings.budget
    present = np.flatnonzero(available)
    wanted = np.zeros(available.size, np.int64)
    match name:
        case "gamma":
            wanted = in_proportion(available, round(amount * int(available.sum())))
        case "total":
            wanted[present] = int(amount) // max(present.size, 1)
            wanted[present[shuffled(present.size, rng)[: int(amount) % max(present.size, 1)]]] += 1
        case "per_class":
            wanted[present] = int(amount)
        case _:
            wanted[present] = int(amount) * settings.clients
    labels = int(wanted.sum())
    if labels < len(classes) and not settings.allow_missing:
        raise DataError(
            f"scenario.{name}: {amount:g} gives {labels} labels for {len(classes)} classes; "
            "raise it, or set scenario.allow_missing = true"
        )
    for short in np.flatnonzero(wanted > available)[:1]:
        raise DataError(
            f"scenario.{name}: class {classes[short]!r} has {available[short]} images, "
            f"but {wanted[short]} labels are asked for; lower it"
        )
    return wanted


def draw(labels: Indices, wanted: Indices, rng: np.random.Generator) -> Mask:
    """A mask of `wanted[c]` random samples of each class c."""
    count = np.bincount(labels, minlength=wanted.size)
    rank = np.arange(labels.size) - np.repeat(np.cumsum(count) - count, count)
    chosen = np.zeros(labels.size, np.bool_)
    chosen[by_class(labels, rng)] = rank < np.repeat(wanted, count)
    return chosen


def deal_with_labels(
    settings: ScenarioSettings,
    labels: Indices,
    classes: Sequence[str],
    partition_rng: np.random.Generator,
    label_rng: np.random.Generator,
) -> tuple[Indices, Mask]:
    """Labels at the client: the owner of each sample, and which samples are labelled."""
    name, _ = settings.budget
    count = len(classes)
    own_classes = settings.partition in _OWN_CLASSES
    if settings.partition in BALANCED_LABELS or (name == "per_class_client" and not own_classes):
        # FedMatch: only the unlabelled data are skewed, the labelled are drawn first and the same at every client.
        wanted = budget(settings, np.bincount(labels, minlength=count), classes, label_rng)
        labelled = draw(labels, wanted, label_rng)
        owner = np.empty(labels.size, np.int64)
        owner[labelled] = deal_evenly(labels[labelled], settings.clients, label_rng)
        owner[~labelled] = deal(settings, labels[~labelled], count, partition_rng)
        return owner, labelled
    owner = deal(settings, labels, count, partition_rng)
    labelled = _label_holdings(
        labels, owner, settings.clients, _quotas(settings, labels, owner, classes, label_rng), label_rng
    )
    if settings.partition in _REDEALT:
        owner[~labelled] = owner[~labelled][shuffled(int((~labelled).sum()), partition_rng)]
    return owner, labelled


def rich_clients(gamma: float, clients: int) -> tuple[int, float]:
    """noniid-3: how many clients own most labels, and for which share of their data.

    With r rich clients of K, r x + (K - r) 5% = K gamma gives x; for r = K gamma this is the authors'
    (105 gamma - 5) / (100 gamma), 55% at gamma 0.1. Rounding r up keeps 5% <= x <= 1 for any K.
    """
    rich = max(1, math.ceil(gamma * clients - _TINY))
    return rich, (gamma * clients - POOR_SHARE * (clients - rich)) / rich


Quotas = Callable[[int, Indices], Numbers]


def _quotas(
    settings: ScenarioSettings, labels: Indices, owner: Indices, classes: Sequence[str], rng: np.random.Generator
) -> Quotas:
    """For a class and the numbers each client holds of it: how many of them should be labelled, as fractions."""
    name, amount = settings.budget
    if settings.partition == "noniid-3":
        rich, share = rich_clients(amount, settings.clients)
        shares: Numbers = np.full(settings.clients, POOR_SHARE, np.float64)
        shares[:rich] = min(share, 1.0)
        return lambda _, held: held * shares
    if name == "per_class_client":

        def same_for_each(which: int, held: Indices) -> Numbers:
            for client in np.flatnonzero((held > 0) & (held < amount))[:1]:
                raise SettingError(
                    f"scenario.per_class_client: client {client} holds {held[client]} images of class "
                    f"{classes[which]!r}, fewer than {amount:g}; lower it"
                )
            return np.minimum(held, 1) * float(amount)

        return same_for_each
    available = np.bincount(labels[owner != UNUSED], minlength=len(classes))
    wanted = budget(settings, available, classes, rng)
    return lambda which, held: held * (wanted[which] / max(int(available[which]), 1))


def _label_holdings(labels: Indices, owner: Indices, clients: int, quotas: Quotas, rng: np.random.Generator) -> Mask:
    """Label random samples of each client's slice of each class, as many as the quotas say."""
    order = np.lexsort((rng.random(labels.size), owner, labels))
    order = order[owner[order] != UNUSED]
    ends = np.cumsum(np.bincount(labels[order]))
    labelled = np.zeros(labels.size, np.bool_)
    owed = np.zeros(clients)
    for which, members in enumerate(np.split(order, ends[:-1])):
        held = np.bincount(owner[members], minlength=clients)
        number = _whole(quotas(which, held), owed, rng)
        rank = np.arange(members.size) - np.repeat(np.cumsum(held) - held, held)
        labelled[members] = rank < np.repeat(number, held)
    return labelled


def _whole(quota: Numbers, owed: Numbers, rng: np.random.Generator) -> Indices:
    """Quotas rounded up or down so that their sum is kept; `owed` carries each client's rest to its next class.

    Rounding each slice by itself, as the authors do, would leave 10,000 clients of six images without any label.
    """
    number = np.floor(quota + _TINY).astype(np.int64)
    rest = quota - number
    owed += rest
    open_ended = np.flatnonzero(rest > _TINY)
    left = round(math.fsum(quota)) - int(number.sum())
    first = np.lexsort((rng.random(open_ended.size), -np.round(owed[open_ended], 9)))
    chosen = open_ended[first[:left]]
    number[chosen] += 1
    owed[chosen] -= 1
    return number
