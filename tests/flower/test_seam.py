"""The federation's two sides without a network: the same numbers and bytes as a simulation, and what is refused."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flower.post import Post, make_sites
from semifed import run
from semifed.engine.assemble import load_data, make_split
from semifed.engine.flower_client import Site, SiteOptions
from semifed.engine.flower_server import Federation, FlowerClients
from semifed.engine.local import Absent
from semifed.engine.wire import Letter, LetterError, read_head
from semifed.errors import RunError
from semifed.experiment import Experiment
from semifed.federation.serving import whole
from semifed.payload import nbytes, pack, unpack
from semifed.results.record import Record

RUN = "0123456789abcdef" * 2
BASE: dict[str, Any] = {
    "seed": 3,
    "data": "synthetic",
    "net": "mlp",
    "scenario": {"clients": 3, "gamma": 0.5},
    "train": {"rounds": 3, "clients_per_round": 3, "evaluate_every": 1},
    "client": {"epochs": 1, "batch": 20},
    "federation": {"deadline": 2.0, "patience": 2.0, "attempts": 2},
}
AT_SERVER = {"clients": 3, "gamma": 0.2, "labels": "server"}
METHODS: dict[str, dict[str, Any]] = {
    "fedsiam-d": {"method": {"name": "fedsiam-d"}},
    "fedmatch": {"method": {"name": "fedmatch"}, "scenario": {"clients": 3, "gamma": 0.5, "validation": 40}},
    "fedcon": {"method": {"name": "fedcon"}, "scenario": AT_SERVER},
    "fedmix": {"method": {"name": "fedmix"}, "scenario": AT_SERVER},
}


def experiment(name: str = "fedsiam-d", *assignments: str) -> Experiment:
    made = Experiment.of({**BASE, **METHODS[name]})
    return made.replace(*assignments) if assignments else made


def federate(exp: Experiment, post: Post, out: Path | None = None, **more: Any) -> Record:
    federation = Federation(RUN, list(post.sites))
    return run(exp, out, clients=lambda assembly: FlowerClients(assembly, post, federation, poll=0.01), **more)


@pytest.mark.parametrize("name", METHODS)
def test_a_federation_gives_the_numbers_and_bytes_of_a_simulation(name: str, tmp_path: Path) -> None:
    exp, post = experiment(name), make_sites(tmp_path, 3)
    alone, between = run(exp), federate(exp, post)
    assert alone.model.keys() == between.model.keys()
    for parameter, value in alone.model.items():
        torch.testing.assert_close(between.model[parameter], value, rtol=0, atol=1e-5)
    assert [row["bytes"] for row in between.rows] == [row["bytes"] for row in alone.rows]
    assert [row["clients"] for row in between.rows] == [row["clients"] for row in alone.rows]
    assert all(not row["stragglers"] and not row["refused"] for row in between.rows)
    assert post.closed


def test_bytes_counted_are_bytes_sent_and_withheld_ones_are_not_there(tmp_path: Path) -> None:
    exp, post = experiment("fedmatch"), make_sites(tmp_path, 3)
    record = federate(exp, post)
    ups = [letter.body for _, letter in post.answered if letter.head["kind"] == "trained"]
    downs = [letter.body for _, letter in post.sent if letter.head["kind"] == "train"]
    assert sum(nbytes(unpack(body)) for body in ups) == record.summary["bytes"]["up"]
    assert sum(nbytes(unpack(body)) for body in downs) == record.summary["bytes"]["down"]
    counted, whole = nbytes(unpack(ups[-1])), sum(value.numel() * 4 for value in record.model.values())
    header = int.from_bytes(ups[-1][4:12], "little")
    assert len(ups[-1]) == 12 + header + counted  # nothing else is on the wire
    assert counted < 2 * whole  # sigma and psi, less what did not move


def test_what_a_site_keeps_stays_there_and_survives_a_restart(tmp_path: Path) -> None:
    exp, post = experiment("fedcon"), make_sites(tmp_path / "one", 3)
    steady = federate(exp, post)
    kept = {"projector", "target"}
    for _, letter in post.sent + post.answered:
        if letter.body:
            assert not kept & set(unpack(letter.body))
    files = sorted((tmp_path / "one" / "b" / RUN).glob("round-*.safetensors"))
    assert [file.name for file in files] == [f"round-{number:06d}.safetensors" for number in range(3)]

    again = make_sites(tmp_path / "two", 3)

    def restart_once(site: str, letter: Letter) -> Letter:
        if letter.head["kind"] == "trained" and letter.head["round"] == 1 and site == "b":
            again.sites["b"] = make_sites(tmp_path / "two", 3).sites["b"]  # a new process with the same folder
        return letter

    again.tamper = restart_once
    restarted = federate(exp, again)
    for parameter, value in steady.model.items():
        assert torch.equal(restarted.model[parameter], value)
    assert sum(1 for site, letter in again.sent if site == "b" and letter.head["kind"] == "invite") == 2


def test_a_repeated_round_starts_from_the_state_before_it(tmp_path: Path) -> None:
    exp = experiment("fedcon", "federation.attempts=3")
    steady = federate(exp, make_sites(tmp_path / "one", 3))
    post = make_sites(tmp_path / "two", 3)
    lost = {("a", 1), ("c", 1), ("b", 2)}

    def lose(site: str, letter: Letter) -> Letter | Absent:
        place = (site, letter.head.get("round"))
        if letter.head["kind"] == "trained" and place in lost:
            lost.discard((site, letter.head["round"]))
            return Absent("the line was cut")
        return letter

    post.tamper = lose
    post.lose = 2
    bumpy = federate(exp, post)
    assert not lost
    for parameter, value in steady.model.items():
        assert torch.equal(bumpy.model[parameter], value)


def test_52_and_55_a_late_site_is_a_straggler_and_takes_part_in_the_current_round_later(tmp_path: Path) -> None:
    exp = experiment("fedsiam-d", "federation.min_sites=2", "federation.quorum=2", "federation.deadline=0.3")
    post = make_sites(tmp_path, 3)
    post.tamper = lambda site, letter: None if site == "b" and letter.head.get("round") == 1 else letter
    record = federate(exp, post)
    assert [row["stragglers"] for row in record.rows] == [{}, {"1": "no answer before the deadline"}, {}]
    assert [row["clients"] for row in record.rows] == [[0, 1, 2]] * 3
    rounds = [letter.head["round"] for site, letter in post.sent if site == "b" and letter.head["kind"] == "train"]
    assert rounds == [0, 1, 2]


def test_50_a_round_ends_with_those_that_are_left(tmp_path: Path) -> None:
    exp = experiment("fedsiam-d", "federation.min_sites=2", "federation.quorum=2", "federation.deadline=0.3")
    post = make_sites(tmp_path, 3)

    def vanish(site: str, letter: Letter) -> Letter | None:
        if site == "b" and letter.head.get("round") == 1:
            post.away = {"b"}
        return None if site in post.away else letter

    post.tamper = vanish
    record = federate(exp, post)
    assert [list(row["stragglers"]) for row in record.rows] == [[], ["1"], []]
    assert [row["clients"] for row in record.rows] == [[0, 1, 2], [0, 1, 2], [0, 2]]


def test_a_site_that_comes_late_takes_part_from_then_on(tmp_path: Path) -> None:
    exp, post = experiment("fedsiam-d", "federation.min_sites=2"), make_sites(tmp_path, 3)
    post.away = {"c"}

    def arrive(_site: str, letter: Letter) -> Letter:
        if letter.head.get("round") == 1:
            post.away.clear()
        return letter

    post.tamper = arrive
    record = federate(exp, post)
    assert [row["clients"] for row in record.rows] == [[0, 1], [0, 1], [0, 1, 2]]


def test_51_when_all_sites_are_gone_the_run_ends_and_can_go_on(tmp_path: Path) -> None:
    exp, post = experiment("fedsiam-d", "federation.patience=0.2", "federation.deadline=0.2"), make_sites(tmp_path, 3)
    post.tamper = lambda _, letter: None if letter.head.get("round") == 2 else letter
    with pytest.raises(RunError, match=r"federation.quorum: round 3 got 0 of 3 answers in 2 attempts"):
        federate(exp, post, tmp_path / "run")
    post.away = {"a", "b", "c"}
    with pytest.raises(RunError, match=r"federation.patience: after 0.2 s 0 of 3 sites are here"):
        federate(exp, post, tmp_path / "run", resume=True)
    post.away, post.tamper = set(), lambda _, letter: letter
    record = federate(exp, post, tmp_path / "run", resume=True)
    steady = federate(exp, make_sites(tmp_path / "steady", 3))
    assert record.summary["model"] == steady.summary["model"]


def spoil(change: Callable[[Letter], Letter]) -> Callable[[str, Letter], Letter]:
    """Site b tampers with what it has trained."""

    def tamper(site: str, letter: Letter) -> Letter:
        spoiled = site == "b" and letter.head["kind"] == "trained"
        return change(letter) if spoiled else letter

    return tamper


def in_body(change: Callable[[dict[str, Any]], Any]) -> Callable[[Letter], Letter]:
    def spoiled(letter: Letter) -> Letter:
        tree = unpack(letter.body)
        change(tree)
        return Letter(letter.head, pack(tree))

    return spoiled


def in_head(**changes: Any) -> Callable[[Letter], Letter]:
    return lambda letter: Letter({**letter.head, **changes}, letter.body)


def first(tree: dict[str, Any]) -> tuple[dict[str, Any], str]:
    part = tree["target"]
    return part, next(iter(part))


def put(value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any]], None]:
    def change(tree: dict[str, Any]) -> None:
        part, name = first(tree)
        part[name] = value(part[name])

    return change


def rename(tree: dict[str, Any]) -> None:
    part, name = first(tree)
    part["other"] = part.pop(name)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (in_body(put(lambda value: value * math.nan)), "non_finite"),  # 40
        (in_body(put(lambda value: value[:-1])), "shape"),  # 41, and all below
        (in_body(put(lambda value: value.double())), "dtype"),
        (in_body(put(lambda value: value[None])), "shape"),
        (in_body(rename), "keys"),
        (in_body(lambda tree: tree.update(extra={"w": torch.zeros(2)})), "keys"),
        (in_body(lambda tree: tree.clear()), "keys"),
        (in_head(examples=-1), "not a number of images"),  # 43
        (in_head(examples=1e12), "not a number of images"),
        (in_head(examples="many"), "not a number of images"),
        (in_head(examples=True), "not a number of images"),
        (in_head(terms={"loss": "low"}), "not a number"),
        (in_head(notes=[1]), "not a table"),
        (in_head(round=7), "not of this round"),  # 44
        (in_head(run="f" * 32), "not of this round"),
        (lambda letter: Letter(letter.head, letter.body[:-7]), "cut short"),  # 57
        (lambda letter: Letter(letter.head, b"garbage" * 9), "not a payload"),
        (lambda letter: Letter(letter.head, letter.body + bytes(2 * 10**6)), "over the limit of 1,000,000"),  # 56
    ],
)
def test_40_to_44_and_56_57_a_bad_answer_is_refused_and_the_others_count(
    change: Callable[[Letter], Letter], reason: str, tmp_path: Path
) -> None:
    exp = experiment("fedsiam-d", "train.rounds=1", "federation.limit=1", "federation.quorum=1")
    post = make_sites(tmp_path, 3)
    post.tamper = spoil(change)
    record = federate(exp, post)
    assert list(record.rows[0]["refused"]) == ["1"]
    assert reason in record.rows[0]["refused"]["1"]
    assert all(bool(value.isfinite().all()) for value in record.model.values())


def test_47_when_all_are_refused_the_model_stays(tmp_path: Path) -> None:
    exp, post = experiment("fedsiam-d", "train.rounds=2"), make_sites(tmp_path, 3)
    change = in_body(put(lambda value: value * math.inf))
    post.tamper = lambda _, letter: change(letter) if letter.head.get("round") == 1 else letter
    record = federate(exp, post)
    before = federate(experiment("fedsiam-d", "train.rounds=2"), make_sites(tmp_path / "x", 3))
    assert set(record.rows[1]["refused"]) == {"0", "1", "2"}
    assert record.summary["model"] != before.summary["model"]
    assert record.rows[1]["models"]["target"] == record.rows[0]["models"]["target"]


def test_a_wait_for_a_site_that_left_because_it_was_refused_says_so_at_once(tmp_path: Path) -> None:
    exp, post, said = experiment("fedsiam-d", "federation.patience=0.2"), make_sites(tmp_path, 3), list[str]()
    reason = "its message is over the limit of 20 bytes"

    def refuse(site: str, letter: Letter) -> Letter | Absent:
        if site == "b" and letter.head["kind"] == "trained":
            post.away = {"b"}
            return Absent(reason, refused=True)
        return letter

    post.tamper = refuse
    federation = Federation(RUN, list(post.sites))
    with pytest.raises(RunError, match=f"2 of 3 sites are here; b was refused in the last round: {reason}; nothing is"):
        run(exp, clients=lambda assembly: FlowerClients(assembly, post, federation, said.append, poll=0.01))
    waiting = "round 2: waiting for sites, 2 of 3 are here"
    assert said[-1] == f"{waiting}; b was refused in the last round: {reason}"


class Deceived(Site):
    """A site whose server says something else of itself."""

    def __init__(self, site: Site, **claims: str) -> None:
        super().__init__(site._options, lambda _: True)
        self._claims = claims

    def answer(self, letter: Letter) -> Letter:
        return super().answer(Letter({**letter.head, **self._claims}, letter.body))


def test_59_another_version_or_method_is_refused_naming_both(tmp_path: Path) -> None:
    exp = experiment("fedsiam-d", "federation.patience=0.2")
    for name, value, words in (
        ("semifed", "9.9", r"the server has semifed 9\.9, this site has 0\.1\.0"),
        ("hash", "beef", r"the server has the method fedsiam-d \(beef\), this site has fedsiam-d \(\w{16}\)"),
    ):
        post = make_sites(tmp_path / name, 3)
        for own in post.sites:
            post.sites[own] = Deceived(post.sites[own], **{name: value})
        with pytest.raises(RunError, match=words):
            federate(exp, post)


def test_a_site_runs_no_method_that_it_does_not_know(tmp_path: Path) -> None:
    site = make_sites(tmp_path, 1).sites["a"]
    answer = site.answer(Letter({"kind": "invite", "run": RUN, "method": "antigravity:Flight", "semifed": "0.1.0"}))
    assert answer.head["kind"] == "refused"
    assert "does not come with semifed" in answer.head["reason"]


@pytest.mark.parametrize(
    "head",
    [
        {"kind": "invite"},
        {"kind": "invite", "run": "../../x", "method": "fedavg"},
        {"kind": "invite", "run": RUN, "method": "fedavg", "experiment": "= ="},
        {"kind": "invite", "run": RUN, "method": "fedavg", "experiment": "seed = 1"},
        {"kind": "train", "run": RUN, "round": 0},
        {"kind": "test"},
        {"kind": "end", "run": RUN},
        {"kind": "exec", "code": "1"},
    ],
)
def test_a_site_answers_nonsense_with_a_reason(head: dict[str, Any], tmp_path: Path) -> None:
    answer = make_sites(tmp_path, 1).sites["a"].answer(Letter(head, b"?"))
    assert answer.head["kind"] in ("refused", "failed")
    assert answer.head["reason"]
    assert not answer.body


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": 3}', "[" * 100_000, '{"kind": "x", "y": "' + "z" * 2**20])
def test_a_head_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LetterError):
        read_head(text)


def test_a_site_says_what_it_will_do_asks_once_and_can_say_no(tmp_path: Path) -> None:
    shown: list[str] = []

    def agree(text: str) -> bool:
        shown.append(text)
        return len(shown) > 1

    exp = experiment("fedcon", "federation.patience=0.2")
    post = make_sites(tmp_path, 3, agree)
    with pytest.raises(RunError, match="the site a does not want to take part"):
        federate(exp, post)
    assert "sends    backbone" in shown[0]
    assert "keeps    its images, its labels, projector, target" in shown[0]
    asked = len(shown)
    federate(exp, make_sites(tmp_path, 3, agree))
    assert len(shown) == asked + 1  # site a alone: the others had agreed to this very run
    agreed = json.loads((tmp_path / "b" / RUN / "agreed.json").read_text())
    assert agreed["text"] == shown[1]


def test_62_a_site_that_cannot_write_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exp = experiment("fedcon", "train.rounds=2", "federation.quorum=2")
    post = make_sites(tmp_path, 3)

    def full(self: object, round: int, kept: object, visits: int) -> None:
        if "/b/" in str(self.folder) and round == 1:  # type: ignore[attr-defined]
            raise RunError("No space left on device")
        real(self, round, kept, visits)  # type: ignore[arg-type]

    from semifed.engine.site_state import StateFolder

    real = StateFolder.save
    monkeypatch.setattr(StateFolder, "save", full)
    record = federate(exp, post)
    assert record.rows[1]["stragglers"] == {"1": "the site reports: No space left on device"}
    assert not post.answered[-1][1].body or post.answered[-1][0] != "b"


def test_a_site_with_other_images_or_classes_is_refused(tmp_path: Path) -> None:
    exp = experiment("fedsiam-d", "federation.patience=0.2")
    post = make_sites(tmp_path, 3)
    options = SiteOptions("b", "mnist5k", tmp_path / "b")
    post.sites["b"] = Site(options, lambda _: True)
    with pytest.raises(RunError, match=r"b does not join: mnist5k: images here are 1x28x28, the server has 1x12x12"):
        federate(exp, post)


def test_sites_test_models_on_their_own_images_and_only_numbers_leave(tmp_path: Path) -> None:
    exp, post = experiment("fedsiam-d", "federation.site_test=0.3"), make_sites(tmp_path, 3)
    record = federate(exp, post)
    tested = [letter for _, letter in post.answered if letter.head["kind"] == "tested"]
    assert len(tested) == 9
    assert all(set(letter.head) == {"kind", "run", "count", "scores"} and not letter.body for letter in tested)
    images = sum(letter.head["count"] for letter in tested[:3])
    assert record.rows[0]["sites"]["target"]["images"] == images > 20
    assert 0 <= record.rows[0]["sites"]["target"]["accuracy"] <= 100


def test_options_are_a_sites_own(tmp_path: Path) -> None:
    exp = experiment("fedsiam-d", "engine.workers=2", "engine.threads=2")
    post = make_sites(tmp_path, 3)
    federate(dataclasses.replace(exp, train=dataclasses.replace(exp.train, rounds=1)), post)
    member = post.sites["a"]._member
    assert member is not None
    assert member.assembly.experiment.engine.workers == 1
    assert member.assembly.experiment.engine.threads == 1


def test_sites_with_data_of_their_own_and_a_server_that_keeps_all_of_its(tmp_path: Path) -> None:
    exp = experiment("fedcon", "federation.server_data=all", "train.rounds=2")
    dataset = load_data(exp, None)
    split = whole(make_split(exp, dataset), exp, dataset.labels.numpy() >= 0)
    assert len(split.server.labelled) == 400
    post = make_sites(tmp_path, 3)
    for number, name in enumerate(post.sites):
        images, labels = dataset.images[number * 100 : number * 100 + 60], torch.full((60,), -1)
        np.savez(tmp_path / f"{name}.npz", images=images.permute(0, 2, 3, 1).numpy(), labels=labels.numpy())
        post.sites[name] = Site(SiteOptions(name, f"npz:{tmp_path / name}.npz", tmp_path / name), lambda _: True)
    record = federate(exp, post, split=split)
    assert [row["clients"] for row in record.rows] == [[0, 1, 2]] * 2
    assert record.rows[-1]["server_terms"]
    assert post.sites["a"]._member is not None
    assert len(post.sites["a"]._member.assembly.scenario.clients[0].unlabelled) == 60
