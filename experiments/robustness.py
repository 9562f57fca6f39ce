"""Hostile clients against rules of aggregation on MNIST, dealt evenly: the table of docs/results/robustness.md.

    python experiments/robustness.py --data-dir DIR [--seeds 0 1 2] [--rounds 20] [--rules mean median]

Ten clients know all their labels (fedavg-sl), all take part in every round, three are hostile. A visit has 60 steps
with a rate that falls to 0 over the rounds, so that honest clients agree on where to go: what median and trimmed mean
lose under an attack is the part in which they do not. The server holds out 200 images with labels, which FLTrust judges
by. Prints the table after every seed.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import semifed
from semifed.data.sources import load
from semifed.terminal import score_text

BASE = (
    "net=mlp",
    "method=fedavg-sl",
    "scenario.clients=10",
    "scenario.validation=200",
    "train.clients_per_round=10",
    "client.steps=60",
    "client.batch=32",
    "client.lr=0.05",
    "client.decay=linear",
)
ATTACKS = {
    "none": (),
    "sign flip, 5 times as long": ("attack.kind=sign-flip", "attack.strength=5"),
    "scaled 100 times": ("attack.kind=scale", "attack.strength=100"),
    "NaN": ("attack.kind=nans",),
    "labels mirrored": ("attack.kind=label-flip",),
}
RULES = ("mean", "median", "trimmed-mean", "multi-krum", "geometric-median", "clip", "fltrust")


def accuracy(dataset: semifed.Dataset, rounds: int, seed: int, rule: str, attack: Sequence[str]) -> float:
    """The last accuracy of one run."""
    words = [*BASE, f"seed={seed}", f"train.rounds={rounds}", f"train.evaluate_every={rounds}"]
    words += [f"aggregate.rule={rule}", *attack, *(["attack.share=0.3"] if attack else [])]
    words += ["aggregate.hostile=3"] if rule in ("trimmed-mean", "multi-krum") else []
    experiment = semifed.Experiment.read(None, words)
    record = semifed.run(semifed.Experiment.of({**experiment.tables(), "data": dataset}))
    print(f"{rule:17} {attack[0] if attack else 'none':24} seed {seed}  {score_text(record.rows[-1])}", flush=True)
    return float(record.summary["models"]["global"]["last"]["accuracy"])


def table(scores: dict[tuple[str, str], list[float]], rules: Sequence[str]) -> str:
    """Rows are attacks, columns rules: mean over seeds, and the deviation."""
    lines = ["| attack | " + " | ".join(rules) + " |", "|---|" + "---:|" * len(rules)]
    for name in ATTACKS:
        found = [scores[name, rule] for rule in rules]
        cells = [
            f"{statistics.mean(one):.1f}" + (f" ± {statistics.stdev(one):.1f}" if len(one) > 1 else "") for one in found
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    known = argparse.ArgumentParser(description=__doc__)
    known.add_argument("--data-dir", type=Path)
    known.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    known.add_argument("--rounds", type=int, default=20)
    known.add_argument("--rules", nargs="+", default=RULES)
    chosen = known.parse_args()
    dataset, scores = load("mnist", chosen.data_dir), dict[tuple[str, str], list[float]]()
    for count, seed in enumerate(chosen.seeds, 1):
        for name, attack in ATTACKS.items():
            for rule in chosen.rules:
                scores.setdefault((name, rule), []).append(accuracy(dataset, chosen.rounds, seed, rule, attack))
        print(table(scores, chosen.rules), f"\n{count} seeds, {time.process_time():.0f} CPU seconds", flush=True)


if __name__ == "__main__":
    main()
