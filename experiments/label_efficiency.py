"""What unlabelled data are worth: accuracy against the number of labels, every method with the same budget.

python experiments/label_efficiency.py --data-dir DIR --out RUNS [--jobs 2] [--seeds 3 4 5] [--only fedmatch ...]
python experiments/label_efficiency.py --data-dir DIR --out TRIES --validate --seeds 10 11 --set KEY=VALUE
python experiments/label_efficiency.py --out RUNS --table     prints what is finished as Markdown and writes a CSV

Runs that are finished are not repeated, and one that was killed goes on. With --validate the last 10,000
training images stand in for the test set, which is not looked at: settings are chosen that way, and with other seeds.
"""

import argparse
import csv
import dataclasses
import itertools
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import semifed
from semifed.data import sources

BASE = Path(__file__).with_name("label-efficiency.toml")
DATA = ("mnist", "fashion-mnist")
LABELS = (20, 50, 100, 300, 600, 6000)
BASELINE = "fedavg+"
SEEDS = (3, 4, 5)
HELD_OUT = 10_000

METHODS: dict[str, Sequence[str]] = {
    "client": (BASELINE, "fedsiam-d", "fedmatch", "fedavg-fixmatch", "fixmatch-global", "fixmatch-aligned"),
    "server": (
        *(BASELINE, "fedsiam-d", "fedmatch", "fedcon", "fedmix"),
        *("fedavg-fixmatch", "fixmatch-global", "fixmatch-aligned", "semifl"),
    ),
}

# What it takes to give a method the budget of the others: 30 rows a step, and steps of the same size.
SETTINGS: dict[str, Sequence[str]] = {
    "fedsiam-d": ("client.batch=30", "server.batch=20", "method.share=0.5", "method.divide=labelled"),
    "fedmatch": ("method.lambda_s=1", "method.patience=1000"),  # no decay: these rounds are short and plateaus many
    "fedmix": ("client.lr=0.001", "client.momentum=0.0"),  # its paper's: with the one of the others it collapses
    "fedavg-fixmatch": ("method.threshold=0.8",),  # chosen on held-out training images, as is the rate of all
    "fixmatch-global": ("method.threshold=0.8",),
    "fixmatch-aligned": ("method.threshold=0.8",),
    "semifl": ("client.clip=1", "server.clip=1"),  # its paper's: without, the first few labels throw it off
}


class Cell(NamedTuple):
    """One run."""

    seed: int
    data: str
    labels: str
    total: int
    method: str

    @property
    def name(self) -> str:
        return "-".join(map(str, self))


def cells(seeds: Sequence[int], only: Sequence[str]) -> Iterator[Cell]:
    """Every run, those with few labels first, and of these those of the first seed."""
    for budgets in (LABELS[:3], LABELS[3:]):
        for seed, total, data in itertools.product(seeds, budgets, DATA):
            for labels, methods in METHODS.items():
                yield from (Cell(seed, data, labels, total, name) for name in methods if not only or name in only)


def held_out(name: str, data_dir: str) -> semifed.Dataset:
    """A data set whose test images are the last of its training images."""
    data = sources.load(name, Path(data_dir))
    images, labels = data.images[: data.train], data.labels[: data.train]
    return dataclasses.replace(data, images=images, labels=labels, train=data.train - HELD_OUT)


def run(cell: Cell, data_dir: str, out: Path, more: Sequence[str], validate: bool) -> str:
    """Run a cell, unless that is done."""
    folder = out / cell.name
    if _summary(folder) is None:
        words = [
            f"data={cell.data}",
            f"method={cell.method}",
            f"seed={cell.seed}",
            f"scenario.labels={cell.labels}",
            f"scenario.total={cell.total}",
            "engine.threads=1",
            *SETTINGS.get(cell.method, ()),
            *more,
        ]
        experiment = semifed.Experiment.read(BASE, words)
        if validate:
            experiment = dataclasses.replace(experiment, data=held_out(cell.data, data_dir))
        semifed.run(experiment, folder, resume=folder.exists(), data_dir=data_dir)
    return cell.name


def _summary(folder: Path) -> dict[str, dict[str, dict[str, float]]] | None:
    """The scores of a finished run."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else {}
    models: dict[str, dict[str, dict[str, float]]] | None = (
        summary["models"] if summary.get("status") == "finished" else None
    )
    return models


class Score(NamedTuple):
    """Accuracy of one run, of its first model."""

    last: float
    best: float


def scores(out: Path, seeds: Sequence[int]) -> dict[tuple[str, str, int, str], dict[int, Score]]:
    """The scores by (data, labels, total, method) and seed."""
    found: dict[tuple[str, str, int, str], dict[int, Score]] = defaultdict(dict)
    for cell in cells(seeds, ()):
        models = _summary(out / cell.name)
        if models:
            first = next(iter(models.values()))
            found[cell[1:]][cell.seed] = Score(first["last"]["accuracy"], first["best"]["accuracy"])
    return found


def spread(values: Sequence[float], sign: str = "") -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{sign}.1f}{deviation}" if values else ""


def gains(own: dict[int, Score], base: dict[int, Score]) -> list[float]:
    """By how much the last round is better than the baseline's with the same seed, so on the same split."""
    return [own[seed].last - base[seed].last for seed in own if seed in base]


def tables(out: Path, seeds: Sequence[int]) -> None:
    """Markdown of the last round with the gain over the baseline, and a CSV of everything."""
    found = scores(out, seeds)
    with (out / "label-efficiency.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["data", "labels", "total", "method", "seeds", "last", "best", "gain"])
        for key, own in found.items():
            values = [[one.last for one in own.values()], [one.best for one in own.values()]]
            more = spread(gains(own, found[*key[:3], BASELINE]), "+")
            writer.writerow([*key, len(own), *map(spread, values), more])
    for data, labels in itertools.product(DATA, METHODS):
        totals = [total for total in LABELS if found[data, labels, total, BASELINE]]
        if totals:
            print(f"\n**{data}, labels at the {labels}**\n")
            print("| method | " + " | ".join(f"{total:,}" for total in totals) + " |")
            print("|---|" + "---:|" * len(totals))
        for method in METHODS[labels] if totals else ():
            texts = []
            for total in totals:
                own, base = (found[data, labels, total, name] for name in (method, BASELINE))
                more = f" ({spread(gains(own, base), '+')})" if own and method != BASELINE else ""
                texts.append(spread([one.last for one in own.values()]) + more)
            if any(texts):
                print(f"| {method} | " + " | ".join(texts) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--data", choices=DATA, nargs="*", default=DATA)
    parser.add_argument("--labels", type=int, nargs="*", default=LABELS)
    parser.add_argument("--set", action="append", default=[], help="a setting for all runs; use another --out")
    parser.add_argument("--validate", action="store_true", help="test on training images that are held out")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        tables(asked.out, asked.seeds)
        return
    every = cells(asked.seeds, asked.only)
    todo = [cell for cell in every if cell.data in asked.data and cell.total in asked.labels]
    with ProcessPoolExecutor(asked.jobs) as pool:
        for number, answer in enumerate(
            [pool.submit(run, cell, asked.data_dir, asked.out, asked.set, asked.validate) for cell in todo], 1
        ):
            print(f"{number}/{len(todo)} {answer.result()}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
