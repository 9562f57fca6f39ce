"""Questions about what goes between clients and server, and what the server makes of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from semifed.conformance.compare import describe, difference, entries
from semifed.conformance.world import (
    CLASSES,
    DoesNotApply,
    Scene,
    World,
    clean_test_images,
    train_server,
    worlds,
)
from semifed.engine.rounds import begin
from semifed.methods.base import Descend, Method, Move, Visit
from semifed.params import Params, Parts, leaves, stack, tree_map
from semifed.payload import Partial, nbytes, pack, unpack

ORDER_TOLERANCE = 1e-6
"""How far two orders of summation may be apart."""


def bytes_add_up(method: Method) -> Iterator[str]:
    """What is counted is what is packed, what is packed arrives, and what is not sent is not used."""
    for world in worlds(method):
        for scene in world.scenes(3):
            for task, outcome in scene.turns():
                for way, payload, names in (("down", task.down, method.down), ("up", outcome.up, method.up)):
                    for complaint in _misfits(payload, names):
                        yield f"{way} at client {task.client}: {complaint} ({world})"
            yield from _uses_what_was_not_sent(world, scene)


def _misfits(payload: Parts, names: Sequence[str]) -> Iterator[str]:
    """What is wrong with one payload."""
    for name in sorted(payload.keys() ^ set(names)):
        yield f"part {name} is {'sent but not declared' if name in payload else 'declared but not sent'}"
    masks = 0
    for path, partial in _partials(payload):
        yield from _wrong_masks(path, partial)
        masks += sum(-(-value.numel() // 8) for value in partial.values.values())
    data = pack(payload)
    body = len(data) - 12 - int.from_bytes(data[4:12], "little")
    if nbytes(payload) != body:
        yield f"{nbytes(payload)} bytes are counted, but {body} are packed"
    if found := difference(payload, unpack(data)):
        yield f"it does not arrive as it was sent: {found}"
    dense = sum(tensor.numel() * tensor.element_size() for tensor in leaves(_in_full(payload)))
    if not bool(names) <= body <= dense + masks:
        yield f"{body} bytes are sent, where all values have {dense}"


def _partials(tree: Any, path: str = "") -> Iterator[tuple[str, Partial]]:
    if isinstance(tree, Partial):
        yield path, tree
    elif isinstance(tree, Mapping):
        for name, branch in tree.items():
            yield from _partials(branch, f"{path}/{name}" if path else name)


def _wrong_masks(path: str, partial: Partial) -> Iterator[str]:
    for name in sorted(partial.values.keys() ^ partial.sent.keys()):
        yield f"{path}/{name} has {'no mask' if name in partial.values else 'a mask but no value'}"
    for name, sent in partial.sent.items():
        value = partial.values[name]
        if sent.dtype != torch.bool or sent.shape != value.shape[: sent.dim()]:
            yield f"the mask of {path}/{name} is {describe(sent)}; it must be bool and begin as {describe(value)}"


def _in_full(tree: Any) -> Any:
    """A payload with all values, sent or not."""
    if isinstance(tree, Partial):
        return tree.values
    return {name: _in_full(branch) for name, branch in tree.items()} if isinstance(tree, Mapping) else tree


def _uses_what_was_not_sent(world: World, scene: Scene) -> Iterator[str]:
    """Merge once with everything at hand, and once with what comes out of the bytes."""
    if scene.merging:
        net, (server, up, cohort) = world.assembly.net, scene.merging
        arrived = stack([unpack(pack(outcome.up)) for outcome in scene.outcomes])
        merged = world.method.aggregate(net, server, up, cohort)
        if found := difference(merged, world.method.aggregate(net, server, arrived, cohort)):
            yield f"the server merges values that were not sent: {found} ({world})"


def merging_is_fair(method: Method) -> Iterator[str]:
    """The order in which clients stand in the cohort makes no difference to what the server hands out."""
    for world in worlds(method):
        for scene in world.scenes(3):
            if not scene.merging:
                continue
            net, (server, up, cohort) = world.assembly.net, scene.merging
            merged = _handed_out(method, method.aggregate(net, server, up, cohort), scene)
            for order in (torch.arange(len(cohort.clients)).flip(0), torch.arange(len(cohort.clients)).roll(1)):
                clients = tuple(cohort.clients[place] for place in order)
                turned = cohort._replace(clients=clients, examples=cohort.examples[order])
                other = method.aggregate(net, server, tree_map(lambda tensor, order=order: tensor[order], up), turned)
                if found := difference(merged, _handed_out(method, other, scene), ORDER_TOLERANCE):
                    yield f"with the clients in the order {clients} the server's {found} ({world})"


def _handed_out(method: Method, server: Parts, scene: Scene) -> Parts:
    """The server's models, and what each client would receive next."""
    visits = [Visit(task.client, 0, scene.after.round) for task in scene.tasks]
    down = {str(visit.client): method.download(server, visit) for visit in visits}
    if any(difference(down[str(visit.client)], method.download(server, visit._replace(slot=1))) for visit in visits):
        raise DoesNotApply("what a client receives depends on its place in the cohort")
    return {"model": method.models(server), "down": down}


def models_are_complete(method: Method) -> Iterator[str]:
    """Every model can be tested, and all parts keep their names and types, those that travel their shapes too."""
    for world in worlds(method):
        for complaint in _unfit_models(world, method.models(begin(world.assembly).server)):
            yield f"{complaint} ({world})"
        scenes = list(world.scenes(3))
        yield from _missing_parts(world, scenes[0])
        if not method.models(scenes[0].after.server) and not _local_models(method, scenes[0]):
            yield "there is no model to test: see models() and local_model()"
        for complaint in _changed_parts(world, scenes):
            yield f"{complaint} ({world})"
        for scene in scenes:
            for complaint in _unfit_models(world, method.models(scene.after.server) | _local_models(method, scene)):
                yield f"{complaint} ({world})"


def _local_models(method: Method, scene: Scene) -> dict[str, Params]:
    """The clients' own models, where the method has them."""
    own = {f"of client {task.client}": method.local_model(one.up, one.kept) for task, one in scene.turns()}
    return {name: model for name, model in own.items() if model is not None}


def _changed_parts(world: World, scenes: Sequence[Scene]) -> Iterator[str]:
    for scene in scenes:
        trained = train_server(world, scene.before)
        yield from _changed("server", scene.before.server, trained, world.method.down)
        yield from _changed("server", trained, scene.after.server, world.method.down)
        for task, outcome in scene.turns():
            yield from _changed(f"client {task.client}'s kept", task.kept, outcome.kept, world.method.keeps)
    for (task, one), (_, two) in zip(scenes[0].turns(), scenes[1].turns(), strict=True):
        yield from _changed(f"client {task.client}'s uploaded", one.up, two.up, world.method.up)


def _changed(what: str, before: Parts, after: Parts, travelling: Sequence[str]) -> Iterator[str]:
    """Entries that have come, gone or changed; one that is named by a client's id may come and go."""
    one, two = dict(entries(before)), dict(entries(after))
    for path in sorted(one.keys() ^ two.keys()):
        if not any(name.isdigit() for name in path.split("/")):
            yield f"{what} part {path} is there {'before' if path in one else 'after'} a round only"
    for path in sorted(one.keys() & two.keys()):
        was, became = one[path].value, two[path].value
        # What the server only keeps for itself, such as a list of past rounds, may grow.
        fixed = was.shape == became.shape or path.split("/")[0] not in travelling
        if was.dtype != became.dtype or not fixed:
            yield f"{what} part {path} was {describe(was)} and became {describe(became)}"


def _missing_parts(world: World, scene: Scene) -> Iterator[str]:
    """Parts that are named somewhere but not there."""
    method, task = world.method, scene.tasks[0]
    if task.kept.keys() != set(method.keeps):
        yield f"enroll gives {sorted(task.kept)}, but the method keeps {sorted(method.keeps)}"
    starts = (
        ("client", method.client(), method.start(task.down, task.kept)),
        ("server", method.server(), scene.before.server),
    )
    for role, moves, parts in starts:
        for name in sorted(_named(moves) - parts.keys()):
            yield f"{role}: a move names part {name}, which it does not start with"


def _named(moves: Sequence[Move]) -> set[str]:
    """Every part that a move reads or changes."""
    return {name for move in moves for name in (move.parts if isinstance(move, Descend) else (move.part, *move.of))}


def _unfit_models(world: World, models: dict[str, Params]) -> Iterator[str]:
    net, images = world.assembly.net, clean_test_images(world)
    for name, model in models.items():
        if not name:
            yield "a model has no name"
        for entry in sorted((net.parameters | net.buffers) ^ model.keys()):
            yield f"model {name} {'has an unknown' if entry in model else 'lacks'} {entry}"
        logits = net.evaluate(model, images)
        if logits.shape != (len(images), CLASSES) or not bool(logits.isfinite().all()):
            yield f"model {name} gives {describe(logits)} logits of {len(images)} images, or some are not finite"
