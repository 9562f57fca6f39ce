"""The list of pages of the documentation site, put together from what lies in docs/, so that no page is left out."""

from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
ORDER = (
    "own-data",
    "own-net",
    "use-a-model",
    "federation",
    "reproduce",
    "report",
    "compare",
    "robustness",
    "command-line",
)
"""How-to pages that come first, in this order; the others follow by name."""


def on_config(config: Any) -> Any:
    """Called by mkdocs before it reads the pages."""
    config.nav = pages()
    return config


def pages() -> list[Any]:
    """Every page under its heading."""
    how_to = sorted((DOCS / "how-to").glob("*.md"), key=lambda path: (_place(path.stem), path.stem))
    methods = sorted((DOCS / "methods").glob("*.md"))
    start = ["index.md", "quickstart.md", "concepts.md", "choose-a-method.md", "faq.md"]
    reference = ["commands.md", "settings.md", "methods.md"]
    listed = {"add-a-method.md", *start}
    others = [path.name for path in sorted(DOCS.glob("*.md")) if path.name not in listed]
    measured = [path.relative_to(DOCS).as_posix() for path in sorted((DOCS / "results").rglob("*.md"))]
    return [
        {"Start": start},
        {"How to": [f"how-to/{path.name}" for path in how_to] + ["add-a-method.md"]},
        {"Methods": ["reference/methods.md", *(f"methods/{path.name}" for path in methods)]},
        {"Reference": [*(f"reference/{name}" for name in reference if name != "methods.md"), "exit-codes.md"]},
        {"Results and design": [name for name in others if name != "exit-codes.md"] + measured},
    ]


def _place(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)
