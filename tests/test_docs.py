"""Generated pages are those that the code would write now."""

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def load(tool: str) -> ModuleType:
    """One of the programs in tools/."""
    spec = importlib.util.spec_from_file_location(tool, ROOT / "tools" / f"{tool}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in load("make_docs").pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert not stale, f"run `make docs`: {stale}"


def test_no_page_is_missing_from_the_site() -> None:
    """A page that the list of tools/site.py leaves out would be a warning of the site, which is built strictly."""
    listed: list[str] = []

    def collect(entry: object) -> None:
        if isinstance(entry, str):
            listed.append(entry)
        elif isinstance(entry, dict):
            for inner in entry.values():
                collect(inner)
        elif isinstance(entry, list):
            for inner in entry:
                collect(inner)

    collect(load("site").pages())
    docs = ROOT / "docs"
    there = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md") if path.parent.name != "notes"}
    assert sorted(listed) == sorted(there)


LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in LINK.findall(text):
        if not target.startswith(("http://", "https://", "#", "mailto:")):
            place = page.parent.parent if page.parent.name == "notes" else page.parent
            assert (place / target.partition("#")[0]).exists(), f"{page.name}: {target}"


def templates() -> set[str]:
    """Every text of the code, with … for what is filled in."""
    found = set()
    for path in (ROOT / "src" / "semifed").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values]
                found.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def test_every_error_of_the_faq_is_one_that_the_code_can_say() -> None:
    known = templates()
    text = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    phrases = re.findall(r"^\*\*`([^`]+)`", text, flags=re.MULTILINE)
    assert len(phrases) > 20
    for phrase in phrases:
        pieces = [piece.strip() for piece in phrase.split("…") if len(piece.strip()) > 3]
        assert any(all(piece in one for piece in pieces) for one in known), phrase
