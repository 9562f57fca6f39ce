"""What a report shows, as plain values: the page and the figures are made from it and from nothing else."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from semifed.report.curves import Curve, curve, deviation, grid, rounded
from semifed.report.parts import parts_of
from semifed.results import holdings
from semifed.results.collection import Group, StoredRun, groups
from semifed.results.record import Row

MOST_LAYERS, MOST_CLASSES = 60, 40
"""Rows of a heat map that can still be told apart."""

Plain = dict[str, Any]


def content(runs: Sequence[StoredRun]) -> Plain:
    """Everything of these runs that a report shows."""
    found = groups(runs)
    splits, places = _splits(found)
    return {
        "groups": [{**_group(group), "splits": own} for group, own in zip(found, places, strict=True)],
        "splits": splits,
        "parts": [one for group in found for run in group.runs if (one := parts_of(run))],
        "runs": [_run(run, place) for place, group in enumerate(found) for run in group.runs],
        "copies": len(runs) - sum(len(group.runs) for group in found),
    }


def _group(group: Group) -> Plain:
    """One line of the table, and all its curves."""
    rows, first = [run.rows for run in group.runs], group.runs[0]
    model, curves = main_model(group.runs), _curves(rows)
    return {
        "label": group.label,
        "method": first.method,
        "data": str(first.experiment["data"]),
        "scenario": scenario_words(first.experiment["scenario"]),
        "seeds": [run.seed for run in group.runs],
        "model": model,
        "best": _spread([_score(run, model, "best") for run in group.runs]),
        "last": _spread([_score(run, model, "last") for run in group.runs]),
        "down": _spread([run.summary["bytes"]["down"] / 1e6 for run in group.runs]),
        "up": _spread([run.summary["bytes"]["up"] / 1e6 for run in group.runs]),
        "seconds": _spread([run.summary["seconds"] for run in group.runs]),
        "rounds": max((len(own) for own in rows), default=0),
        "unfinished": sum(1 for run in group.runs if not run.done),
        "alarms": _alarms(group.runs),
        "curves": {name: found.plain() for name, found in curves.items()},
        "mb": _megabytes(
            rows, {one for name, own in curves.items() if name.startswith("accuracy/") for one in own.rounds}
        ),
        "classes": _classes(group.runs),
        "layers": _layers(rows),
    }


def main_model(runs: Sequence[StoredRun]) -> str | None:
    """The model that a run hands out: the first that was tested."""
    return next((name for run in runs for row in run.rows for name in row["models"]), None)


def _score(run: StoredRun, model: str | None, place: str) -> float | None:
    scores: Mapping[str, Any] = run.summary["models"].get(model, {})
    return scores[place]["accuracy"] if place in scores else None


def _spread(values: Sequence[float | None]) -> Plain | None:
    """Mean and standard deviation over seeds, of those that have a value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"mean": sum(known) / len(known), "std": deviation(known) if len(known) > 1 else None}


def scenario_words(scenario: Mapping[str, Any]) -> str:
    """A scenario in a few words."""
    budgets = {"gamma": "of samples labelled", "per_class": "labels a class", "total": "labels in all"}
    budgets["per_class_client"] = "labels a class and client"
    name = next((one for one in budgets if scenario.get(one) is not None), "gamma")
    amount = scenario.get(name) if scenario.get(name) is not None else 0.1
    budget = f"{amount:,}" if name != "gamma" else f"{100 * float(str(amount)):.3g}%"
    details = {"dirichlet": "alpha", "dirichlet-pool": "alpha", "noniid-1": "classes_per_client"}
    extra = details.get(str(scenario["partition"]))
    shape = f"{scenario['partition']} ({extra.replace('_', ' ')} {scenario[extra]})" if extra else scenario["partition"]
    return f"{shape}, {scenario['clients']} clients, {budget} {budgets[name]}, labels at the {scenario['labels']}"


def _curves(rows: Sequence[Sequence[Row]]) -> dict[str, Curve]:
    """All curves by their name; a name is what it is of, and where there are several of a kind, which one."""
    models = dict.fromkeys(name for own in rows for row in own for name in row["models"])
    terms = dict.fromkeys(name for own in rows for row in own for name in row["terms"])
    server = dict.fromkeys(name for own in rows for row in own for name in row.get("server_terms", ()))
    found = {
        **{f"accuracy/{name}": curve(rows, _of("models", name, "accuracy")) for name in models},
        **{f"accuracy/{name} at the sites": curve(rows, _of("sites", name, "accuracy")) for name in models},
        **{f"loss/{name}": curve(rows, _of("models", name, "loss")) for name in models},
        **{f"term/{name}": curve(rows, _of("terms", name)) for name in terms},
        **{f"term/server {name}": curve(rows, _of("server_terms", name)) for name in server},
        "coverage": curve(rows, _of("notes", "coverage")),
        "agreement": curve(rows, agreement),
        "right": curve(rows, right),
        "down": curve(rows, lambda row: row["bytes"]["down"] / 1e6),
        "up": curve(rows, lambda row: row["bytes"]["up"] / 1e6),
        "late": _count(rows, "stragglers"),
        "refused": _count(rows, "refused"),
    }
    return {name: one for name, one in found.items() if one}


def _count(rows: Sequence[Sequence[Row]], name: str) -> Curve | None:
    """How many clients of a round there were of a kind, if there ever was one."""
    if not any(row.get(name) for own in rows for row in own):
        return None
    return curve(rows, lambda row: len(row.get(name, ())))


def _of(*path: str) -> Any:
    def measure(row: Row) -> Any:
        value: Any = row
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    return measure


def agreement(row: Row) -> float | None:
    """The share of rows on which two opinions agree, in rounds in which both were heard."""
    heard, share = row["notes"].get("heard", 1.0), row["notes"].get("agreement")
    return share / heard if share is not None and heard else None


def right(row: Row) -> float | None:
    """The share of pseudo-labels that are right; of none there is no share."""
    correct, given = row.get("audit", {}).get("correct"), row["notes"].get("coverage")
    return min(correct / given, 1.0) if correct is not None and given else None


def _megabytes(rows: Sequence[Sequence[Row]], rounds: set[int]) -> dict[str, float]:
    """What had been sent after these rounds, the mean over seeds."""
    sums: dict[int, list[float]] = {}
    for own in rows:
        total = 0.0
        for row in own:
            total += sum(row["bytes"].values()) / 1e6
            if row["round"] in rounds:
                sums.setdefault(int(row["round"]), []).append(total)
    return {str(one): rounded(sum(values) / len(values)) or 0.0 for one, values in sums.items()}


def _classes(runs: Sequence[StoredRun]) -> Plain | None:
    """Which share of the rows gets a pseudo-label of which class."""
    held = holdings.read(runs[0].path)
    names = list(held.classes) if held else []

    def rates(row: Row) -> dict[str, float]:
        own = row["notes"].get("classes", [])
        return {names[place] if place < len(names) else str(place): rate for place, rate in enumerate(own)}

    found = grid([run.rows for run in runs], rates, MOST_CLASSES)
    return found.plain() if found else None


def _layers(rows: Sequence[Sequence[Row]]) -> dict[str, Plain]:
    """What was measured by layer, over rounds."""
    kinds = dict.fromkeys(name for own in rows for row in own for name in row.get("layers", {}))
    found = {kind: grid(rows, _of_layer(kind), MOST_LAYERS) for kind in kinds}
    return {kind: one.plain() for kind, one in found.items() if one}


def _of_layer(kind: str) -> Any:
    return lambda row: row.get("layers", {}).get(kind, {})


def _alarms(runs: Sequence[StoredRun]) -> list[Plain]:
    """What was wrong, in stretches of rounds in which it stayed so."""
    found: list[Plain] = []
    for run in runs:
        last: dict[str, Plain] = {}  # by kind: several may go on side by side
        for row in run.rows:
            for text in map(str, row.get("alarms", ())):
                kind, now = text.split(":")[0], row["round"]
                if kind in last and last[kind]["to"] == now - 1:
                    last[kind] |= {"to": now, "text": text}
                else:
                    last[kind] = {"seed": run.seed, "kind": kind, "text": text, "from": now, "to": now}
                    found.append(last[kind])
    return found


def _splits(found: Sequence[Group]) -> tuple[list[Plain], list[list[int]]]:
    """The different splits, and for each group which its runs have."""
    known: dict[str, int] = {}
    splits: list[Plain] = []
    places: list[list[int]] = []
    for group in found:
        own = []
        for run in group.runs:
            held = holdings.read(run.path)
            if held is None:
                continue
            text = json.dumps(held)
            if text not in known:
                known[text] = len(splits)
                words = scenario_words(run.experiment["scenario"])
                splits.append({**held._asdict(), "label": f"{run.experiment['data']}, {words}, seed {run.seed}"})
            if known[text] not in own:
                own.append(known[text])
        places.append(own)
    return splits, places


def _run(run: StoredRun, group: int) -> Plain:
    model = main_model([run])
    return {
        "name": run.name,
        "group": group,
        "seed": run.seed,
        "status": run.status,
        "rounds": [len(run.rows), run.rounds],
        "best": _score(run, model, "best"),
        "last": _score(run, model, "last"),
        "mb": sum(run.summary["bytes"].values()) / 1e6,
        "seconds": run.summary["seconds"],
        "alarms": run.summary.get("alarms", 0),
    }
