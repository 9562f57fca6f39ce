"""The question whether what a client keeps is its own: from its data alone, never sent, and back in its next visit."""

from collections.abc import Iterator

import torch
from torch import Tensor

from semifed.conformance.compare import difference, entries
from semifed.conformance.world import DoesNotApply, Scene, World, as_tree, moments, worlds
from semifed.engine.local import Outcome
from semifed.methods.base import Method
from semifed.params import Parts, expand_as


def kept_is_private(method: Method) -> Iterator[str]:
    """What a client keeps is its own: from its data alone, never sent, and back in its next visit."""
    if not method.keeps:
        raise DoesNotApply("the method keeps nothing at a client")
    for part in sorted(set(method.keeps) & set(method.up)):
        yield f"part {part} is kept at the client and goes up"
    last: dict[tuple[str, int], Parts] = {}
    shared, useless, unmoved = set(method.keeps), set(method.keeps), set(method.keeps)
    sent: set[tuple[str, str]] | None = None
    for scenes in moments(worlds(method, per_round=3)):
        for world, scene in scenes:
            yield from _not_returned(world, scene, last)
            yield from _moved_by_others(world, scene, unmoved)
            if len(scene.busy()) > 1:
                shared -= {part for part in shared if _differs(scene, part)}
                useless -= {part for part in useless if _matters(world, scene, part)}
                pairs = set.intersection(*(_also_in_upload(scene.outcomes[place]) for place in scene.busy()))
                sent = pairs if sent is None else sent & pairs
        if scenes[0][1].before.round > 0 and not (shared or useless or unmoved or sent):
            return
    for kept, up in sorted(sent or ()):
        yield f"what a client keeps as {kept} goes up as {up}"
    for part in sorted(shared):
        yield f"all clients keep the same {part}"
    for part in sorted(unmoved):
        yield f"what a client keeps as {part} does not depend on its data"
    for part in sorted(useless):
        yield f"what a client has kept as {part} makes no difference to its next visit"


def _not_returned(world: World, scene: Scene, last: dict[tuple[str, int], Parts]) -> Iterator[str]:
    for task, outcome in scene.turns():
        before = last.get((world.labels, task.client))
        if before is not None and (found := difference(before, task.kept)):
            yield f"client {task.client} does not get back what it has kept: {found} ({world})"
        last[world.labels, task.client] = outcome.kept


def _differs(scene: Scene, part: str) -> bool:
    """Whether no two of the clients that trained keep the same."""
    own = [scene.outcomes[place].kept[part] for place in scene.busy()]
    return all(difference(one, two) for number, one in enumerate(own) for two in own[:number])


def _matters(world: World, scene: Scene, part: str) -> bool:
    """Whether a client's visit goes otherwise if it is handed what another client has kept."""
    place, other = scene.busy()[:2]
    task = scene.tasks[place]
    mistaken = task._replace(kept=task.kept | {part: scene.tasks[other].kept[part]})
    outcome = world.workshop.train(scene.before.round, [mistaken])[0]
    return bool(difference(_apart_from(part, scene.outcomes[place]), _apart_from(part, outcome)))


def _apart_from(part: str, outcome: Outcome) -> Parts:
    tree = as_tree(outcome)
    return tree | {"kept": {name: params for name, params in outcome.kept.items() if name != part}}


def _also_in_upload(outcome: Outcome) -> set[tuple[str, str]]:
    """Pairs of paths, one kept and one sent, with the very same numbers."""
    return {
        (kept, up)
        for up, (other, sent) in entries(outcome.up)
        for kept, (tensor, _) in entries(outcome.kept)
        if tensor.is_floating_point() and tensor.shape == other.shape and _same(tensor, other, sent)
    }


def _same(kept: Tensor, up: Tensor, sent: Tensor | None) -> bool:
    """Whether the numbers that are sent are those that are kept; a single value proves nothing."""
    mask = torch.ones_like(up, dtype=torch.bool) if sent is None else expand_as(sent, up).expand_as(up)
    return bool((kept == up)[mask].all()) and bool((up[mask][1:] != up[mask][:-1]).any())


def _moved_by_others(world: World, scene: Scene, unmoved: set[str]) -> Iterator[str]:
    """Give one client other data: what it keeps may change, what the others keep may not."""
    if not scene.busy():
        return
    place = scene.busy()[0]
    client = scene.tasks[place].client
    own = world.assembly.scenario.clients[client]
    other = world.with_inverted([*own.labelled, *own.unlabelled])
    outcomes = other.workshop.train(scene.before.round, scene.tasks)
    for task, one, two in zip(scene.tasks, scene.outcomes, outcomes, strict=True):
        if task.client != client and (found := difference(one.kept, two.kept)):
            yield f"other data at client {client} change what client {task.client} keeps: {found} ({world})"
    one, two = scene.outcomes[place], outcomes[place]
    unmoved -= {part for part in unmoved if difference(one.kept[part], two.kept[part])}
