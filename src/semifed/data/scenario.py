"""Scenarios: from settings, labels and a seed to a split.

Each part of the draw has its own stream of randomness, so that for one seed the test set, the validation set
and the labels at the server stay the same whatever the partition.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semifed.data.labelling import BALANCED_LABELS, Mask, budget, deal_with_labels, draw, in_proportion
from semifed.data.partitions import UNUSED, Indices, deal, deal_evenly, shuffled
from semifed.data.scenario_settings import SCENARIOS, ScenarioKind, ScenarioSettings
from semifed.data.split import Holding, Scenario, Table, hash_labels
from semifed.errors import DataError, SettingError
from semifed.keys import key

__all__ = ["SCENARIOS", "Holding", "Scenario", "ScenarioKind", "ScenarioSettings", "Table", "make"]

NO_LABEL = -1


def make(
    settings: ScenarioSettings, labels: NDArray[np.integer], train: int, seed: int, classes: Sequence[str]
) -> Scenario:
    """Draw a split of a data set whose first `train` samples are the official training set.

    A sample with the label -1 has none that anybody knows: it is never drawn for a test, a validation or as labelled.
    """
    checked = _check_labels(labels, train, classes)
    test, pool = _set_test_apart(settings, checked, train, seed, len(classes))
    validation = _draw_share(settings.validation, "validation", checked[pool], len(classes), seed)
    held_out, pool = pool[validation], pool[~validation]
    owner, labelled, at_server = _who_holds_all(settings, checked[pool], classes, seed)
    with_client = owner != UNUSED
    if not with_client.any():
        raise DataError("scenario: nothing is left for the clients; lower the label budget or the held-out sets")
    step = _arrival_steps(settings, checked[pool], owner, with_client & ~labelled, seed)
    clients, arrival_sizes = _hand_out(settings, pool, owner, labelled, step)
    has_label = np.bincount(checked[pool[labelled]], minlength=len(classes)) > 0
    missing = tuple(name for name, present in zip(classes, has_label, strict=True) if not present)
    if missing and not settings.allow_missing:
        raise DataError(
            f"scenario: no sample with a label of class {', '.join(missing)}; "
            "raise the label budget, take another partition, or set scenario.allow_missing = true"
        )
    scenario = Scenario(
        clients=clients,
        server=Holding(pool[at_server & labelled], pool[at_server & ~labelled]),
        validation=held_out,
        test=test,
        unused=pool[~at_server & ~with_client],
        arrival_sizes=arrival_sizes,
        size=checked.size,
        rounds_per_arrival=settings.rounds_per_arrival,
        data=hash_labels(checked),
        missing=missing,
    )
    scenario.validate()
    return scenario


def _check_labels(labels: NDArray[np.integer], train: int, classes: Sequence[str]) -> Indices:
    if len(classes) < 2:
        raise DataError(f"the data have {len(classes)} class; a classifier needs at least two")
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"labels must be a list of whole numbers, not {labels.dtype} of shape {labels.shape}")
    checked = labels.astype(np.int64)
    for sample in np.flatnonzero((checked < NO_LABEL) | (checked >= len(classes)))[:1]:
        raise DataError(
            f"sample {sample} has label {checked[sample]}; it must be from 0 to {len(classes) - 1}, or -1 for no label"
        )
    if (checked[:train] == NO_LABEL).all():
        raise DataError("no training sample has a label: label some of each class, or there is nothing to learn from")
    if (checked[:train] == checked[0]).all():
        raise DataError(
            f"all training samples are of the class {classes[checked[0]]!r}, so there is nothing to tell apart; a site "
            "of a federation may be so, a run of its own needs samples of another class"
        )
    if not 0 < train <= checked.size:
        raise DataError(f"the training set of {train} does not fit the {checked.size} samples of the data")
    return checked


def _stream(seed: int, purpose: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(key(seed, "scenario", purpose) & 0xFFFFFFFFFFFFFFFF))


def _draw_share(number: int, name: str, labels: Indices, classes: int, seed: int) -> Mask:
    """A mask of `number` of the samples whose label is known, with their class mix."""
    known = labels != NO_LABEL
    own = labels[known]
    if 0 < number >= own.size:
        raise SettingError(f"scenario.{name}: {number} images, but there are only {own.size} to draw from; lower it")
    chosen = np.zeros(labels.size, np.bool_)
    wanted = in_proportion(np.bincount(own, minlength=classes), number)
    chosen[known] = draw(own, wanted, _stream(seed, name))
    return chosen


def _set_test_apart(
    settings: ScenarioSettings, labels: Indices, train: int, seed: int, classes: int
) -> tuple[Indices, Indices]:
    """The test set, and the pool that all others share."""
    everything = np.arange(labels.size, dtype=np.int64)
    if settings.pool == "train":
        if train == labels.size:
            raise DataError('the data have no test set; set scenario.pool = "all" and scenario.test to draw one')
        return everything[train:], everything[:train]
    chosen = _draw_share(settings.test or 0, "test", labels, classes, seed)
    return everything[chosen], everything[~chosen]


def _who_holds_all(
    settings: ScenarioSettings, labels: Indices, classes: Sequence[str], seed: int
) -> tuple[Indices, Mask, Mask]:
    """As `_who_holds`; samples without any label are dealt out evenly, since there is no class to go by.

    Where there are such samples and no budget is given, every label that there is counts.
    """
    known = labels != NO_LABEL
    if known.all():
        return _who_holds(settings, labels, classes, seed)
    plain = dataclasses.replace(settings, server_unlabelled=0.0)
    share = _who_holds if settings.budget_given else _every_label
    owner, labelled = np.empty(labels.size, np.int64), np.zeros(labels.size, np.bool_)
    at_server = labelled.copy()
    owner[known], labelled[known], at_server[known] = share(plain, labels[known], classes, seed)
    owner[~known] = deal_evenly(labels[~known], settings.clients, _stream(seed, "blanks"))
    rest, extra = np.flatnonzero(~labelled), round(settings.server_unlabelled * int(labelled.sum()))
    if extra and extra >= rest.size:
        raise SettingError(f"scenario.server_unlabelled: {extra} images, but there are only {rest.size}; lower it")
    taken = rest[shuffled(rest.size, _stream(seed, "server_unlabelled"))[:extra]]
    at_server[taken], owner[taken] = True, UNUSED
    return owner, labelled, at_server


def _every_label(
    settings: ScenarioSettings, labels: Indices, classes: Sequence[str], seed: int
) -> tuple[Indices, Mask, Mask]:
    """As `_who_holds`, with all of these samples labelled."""
    everything, nothing = np.ones(labels.size, np.bool_), np.zeros(labels.size, np.bool_)
    if settings.labels == "server":
        return np.full(labels.size, UNUSED, np.int64), everything, everything
    if settings.partition == "noniid-3":
        raise SettingError("scenario.gamma: noniid-3 is about the share of labels at each client; set gamma")
    partition = _stream(seed, "partition")
    if settings.partition in BALANCED_LABELS:
        return deal_evenly(labels, settings.clients, partition), everything, nothing
    return deal(settings, labels, len(classes), partition), everything, nothing


def _who_holds(
    settings: ScenarioSettings, labels: Indices, classes: Sequence[str], seed: int
) -> tuple[Indices, Mask, Mask]:
    """For each sample of the pool: its client or UNUSED, whether it is labelled, whether the server has it."""
    partition, labelling = _stream(seed, "partition"), _stream(seed, "labels")
    if settings.labels == "client":
        owner, labelled = deal_with_labels(settings, labels, classes, partition, labelling)
        return owner, labelled, np.zeros(labels.size, np.bool_)
    # The authors of FedSiam and FedCon drew the server's labels uniformly; stratified, no class can go short by chance.
    wanted = budget(settings, np.bincount(labels, minlength=len(classes)), classes, labelling)
    labelled = draw(labels, wanted, labelling)
    extra = round(settings.server_unlabelled * int(labelled.sum()))
    at_server = labelled.copy()
    at_server[~labelled] = _draw_share(extra, "server_unlabelled", labels[~labelled], len(classes), seed)
    owner = np.full(labels.size, UNUSED, np.int64)
    if not at_server.all():
        owner[~at_server] = deal(settings, labels[~at_server], len(classes), partition)
    return owner, labelled, at_server


def _arrival_steps(settings: ScenarioSettings, labels: Indices, owner: Indices, waiting: Mask, seed: int) -> Indices:
    """In which step each sample arrives at its client; only those that are waiting for one count.

    Class after class, one sample to each step in turn: every step brings the client's whole mix (FedMatch).
    """
    order = np.flatnonzero(waiting)
    order = order[np.lexsort((_stream(seed, "arrivals").random(order.size), labels[order], owner[order]))]
    held = np.bincount(owner[order], minlength=settings.clients)
    step = np.zeros(labels.size, np.int64)
    step[order] = (np.arange(order.size) - np.repeat(np.cumsum(held) - held, held)) % settings.arrivals
    return step


def _hand_out(
    settings: ScenarioSettings, pool: Indices, owner: Indices, labelled: Mask, step: Indices
) -> tuple[tuple[Holding, ...], Indices]:
    """The clients' holdings, and how many unlabelled samples arrive at each client in each step."""
    count, steps = settings.clients, settings.arrivals
    given = np.flatnonzero(labelled & (owner != UNUSED))
    given = given[np.argsort(owner[given], kind="stable")]
    given_sizes = np.bincount(owner[given], minlength=count)
    coming = np.flatnonzero(~labelled & (owner != UNUSED))
    slot = owner[coming] * steps + step[coming]
    coming = coming[np.argsort(slot, kind="stable")]
    arrival_sizes = np.bincount(slot, minlength=count * steps).reshape(count, steps)
    parts = zip(
        np.split(pool[given], np.cumsum(given_sizes)[:-1]),
        np.split(pool[coming], np.cumsum(arrival_sizes.sum(axis=1))[:-1]),
        strict=True,
    )
    return tuple(Holding(*part) for part in parts), arrival_sizes
