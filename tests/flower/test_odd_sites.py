"""More that goes wrong between real processes: odd answers, other versions, wrong clocks, full disks, latecomers."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from flower import skew
from flower.test_mishaps import begin
from flower.test_processes import compare, patient
from flower.world import world
from semifed.engine.assemble import prepare
from semifed.engine.rounds import begin as first_progress
from semifed.results.files import read_tensors

pytest.importorskip("flwr")
pytestmark = pytest.mark.slow


def test_42_43_44_answers_that_cannot_be_are_refused_and_a_second_one_is_ignored(tmp_path: Path) -> None:
    exp = patient(
        "fedsiam-d", "scenario.clients=6", "train.clients_per_round=6", "train.rounds=2", "federation.site_test=0.3"
    )
    with world(tmp_path / "world", exp, sites="abcdef") as between:
        serve = begin(between, c="long", d="count", e="old", f="twice")["serve"]
        between.end(serve)
        for row in between.rows():
            assert set(row["refused"]) == {"2", "3", "4"}
            assert row["refused"]["2"].startswith("norm")
            assert row["refused"]["3"].startswith("examples")
            assert "not of this round" in row["refused"]["4"]
            assert row["stragglers"] == {}
            assert row["sites"]["target"]["images"] > 20  # which sites hold back of their own
        assert len(between.rows()) == 2
        assert between.log("f").count("round 2: trained") == 1


def test_47_59_when_all_are_refused_the_model_stays_and_another_version_does_not_join(tmp_path: Path) -> None:
    counts = ("scenario.clients=4", "train.clients_per_round=3", "train.rounds=5")  # time for the fourth
    exp = patient("fedsiam-d", *counts)
    with world(tmp_path / "world", exp, sites="abcd") as between:
        started = begin(between, a="nan", b="nan", c="nan", d="version")
        between.end(started["d"], 2)
        assert "the server has semifed 0.1.0, this site has 9.9.9" in between.log("d")
        between.end(started["serve"])
        assert "d does not join: the server has semifed 0.1.0, this site has 9.9.9" in between.log("serve")
        assert [set(row["refused"]) for row in between.rows()] == [{"0", "1", "2"}] * 5
        assert all(row["skipped"] for row in between.rows())
        model, _ = read_tensors(between.out / "model.safetensors")
        assembly = prepare(exp)
        untrained = exp.method.models(first_progress(assembly).server)["target"]
        assert all(torch.equal(model[name], value) for name, value in untrained.items())


def test_52_a_site_that_comes_late_takes_part_in_the_current_round(tmp_path: Path) -> None:
    exp = patient("fedsiam-d", "train.rounds=5000", "federation.min_sites=2", "train.evaluate_every=5000")
    with world(tmp_path / "world", exp) as between:
        between.serve()
        for site in "ab":
            between.join(site)
        between.wait(lambda: len(between.rows()) >= 2, "two rounds")
        assert all(row["clients"] == [0, 1] for row in between.rows()[:2])
        between.join("c")
        between.wait(lambda: between.rows()[-1]["clients"] == [0, 1, 2], "a round with the latecomer")
        begun = next(row["round"] for row in between.rows() if 2 in row["clients"])
        between.wait(lambda: "sends" in between.log("c"), "its first answer")
        assert f"round {begun}: trained on" in between.log("c")
        assert all(not row["refused"] for row in between.rows())


def test_54_a_server_killed_while_it_writes_a_checkpoint_goes_on_from_the_one_before(tmp_path: Path) -> None:
    exp = patient("fedcon")
    with world(tmp_path / "world", exp) as between:
        serve, sites = between.serve(mode="checkpoint"), [between.join(site) for site in "abc"]
        between.end(serve, -signal.SIGKILL)
        assert len(between.rows()) == 2
        for process in (between.serve("--resume"), *sites):
            between.end(process)
        compare(exp, between)


@pytest.mark.skipif(not skew.can_be_made(), reason="needs a C compiler")
def test_61_clocks_that_are_hours_off_change_nothing(tmp_path: Path) -> None:
    exp = patient("fedcon")
    with world(tmp_path / "world", exp) as between:
        ahead, behind = skew.skewed(between.folder, 5 * 3600), skew.skewed(between.folder, -5 * 3600)
        told = subprocess.run(
            [*ahead, sys.executable, "-c", "import time; print(time.time())"], capture_output=True, check=True
        )
        assert float(told.stdout) - datetime.now(UTC).timestamp() > 4 * 3600
        started = [
            between.serve(),
            between.join("a"),
            between.join("b", prefix=ahead),
            between.join("c", prefix=behind),
        ]
        for process in started:
            between.end(process)
        compare(exp, between)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A folder on a disk of 16 kB."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)  # noqa: S607


def test_62_a_site_whose_disk_is_full_says_so_and_sends_nothing_old(tmp_path: Path) -> None:
    exp = patient("fedcon", "train.rounds=2", "federation.quorum=2", "federation.attempts=1")
    with world(tmp_path / "world", exp) as between, small_disk(between.folder / "site-b"):
        serve = begin(between)["serve"]
        between.end(serve)
        for row in between.rows():
            assert set(row["stragglers"]) == {"1"}
            assert "the site reports" in row["stragglers"]["1"]
            assert "space" in row["stragglers"]["1"]
        assert "sends" not in between.log("b").partition("keeps")[2]


def test_63_two_federations_on_one_machine_do_not_meet(tmp_path: Path) -> None:
    one, two = patient("fedcon", "train.rounds=2"), patient("fedmix", "train.rounds=2", "seed=8")
    with world(tmp_path / "one", one) as first, world(tmp_path / "two", two) as second:
        both = [(between, process) for between in (first, second) for process in begin(between).values()]
        for between, process in both:
            between.end(process)
        compare(one, first)
        compare(two, second)


def test_57_noise_at_the_door_and_a_stranger_without_tls_disturb_nobody(tmp_path: Path) -> None:
    exp = patient("fedcon", "train.rounds=2")
    with world(tmp_path / "world", exp) as between:
        serve = between.serve()
        between.wait(lambda: "listening" in between.log("serve"), "listening")
        over = threading.Event()
        knocks: list[bytes] = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + os.urandom(500), os.urandom(5000), b""]

        def knock() -> None:
            while not over.wait(0.05):
                for noise in knocks:
                    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", between.port), 5) as line:
                        line.sendall(noise)

        thread = threading.Thread(target=knock)
        thread.start()
        try:
            for process in (*(between.join(site) for site in "abc"), serve):
                between.end(process)
        finally:
            over.set()
            thread.join()
        compare(exp, between)
