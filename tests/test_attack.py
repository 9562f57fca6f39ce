"""The attack kit: what hostile clients do, the same whatever the workers, and shown in the record."""

from collections.abc import Callable

import pytest
import torch

import semifed
from semifed.engine.assemble import prepare
from semifed.engine.attack import gaussian
from semifed.engine.gate import idle_upload, update_norm
from semifed.engine.hostile import hostile_clients
from semifed.engine.local import Outcome, Task
from semifed.engine.rounds import begin
from semifed.engine.workers import open_clients
from semifed.errors import SettingError
from semifed.experiment import Experiment
from semifed.methods.base import Visit
from toys import plain

Make = Callable[..., Experiment]


def outcomes_of(experiment: Experiment) -> list[tuple[Outcome, float]]:
    """The first round's outcomes of four clients, and how far each has moved."""
    assembly = prepare(experiment)
    method, server = experiment.method, begin(assembly).server
    tasks = [Task(client, method.download(server, Visit(client, client, 0)), {}, 1) for client in range(4)]
    clients = open_clients(assembly)
    try:
        outcomes = [one for one in clients.train(0, tasks) if isinstance(one, Outcome)]
    finally:
        clients.close()
    idle = idle_upload(method, assembly.net, tasks[0])
    return [(one, update_norm(one.up, idle)) for one in outcomes]


@pytest.mark.parametrize("kind", ["sign-flip", "scale", "gaussian", "nans", "free-rider"])
@pytest.mark.parametrize("method", ["fedavg", "fedsiam-d"])
def test_what_hostile_clients_send(kind: str, method: str, small: Make) -> None:
    experiment = small("client.epochs=1", f"method={method}")
    honest = outcomes_of(experiment)
    spoilt = outcomes_of(experiment.replace(f"attack.kind={kind}", "attack.clients=[1,3]", "attack.strength=3"))
    assert spoilt[0][1] == honest[0][1]
    expected = {"sign-flip": 3 * honest[1][1], "scale": 3 * honest[1][1], "gaussian": 3 * honest[1][1], "free-rider": 0}
    assert spoilt[1][1] == pytest.approx(expected.get(kind, float("nan")), rel=1e-3, nan_ok=True)
    part = "net" if method == "fedavg" else "target"
    sums = [one.up[part]["head.bias"].sum() for one, _ in (honest[1], spoilt[1])]
    assert not torch.equal(*sums)


def test_noise_is_normal_and_of_its_key() -> None:
    draws = gaussian(7, torch.zeros(20_000))
    assert torch.equal(draws, gaussian(7, torch.zeros(20_000)))
    assert not torch.equal(draws, gaussian(8, torch.zeros(20_000)))
    assert abs(float(draws.mean())) < 0.03
    assert abs(float(draws.std()) - 1) < 0.03


def test_mirrored_labels_and_poisoned_images_are_those_of_hostile_clients_alone(small: Make) -> None:
    clean = prepare(small("scenario.gamma=0.5"))
    hostile = clean.scenario.clients[2]
    flipped = prepare(small("attack.kind=label-flip", "attack.clients=[2]")).workshop
    others = torch.ones(len(clean.dataset.labels), dtype=torch.bool)
    others[torch.tensor(hostile.labelled)] = others[torch.tensor(hostile.unlabelled)] = False
    assert torch.equal(flipped.labels[~others], 3 - clean.workshop.labels[~others])
    assert torch.equal(flipped.labels[others], clean.workshop.labels[others])
    poisoned = prepare(small("attack.kind=poison", "attack.clients=[2]", "attack.target=1")).workshop
    own = torch.tensor(hostile.unlabelled)
    changed = (poisoned.images != clean.workshop.images).flatten(1).any(1)
    assert changed[own].float().mean() > 0.8
    assert not changed[torch.tensor(hostile.labelled)].any()
    assert not changed[others].any()
    assert torch.equal(clean.dataset.images, clean.workshop.images)


@pytest.mark.parametrize("kind", ["gaussian", "poison"])
def test_an_attack_repeats_whatever_the_workers(kind: str, small: Make) -> None:
    words = (f"attack.kind={kind}", "attack.share=0.5", "engine.chunk=2", "method=fedsiam-pi")
    alone, spread = (semifed.run(small(*words, f"engine.workers={workers}")) for workers in (1, 2))
    assert plain(alone.rows) == plain(spread.rows)
    assert alone.summary["model"] == spread.summary["model"]
    assert alone.summary["model"] != semifed.run(small("method=fedsiam-pi")).summary["model"]


def test_the_record_shows_who_is_hostile_and_free_riders_and_nan_are_refused(small: Make) -> None:
    for kind, code in (("nans", "non_finite"), ("free-rider", "unchanged")):
        experiment = small(f"attack.kind={kind}", "attack.share=0.5")
        record = semifed.run(experiment)
        hostile = hostile_clients(experiment, range(6))
        assert len(hostile) == 3
        for row in record.rows:
            assert row["hostile"] == [client for client in row["clients"] if client in hostile]
            assert sorted(row["refused"]) == sorted(map(str, row["hostile"]))
        assert {tuple(counts) for counts in record.summary["refused"].values()} == {(code,)}
    assert "hostile" not in semifed.run(small()).rows[0]


def test_attacks_that_say_nothing(small: Make) -> None:
    with pytest.raises(SettingError, match=r"attack\.share: say who is hostile"):
        small("attack.kind=nans")
    with pytest.raises(SettingError, match=r"attack\.clients: there is no client 6"):
        small("attack.kind=nans", "attack.clients=[6]")
