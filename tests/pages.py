"""The pages of README and docs as tests read them: fenced blocks, the commands in them, and how they are run.

A block of `sh` or `python` is run in the order of its page; a block with a title is a file to write. A block below a
comment <!-- needs PACKAGE --> is run where that package is installed, one below <!-- not run: why --> is not.
"""

import contextlib
import importlib.util
import io
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from toys import call, environment

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
FENCE = re.compile(r"(?:<!-- ([^>]*?) -->\s*\n)?^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """One fenced block: the comment above it, its language, its title and its text."""

    comment: str
    language: str
    title: str
    text: str

    @property
    def is_code(self) -> bool:
        return self.language in ("sh", "python") and not self.title

    @property
    def is_run(self) -> bool:
        return self.is_code and not self.comment.startswith("not run")

    @property
    def lacks(self) -> str:
        """The package that it needs and that is not installed."""
        package = self.comment.removeprefix("needs ") if self.comment.startswith("needs ") else ""
        return package if package and not importlib.util.find_spec(package) else ""


def blocks(page: Path) -> list[Block]:
    found = []
    for comment, head, text in FENCE.findall(page.read_text(encoding="utf-8")):
        language, _, rest = head.partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        found.append(Block(comment, language, title[1] if title else "", text))
    return found


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command of a block; a comment ends a line, a backslash goes on in the next."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


Change = Callable[[str], str]


def run_page(page: Path, here: Path, monkeypatch: pytest.MonkeyPatch, change: Change = str) -> None:
    """Run every block of a page in the current folder; `change` makes another text of each, such as a quicker one."""
    names: dict[str, object] = {"__name__": "__snippet__"}
    for block in blocks(page):
        text = change(block.text)
        if block.title:
            (here / block.title).write_text(text, encoding="utf-8")
            importlib.invalidate_caches()
        elif not block.is_run or block.lacks:
            continue
        elif block.language == "sh":
            for words in commands(text):
                run_command(words, monkeypatch)
        else:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(text, name_of(page), "exec"), names)  # noqa: S102


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one command of a page: ours in this process, and the few others that pages have."""
    with monkeypatch.context() as patch:
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            patch.setenv(name, value)
        match words:
            case ["semifed", *rest]:
                said = call(*rest)
                assert said.code == 0, f"{shlex.join(words)}: {said.err}"
            case ["mkdir", *_]:
                Path(words[-1]).mkdir(parents=True)
            case ["pip", "install", *wanted]:
                check_installed(wanted)
            case ["tensorboard", *rest]:  # the server would not end; this reads the same files
                _run([sys.executable, "-m", "tensorboard.main", "--inspect", *rest])
            case _:
                raise AssertionError(f"a snippet runs {words[0]}: make the block `text` or teach the test")


def check_installed(wanted: list[str]) -> None:
    """`pip install 'semifed[extra]'` is not done again, but there must be such an extra."""
    for word in wanted:
        extra = re.fullmatch(r"semifed\[(\w+)\]", word)
        assert extra, f"a snippet installs {word}"
        assert extra[1] in EXTRAS, f"there is no extra {extra[1]}"


def _run(command: list[str]) -> None:
    own = {**environment(), "PYTHONWARNINGS": "default"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=own)
    assert done.returncode == 0, done.stdout + done.stderr
