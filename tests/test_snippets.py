"""Every command and every piece of Python in README and docs runs, page by page, in an empty folder (see pages.py)."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pages import EXTRAS, PAGES, ROOT, Block, blocks, commands, name_of, run_command, run_page
from semifed.cli import cli

ELSEWHERE = {
    "docs/how-to/deploy.md": "flower/test_how_to.py",
    "docs/how-to/run-a-federation.md": "flower/test_how_to.py",
    "docs/how-to/ray.md": "test_ray_workers.py",
}
"""Pages for several terminals or machines, with the tests that run them."""

CANNOT = {"docker"}
"""Programs that are not there where tests run; what they would start is looked at in test_deploy.py."""

LANGUAGES = {"", "sh", "python", "toml", "text", "json", "csv", "html", "yaml", "ini"}
WRITTEN_BY_HAND = [page for page in PAGES if page.parent.name not in ("methods", "notes", "reference", "ledger")]
"""The other pages are made from the code; their examples are tested as those of --help."""


def to_run() -> Iterator[object]:
    for page in PAGES:
        name = name_of(page)
        if name not in ELSEWHERE and any(block.is_run for block in blocks(page)):
            yield pytest.param(page, id=name)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", list(to_run()))
def test_page_runs(page: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, here, monkeypatch)


def test_only_what_cannot_run_here_is_not_run() -> None:
    left = [(page, block) for page in PAGES for block in blocks(page) if block.is_code and not block.is_run]
    for page, block in left:
        for words in commands(block.text):
            assert CANNOT & set(words), f"{name_of(page)}: {shlex.join(words)} can be run"
    assert {name_of(page) for page, _ in left} == {"docs/how-to/deploy.md"}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_pages_that_run_elsewhere_are_run_there(name: str) -> None:
    assert Path(name).name in (ROOT / "tests" / ELSEWHERE[name]).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_have_a_language_that_says_whether_they_run(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, block.language
        if page in WRITTEN_BY_HAND and block.language in ("text", ""):
            assert not _commands_of_text(block), block.text
        if block.language == "python":
            compile(block.text, name_of(page), "exec")


def _commands_of_text(block: Block) -> list[str]:
    """Commands in a block that is not run; those of make are looked at below."""
    return re.findall(r"^\$? ?(?:semifed|pip|docker|kubectl) .*$", block.text, re.MULTILINE)


INLINE = re.compile(r"`((?:semifed|make|pip install) [^`]+)`")


@pytest.mark.parametrize("page", WRITTEN_BY_HAND, ids=name_of)
def test_commands_within_sentences_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for name in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
        assert name in targets, f"make {name}"
    for name in re.findall(r"semifed\[(\w+)\]", text):
        assert name in EXTRAS, name
    for found in INLINE.findall(text):
        first, *words = shlex.split(found.replace("…", " "))
        if first == "semifed":
            assert not _unknown(cli, words), found


def _unknown(command: click.Command, words: list[str]) -> list[str]:
    """The options of a command line that a command does not have, or the command itself if there is none."""
    while isinstance(command, click.Group):
        options = {name for one in command.params for name in one.opts}
        rest = [word for word in words if word not in options]
        if not rest:
            return []
        if rest[0] not in command.commands:
            return rest[:1]
        command, words = command.commands[rest[0]], rest[1:]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "--debug"}
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]


def test_the_runner_sees_a_command_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="no such setting"):
        run_command(["semifed", "run", "--set", "nonsense=1"], monkeypatch)
    with pytest.raises(AssertionError, match="there is no extra"):
        run_command(["pip", "install", "semifed[nonsense]"], monkeypatch)
    with pytest.raises(AssertionError, match="a snippet runs kubectl"):
        run_command(["kubectl", "apply"], monkeypatch)
    assert _unknown(cli, ["run", "--nonsense"]) == ["--nonsense"]
    assert _unknown(cli, ["nonsense", "--help"]) == ["nonsense"]
    assert "NO_COLOR" not in os.environ


def test_the_method_of_the_docs_is_short() -> None:
    code = next(block.text for block in blocks(ROOT / "docs/add-a-method.md") if block.title == "surer.py")
    assert len(code.splitlines()) < 80
