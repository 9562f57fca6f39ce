"""Friendly everywhere: help with examples, completion, plain text when asked, exit codes that are written down."""

import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from rich.console import Console

from semifed import errors
from semifed.cli import cli
from semifed.data import own
from semifed.methods import METHODS
from toys import call

ROOT = Path(__file__).parent.parent


def commands(command: click.Command = cli, path: tuple[str, ...] = ("semifed",)) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_the_command_takes(name: str) -> None:
    examples = [
        line.strip() for line in (COMMANDS[name].help or "").splitlines() if line.strip().startswith("semifed ")
    ]
    assert examples, f"{name} --help has no example"
    for line in examples:
        _, *words = shlex.split(line, comments=True)
        assert takes(cli, words), line


def takes(command: click.Command, words: list[str]) -> bool:
    """Whether a command line can be parsed, without anything being run."""
    if isinstance(command, click.Group):
        while words and words[0].startswith("-"):
            words = words[1:]
        return not words or (words[0] in command.commands and takes(command.commands[words[0]], words[1:]))
    command.make_context("semifed", list(words), resilient_parsing=False)
    return True


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is(name: str) -> None:
    for option in COMMANDS[name].params:
        if isinstance(option, click.Option):
            assert option.help, f"{name} {option.opts[0]}"


def complete(line: str) -> list[str]:
    """What the Tab key offers at the end of a line."""
    *before, last = line.split(" ")
    return [item.value for item in BashComplete(cli, {}, "semifed", "_SEMIFED_COMPLETE").get_completions(before, last)]


def test_completion_knows_commands_methods_and_settings() -> None:
    assert {"run", "list"} <= set(complete(""))
    assert "--resume" in complete("run --re")
    assert set(complete("check fedsiam")) == {name for name in METHODS if name.startswith("fedsiam")}
    assert "train.rounds=" in complete("run --set train.ro")
    assert "method=fedmatch" in complete("run --set method=fedm")
    assert "data=mnist5k" in complete("run --set data=mn")


def test_the_shell_asks_through_a_variable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_SEMIFED_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "semifed spl")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert "plain,split" in call().out


@pytest.mark.parametrize("word", ["--no-colour", "--no-color"])
@pytest.mark.parametrize("last", [True, False])
def test_colours_can_be_switched_off(word: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    listing = importlib.import_module("semifed.commands.listing")
    seen: list[bool] = []

    def watched(*arguments: object, **options: object) -> Console:
        seen.append(Console(force_terminal=True, color_system="truecolor").no_color)
        return Console()

    monkeypatch.setattr(listing, "Console", watched)
    words = ["list", "nets", word] if last else [word, "list", "nets"]
    assert call(*words).code == 0
    assert call("list", "nets").code == 0
    assert seen == [True, False]


def test_every_exit_code_is_written_down() -> None:
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", text, flags=re.MULTILINE)}
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.SemifedError)]
    assert listed >= {0, 70} | {kind.exit_code for kind in kinds}


def test_an_example_of_images_is_a_folder_to_train_on(tmp_path: Path) -> None:
    said = call("new", "images", str(tmp_path / "digits"), "--labelled", "2", "--unlabelled", "30")
    assert said.code == 0
    data = own.load(f"folder:{tmp_path / 'digits'}")
    assert tuple(data.images.shape[1:]) == (1, 28, 28)
    assert int((data.labels[: data.train] >= 0).sum()) == 20
    assert int((data.labels < 0).sum()) == 30
    assert data.classes == tuple("0123456789")
    again = call("new", "images", str(tmp_path / "digits"))
    assert again.code == 4
    assert "is there already" in again.line
