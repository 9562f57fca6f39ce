"""The notebooks of examples/: their code runs, in this process quickly, and as notebooks in a slow test."""

import contextlib
import io
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
QUICKER = {"ROUNDS = 20": "ROUNDS = 2"}


def code(notebook: Path) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert all(not cell.get("outputs") for cell in cells), "outputs are not committed"
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_there_are_two() -> None:
    assert len(NOTEBOOKS) == 2


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = code(notebook)
    for slow, quick in QUICKER.items():
        text = text.replace(slow, quick)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(text, notebook.name, "exec"), {"__name__": "__notebook__"})  # noqa: S102


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_as_one(notebook: Path, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the extra `notebooks`")
    pytest.importorskip("ipykernel", reason="needs the extra `notebooks`")
    nbformat = pytest.importorskip("nbformat")
    content = nbformat.read(notebook, as_version=4)
    nbclient.NotebookClient(content, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}).execute()
