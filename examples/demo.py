"""Does it pay to use unlabelled images? Five sites, 4,000 images, 100 labels: five methods with the same budget.

Once the labels are at the sites, once at the server. Every method has the same optimiser, steps and augmentation; the
first one reads labelled images only. The runs share the cores of this machine.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import track

import semifed
from semifed.terminal import table

SETTINGS = Path(__file__).parents[1] / "experiments" / "label-efficiency.toml"
ROUNDS = 160

METHODS = {
    "fedavg+": (),
    "fedsiam-d": ("client.batch=30", "server.batch=20", "method.share=0.5"),
    "fedmatch": ("method.lambda_s=1", "method.patience=1000"),
    "fedcon": (),
    "fixmatch-global": (),
}
WHERE = {"client": [name for name in METHODS if name != "fedcon"], "server": list(METHODS)}


def run(labels: str, method: str) -> semifed.Record:
    """One run: the method with the labels at the clients or at the server."""
    words = ["data=mnist5k", f"scenario.labels={labels}", f"train.rounds={ROUNDS}", f"method={method}"]
    return semifed.run(semifed.Experiment.read(SETTINGS, [*words, *METHODS[method]]))


def main() -> None:
    console = Console()
    with ProcessPoolExecutor(max(1, min(os.cpu_count() or 1, 9))) as pool:
        jobs = {(labels, method): pool.submit(run, labels, method) for labels in WHERE for method in WHERE[labels]}
        progress = track(jobs.items(), "training", console=console, transient=True)
        records = {cell: job.result() for cell, job in progress}
    for labels, methods in WHERE.items():
        scores = {method: next(iter(records[labels, method].summary["models"].values())) for method in methods}
        base = scores["fedavg+"]["last"]["accuracy"]
        rows = [
            [
                method,
                f"{score['last']['accuracy']:.1f}",
                f"{score['best']['accuracy']:.1f}",
                "labels only" if method == "fedavg+" else f"{score['last']['accuracy'] - base:+.1f}",
                f"{sum(records[labels, method].summary['bytes'].values()) / 1e6:.0f}",
            ]
            for method, score in scores.items()
        ]
        columns = ["method", "last round %", "best %", "gain by unlabelled images", "MB sent"]
        console.print(table(columns, rows, f"100 labels at the {labels}"))
    console.print("One seed: small differences mean nothing. docs/results.md has three seeds and more label budgets.")


if __name__ == "__main__":
    main()
