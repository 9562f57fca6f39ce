"""Clients on Ray, with a stand-in for Ray in this process: hand-out, losses, refusals; test_ray has the real one."""

import dataclasses
import importlib.util
import itertools
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pages import ROOT, run_page
from semifed import Experiment, Record, __version__, run
from semifed.engine import ray_workers
from semifed.engine.assemble import prepare
from semifed.engine.ray_workers import RayWorkers
from semifed.engine.workers import InProcess, open_clients
from semifed.errors import DataError, OwnCodeError, RunError, SettingError
from semifed.nets import kernels
from semifed.params import flatten
from semifed.results.files import digest
from test_engine import play
from toys import TINY, plain, rows_in, stop_after


class RayError(Exception):
    """What Ray raises when a worker is lost."""


@dataclasses.dataclass(eq=False)
class Ref:
    """What will be there once somebody asks for it."""

    make: Callable[[], Any]


class StandIn:
    """As much of Ray as is used, in this process; what was asked for last is done first."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.killed: list[Any] = []
        self.started: list[dict[str, Any]] = []
        self.needs: dict[str, Any] = {}
        self.alive = False
        self.deadly: set[int] = set()  # which calls of `train`, in order, kill their worker
        self.never_starts = False
        self._calls = itertools.count()

    def is_initialized(self) -> bool:
        return self.alive

    def init(self, **options: Any) -> None:
        self.started.append(options)
        self.alive = True

    def shutdown(self) -> None:
        self.alive = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0, "GPU": 1.0}

    def kill(self, worker: Any) -> None:
        self.killed.append(worker)

    def put(self, value: Any) -> Ref:
        assert not isinstance(value, Ref)
        return Ref(lambda: value)

    def get(self, refs: Any) -> Any:
        return [ref.make() for ref in refs] if isinstance(refs, list) else refs.make()

    def wait(self, refs: Sequence[Ref], num_returns: int, timeout: float | None) -> tuple[list[Ref], list[Ref]]:
        assert len(refs) > 0
        return ([] if self.never_starts else [refs[-1]]), []

    def remote(self, **needs: Any) -> Callable[[type], Any]:
        self.needs = needs

        def make(kind: type) -> Any:
            def start() -> Any:
                actor = kind()
                worker = SimpleNamespace(
                    open=SimpleNamespace(remote=lambda *given: Ref(lambda: actor.open(*given))),
                    train=SimpleNamespace(remote=lambda *given: Ref(lambda: self._train(actor, given))),
                )
                self.made.append(worker)
                return worker

            return SimpleNamespace(remote=start)

        return make

    def _train(self, actor: Any, given: Any) -> Any:
        if next(self._calls) in self.deadly:
            raise RayError("\nThe worker died unexpectedly.\nAnd so on.")
        return actor.train(*given)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in, found = StandIn(), importlib.util.find_spec
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "ray" or found(name))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a token")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    return stand_in


def _on_ray(*assignments: str) -> Experiment:
    return Experiment.read(None, [*TINY, "method=toys:Keeper", "engine=ray", "engine.workers=2", *assignments])


@pytest.fixture(scope="module")
def whole() -> Record:
    """The same run without Ray."""
    return run(_on_ray("engine=local"))


def _same(one: Record, two: Record) -> bool:
    return plain(one.rows) == plain(two.rows) and one.summary["model"] == two.summary["model"]


def test_the_numbers_are_those_of_one_process_to_the_last_bit(ray: StandIn) -> None:
    assembly = prepare(_on_ray("engine.chunk=1"))
    rows, progress = play(assembly, open_clients(assembly))
    alone, single = play(assembly, InProcess(assembly.workshop, 1))
    assert rows == alone
    assert digest(flatten(progress.state())) == digest(flatten(single.state()))
    assert len(ray.made) == 2
    assert ray.needs == {"num_cpus": 1, "num_gpus": 0.0, "max_restarts": 0}


def test_a_ray_of_its_own_is_started_for_itself_alone_and_ended(ray: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    clients = RayWorkers(prepare(_on_ray("engine.threads=2")))
    (options,) = ray.started
    assert (options["address"], options["num_cpus"]) == ("local", 4)
    assert (options["include_dashboard"], options["log_to_driver"]) == (False, False)
    environment = os.environ
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert len(environment["RAY_AUTH_TOKEN"]) == 64
    folder = Path(options["_temp_dir"])
    assert folder.is_dir()
    clients.close()
    assert (ray.alive, ray.killed, folder.exists()) == (False, [], False)


def test_a_ray_that_the_process_has_is_used_and_stays(ray: StandIn) -> None:
    ray.alive = True
    run(_on_ray())
    assert (ray.started, ray.alive, len(ray.killed)) == ([], True, 2)
    with pytest.raises(RunError, match=r"engine\.address: this process is connected to Ray already"):
        run(_on_ray("engine.address=auto"))


def test_workers_share_what_gpus_there_are(ray: StandIn) -> None:
    RayWorkers(prepare(_on_ray("engine.device=auto", "engine.workers=4"))).close()
    assert ray.needs["num_gpus"] == 0.25


def test_a_worker_that_dies_is_replaced_and_its_chunk_trained_again(ray: StandIn, whole: Record) -> None:
    ray.deadly = {0, 1, 3, 6}
    assert _same(run(_on_ray()), whole)
    assert len(ray.made) == 2 + 4


def test_workers_that_die_one_after_the_other_end_the_run(ray: StandIn, whole: Record, tmp_path: Path) -> None:
    ray.deadly = set(range(4, 99))
    with pytest.raises(RunError, match=r"4 workers on Ray have died .*\(The worker died unexpectedly\).*--resume"):
        run(_on_ray(), tmp_path / "run")
    assert not ray.alive
    ray.deadly = set()
    assert _same(run(_on_ray(), tmp_path / "run", resume=True), whole)


def test_workers_that_never_start_end_the_run(ray: StandIn) -> None:
    ray.never_starts = True
    with pytest.raises(RunError, match=r"no worker has started within 300 s; Ray has 1 CPUs and 1 GPUs"):
        run(_on_ray())
    assert not ray.alive


def test_a_worker_with_other_versions_is_refused(ray: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = RayWorkers(prepare(_on_ray()))
    there = {"node": "far", "semifed": __version__, "torch": "1.0", "kernels": "torch"}
    with pytest.raises(RunError, match=r"the worker on far has torch 1\.0, but it is 2\.\d+"):
        ray_workers._check_facts(there)
    monkeypatch.setattr(kernels, "status", lambda: "built")
    with pytest.raises(RunError, match=r"has kernels torch, but it is built here; .* or set SEMIFED_KERNELS=off"):
        ray_workers._check_facts({**there, "torch": torch.__version__})
    clients.close()


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (DataError("client 3: no"), DataError, "^client 3: no$"),
        (KeyError("x"), RuntimeError, "in a worker process: Tr"),
    ],
)
def test_an_error_in_a_worker_is_told_as_it_is(
    fault: Exception, kind: type[Exception], words: str, ray: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(ray_workers, "train_chunk", fail)
    with pytest.raises(kind, match=words):
        run(_on_ray())
    monkeypatch.setattr(ray_workers, "assemble", fail)
    with pytest.raises(kind, match=words):
        run(_on_ray())


def test_an_error_in_a_method_of_ones_own_is_told_with_its_line(ray: StandIn) -> None:
    with pytest.raises(OwnCodeError, match=r"toys\.py, line \d+, in supervised: KeyError: 'nowhere'"):
        run(_on_ray("method=toys:Failing"))


def test_an_experiment_that_a_worker_cannot_read_is_told(ray: StandIn) -> None:
    def lost() -> None:
        raise RayError("System error: No module named 'mine'\nTraceback")

    said = ray_workers.Trainer().open([Ref(lost)], [])
    assert "cannot read the experiment (System error: No module named 'mine')" in str(said)


def test_what_cannot_be_sent_is_refused(ray: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise TypeError("cannot pickle a lock")

    monkeypatch.setattr(ray, "put", fail)
    with pytest.raises(
        SettingError, match=r"engine\.name: the experiment cannot be sent to Ray \(cannot pickle a lock"
    ):
        run(_on_ray())
    assert not ray.alive


def test_a_ray_that_does_not_start_leaves_nothing(ray: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[str] = []

    def fail(**options: Any) -> None:
        folders.append(options["_temp_dir"])
        raise ValueError("no room")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(RunError, match=r"a Ray of its own cannot be used: no room"):
        run(_on_ray())
    assert not Path(folders[0]).exists()


def test_the_engine_may_change_on_resume(ray: StandIn, whole: Record, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(_on_ray("engine=local"), tmp_path / "run", watch=stop_after(1))
    with pytest.raises(KeyboardInterrupt):
        run(_on_ray(), tmp_path / "run", resume=True, watch=stop_after(3))
    assert _same(run(_on_ray("engine=local"), tmp_path / "run", resume=True), whole)


# settings


def test_the_engine_can_be_named_alone() -> None:
    assert Experiment.of({"engine": "ray"}).engine.name == "ray"
    experiment = Experiment.read(None, ["engine.chunk=3", "engine=ray", "engine.address=auto"])
    assert (experiment.engine.name, experiment.engine.address, experiment.engine.chunk) == ("ray", "auto", 3)
    assert experiment.replace("engine=local").engine.chunk == 3
    assert Experiment.of(experiment.tables()) == experiment
    with pytest.raises(SettingError, match=r"engine\.name: 'rya' is unknown; did you mean ray"):
        Experiment.of({"engine": "rya"})


def test_without_the_extra_it_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    with pytest.raises(SettingError, match=r"Ray is not installed; do `pip install 'semifed\[ray\]'`"):
        run(_on_ray(), tmp_path / "run")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["somewhere", "http://x:1", "host:", "a b:1", "host:123456"])
def test_an_address_that_is_none_is_refused(address: str, ray: StandIn) -> None:
    with pytest.raises(SettingError, match=r"engine\.address: .* is not HOST:PORT"):
        run(dataclasses.replace(_on_ray(), engine=dataclasses.replace(_on_ray().engine, address=address)))


def test_an_address_without_ray_is_refused() -> None:
    with pytest.raises(SettingError, match=r"engine\.address: goes with engine\.name"):
        run(_on_ray("engine.name=local", "engine.address=auto"))


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_where_nobody_answers_is_told(form: str, ray: StandIn) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without listening
        address = form.format(taken.getsockname()[1])
        with pytest.raises(RunError, match=r"engine\.address: nobody answers at .*refused.*`ray start --head`"):
            run(_on_ray(f"engine.address={address}"))
    assert ray.started == []


def test_an_address_where_somebody_answers_is_connected_to(ray: StandIn, whole: Record) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert _same(run(_on_ray(f"engine.address={address}")), whole)
    assert [options["address"] for options in ray.started] == [address]
    assert not ray.alive


def test_the_commands_of_the_page_run(ray: StandIn, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(ROOT / "docs" / "how-to" / "ray.md", here, monkeypatch)
    assert [options["address"] for options in ray.started] == ["local", "10.0.0.5:6379", "ray://10.0.0.5:10001"]
    assert rows_in(here / "runs" / "here") == rows_in(here / "runs" / "cluster") == rows_in(here / "runs" / "afar")
