"""Which client each sample goes to: every function returns one owner per sample, or UNUSED.

One array of owners is disjoint by construction, small for 10,000 clients, and needs no loop over clients.
Randomness comes from `Generator.random` wherever that is enough, since its bits are the same on every platform.
"""

import numpy as np
from numpy.typing import NDArray

from semifed.data.scenario_settings import ScenarioSettings
from semifed.errors import SettingError

Indices = NDArray[np.int64]
Numbers = NDArray[np.float64]

UNUSED = -1
PROFILES = 10  # FedMix draws ten vectors and FedMatch names ten types, whatever the number of clients
_SWEEPS = 64  # each client swaps about half of the time, so the first, regular deal is forgotten many times over


def deal(settings: ScenarioSettings, labels: Indices, classes: int, rng: np.random.Generator) -> Indices:
    """The owner of each sample under the partition that the settings name."""
    clients = settings.clients
    match settings.partition:
        case "iid" | "noniid-3":
            owner = deal_evenly(labels, clients, rng)
        case "noniid-1" | "noniid-2":
            owner = deal_by_class(labels, draw_classes(labels, clients, settings.classes_per_client, rng), rng)
        case "noniid-1-pairs" | "noniid-2-pairs":
            owner = deal_by_class(labels, ordered_pairs(classes, clients), rng)
        case "noniid":
            owner = deal_shards(labels, clients, settings.classes_per_client, rng)
        case "shards":
            owner = deal_shards(labels, clients, settings.shards_per_client, rng)
        case "dirichlet":
            owner = deal_dirichlet(labels, clients, settings.alpha, rng)
        case "dirichlet-pool":
            owner = deal_on_request(labels, clients, dirichlet(settings.alpha, (PROFILES, classes), rng), rng)
        case "types" | "streaming":
            owner = deal_on_request(labels, clients, type_profiles(classes), rng)
        case other:
            raise SettingError(f"scenario.partition: {other!r} has no partition function")
    return owner


def by_class(labels: Indices, rng: np.random.Generator) -> Indices:
    """The positions of all samples, class after class, at random within each class."""
    return np.lexsort((rng.random(labels.size), labels)).astype(np.int64)


def shuffled(count: int, rng: np.random.Generator) -> Indices:
    """The numbers 0 .. count-1 in random order."""
    return np.argsort(rng.random(count), kind="stable").astype(np.int64)


def deal_evenly(labels: Indices, clients: int, rng: np.random.Generator) -> Indices:
    """Card by card from the sorted pack: sizes and class counts differ by at most one between clients."""
    owner = np.empty(labels.size, np.int64)
    owner[by_class(labels, rng)] = shuffled(clients, rng)[np.arange(labels.size) % clients]
    return owner


def deal_shards(labels: Indices, clients: int, shards_each: int, rng: np.random.Generator) -> Indices:
    """Sorted by class, cut into equal shards, `shards_each` random shards to each client.

    A shard may straddle two classes and a client may draw two shards of one class, as in the papers.
    """
    shards = clients * shards_each
    shard = np.arange(labels.size, dtype=np.int64) * shards // max(labels.size, 1)
    owner = np.empty(labels.size, np.int64)
    owner[by_class(labels, rng)] = (shuffled(shards, rng) // shards_each)[shard]
    return owner


def deal_dirichlet(labels: Indices, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Each class in proportions ~ Dir(alpha) over the clients; never redrawn, so it ends whatever alpha is."""
    order = by_class(labels, rng)
    owner = np.empty(labels.size, np.int64)
    start = 0
    for count in np.bincount(labels):
        cuts = np.floor(np.cumsum(dirichlet(alpha, (clients,), rng)) * count)
        taker = np.searchsorted(cuts, np.arange(count), side="right")
        owner[order[start : start + count]] = np.minimum(taker, clients - 1)
        start += count
    return owner


def dirichlet(alpha: float, shape: tuple[int, ...], rng: np.random.Generator) -> Numbers:
    """Points of Dir(alpha, ..., alpha) along the last axis.

    Drawn as logarithms, since for a small alpha every plain gamma number would round to zero.
    """
    alpha = max(alpha, 1e-9)  # below this a draw is one-hot anyway, and the division would overflow
    logarithm = np.log(rng.standard_gamma(alpha + 1, shape)) + np.log1p(-rng.random(shape)) / alpha
    weight = np.exp(logarithm - logarithm.max(axis=-1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=-1, keepdims=True), np.float64)


def type_profiles(classes: int) -> Numbers:
    """FedMatch's ten types: half of the data of one class, its two neighbours 15% each, little of the others."""
    if classes != PROFILES:
        raise SettingError(f"scenario.partition: 'types' is defined for ten classes, not {classes}; use 'dirichlet'")
    kind = np.arange(PROFILES)
    profiles = np.full((PROFILES, PROFILES), 0.03)
    profiles[kind, kind] = 0.50
    profiles[kind, (kind + 1) % PROFILES] = 0.15
    profiles[kind, (kind - 1) % PROFILES] = 0.15
    profiles[kind, (kind + 5) % PROFILES] = 0.02
    return profiles


def deal_on_request(labels: Indices, clients: int, profiles: Numbers, rng: np.random.Generator) -> Indices:
    """Every client asks for the same number of samples, classes drawn from profile (client mod profiles).

    Requests are served in client order until a class has run dry, so late clients may get little or nothing,
    and what nobody asked for stays unused: the quantity imbalance of FedMix and FedMatch.
    """
    each = max(1, labels.size // clients)
    draws = rng.random((clients, each))
    wanted = np.empty((clients, each), np.int64)
    for number, profile in enumerate(profiles):
        wanted[number :: len(profiles)] = np.searchsorted(
            np.cumsum(profile)[:-1], draws[number :: len(profiles)], side="right"
        )
    request = np.argsort(wanted, axis=None, kind="stable")
    asked = wanted.ravel()[request]
    stock = np.bincount(labels, minlength=profiles.shape[1])
    demand = np.bincount(asked, minlength=stock.size)
    rank = np.arange(asked.size) - np.repeat(np.cumsum(demand) - demand, demand)
    served = rank < stock[asked]
    owner = np.full(labels.size, UNUSED, np.int64)
    place = (np.cumsum(stock) - stock)[asked[served]] + rank[served]
    owner[by_class(labels, rng)[place]] = request[served] // each
    return owner


def deal_by_class(labels: Indices, chosen: Indices, rng: np.random.Generator) -> Indices:
    """Row k of `chosen` lists the classes of client k; each class is cut evenly among the slots that name it."""
    each = chosen.shape[1]
    slot = by_class(chosen.ravel(), rng)
    count = np.bincount(labels)
    slots = np.bincount(chosen.ravel(), minlength=count.size)[: count.size]
    first_slot = np.cumsum(slots) - slots
    rank = np.arange(labels.size) - np.repeat(np.cumsum(count) - count, count)
    cut = rank * np.repeat(slots, count) // np.repeat(count, count)
    owner = np.empty(labels.size, np.int64)
    owner[by_class(labels, rng)] = slot[np.repeat(first_slot, count) + cut] // each
    return owner


def ordered_pairs(classes: int, clients: int) -> Indices:
    """Client i holds classes (i div 10, i mod 10), the ten clients with equal digits two slices of one class.

    The authors' code also shortens some slices by an off-by-one and loses 3.5% of the data; this does not.
    """
    if classes != 10:
        raise SettingError(f"scenario.partition: pairs of classes are defined for ten classes, not {classes}")
    client = np.arange(clients, dtype=np.int64)
    return np.stack([client // 10, client % 10], axis=1)


def draw_classes(labels: Indices, clients: int, each: int, rng: np.random.Generator) -> Indices:
    """`each` different random classes for every client, all classes equally often but for one."""
    present = np.flatnonzero(np.bincount(labels))
    if each > present.size:
        raise SettingError(f"scenario.classes_per_client: {each} classes a client, but the data have {present.size}")
    if clients * each < present.size:
        raise SettingError(
            f"scenario.classes_per_client: {clients} clients x {each} classes cannot cover {present.size} classes; "
            "raise it or the number of clients"
        )
    often = clients * each // present.size + (np.arange(present.size) < clients * each % present.size)
    # A class fills a run of at most `clients` slots, and slot j belongs to client j mod clients: no class twice.
    chosen = np.repeat(present[shuffled(present.size, rng)], often).reshape(each, clients).T.copy()
    half = clients // 2
    for _ in range(_SWEEPS):
        pairs = shuffled(clients, rng)
        left, right = pairs[:half], pairs[half : 2 * half]
        left_slot, right_slot = (rng.random((2, half)) * each).astype(np.int64)
        given, taken = chosen[left, left_slot], chosen[right, right_slot]
        new_to_both = ~((chosen[right] == given[:, None]).any(axis=1) | (chosen[left] == taken[:, None]).any(axis=1))
        chosen[left, left_slot] = np.where(new_to_both, taken, given)
        chosen[right, right_slot] = np.where(new_to_both, given, taken)
    return chosen.astype(np.int64)
