"""What goes wrong between real processes, and how it ends: nothing is lost, nothing waits for ever."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from flower.test_processes import compare, patient
from flower.world import World, kill, world
from semifed.experiment import Experiment
from semifed.federation import keys

pytest.importorskip("flwr")
pytestmark = pytest.mark.slow


def begin(between: World, mode: str = "", site: str = "b", **modes: str) -> dict[str, "subprocess.Popen[bytes]"]:
    """A server and its sites, some of them odd."""
    started, odd = {"serve": between.serve()}, {site: mode, **modes}
    for one in between.sites:
        started[one] = between.join(one, mode=odd.get(one, ""))
    return started


def test_50_52_a_site_killed_in_a_round_and_restarted_changes_nothing(tmp_path: Path) -> None:
    exp, go = patient("fedcon"), tmp_path / "go"
    with world(tmp_path / "world", exp) as between:
        serve = between.serve()
        others = [between.join(site) for site in "ac"]
        victim = between.join("b", mode=f"pause:1:{go}")
        between.wait(lambda: Path(f"{go}.begun").exists(), "round 2")
        kill(victim)
        again = between.join("b")
        for process in (serve, *others, again):
            between.end(process)
        compare(exp, between)


def test_50_52_a_site_that_is_back_before_its_loss_was_seen_is_asked_again(tmp_path: Path) -> None:
    exp, go, unseen = patient("fedcon"), tmp_path / "go", tmp_path / "unseen"
    with world(tmp_path / "world", exp) as between:
        serve = between.serve(mode=f"late:{unseen}")
        others = [between.join(site) for site in "ac"]
        victim = between.join("b", mode=f"pause:1:{go}")
        between.wait(lambda: Path(f"{go}.begun").exists(), "round 2")
        unseen.touch()
        kill(victim)
        again = between.join("b")
        between.wait(lambda: between.log("b").count("b is connected") == 2, "its return")
        unseen.unlink()
        for process in (serve, *others, again):  # sooner than the deadline
            between.end(process)
        compare(exp, between)


def test_53_a_server_killed_in_a_round_goes_on_from_the_last_one_that_counted(tmp_path: Path) -> None:
    exp, go = patient("fedcon"), tmp_path / "go"
    with world(tmp_path / "world", exp) as between:
        serve = between.serve()
        sites = [*(between.join(site) for site in "ac"), between.join("b", mode=f"pause:1:{go}")]
        between.wait(lambda: Path(f"{go}.begun").exists(), "round 2")
        kill(serve)
        go.touch()
        again = between.serve("--resume")
        for process in (again, *sites):
            between.end(process)
        compare(exp, between)


def test_a_link_killed_in_a_round_is_made_anew(tmp_path: Path) -> None:
    exp, go = patient("fedcon"), tmp_path / "go"
    with world(tmp_path / "world", exp) as between:
        serve = between.serve()
        sites = [*(between.join(site) for site in "ac"), between.join("b", mode=f"pause:1:{go}")]
        between.wait(lambda: Path(f"{go}.begun").exists(), "round 2")
        os.kill(between.link(), signal.SIGKILL)
        go.touch()
        for process in (serve, *sites):
            between.end(process)
        compare(exp, between)


def test_58_wrong_keys_and_certificates_are_refused_and_said(tmp_path: Path) -> None:
    exp = patient("fedcon", "train.rounds=1")
    with world(tmp_path / "world", exp) as between:
        serve = between.serve()
        between.wait(lambda: "listening" in between.log("serve"), "listening")
        stranger = between.folder / "stranger"  # a key that the server does not know
        keys.write_private(stranger / "site.key", keys.new_key())
        shutil.copy(between.keys / "ca.crt", stranger / "ca.crt")
        elsewhere = between.folder / "elsewhere"  # an authority that did not sign the server
        keys.make_keys(elsewhere, ["localhost"], ["b"])
        shutil.copy(between.keys / "sites" / "b" / "site.key", elsewhere / "sites" / "b" / "site.key")
        refused = {
            "does not know this site's key": between.join("a", keys=stranger),
            "is not one this site trusts": between.join("b", keys=elsewhere / "sites" / "b"),
            "cannot be reached|says|closed": between.join("c", "--insecure"),
        }
        between.end(refused["is not one this site trusts"], 4)
        assert "the server's certificate is not one this site trusts" in between.log("b")
        between.wait(lambda: between.log("c"), "an answer to a site without TLS")
        between.end(refused["does not know this site's key"], 4)
        assert "does not know this site's key" in between.log("a")
        refused["cannot be reached|says|closed"].terminate()
        between.wait(lambda: refused["cannot be reached|says|closed"].poll() is not None, "its end")
        assert "has joined" not in between.log("serve")
        for process in (*(between.join(site) for site in "abc"), serve):
            between.end(process)


def test_58_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    exp = patient("fedcon", "train.rounds=1")
    with world(tmp_path / "world", exp) as between:
        server = between.keys / "server"
        (server / "server.key").unlink()
        keys.make_server(between.keys, server, ["127.0.0.1"], days=-1)
        between.serve()
        between.wait(lambda: "listening" in between.log("serve"), "listening")
        between.end(between.join("a"), 4)
        assert "the server's certificate has expired" in between.log("a")


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("nan", "non_finite"),
        ("shape", "shape"),
        ("garbage", "not a payload"),
    ],
)
def test_40_41_57_a_site_that_sends_rubbish_is_refused_and_the_others_count(
    mode: str, reason: str, tmp_path: Path
) -> None:
    exp = patient("fedsiam-d", "federation.quorum=2", "federation.limit=20", "train.rounds=2")
    with world(tmp_path / "world", exp) as between:
        started = begin(between, mode)
        between.wait(lambda: len(between.rows()) == 2, "two rounds")
        del started
        assert all(list(row["refused"]) == ["1"] and reason in row["refused"]["1"] for row in between.rows())


def test_56_a_message_of_3_gb_is_refused_before_it_is_taken_in(tmp_path: Path) -> None:
    exp = patient("fedsiam-d", "federation.quorum=2", "federation.limit=20", "train.rounds=1")
    with world(tmp_path / "world", exp) as between:
        serve, _, huge, _ = begin(between, "huge:3000").values()
        between.end(huge, 4)
        assert "this site's message is over the server's limit" in between.log("b")
        between.end(serve)
        (row,) = between.rows()
        assert row["clients"] == [0, 1, 2]
        assert row["refused"] == {"1": "its message is over the limit of 20,000,000 bytes"}


def slow(exp: Experiment, deadline: float) -> Experiment:
    return exp.replace(f"federation.deadline={deadline}", "federation.quorum=2", "federation.min_sites=2")


def test_55_a_site_ten_times_slower_than_the_deadline_is_a_straggler(tmp_path: Path) -> None:
    exp = slow(patient("fedsiam-d"), 20)
    with world(tmp_path / "world", exp) as between:
        begin(between, "slow:200")
        between.wait(lambda: len(between.rows()) == 3, "three rounds")
        late = [row["stragglers"].get("1") for row in between.rows()]
        assert late.count("no answer before the deadline") >= 1
        assert all(set(row["stragglers"]) <= {"1"} for row in between.rows())


def test_51_when_all_sites_are_gone_the_server_ends_and_can_go_on(tmp_path: Path) -> None:
    exp, go = patient("fedcon"), tmp_path / "go"
    with world(tmp_path / "world", exp) as between:
        serve = between.serve("--set", "federation.deadline=60", "--set", "federation.attempts=1")
        sites = [between.join(site, mode=f"pause:1:{go}") for site in "abc"]
        between.wait(lambda: Path(f"{go}.begun").exists(), "round 2")
        for site in sites:
            kill(site)
        between.end(serve, 4)
        assert "nothing is lost, go on with --resume" in between.log("serve")
        go.touch()
        again = between.serve("--resume", "--set", "federation.deadline=900", "--set", "federation.attempts=3")
        for process in (again, *(between.join(site) for site in "abc")):
            between.end(process)
        compare(exp, between)


def test_60_and_63_a_port_or_a_folder_in_use_is_said(tmp_path: Path) -> None:
    exp = patient("fedcon", "train.rounds=1")
    with world(tmp_path / "world", exp) as between:
        between.serve()
        between.wait(lambda: "listening" in between.log("serve"), "listening")
        second = between.serve("--resume")
        between.end(second, 4)
        assert "is in use by another run" in between.log("serve")
        between.out = between.folder / "other"
        third = between.serve()
        between.end(third, 4)
        assert "cannot be opened; it may be in use" in between.log("serve")
