"""The figures of a report for papers, drawn by matplotlib: PDF for print, PNG for slides."""

import importlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from semifed.errors import RunError, SettingError
from semifed.report.content import content
from semifed.results.collection import collect
from semifed.writing import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("pdf", "png")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5fc4", "#b07d00", "#56b4e9", "#8c2d2d", "#555f68", "#6c8a1c")
"""Told apart by most eyes, and in grey by their dashes."""
DASHES = ("-", "--", ":", "-.")
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "text.parse_math": False,  # names are users', and a $ in one is a $
    "pdf.fonttype": 42,  # letters stay letters, as journals ask
    "savefig.dpi": 200,
}
LETTERS = 14
"""Of a title to an inch: a figure would grow with a title that is longer than it is wide."""
Plain = Mapping[str, Any]


def write_figures(paths: Iterable[Path | str], folder: Path | str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the figures of the runs in these folders, of runs or of sweeps; the files that were written."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise SettingError("--figures: needs matplotlib; pip install 'semifed[figures]'") from None
    runs, folder = collect(paths), Path(folder)
    if not runs:
        raise RunError("report: none of these folders holds a run that has begun; give the folder of one that has")
    written = []
    with matplotlib.rc_context(STYLE):
        for name, figure in _figures(content(runs)):
            for form in formats:
                written.append(_save(figure, folder / f"{name}.{form}", form))
    return written


def _blank(figsize: tuple[float, float]) -> "Figure":
    """An empty figure; matplotlib is loaded only where figures are asked for."""
    return cast("Figure", importlib.import_module("matplotlib.figure").Figure(figsize=figsize))


def _save(figure: "Figure", path: Path, form: str) -> Path:
    facts = {"pdf": {"CreationDate": None}, "png": {"Software": None}}.get(form)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            figure.savefig(part, format=form, bbox_inches="tight", metadata=facts)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}; give another --figures") from None
    return path


def _figures(found: Plain) -> Iterator[tuple[str, "Figure"]]:
    """Every figure with its name."""
    groups = found["groups"]
    accuracy = lambda group: group["curves"].get(f"accuracy/{group['model']}")  # noqa: E731
    yield from _lines("accuracy-rounds", groups, [("Accuracy", accuracy)], "test accuracy (%)")
    yield from _lines("accuracy-bytes", groups, [("Accuracy", accuracy)], "test accuracy (%)", _sent)
    terms = dict.fromkeys(name for group in groups for name in group["curves"] if name.startswith("term/"))
    yield from _lines("terms", groups, [(name[5:].replace("_", " "), _named(name)) for name in terms], "loss term")
    health = {
        "coverage": "coverage",
        "right": "right labels (simulation)",
        "agreement": "agreement",
    }
    yield from _lines("pseudo-labels", groups, [(title, _named(name)) for name, title in health.items()], "share")
    ways = {"down": "to the clients", "up": "to the server"}
    yield from _lines("traffic", groups, [(title, _named(name)) for name, title in ways.items()], "MB a round")
    for place, group in enumerate(groups):
        if group["classes"]:
            yield f"classes-{place}", _heat(group["classes"], group["label"], "share of the unlabelled rows")
        for kind, data in group["layers"].items():
            yield f"layers-{place}-{kind.replace(' ', '-')}", _heat(data, group["label"], kind)
    for place, split in enumerate(found["splits"]):
        yield f"split-{place}", _bubbles(split)


def _named(name: str) -> Callable[[Plain], Any]:
    return lambda group: group["curves"].get(name)


def _sent(group: Plain, rounds: Sequence[int]) -> list[float]:
    return [group["mb"][str(one)] for one in rounds]


def _lines(
    name: str,
    groups: Sequence[Plain],
    panels: Sequence[tuple[str, Callable[[Plain], Any]]],
    what: str,
    place: Callable[[Plain, Sequence[int]], list[float]] | None = None,
) -> Iterator[tuple[str, "Figure"]]:
    """One panel a measure, the mean over seeds with a band of one standard deviation."""
    panels = [(title, of) for title, of in panels if any(map(of, groups))]
    if not panels:
        return
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = _blank(figsize=(3.3 if len(panels) == 1 else 2.4 * columns, (2.4 if len(panels) == 1 else 1.9) * rows))
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for (title, of), panel in zip(panels, axes, strict=False):
        for number, group in enumerate(groups):
            if curve := of(group):
                _line(panel, number, group, curve, place(group, curve["x"]) if place else curve["x"])
        panel.set_title(title, loc="left") if len(panels) > 1 else None
        panel.set_xlabel("MB sent" if place else "round")
        panel.set_ylabel(what)
        panel.margins(x=0)
    for panel in axes[len(panels) :]:
        panel.remove()
    handles = {
        label: line
        for panel in axes[: len(panels)]
        for line, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.tight_layout()
    figure.legend(
        list(handles.values()), list(handles), loc="upper left", bbox_to_anchor=(0, 0), ncols=1 + (len(handles) > 4)
    )
    yield name, figure


def _line(panel: "Axes", number: int, group: Plain, curve: Plain, x: Sequence[float]) -> None:
    colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
    mean = [float("nan") if one is None else one for one in curve["mean"]]
    dot = "o" if len(x) == 1 else None  # a line through one point is not seen
    look: dict[str, Any] = {"color": colour, "linewidth": 1.1, "marker": dot, "markersize": 3, "clip_on": False}
    panel.plot(x, mean, dash, label=group["label"], **look)
    if curve["std"]:
        low, high = ([m + sign * (s or 0) for m, s in zip(mean, curve["std"], strict=True)] for sign in (-1, 1))
        panel.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)


def _heat(data: Plain, title: str, what: str) -> "Figure":
    """Names by rounds."""
    figure = _blank(figsize=(3.6, 0.9 + 0.16 * max(4, len(data["names"]))))
    panel = figure.subplots()
    values = [[float("nan") if one is None else one for one in row] for row in data["values"]]
    largest = 1 if what.endswith(" sent") else max((one for row in values for one in row if one > 0), default=1)
    image = panel.imshow(values, aspect="auto", cmap="Blues", vmin=0, vmax=largest, interpolation="nearest")
    panel.set_yticks(range(len(data["names"])), data["names"])
    ticks = sorted({round(number * (len(data["x"]) - 1) / 5) for number in range(6)})
    panel.set_xticks(ticks, [str(data["x"][one]) for one in ticks])
    panel.set_xlabel("round")
    panel.set_title(textwrap.fill(title, int(LETTERS * 3.6)), loc="left")
    figure.colorbar(image, ax=panel, label=what)
    return figure


def _bubbles(split: Plain) -> "Figure":
    """Clients by classes: the area is the number of samples, the solid part is labelled."""
    labelled, unlabelled = split["labelled"], split["unlabelled"]
    names = [str(client) for client in range(len(labelled))]
    if any(split["server_labelled"]) or any(split["server_unlabelled"]):
        labelled, unlabelled = [split["server_labelled"], *labelled], [split["server_unlabelled"], *unlabelled]
        names = ["server", *names]
    width = min(10.0, max(3.3, 0.6 + 0.16 * len(names)))
    figure = _blank(figsize=(width, 0.9 + 0.17 * len(split["classes"])))
    panel = figure.subplots()
    cells = [
        (x, y, known, hidden[y])
        for x, (row, hidden) in enumerate(zip(labelled, unlabelled, strict=True))
        for y, known in enumerate(row)
    ]
    most = max((known + hidden for _, _, known, hidden in cells), default=1) or 1
    room = (72 * min(0.15, (width - 0.6) / len(names))) ** 2
    for index, colour, alpha, label in ((3, "#56b4e9", 0.55, "unlabelled"), (2, "#d55e00", 1.0, "labelled")):
        drawn = [cell for cell in cells if cell[index]]
        sizes = [room * (cell[2] + cell[3] if index == 3 else cell[2]) / most for cell in drawn]
        x, y = [cell[0] for cell in drawn], [cell[1] for cell in drawn]
        panel.scatter(x, y, s=sizes, color=colour, alpha=alpha, linewidths=0, label=label, clip_on=False)
    panel.set_yticks(range(len(split["classes"])), split["classes"])
    step = -(-len(names) // 16)
    panel.set_xticks(range(0, len(names), step), names[::step])
    panel.set_xlim(-0.5, len(names) - 0.5)
    panel.set_ylim(len(split["classes"]) - 0.5, -0.5)
    panel.set_xlabel("client")
    panel.set_title(textwrap.fill(split["label"], int(LETTERS * width)), loc="left")
    marks = panel.legend(loc="upper left", bbox_to_anchor=(0, -0.28), ncols=2)
    for mark in marks.legend_handles:
        mark.set_sizes([28]) if mark is not None and hasattr(mark, "set_sizes") else None
    return figure
