"""Questions about where and when a method runs: whatever the engine, the padding, the pause, the same numbers."""

import dataclasses
from collections.abc import Iterator, Sequence

from semifed.conformance.compare import copied, difference, first_nan
from semifed.conformance.world import Scene, World, as_tree, play, train_server, worlds
from semifed.engine.local import Form, Outcome, Task
from semifed.engine.rounds import Progress, begin
from semifed.engine.workers import InProcess
from semifed.methods.base import Method
from semifed.params import flatten, unflatten
from semifed.payload import pack, unpack
from semifed.results.keep import InMemory
from semifed.results.record import Row

TOLERANCE = 1e-5
"""How far two engines may be apart after a visit: sums are taken in another order."""


def engines_agree(method: Method) -> Iterator[str]:
    """Clients trained at once, in chunks, one by one, or over a wire come to the same end."""
    for world in worlds(method, even=True):
        *_, scene = world.scenes(3)
        for engine, outcomes in _in_other_engines(world, scene):
            for complaint in _disagreements(scene, outcomes, TOLERANCE):
                yield f"{complaint} between one by one and {engine} ({world})"


def _in_other_engines(world: World, scene: Scene) -> Iterator[tuple[str, list[Outcome]]]:
    mapped = dataclasses.replace(world.workshop, form=Form(mapped=True))
    round, count = scene.before.round, len(scene.tasks)
    for chunk in (count, 2):  # the last of three clients is then a chunk of one
        yield f"mapped in chunks of {chunk}", InProcess(mapped, chunk).train(round, scene.tasks)
    sent = [task._replace(down=unpack(pack(task.down)), kept=unpack(pack(task.kept))) for task in scene.tasks]
    received = [
        outcome._replace(up=unpack(pack(outcome.up)), kept=unpack(pack(outcome.kept)))
        for outcome in world.workshop.train(round, sent)
    ]
    yield "a worker that receives bytes", received


def _disagreements(scene: Scene, outcomes: Sequence[Outcome], tolerance: float = 0.0) -> Iterator[str]:
    """In what the outcomes differ from those of the scene, client by client."""
    for task, one, other in zip(scene.tasks, scene.outcomes, outcomes, strict=True):
        if found := difference(as_tree(one), as_tree(other), tolerance):
            yield f"client {task.client}: {found}"


def padding_is_nothing(method: Method) -> Iterator[str]:
    """Clients of different sizes, padded to one shape, end as they would alone, and an empty mask does no harm."""
    for world in worlds(method, "hesitant"):  # here a mask of confident rows is empty
        yield from _not_a_number(world, next(world.scenes(1)))
    for world in worlds(method):
        first, scene = world.scenes(2)
        yield from _not_a_number(world, first)
        yield from _not_a_number(world, scene)
        yield from _reads_padding(world, scene)
        mapped = dataclasses.replace(world.workshop, form=Form(mapped=True)).train(scene.before.round, scene.tasks)
        for complaint in _disagreements(scene, mapped, TOLERANCE):
            yield f"{complaint} between alone and padded in a cohort ({world})"


def _not_a_number(world: World, scene: Scene) -> Iterator[str]:
    for task, outcome in scene.turns():
        if first_nan(as_tree(outcome)):
            own = world.assembly.scenario.clients[task.client]
            held = f"{own.labelled.size} labelled and {own.unlabelled.size} unlabelled samples"
            path = _origin(world, scene, task)
            yield f"client {task.client}, which holds {held}: {path} is not a number ({world})"
    if path := first_nan(scene.after.server):
        yield f"the server after a round: {path} is not a number ({world})"


def _origin(world: World, scene: Scene, task: Task) -> str:
    """Where a NaN is seen first: it spreads to everything within a step."""
    training = world.workshop.training
    for steps in range(1, training.steps or 1):
        short = dataclasses.replace(world.workshop, training=dataclasses.replace(training, steps=steps))
        if path := first_nan(as_tree(short.train(scene.before.round, [task])[0])):
            return path
    return first_nan(as_tree(world.workshop.train(scene.before.round, [task])[0]))


def _reads_padding(world: World, scene: Scene) -> Iterator[str]:
    """Padding rows show sample 0, which nobody holds: with another image there nothing may change."""
    other = world.with_inverted([0])
    if found := difference(train_server(world, scene.before), train_server(other, scene.before)):
        yield f"the server: {found} when the image in the padding rows is another ({world})"
    for complaint in _disagreements(scene, other.workshop.train(scene.before.round, scene.tasks)):
        yield f"{complaint} when the image in the padding rows is another ({world})"


def resume_is_exact(method: Method) -> Iterator[str]:
    """A run that goes on from a checkpoint, or is repeated, ends the same to the last bit; another seed does not."""
    others = worlds(method, per_round=3, seed=1)
    for world, other in zip(worlds(method, per_round=3), others, strict=True):
        first = _saved(begin(world.assembly))
        early, early_rows = _run(world, first, 1)
        late, late_rows = _run(world, early, 1)
        resumed, resumed_rows = _run(world, _saved(early), 1)
        again, again_rows = _run(world, first, 2)
        for words, progress, rows in (
            ("from a checkpoint", resumed, early_rows + resumed_rows),
            ("a second time", again, again_rows),
        ):
            if found := difference(late.state(), progress.state()):
                yield f"{found} when the run is done {words} ({world})"
            if rows != early_rows + late_rows:
                yield f"a row of the record differs when the run is done {words} ({world})"
        if not difference(early.state(), _run(other, begin(other.assembly), 1)[0].state()):
            yield f"the run ends the same with another seed ({world})"


def _saved(progress: Progress) -> Progress:
    """The progress as a checkpoint file gives it back: with the names of all tensors in another order."""
    state = unflatten(dict(sorted(flatten(copied(progress.state())).items())))
    return Progress(progress.round, state.get("server", {}), InMemory(state.get("kept", {})), state["visits"])


def _run(world: World, progress: Progress, rounds: int) -> tuple[Progress, list[Row]]:
    """Some more rounds, and their rows without the seconds they took."""
    rows = []
    for _ in range(rounds):
        scene = play(world, progress)
        progress = scene.after
        rows.append({name: value for name, value in scene.row.items() if name != "seconds"})
    return progress, rows


def nothing_is_changed_in_place(method: Method) -> Iterator[str]:
    """Training and merging leave every tensor that they were given as it was."""
    for world in worlds(method):
        for scene in world.scenes(2):
            for complaint in scene.spoilt:
                yield f"{complaint} ({world})"
