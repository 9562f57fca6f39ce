"""The pages about federations in several terminals: word for word, and quickly with a smaller experiment."""

import contextlib
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flower.world import PATIENCE, free_port
from pages import ROOT, blocks
from toys import call, summary_in

pytest.importorskip("flwr")
FEDERATION = ROOT / "docs" / "how-to" / "run-a-federation.md"
DEPLOY = ROOT / "docs" / "how-to" / "deploy.md"
SMALLER = {'"mnist5k"': '"synthetic"', ":mnist5k:": ":synthetic:", '"mnist-cnn"': '"mlp"', "rounds = 10": "rounds = 1"}


class Terminals:
    """Shells in one folder, in which `semifed` is this code."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._open, self._keyboards = folder, list["subprocess.Popen[str]"](), list[int]()
        (folder / "bin").mkdir()
        command = folder / "bin" / "semifed"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from semifed.cli import main; main()" "$@"\n')
        command.chmod(0o755)
        self._environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def type(self, text: str, answer: str = "") -> "subprocess.Popen[str]":
        """Start what is typed into a new terminal, and answer what it asks."""
        keyboard, screen = pty.openpty()
        self._keyboards.append(keyboard)
        words = ["bash", "-ec", f"{text}\nwait"]
        shell = subprocess.Popen(
            words, cwd=self.folder, env=self._environment, stdin=screen, text=True, start_new_session=True
        )
        os.close(screen)
        os.write(keyboard, answer.encode())
        self._open.append(shell)
        return shell

    def wait_for(self, file: str, words: str, beside: "subprocess.Popen[str]") -> None:
        """Until a file holds these words; what is to write them must not end before."""
        path, until = self.folder / file, time.monotonic() + PATIENCE
        while not path.exists() or words not in path.read_text():
            assert beside.poll() is None, path.read_text() if path.exists() else file
            assert time.monotonic() < until, words
            time.sleep(0.1)

    def close(self) -> None:
        for shell in self._open:
            if shell.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGTERM)
            shell.wait(PATIENCE)
        for keyboard in self._keyboards:
            os.close(keyboard)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    made = Terminals(tmp_path)
    yield made
    made.close()


def changed(text: str, changes: dict[str, str]) -> str:
    for one, other in changes.items():
        text = text.replace(one, other)
    return text


@pytest.mark.parametrize("smaller", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["smaller", "as-it-is"])
def test_the_commands_of_the_page_train_a_model_in_three_terminals(smaller: bool, terminals: Terminals) -> None:
    changes = {"8443": str(free_port()), **(SMALLER if smaller else {})}
    first, second, third, status = [changed(block.text, changes) for block in blocks(FEDERATION) if block.is_run]
    north = terminals.type(first)
    terminals.wait_for("serve.log", "listening on", north)
    assert terminals.type(status).wait(PATIENCE) == 0
    others = [terminals.type(text) for text in (second, third)]
    for shell in (north, *others):
        assert shell.wait(1200) == 0, (terminals.folder / "serve.log").read_text()
    out = terminals.folder / "runs" / "hospitals"
    assert (out / "model.safetensors").exists()
    if not smaller:
        assert all(model["last"]["accuracy"] > 80 for model in summary_in(out)["models"].values())


def test_what_the_page_on_deployment_says_to_do_by_hand(terminals: Terminals) -> None:
    folder = terminals.folder
    for place in ("north", "server"):
        made = call("new", "images", str(folder / place), "--labelled", "2", "--unlabelled", "20")
        assert made.code == 0, made.err
    (folder / "exp.toml").write_text(
        f'data = "folder:{folder / "server"}"\nmethod = "fedavg-fixmatch"\nnet = "mlp"\n'
        "[train]\nrounds = 1\nclients_per_round = 1\n[scenario]\nclients = 3\n"
        '[federation]\nserver_data = "all"\n'
    )
    port = str(free_port())
    changes = {
        "server.example.org": "localhost",
        "0.0.0.0": "localhost",  # noqa: S104
        "8443": port,
        "/data/north": str(folder / "north"),
    }
    keys, by_hand = [changed(block.text, changes) for block in blocks(DEPLOY) if block.is_run]
    assert terminals.type(keys).wait(PATIENCE) == 0
    mkdir, serve, join, status = by_hand.strip().splitlines()
    assert shlex.split(mkdir)[0] == "mkdir"
    server = terminals.type(f"{mkdir}\n{serve} > serve.log 2>&1")
    terminals.wait_for("serve.log", "listening on", server)
    assert terminals.type(status).wait(PATIENCE) == 0
    site = terminals.type(join, answer="y\n")
    assert site.wait(PATIENCE) == 0
    assert server.wait(PATIENCE) == 0, (folder / "serve.log").read_text()
    assert (folder / "runs" / "federation" / "model.safetensors").exists()
