"""Presets: every table and figure as a TOML file that says how each of its cells is run.

    title = "FedSiam table 5: labels at the client"
    paper = "FedSiam"                       which rows of the published figures are its cells
    table = "5"
    round = "kept"                          what is held against the paper: the last round, the best, or the one of the
                                            lowest test loss ("kept", which the FedSiam authors' code keeps)
    like = "fedsiam/table5"                 whose experiment and rules come first, if any
    [experiment]                            what all cells share, as in an experiment file
    [[when]]                                rules in order: for the cells that match, ...
    dataset = ["MNIST"]
    experiment.net = "mnist-cnn"            ... settings on top,
    model = "online"                        ... which of a run's models counts,
    note = "why ours differs"               ... and what is known about the difference
    [[cell]]                                cells that are in no published row: lists are combined
    [scale.reduced]                         a smaller form that is said to be one

They are in experiments/<paper>/, and in the package when it is installed.
"""

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semifed.errors import SettingError
from semifed.experiment import Experiment
from semifed.papers.numbers import COLUMNS, Published, published, slug
from semifed.settings import nearest

PAPER_SCALE = "paper"
ROUNDS = ("last", "best", "kept")


@dataclass(frozen=True)
class Cell:
    """One cell: what the paper prints, the experiment of ours, and what is known of the difference."""

    published: Published
    experiment: Experiment
    model: str | None  # of a run's models the one that counts; None: the first
    note: str

    @property
    def key(self) -> str:
        """The cell's name within its table."""
        return self.published.key


@dataclass(frozen=True)
class Preset:
    """A table or a figure."""

    name: str
    title: str
    round: str
    about: str
    scale: str
    cells: tuple[Cell, ...]

    @property
    def folder(self) -> str:
        """What the folder of its runs is called: each scale has its own."""
        return self.name.replace("/", "-") + ("" if self.scale == PAPER_SCALE else f"-{self.scale}")


def home() -> Path:
    """Where the presets are: in the package if it is installed, else in the project's folder."""
    inside = Path(__file__).parent / "presets"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "experiments"


def names() -> list[str]:
    """All presets, such as fedsiam/table5."""
    found = [path for folder in sorted(home().iterdir()) if folder.is_dir() for path in sorted(folder.glob("*.toml"))]
    return [f"{path.parent.name}/{path.stem}" for path in found]


def scales(name: str) -> list[str]:
    """The scales of a preset, the paper's first."""
    return [PAPER_SCALE, *_content(name)["scale"]]


def read(name: str, scale: str = PAPER_SCALE) -> Preset:
    """A preset by its name, at the paper's scale or a smaller one it has."""
    if name not in names():
        raise SettingError(f"there is no preset {name!r}; {nearest(name, names())}")
    content = _content(name)
    about, smaller = str(content.get("about", "")), dict[str, Any]()
    if scale != PAPER_SCALE:
        scales = content.get("scale", {})
        if scale not in scales:
            raise SettingError(f"--scale: {name} has no scale {scale!r}; {nearest(scale, [PAPER_SCALE, *scales])}")
        about, smaller = scales[scale]["about"], scales[scale]
    cells = [_cell(row, content, smaller) for row in _rows(content)]
    return Preset(name, content["title"], content["round"], about, scale, tuple(cells))


def _content(name: str) -> dict[str, Any]:
    """What the file of a preset says, on top of the one it is like."""
    own = tomllib.loads((home() / f"{name}.toml").read_text("utf-8"))
    base = _content(own["like"]) if "like" in own else {}
    return {
        **own,
        "experiment": merged(base.get("experiment", {}), own.get("experiment", {})),
        "when": [*base.get("when", []), *own.get("when", [])],
        "scale": {**base.get("scale", {}), **own.get("scale", {})},
    }


def _rows(content: Mapping[str, Any]) -> list[Published]:
    """The published rows of a preset, and the cells that it lists itself."""
    wanted = {"paper": content["paper"], "table": content["table"], **content.get("select", {})}
    rows = [row for row in published() if _matches(row, wanted)]
    for listed in content.get("cell", []):
        choices = [_several(listed.get(column, "")) for column in COLUMNS]
        for scenario, dataset, setting, gamma, method in itertools.product(*(map(str, one) for one in choices)):
            names = (scenario, dataset, setting, gamma, method)
            rows.append(Published(content["paper"], str(content["table"]), *names, listed.get("accuracy")))
    return rows


def _cell(row: Published, content: Mapping[str, Any], smaller: Mapping[str, Any]) -> Cell:
    tables, model, notes = merged({}, content.get("experiment", {})), None, []
    for rule in [*content.get("when", []), *([smaller] if smaller else []), *smaller.get("when", [])]:
        if not _matches(row, {column: rule[column] for column in COLUMNS if column in rule}):
            continue
        tables = merged(tables, rule.get("experiment", {}))
        model = rule.get("model", model)
        notes += [rule["note"]] if "note" in rule else []
    try:
        return Cell(row, Experiment.of(tables), model, "; ".join(notes))
    except SettingError as error:
        raise SettingError(f"preset {content['title']!r}, {row.key}: {error}") from None


def _matches(row: Published, wanted: Mapping[str, Any]) -> bool:
    return all(getattr(row, column) in map(str, _several(value)) for column, value in wanted.items())


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def merged(tables: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables with others on top; method = "x" and method.option = 1 go together."""
    result = dict(tables)
    for name, value in more.items():
        before = result.get(name)
        if isinstance(value, Mapping):
            inner = {"name": before} if isinstance(before, str) else before if isinstance(before, Mapping) else {}
            result[name] = merged(inner, value)
        else:
            result[name] = value
    return result


def chosen(preset: Preset, wanted: Mapping[str, Sequence[str]]) -> list[Cell]:
    """The cells whose columns have one of the wanted values, as people write them: mnist, non-iid-1, fedsiam-d."""
    cells = list(preset.cells)
    for column, values in wanted.items():
        known = dict.fromkeys(_spoken(cell, column) for cell in preset.cells)
        for value in values:
            if _said(value) not in {_said(one) for one in known}:
                option = {"dataset": "data", "scenario": "labels"}.get(column, column)
                raise SettingError(f"--{option}: {preset.name} has no {value!r}; {nearest(value, known)}")
        if values:
            cells = [cell for cell in cells if _said(_spoken(cell, column)) in map(_said, values)]
    if not cells:
        raise SettingError(f"{preset.name}: no cell has all that is asked for; leave out one of the choices")
    return cells


def _spoken(cell: Cell, column: str) -> str:
    return cell.published.place if column == "scenario" else slug(getattr(cell.published, column))


def _said(text: str) -> str:
    """Without what people leave out: cifar10 is CIFAR-10, 0.10 is 0.1."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return slug(text).replace("-", "")
