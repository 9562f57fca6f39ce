"""Differential privacy: what one client can change is bounded, noise is as told, and epsilon is the accountant's."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import semifed
from flower.post import make_sites
from flower.test_seam import federate
from semifed.engine.assemble import Assembly, prepare
from semifed.engine.gate import Gate, Passed, Turn, idle_upload
from semifed.engine.local import Outcome, Reply, Task
from semifed.engine.merge import Circle, merge
from semifed.engine.privacy import draw_private, epsilon
from semifed.engine.rounds import begin
from semifed.errors import SettingError
from semifed.experiment import Experiment
from semifed.federation import serving
from semifed.methods import METHODS
from semifed.methods.base import Visit
from semifed.params import Parts, flatten, tree_map
from toys import plain, stop_after

Make = Callable[..., Experiment]
PRIVATE = ("privacy.clip=0.5", "privacy.noise=0.8", "privacy.delta=0.01")
WORDS = ["data=synthetic", "net=mlp", "scenario.clients=20", "train.clients_per_round=4", "train.rounds=3"]
WORDS += ["client.epochs=1", *PRIVATE]


def experiment(*more: str) -> Experiment:
    return Experiment.read(None, [*WORDS, *more])


def turn_of(assembly: Assembly, server: Parts, change: Callable[[Tensor], Tensor], client: int = 0) -> Turn:
    """A client that has moved every number of its net by this."""
    method = assembly.experiment.method
    task = Task(client, method.download(server, Visit(client, client, 0)), {}, 1)
    idle = idle_upload(method, assembly.net, task)
    return Turn(task, Outcome(tree_map(change, idle), {}, 5, {"cross_entropy": 1.0}, {}), idle)


def merged(assembly: Assembly, server: Parts, turns: list[Turn], round: int = 0) -> Tensor:
    """All numbers of the server's net after a round of these."""
    passed = Passed(turns, {}, {}, [], [], [])
    now, _ = merge(assembly, server, passed, Circle(round, {}, torch.zeros(20, dtype=torch.int64)))
    return torch.cat([value.flatten() for value in flatten(now["net"]).values()]).double()


@pytest.fixture(scope="module")
def world() -> tuple[Assembly, Parts]:
    assembly = prepare(experiment())
    return assembly, begin(assembly).server


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-1e20, 1e20), max_size=5), st.floats(-1e20, 1e20))
def test_one_client_more_moves_the_model_by_no_more_than_its_share(
    world: tuple[Assembly, Parts], others: list[float], one: float
) -> None:
    assembly, server = world
    turns = [turn_of(assembly, server, lambda value, by=by: value + by) for by in others]  # type: ignore[misc]
    without = merged(assembly, server, turns)
    with_it = merged(assembly, server, [*turns, turn_of(assembly, server, lambda value: value + one)])
    assert float((with_it - without).norm()) <= 0.5 / 4 * (1 + 1e-5)


def test_the_noise_is_as_long_as_told_and_another_in_every_round_and_tensor(world: tuple[Assembly, Parts]) -> None:
    assembly, server = world
    start = torch.cat([value.flatten() for value in flatten(server["net"]).values()]).double()
    one, two = (merged(assembly, server, [], round) - start for round in (0, 1))
    for noise in (one, two):
        assert float(noise.std()) == pytest.approx(0.8 * 0.5 / 4, rel=0.03)
        assert abs(float(noise.mean())) < 4 * 0.1 / len(noise) ** 0.5
        assert float((noise.abs() < 0.1).double().mean()) == pytest.approx(0.6827, abs=0.02)
    assert abs(float(torch.corrcoef(torch.stack([one, two]))[0, 1])) < 0.05
    assert torch.equal(one, merged(assembly, server, [], 0) - start)
    first, last = one[:20], one[-20:]
    assert not torch.allclose(first, last)


def test_without_noise_and_clipping_it_is_the_plain_mean(small: Make) -> None:
    words = ("scenario.clients=4", "method.weighting=uniform")
    plainly, privately = (
        semifed.run(small(*words, *more)) for more in ((), ("privacy.clip=1e6", "privacy.noise=1e-12"))
    )
    for name, value in plainly.model.items():
        torch.testing.assert_close(privately.model[name], value, rtol=0, atol=1e-5)
    assert [row["clients"] for row in privately.rows] == [row["clients"] for row in plainly.rows]


@pytest.mark.parametrize(("share", "noise", "rounds"), [(0.1, 1.0, 100), (0.02, 0.8, 500), (1.0, 5.0, 20)])
def test_epsilon_is_that_of_another_accountant_and_never_less(share: float, noise: float, rounds: int) -> None:
    other = pld.PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise))
    least = other.compose(event, rounds).get_epsilon(1e-5)
    assert least <= epsilon(share, noise, rounds, 1e-5) <= 1.25 * least


def test_clients_are_drawn_one_by_one() -> None:
    many = experiment("scenario.clients=50", "train.clients_per_round=10")
    rounds = [draw_private(many, round, range(50)) for round in range(400)]
    assert sum(map(len, rounds)) / 400 == pytest.approx(10, abs=0.6)
    assert len({len(cohort) for cohort in rounds}) > 8
    assert all(40 < sum(client in cohort for cohort in rounds) < 130 for client in range(50))
    assert [draw_private(many, round, range(25)) for round in range(400)] == [
        [client for client in cohort if client < 25] for cohort in rounds
    ]


def test_epsilon_stands_in_every_row_and_in_the_summary_and_a_round_of_nobody_counts() -> None:
    record = semifed.run(experiment("train.clients_per_round=1", "train.rounds=6"))
    assert [] in [row["clients"] for row in record.rows]
    spent = [row["privacy"]["epsilon"] for row in record.rows]
    assert spent == sorted(spent)
    assert spent[0] == epsilon(1 / 20, 0.8, 1, 0.01)
    assert record.summary["privacy"] == {"epsilon": spent[-1], "delta": 0.01}
    models = [row["models"]["global"]["loss"] for row in record.rows]
    assert len(set(models)) == 6
    assert "privacy" not in semifed.run(experiment("privacy.clip=0", "privacy.noise=1.0", "privacy.delta=1e-5")).summary


def test_the_same_whatever_the_workers_and_after_a_stop(tmp_path: Path) -> None:
    whole = semifed.run(experiment())
    assert plain(semifed.run(experiment("engine.workers=2", "engine.chunk=2")).rows) == plain(whole.rows)
    with pytest.raises(KeyboardInterrupt):
        semifed.run(experiment(), tmp_path / "run", watch=stop_after(1))
    assert semifed.run(None, tmp_path / "run", resume=True).summary["model"] == whole.summary["model"]


def test_the_same_over_a_network(tmp_path: Path) -> None:
    exp = experiment("scenario.clients=3", "train.clients_per_round=3", "federation.deadline=60.0")
    alone, between = semifed.run(exp), federate(exp, make_sites(tmp_path, 3))
    for name, value in alone.model.items():
        torch.testing.assert_close(between.model[name], value, rtol=0, atol=1e-5)
    assert [row["privacy"] for row in between.rows] == [row["privacy"] for row in alone.rows]


def test_no_reply_decides_on_another(world: tuple[Assembly, Parts]) -> None:
    assembly, server = world
    turns = [turn_of(assembly, server, lambda value: value + 1e-3, client) for client in range(4)]
    odd = turns[0].outcome._replace(terms={"another": 1.0})
    long = turn_of(assembly, server, lambda value: value + 1e6, 3).outcome
    answers = [Reply(0, 0, odd), *(Reply(turn.task.client, 0, turn.outcome) for turn in turns[1:3]), Reply(3, 0, long)]
    tasks = [turn.task for turn in turns]
    one, method, net = assembly.experiment.gate, assembly.experiment.method, assembly.net
    assert set(Gate(one, method, net)(0, tasks, answers).refused) == {"0", "3"}
    assert not Gate(one, method, net, private=True)(0, tasks, answers).refused


def test_every_method_says_where_it_does_not_apply() -> None:
    refused = {name for name, method in METHODS.items() if method.not_private}
    assert refused == {"fedmatch", "fedsiam-d", "semifl", "ssfl", "local-sl", "local-fixmatch", "local-uda"}
    with pytest.raises(SettingError, match="privacy: does not go with fedmatch: helpers are nets of single clients"):
        experiment("method=fedmatch", "scenario.validation=20")


@pytest.mark.parametrize("name", sorted(name for name, method in METHODS.items() if not method.not_private))
def test_methods_that_it_applies_to_run(name: str) -> None:
    place = METHODS[name].labels[0]
    record = semifed.run(experiment(f"method={name}", f"scenario.labels={place}", "train.rounds=1", "net.norm=none"))
    assert record.rows[0]["privacy"]["epsilon"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("privacy.delta=0.05",), r"privacy.delta: 0.05 must be below 1 / 20"),
        (("aggregate.rule=median",), r"privacy: noise is made for a mean"),
        (("gate.quorum=0.5",), r"gate.quorum: must be 0"),
        (("train.stop_on_collapse=2",), r"train.stop_on_collapse: must be 0"),
        (("privacy.clip=0",), r"privacy.clip: set it"),
    ],
)
def test_settings_that_would_show_a_client_are_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        experiment(*words)


def test_what_cannot_be_had_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match=r"net.norm: batch statistics .* do not stand noise"):
        prepare(experiment("net=resnet9", "net.norm=batch"))
    source = tmp_path / "noise.bin"
    here = experiment(f"privacy.source={source}")
    with pytest.raises(SettingError, match="cannot be read"):
        prepare(here)
    source.write_bytes(b"1" * 31)
    source.chmod(0o644)
    with pytest.raises(SettingError, match="others may read"):
        prepare(here)
    source.chmod(0o600)
    with pytest.raises(SettingError, match="shorter than 32 bytes"):
        prepare(here)
    with pytest.raises(SettingError, match=r"privacy.source: noise from the seed"):
        serving._check(experiment())
    found = importlib.util.find_spec

    def missing(name: str, *more: Any) -> Any:
        return None if name == "dp_accounting" else found(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    with pytest.raises(SettingError, match=r"pip install 'semifed\[privacy\]'"):
        prepare(experiment())


def test_noise_comes_from_the_file_and_not_from_the_seed(tmp_path: Path) -> None:
    source = tmp_path / "noise.bin"
    models = []
    for content in (b"a" * 32, b"a" * 32, b"b" * 32):
        source.write_bytes(content)
        source.chmod(0o600)
        models.append(semifed.run(experiment(f"privacy.source={source}")).summary["model"])
    assert models[0] == models[1] != models[2]
    assert models[0] != semifed.run(experiment()).summary["model"]
