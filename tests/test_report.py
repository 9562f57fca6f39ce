"""The report: what it counts, what it escapes, its page in a real browser, and figures for papers."""

import html.parser
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import browser
import semifed
from semifed.errors import RunError, SettingError
from semifed.report import figures, write_report
from semifed.report.content import agreement, content, right, scenario_words
from semifed.report.curves import curve, grid, rounded, thin
from semifed.report.page import json_in_html
from semifed.report.page import page as page_of
from semifed.results.collection import collect
from toys import TINY, call

EVIL = '</script><script>alert(1)</script><img src=x onerror=alert(2)> "quoted" & {{CONTENT}}'
METHODS = {
    "fedavg+": (),
    "fedavg-fixmatch": ("method.threshold=0.25",),
    "fedsiam-d": ("method.phi=1",),
    "fedmatch": (),
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four methods with two seeds each; one run has raised an alarm."""
    folder = tmp_path_factory.mktemp("reported")
    for method, more in METHODS.items():
        for seed in range(2):
            words = [*TINY, "train.rounds=5", "train.evaluate_every=1", "scenario.validation=40"]
            experiment = semifed.Experiment.read(None, [*words, f"method={method}", *more, f"seed={seed}"])
            semifed.run(experiment, folder / f"{method}-{seed}")
    place = folder / "fedavg-fixmatch-1" / "rounds.jsonl"
    rows = [json.loads(line) for line in place.read_text().splitlines()]
    for row in rows[2:4]:
        row["alarms"] = ["collapse: 99% of the unlabelled rows are taken for class 1"]
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="session")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([runs], tmp_path_factory.mktemp("page") / "report.html", EVIL)


def row(round: int, **more: Any) -> dict[str, Any]:
    return {"round": round, "models": {}, "terms": {}, "notes": {}, "bytes": {"down": 1, "up": 2}, **more}


def test_a_curve_is_the_mean_over_seeds_with_the_deviation_of_a_sample() -> None:
    seeds = [[row(1, value=1.0), row(2, value=2.0)], [row(1, value=3.0), row(2, value=None)], [row(1, value=5.0)]]
    found = curve(seeds, lambda one: one["value"])
    assert found is not None
    assert found == ([1, 2], [3.0, 2.0], [2.0, 0.0])
    assert curve(seeds, lambda one: one.get("other")) is None
    assert curve([[row(1, value=float("nan"))]], lambda one: one["value"]) is None


def test_long_curves_are_thinned_with_their_ends_kept() -> None:
    kept = thin(range(1, 5001), 200)
    assert (len(kept), kept[0], kept[-1]) == (200, 1, 5000)
    assert kept == sorted(set(kept))
    assert thin([3, 4]) == [3, 4]


def test_a_grid_keeps_the_largest_rows() -> None:
    rows = [[row(1, layers={"a": 0.1, "b": 0.9, "c": 0.5}), row(2, layers={"a": 0.2, "b": 0.1})]]
    found = grid(rows, lambda one: one["layers"], 2)
    assert found is not None
    assert (found.rounds, found.names, found.values) == ([1, 2], ["b", "c"], [[0.9, 0.1], [0.5, None]])


@pytest.mark.parametrize(
    ("value", "short"), [(1234567.0, 1235000), (0.000123456, 0.0001235), (0.0, 0), (None, None), (float("inf"), None)]
)
def test_numbers_keep_the_digits_that_count(value: float | None, short: float | None) -> None:
    assert rounded(value) == short


def test_shares_are_of_what_there_is() -> None:
    assert right(row(1, notes={"coverage": 0.5}, audit={"correct": 0.25})) == 0.5
    assert right(row(1, notes={"coverage": 0.0}, audit={"correct": 0.0})) is None
    assert (
        right(row(1, notes={"coverage": 0.5})) is None
    )  # a run before there was an audit, or one that is no simulation
    assert agreement(row(1, notes={"agreement": 0.3, "heard": 0.5})) == 0.6
    assert agreement(row(1, notes={"agreement": 0.0, "heard": 0.0})) is None
    assert agreement(row(1, notes={"agreement": 0.4})) == 0.4


def test_scenarios_in_words() -> None:
    experiment = semifed.Experiment.read(None, ["scenario.partition=dirichlet", "scenario.total=1500"])
    words = scenario_words(experiment.tables()["scenario"])
    assert words == "dirichlet (alpha 0.5), 100 clients, 1,500 labels in all, labels at the client"


def test_the_content_has_everything(runs: Path) -> None:
    found = content(collect([runs]))
    groups = {group["method"]: group for group in found["groups"]}
    assert list(groups) == sorted(METHODS)
    assert len(found["runs"]) == 8
    fixmatch, siam, match = groups["fedavg-fixmatch"], groups["fedsiam-d"], groups["fedmatch"]
    assert {"coverage", "agreement", "right", "down", "up", "term/pseudo_label"} <= set(fixmatch["curves"])
    assert set(siam["layers"]) == {"online sent", "divergence"}
    assert set(match["layers"]) == {"sigma sent", "psi sent"}
    assert fixmatch["classes"]["names"] == ["stripes", "bars", "chequers", "square"]
    assert [(one["from"], one["to"], one["seed"]) for one in fixmatch["alarms"]] == [(3, 4, 1)]
    assert len(found["splits"]) == 2  # one a seed, the same for every method
    assert all(group["splits"] == [0, 1] for group in groups.values())
    stored = [run for run in collect([runs]) if run.method == "fedmatch"]
    last = [run.summary["models"]["global"]["last"]["accuracy"] for run in stored]
    assert match["last"]["mean"] == pytest.approx(sum(last) / 2)
    assert match["mb"]["5"] == pytest.approx(sum(sum(run.summary["bytes"].values()) for run in stored) / 2e6, rel=1e-3)
    json.dumps(found, allow_nan=False)


def test_alarms_that_go_on_side_by_side_are_told_once_each(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fedavg+-0", tmp_path / "run")
    place, told = (
        tmp_path / "run" / "rounds.jsonl",
        [["collapse: all", "client 2: odd"]] * 3 + [["client 2: odder"], []],
    )
    rows = [json.loads(line) for line in place.read_text().splitlines()]
    place.write_text("".join(json.dumps(own | {"alarms": now}) + "\n" for own, now in zip(rows, told, strict=True)))
    (group,) = content(collect([tmp_path / "run"]))["groups"]
    found = [(one["text"], one["from"], one["to"]) for one in group["alarms"]]
    assert found == [("collapse: all", 1, 3), ("client 2: odder", 1, 4)]


def test_a_run_that_is_given_twice_is_one(runs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(runs / "fedavg+-0", tmp_path / "copy")
    once, twice = content(collect([runs / "fedavg+-0"])), content(collect([runs / "fedavg+-0", copy]))
    assert (once.pop("copies"), twice.pop("copies")) == (0, 1)
    assert once == twice
    page = write_report([runs / "fedavg+-0", copy], tmp_path / "page.html").read_text()
    assert "1 run, 1 series, 1 seed, 1 run given twice" in page


def test_of_many_alarms_a_collapse_is_told_first_and_none_is_left_out(runs: Path) -> None:
    found = content(collect([runs / "fedavg+-0"]))
    kinds = [*(f"client {number}" for number in range(30)), "collapse"]
    found["groups"][0]["alarms"] = [{"seed": 0, "kind": kind, "text": kind, "from": 1, "to": 2} for kind in kinds]
    listed, rest = (
        page_of(found, "alarms").partition('<section id="results">')[0].split("<summary>and 11 more</summary>")
    )
    assert re.findall("rounds 1 to 2: (.*?)</li>", listed) == ["collapse", *kinds[:19]]
    assert re.findall("rounds 1 to 2: (.*?)</li>", rest) == kinds[19:30]


class _Reader(html.parser.HTMLParser):
    """The elements of a page by name, and what would fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_stands_alone_and_names_are_text(page: Path) -> None:
    text = page.read_text("utf-8")
    reader = _Reader()
    reader.feed(text)
    assert reader.links == ["data:,"]
    assert "img" not in reader.tags
    assert reader.tags.count("script") == 3
    assert "&lt;/script&gt;" in text
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    assert json.loads(found[1])["groups"]
    assert page.stat().st_size < 2_000_000


def test_json_cannot_end_its_element() -> None:
    assert json.loads(json_in_html({"a": EVIL + "\u2028<!--"})) == {"a": EVIL + "\u2028<!--"}
    assert not set("<>&\u2028") & set(json_in_html({"a": EVIL + "\u2028<!--"}))


def test_the_command_writes_the_page(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "my page.html"
    said = call("report", str(runs / "fedavg+-0"), "-o", str(out), "--title", "One run", "--json")
    assert (said.code, said.err) == (0, "")
    assert json.loads(said.out) == {"page": str(out), "bytes": out.stat().st_size, "figures": []}
    assert "<title>One run</title>" in out.read_text("utf-8")


def test_runs_that_cannot_be_shown_are_refused_in_one_line(runs: Path, tmp_path: Path) -> None:
    assert "there is no such folder" in call("report", str(tmp_path / "none"), "-o", str(tmp_path / "x.html")).line
    assert "holds no run" in call("report", str(tmp_path), "-o", str(tmp_path / "x.html")).line
    assert "is a folder" in call("report", str(runs), "-o", str(tmp_path)).line
    words = ["report", str(runs), "-o", str(tmp_path / ("long" * 100)), "--figures", str(tmp_path / "drawn")]
    assert "cannot be written" in call(*words).line
    assert not (tmp_path / "drawn").exists()
    shutil.copytree(runs / "fedavg+-0", tmp_path / "spoilt")
    (tmp_path / "spoilt" / "holdings.json").write_text("{")
    assert r"holdings.json: is damaged" in call("report", str(tmp_path / "spoilt"), "-o", str(tmp_path / "x.html")).line


def test_only_an_earlier_page_is_written_over(runs: Path, tmp_path: Path) -> None:
    rows, again = tmp_path / "run" / "rounds.jsonl", tmp_path / "again.html"
    shutil.copytree(runs / "fedavg+-0", tmp_path / "run")
    before = rows.read_bytes()
    assert "is there already and is no page" in call("report", str(tmp_path / "run"), "-o", str(rows)).line
    assert rows.read_bytes() == before
    again.write_text("<!doctype html>somebody's")
    with pytest.raises(RunError, match="is no page of a report"):
        write_report([tmp_path / "run"], again)
    again.write_text("")
    for place in (again, again, tmp_path / "new" / "x.html"):
        assert write_report([tmp_path / "run"], place).stat().st_size > 100_000


def test_runs_without_rows_or_pictures_are_shown_too(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fedavg+-0", tmp_path / "run")
    for name in ("holdings.json", "summary.json"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "rounds.jsonl").write_text("")
    text = write_report([tmp_path / "run"], tmp_path / "x.html").read_text("utf-8")
    assert "1 run not finished" in text


def test_figures_for_papers(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    said = call("report", str(runs), "-o", str(tmp_path / "x.html"), "--figures", str(tmp_path / "figures"))
    assert (said.code, said.err) == (0, "")
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    wanted = {"accuracy-rounds", "accuracy-bytes", "terms", "pseudo-labels", "traffic", "split-0", "split-1"}
    assert wanted <= names
    assert {name for name in names if name.startswith("layers")} >= {"layers-3-divergence", "layers-3-online-sent"}
    for path in (tmp_path / "figures").iterdir():
        head = path.read_bytes()[:5]
        assert head == (b"%PDF-" if path.suffix == ".pdf" else b"\x89PNG\r")


def test_figures_of_nothing_of_one_point_and_of_odd_names(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    zeros = {"x": [1, 2], "names": ["US$^{$"], "values": [[0, 0]]}
    group = {"label": "cost $5 & $x_{", "curve": {"x": [3], "mean": [0.5], "std": None}}
    with matplotlib.rc_context(figures.STYLE):
        for what in ("psi sent", "divergence"):
            figure = figures._heat(zeros, "many words " * 20, what)
            panel = figure.axes[0]
            assert panel.images[0].get_clim() == (0, 1)  # nothing looks like nothing
            assert max(map(len, panel.get_title(loc="left").splitlines())) <= 50
            figure.savefig(tmp_path / "heat.png")
        ((_, figure),) = figures._lines("name", [group], [("Accuracy", lambda one: one["curve"])], "share")
        assert figure.axes[0].lines[0].get_marker() == "o"
        figure.savefig(tmp_path / "lines.png")


def test_without_matplotlib_the_extra_is_named(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(SettingError, match=r"semifed\[figures\]"):
        figures.write_figures([runs], tmp_path)


# In a real browser


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium here: apt-get install chromium, or name one by SEMIFED_CHROMIUM")
    with browser.opened(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


CHARTS: tuple[str, ...] = ("accuracy-rounds", "accuracy-bytes", "term-0", "coverage", "right", "agreement", "classes")
CHARTS += ("sent", "down", "up", "layer-0", "layer-1", "split")
INK = """(() => { const c = document.querySelector('#chart-%s canvas'); const d = c.getContext('2d')
  .getImageData(0, 0, c.width, c.height).data; const seen = new Set();
  for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 0) seen.add((d[i] << 16) | (d[i + 1] << 8) | d[i + 2]);
  return seen.size })()"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_every_chart_is_there_and_nobody_complains(
    window: browser.Browser, page: Path, width: int, dark: bool, tmp_path: Path
) -> None:
    window.open(page, width, dark=dark)
    drawn = window.wait("document.documentElement.dataset.drawn")
    assert int(drawn) == window.run("[...document.querySelectorAll('figure:not([hidden]) .chart')].length")
    for name in CHARTS:
        assert window.run(INK % name) > 3, f"{name} is blank"
    assert window.complaints == []
    assert window.requests == [page.resolve().as_uri()]
    assert window.run("document.documentElement.scrollWidth") == width  # nothing sticks out sideways
    light = window.run("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 249)"
    assert light != dark
    window.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000


@pytest.mark.slow
def test_long_labels_fit_a_phone(window: browser.Browser, runs: Path, tmp_path: Path) -> None:
    found = content(collect([runs]))
    for place, group in enumerate(found["groups"]):
        group["label"] += f", phi={place}, labels=client, clients_per_round=4, share=0.5, divide=labelled, curve=linear"
    (tmp_path / "x.html").write_text(page_of(found, "long"), "utf-8")
    window.open(tmp_path / "x.html", 390)
    window.wait("document.documentElement.dataset.drawn")
    assert window.run("document.documentElement.scrollWidth") == 390


@pytest.mark.slow
def test_series_and_colours_can_be_switched(window: browser.Browser, page: Path) -> None:
    window.open(page)
    window.wait("document.documentElement.dataset.drawn")
    selected = (
        "echarts.getInstanceByDom(document.getElementById('chart-accuracy-rounds')).getOption().legend[0].selected"
    )
    assert window.run(f"Object.values({selected}).every(Boolean)")
    window.run("document.querySelectorAll('#chips button')[1].click()")
    assert window.run(f"{selected}[1]") is False
    assert window.run("document.getElementById('shown').textContent") == "3 of 4 shown"
    window.run("document.querySelector('[data-all=\"0\"]').click()")
    assert not window.run(f"Object.values({selected}).some(Boolean)")
    window.run("document.querySelector('[data-all=\"1\"]').click()")
    assert window.run(f"Object.values({selected}).every(Boolean)")
    before = window.run(INK % "accuracy-rounds")
    window.run("document.querySelector('[data-theme-set=\"dark\"]').click()")
    window.wait("document.documentElement.dataset.drawn")
    assert window.run("document.documentElement.dataset.theme") == "dark"
    assert before
    assert window.run("getComputedStyle(document.body).backgroundColor") == "rgb(18, 20, 23)"
    window.run(
        "(() => { const s = document.querySelector('#layers select'); s.selectedIndex = 1; "
        "s.dispatchEvent(new Event('change')) })()"
    )
    assert window.complaints == []


@pytest.mark.slow
def test_hover_shows_values(window: browser.Browser, page: Path) -> None:
    window.open(page)
    window.wait("document.documentElement.dataset.drawn")
    window.run("document.getElementById('chart-accuracy-rounds').scrollIntoView({block: 'center'})")
    box = window.run(
        "(() => { const r = document.getElementById('chart-accuracy-rounds').getBoundingClientRect(); "
        "return [r.x + r.width / 2, r.y + r.height / 2] })()"
    )
    window.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    window.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + 3, y=box[1])
    shown = window.wait("document.querySelector('#chart-accuracy-rounds .tip')?.textContent")
    assert "round" in shown
    assert "fedmatch" in shown


@pytest.mark.slow
def test_tables_sort(window: browser.Browser, page: Path) -> None:
    window.open(page)
    column = "[...document.querySelectorAll('#results tbody tr')].map((row) => Number(row.cells[1].dataset.value))"
    window.run("document.querySelectorAll('#results thead button')[1].click()")
    assert window.run(column) == sorted(window.run(column), reverse=True)
    window.run("document.querySelectorAll('#results thead button')[1].click()")
    assert window.run(column) == sorted(window.run(column))


@pytest.mark.slow
def test_names_of_users_are_never_run(window: browser.Browser, runs: Path, tmp_path: Path) -> None:
    place = tmp_path / "<img src=x onerror=alert(3)>"
    shutil.copytree(runs / "fedavg-fixmatch-0", place)
    held = json.loads((place / "holdings.json").read_text())
    held["classes"] = [EVIL, *held["classes"][1:]]
    (place / "holdings.json").write_text(json.dumps(held))
    text = (place / "experiment.toml").read_text().replace('name = "fedavg-fixmatch"', f"name = {json.dumps(EVIL)}")
    (place / "experiment.toml").write_text(text)
    window.open(write_report([place], tmp_path / "x.html", EVIL))
    window.wait("document.documentElement.dataset.drawn")
    assert window.run("document.images.length") == 0
    assert window.run("document.scripts.length") == 3
    assert EVIL in window.run("document.querySelector('#chips').textContent")
    assert window.complaints == []
