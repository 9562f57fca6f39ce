"""One self-contained page of some runs: tables that need no script, and charts with their library inside."""

import datetime
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from semifed import __version__
from semifed.report.parts import parts_table
from semifed.report.tables import number, rendered

_FRAME, _STYLE, _SCRIPT, _LIBRARY = "report.html", "report.css", "report.js", "echarts.min.js"
_URGENT = {"collapse": 0, "silence": 1}
"""Alarms of which no single client is the cause, the worst first."""

Plain = Mapping[str, Any]


def page(content: Plain, title: str) -> str:
    """The page as text; whatever users have named goes through `html.escape` or stands in JSON that ends no script."""
    runs, groups = content["runs"], content["groups"]
    seeds = len({run["seed"] for run in runs})
    twice = f", {_count(content['copies'], 'run')} given twice" if content["copies"] else ""
    parts = {
        "TITLE": html.escape(title),
        "SUBTITLE": f"{_count(len(runs), 'run')}, {_count(len(groups), 'series', '')}, {_count(seeds, 'seed')}{twice}",
        "VERSION": html.escape(__version__),
        "DATE": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "CSS": _asset(_STYLE),
        "JS": _asset(_SCRIPT),
        "ECHARTS": _asset(_LIBRARY),
        "ALARMS": _alarms(groups),
        "TABLE": _table(groups),
        "PARTS": parts_table(content["parts"]),
        "RUNS_SUMMARY": f"Show {_count(len(runs), 'run')}",
        "RUNS": _runs(runs, groups),
        "CONTENT": json_in_html(content),
    }
    # One pass, so that a name which looks like a place to fill is not filled.
    return re.sub(r"\{\{([A-Z_]+)\}\}", lambda place: parts[place[1]], _asset(_FRAME))


def json_in_html(content: Any) -> str:
    """JSON that can stand in a script element: no sign in it can end the element or begin a comment."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)  # all but ASCII is escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return resources.files("semifed.report").joinpath("assets", name).read_text("utf-8")


def _count(number: int, word: str, ending: str = "s") -> str:
    return f"{number} {word}{'' if number == 1 else ending}"


def _alarms(groups: Sequence[Plain]) -> str:
    """What needs a look, first on the page; what is wrong with a whole run before what is odd in one client."""
    found = [(group, alarm) for group in groups for alarm in group["alarms"]]
    items = [
        f"<li><b>{html.escape(group['label'])}</b>, seed {alarm['seed']}, {_rounds(alarm)}: "
        f"{html.escape(alarm['text'])}</li>"
        for group, alarm in sorted(found, key=lambda one: _URGENT.get(one[1]["kind"], len(_URGENT)))
    ]
    if not items:
        return ""
    first, rest = "".join(items[:20]), "".join(items[20:])
    more = f"<details><summary>and {len(items) - 20} more</summary><ul>{rest}</ul></details>" if rest else ""
    return f'<div class="box" id="alarms"><h2>Alarms</h2><ul>{first}</ul>{more}</div>'


def _rounds(alarm: Plain) -> str:
    first, last = alarm["from"], alarm["to"]
    return f"round {first}" if first == last else f"rounds {first} to {last}"


def _table(groups: Sequence[Plain]) -> str:
    heads = ("Method", "#Best %", "#Last %", "#Seeds", "#MB down", "#MB up", "#Time", "Data", "Scenario", "")
    rows = []
    for place, group in enumerate(groups):
        swatch = f'<span class="swatch" data-swatch="{place}"></span>'
        flags = [_count(group["unfinished"], "run") + " not finished"] if group["unfinished"] else []
        flags += ["alarm"] if group["alarms"] else []
        rows.append(
            [
                f'<th scope="row">{swatch}{_named(group)}</th>',
                _spread(group["best"], 2),
                _spread(group["last"], 2),
                number(len(group["seeds"]), str(len(group["seeds"]))),
                _spread(group["down"], 1, with_deviation=False),
                _spread(group["up"], 1, with_deviation=False),
                number(group["seconds"]["mean"], _duration(group["seconds"]["mean"])),
                f"<td>{html.escape(group['data'])}</td>",
                f'<td class="words">{html.escape(group["scenario"])}</td>',
                f'<td class="flag">{html.escape(", ".join(flags))}</td>',
            ]
        )
    return rendered(heads, rows)


def _named(group: Plain) -> str:
    """The method, and below it what else tells the series from others."""
    method, label = html.escape(group["method"]), group["label"]
    rest = label.removeprefix(group["method"]).lstrip(", ") if label.startswith(group["method"]) else label
    return f"{method}<small>{html.escape(rest)}</small>" if rest else method


def _runs(runs: Sequence[Plain], groups: Sequence[Plain]) -> str:
    heads = ("Run", "Series", "#Seed", "Status", "#Rounds", "#Best %", "#Last %", "#MB sent", "#Time", "#Alarms")
    rows = []
    for run in runs:
        done, wanted = run["rounds"]
        rows.append(
            [
                f'<th scope="row">{html.escape(run["name"])}</th>',
                f"<td>{html.escape(groups[run['group']]['label'])}</td>",
                number(run["seed"], str(run["seed"])),
                f"<td>{html.escape(run['status'])}</td>",
                number(done, f"{done} of {wanted}" if done != wanted else str(done)),
                *(number(run[place], "–" if run[place] is None else f"{run[place]:.2f}") for place in ("best", "last")),
                number(run["mb"], f"{run['mb']:,.1f}"),
                number(run["seconds"], _duration(run["seconds"])),
                number(run["alarms"], str(run["alarms"] or "")),
            ]
        )
    return rendered(heads, rows)


def _spread(spread: Plain | None, places: int, with_deviation: bool = True) -> str:
    if spread is None:
        return number(None, "–")
    mean, deviation = spread["mean"], spread["std"] if with_deviation else None
    text = f"{mean:,.{places}f}" + (
        f' <span class="pm">± {deviation:.{places}f}</span>' if deviation is not None else ""
    )
    return f'<td class="number" data-value="{mean}">{text}</td>'


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 60 else f"{hours:.1f} h"
