"""Clients on a real Ray, on this machine and on a cluster of two nodes on loopback; all slow, for starting Ray is."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from semifed.results.files import read_tensors
from toys import end, environment, rows_in, same_end, start, summary_in, tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'"),
]

HUNDRED = ("scenario.clients=100", "train.clients_per_round=100", "train.rounds=2", "engine.chunk=10")
RAY = ("engine=ray", "engine.workers=2")
LONG = ("train.rounds=3000", "train.evaluate_every=1", "method=toys:Keeper")
SECONDS = 300.0


def _wait_for(what: Callable[[], object], process: "subprocess.Popen[str] | None" = None) -> None:
    """Until it is so; a process that has ended meanwhile will not bring it about."""
    latest = time.monotonic() + SECONDS
    while not what():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < latest, "it does not come"
        time.sleep(0.1)


def _family(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    return found


def _trainers(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    found = []
    for one in _family(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "Trainer" in " ".join(one.cmdline()):
                found.append(one)
    return found


def _gone(processes: list[psutil.Process], seconds: float = 60) -> bool:
    _, left = psutil.wait_procs(processes, timeout=seconds)
    return not [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def _rows(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (folder / "rounds.jsonl").read_text().count("\n")
    return 0


def _folders() -> set[str]:
    return {path.name for path in Path("/tmp").glob("ray-*")}  # noqa: S108 - where it lies by itself


def _run(folder: Path, *words: str) -> None:
    said = end(start(*tiny(folder, *words, "--quiet")), SECONDS)
    assert said.code == 0, said
    assert said.err == "", "Ray keeps quiet"


def test_100_clients_on_ray_with_2_workers_give_the_numbers_of_the_local_engine(tmp_path: Path) -> None:
    before = _folders()
    _run(tmp_path / "local", *HUNDRED, "method=toys:Keeper")
    _run(tmp_path / "ray", *HUNDRED, *RAY, "method=toys:Keeper")
    assert same_end(tmp_path / "local", tmp_path / "ray"), "to the last bit"
    kept = [next(iter(sorted((tmp_path / name / "kept").iterdir()))) for name in ("local", "ray")]
    one, two = (read_tensors(file)[0] for file in kept)
    assert one.keys() == two.keys()
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert _folders() <= before


def test_ctrl_c_ends_a_run_and_all_of_ray_and_the_run_goes_on_without_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(*tiny(folder, *LONG, *RAY))
    _wait_for(lambda: _rows(folder) >= 2, process)
    family = _family(process)
    assert len(family) >= 5
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everybody
    said = end(process, SECONDS)
    assert said.code == 130, said
    assert "Traceback" not in said.err
    assert _gone(family)
    rounds = summary_in(folder)["rounds"]
    assert (summary_in(folder)["status"], rounds) == ("stopped", len(rows_in(folder)))
    resumed = ["--resume", "--override", "engine=local", f"train.rounds={rounds + 1}"]
    assert end(start(*tiny(folder, *LONG, *resumed)), SECONDS).code == 0
    _run(tmp_path / "unbroken", *LONG, f"train.rounds={rounds + 1}")
    assert same_end(folder, tmp_path / "unbroken")


def test_ctrl_c_while_ray_starts_leaves_nobody(tmp_path: Path) -> None:
    process = start(*tiny(tmp_path / "run", *LONG, *RAY))
    _wait_for(lambda: any("raylet" in one.name() for one in _family(process)), process)
    family = _family(process)
    os.killpg(process.pid, signal.SIGINT)
    said = end(process, SECONDS)
    assert said.code == 130, said
    assert _gone(family)


def test_a_run_that_is_killed_takes_ray_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(*tiny(folder, *LONG, *RAY))
    _wait_for(lambda: _rows(folder) >= 1, process)
    family = _family(process)
    process.kill()
    process.communicate()
    assert _gone(family, SECONDS), "Ray's agents first try for a minute to tell somebody"


def test_a_worker_that_is_killed_is_replaced_and_the_numbers_stay(tmp_path: Path) -> None:
    folder, rounds = tmp_path / "run", "train.rounds=400"
    process = start(*tiny(folder, *LONG, *RAY, rounds))
    _wait_for(lambda: _rows(folder) >= 1, process)
    victims = _trainers(process)
    assert len(victims) == 2
    victims[0].kill()
    said = end(process, SECONDS)
    assert said.code == 0, said
    _run(tmp_path / "unbroken", *LONG, rounds)
    assert same_end(folder, tmp_path / "unbroken")


# a cluster


@contextlib.contextmanager
def _node(*words: str, sign: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A node of a cluster, in a session of its own; ended with all it has started."""
    command = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--num-cpus=1", *words]
    own = {**environment(), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 64}
    own.pop("PYTHONWARNINGS")
    out = subprocess.PIPE
    process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=own, start_new_session=True)
    assert process.stdout is not None
    try:
        while sign.encode() not in (line := process.stdout.readline()):
            assert line, f"the node has ended: {process.wait()}"
        yield process
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.communicate()
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, timeout=60)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Two nodes with one CPU each; the port of the head, and that for clients from afar."""
    port, far = _free_ports(2)
    if importlib.util.find_spec("grpc") is None:
        far = 0
    head = ["--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false"]
    head += [f"--ray-client-server-port={far}"] if far else []
    with (
        _node(*head, sign="--block") as _,
        _node(f"--address=127.0.0.1:{port}", "--node-ip-address=127.0.0.1", sign="--block") as _,
    ):
        yield port, far


def _run_on_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t" * 64)
    _run(folder, *words)


def test_a_cluster_of_two_nodes_gives_the_same_numbers(
    cluster: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(tmp_path / "local", *HUNDRED, "method=toys:Keeper")
    address = f"engine.address=127.0.0.1:{cluster[0]}"
    _run_on_cluster(tmp_path / "ray", monkeypatch, *HUNDRED, *RAY, address, "method=toys:Keeper")
    assert same_end(tmp_path / "local", tmp_path / "ray"), "to the last bit"


def test_a_cluster_from_afar_gives_the_same_numbers(
    cluster: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cluster[1]:
        pytest.skip("grpcio is not installed, which ray:// addresses need: pip install 'ray[client]'")
    _run(tmp_path / "local", "method=toys:Keeper")
    address = f"engine.address=ray://127.0.0.1:{cluster[1]}"
    _run_on_cluster(tmp_path / "ray", monkeypatch, *RAY, address, "method=toys:Keeper")
    assert same_end(tmp_path / "local", tmp_path / "ray"), "to the last bit"


def test_a_cluster_with_another_token_refuses(
    cluster: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 64)
    address = f"engine.address=127.0.0.1:{cluster[0]}"
    said = end(start(*tiny(tmp_path / "run", *RAY, address, "--quiet")), SECONDS)
    assert said.code == 4, said
    assert "engine.address: Ray at 127.0.0.1" in said.err
