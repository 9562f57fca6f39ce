"""Questions about what a method learns from: a client's own data, and the unlabelled ones among them."""

from collections.abc import Iterator, Mapping

import torch

from semifed.batch import Pool
from semifed.conformance.compare import difference
from semifed.conformance.world import CLASSES, DoesNotApply, as_tree, moments, play, train_server, worlds
from semifed.engine.local import Outcome
from semifed.methods.base import Method
from semifed.params import Parts

ROW_BY_ROW = "confident"
"""A net without batch normalisation: there a row that a loss ignores leaves no trace."""


def own_data_matters(method: Method) -> Iterator[str]:
    """With other data at one client its upload is another, and nobody else's turn is."""
    answered: dict[tuple[str, int], bool] = {}
    for scenes in moments(worlds(method, ROW_BY_ROW)):
        for world, scene in scenes:
            for place in scene.busy():
                client = scene.tasks[place].client
                if answered.get((world.labels, client)):
                    continue
                own = world.assembly.scenario.clients[client]
                other = world.with_inverted([*own.labelled, *own.unlabelled])
                # The others are looked at in the first round, which is enough: they cost more than all the rest.
                places = range(len(scene.tasks)) if scene.before.round == 0 else [place]
                outcomes = other.workshop.train(scene.before.round, [scene.tasks[one] for one in places])
                for one, outcome in zip(places, outcomes, strict=True):
                    was = scene.outcomes[one]
                    if one == place:
                        answered[world.labels, client] = bool(difference(_result(was), _result(outcome)))
                    elif found := difference(as_tree(was), as_tree(outcome)):
                        bystander = scene.tasks[one].client
                        yield f"other data at client {client} change client {bystander}: {found} ({world})"
        if answered and all(answered.values()):
            return
    if not answered:
        yield "no client ever reads a sample: see reads()"
    for (labels, client), changed in answered.items():
        if not changed:
            yield f"client {client} uploads the same whatever its data are (labels at the {labels})"


def _result(outcome: Outcome) -> Parts:
    """What a client hands over, or where it is on its own what it keeps."""
    return outcome.up or outcome.kept


def unlabelled_data_matter(method: Method) -> Iterator[str]:
    """Other unlabelled images change the uploads; the labels that are hidden change nothing."""
    if method.reveals:
        raise DoesNotApply("to the method no sample is unlabelled")
    yield from _hidden_labels_that_matter(method)
    at_client = _unlabelled_pools(method.reads())
    at_server = _unlabelled_pools(method.server_reads()) if method.server() and "server" in method.labels else []
    if not at_client and not at_server:
        raise DoesNotApply("the method reads no unlabelled samples")
    waiting = {labels for labels in method.labels if at_client or labels == "server"}
    for scenes in moments(worlds(method, ROW_BY_ROW)):
        for world, scene in scenes:
            other = world.with_inverted(world.unlabelled())
            if at_client:
                outcomes = other.workshop.train(scene.before.round, scene.tasks)
                pairs = zip(scene.outcomes, outcomes, strict=True)
                changed = any(difference(_result(one), _result(two)) for one, two in pairs)
            else:
                changed = bool(difference(train_server(world, scene.before), train_server(other, scene.before)))
            if changed:
                waiting.discard(world.labels)
        if not waiting:
            return
    what = "no upload changes" if at_client else "the server's training does not change"
    pool = (at_client or at_server)[0]
    yield f"{what} with other unlabelled images, though pool {pool} is read (labels at the {min(waiting)})"


def _unlabelled_pools(pools: Mapping[str, Pool]) -> list[str]:
    return [name for name, pool in pools.items() if pool.holds != "labelled"]


def _hidden_labels_that_matter(method: Method) -> Iterator[str]:
    for world in worlds(method, ROW_BY_ROW):
        scene = next(world.scenes(1))
        labels, hidden = world.workshop.labels.clone(), torch.tensor(world.unlabelled())
        labels[hidden] = (labels[hidden] + 1) % CLASSES
        other = play(world.changed(labels=labels), scene.before)
        if found := difference(scene.after.state(), other.after.state()):
            yield f"the hidden labels of unlabelled samples matter: {found} ({world})"
