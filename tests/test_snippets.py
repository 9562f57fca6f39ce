"""Every command and every piece of Python in README and docs runs, page by page, in an empty folder.

A block of `sh` or `python` is run in the order of its page; a block with a title is a file to write. What is not to be
run is `text`, or stands below a comment <!-- not run: why -->.
"""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from toys import call

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SLOW = {"docs/add-a-method.md"}
"""Pages that take more than a few seconds."""

ELSEWHERE = {"docs/how-to/deploy.md", "docs/how-to/ray.md", "docs/how-to/run-a-federation.md"}
"""Pages about other machines; what they say is looked at in test_deploy.py and flower/test_how_to.py."""

FENCE = re.compile(r"(?:<!-- ([^>]*?) -->\s*\n)?^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LANGUAGES = {"", "sh", "python", "toml", "text", "json", "csv", "html", "yaml", "ini"}


class Block(NamedTuple):
    """One fenced block: the comment above it, its language, its title and its text."""

    comment: str
    language: str
    title: str
    text: str

    def is_run(self) -> bool:
        return self.language in ("sh", "python") and not self.comment.startswith("not run")


def blocks(page: Path) -> list[Block]:
    found = []
    for comment, head, text in FENCE.findall(page.read_text(encoding="utf-8")):
        language, _, rest = head.partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        found.append(Block(comment, language, title[1] if title else "", text))
    return found


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def to_run() -> Iterator[object]:
    for page in PAGES:
        name = name_of(page)
        if name not in ELSEWHERE and any(block.is_run() for block in blocks(page)):
            yield pytest.param(page, id=name, marks=[pytest.mark.slow] if name in SLOW else [])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder beside the repository's experiments; modules written here are forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", list(to_run()))
def test_page_runs(page: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {"__name__": "__snippet__"}
    for block in blocks(page):
        if block.comment.startswith("needs ") and not importlib.util.find_spec(block.comment.removeprefix("needs ")):
            continue
        if block.title:
            (here / block.title).write_text(block.text, encoding="utf-8")
            importlib.invalidate_caches()
        elif block.is_run() and block.language == "sh":
            for command in commands(block.text):
                run_command(command, monkeypatch)
        elif block.is_run():
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, name_of(page), "exec"), names)  # noqa: S102


def commands(text: str) -> list[list[str]]:
    """The words of every command of a block; a comment ends a line, a backslash goes on in the next."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            patch.setenv(name, value)
        assert words[0] in ("semifed", "mkdir"), f"a snippet runs {words[0]}: make the block `text` or teach the test"
        if words[0] == "mkdir":
            Path(words[-1]).mkdir(parents=True)
            return
        said = call(*words[1:])
        assert said.code == 0, f"{shlex.join(words)}: {said.err}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_have_a_language_that_says_whether_they_run(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, block.language
        if block.language in ("text", "") and "methods/" not in name_of(page) and "reference/" not in name_of(page):
            assert not re.search(r"^semifed (run|list|predict|check) ", block.text, re.MULTILINE), block.text
        if block.language == "python":
            compile(block.text, name_of(page), "exec")


def test_the_runner_sees_a_command_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="no such setting"):
        run_command(["semifed", "run", "--set", "nonsense=1"], monkeypatch)
    assert "NO_COLOR" not in os.environ


def test_the_method_of_the_docs_is_short() -> None:
    code = next(block.text for block in blocks(ROOT / "docs/add-a-method.md") if block.title == "surer.py")
    assert len(code.splitlines()) < 80
