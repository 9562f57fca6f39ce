"""Train the same federation with several methods on the embedded data, and show who gets how far.

20 clients, 400 labelled digits among 4,000, 10 clients a round.
"""

from rich.console import Console

import semifed
from semifed.terminal import result_table

SETTINGS = ["data=mnist5k", "train.rounds=25", "scenario.clients=20", "scenario.gamma=0.1", "client.epochs=3"]


def main() -> None:
    console = Console()
    records = []
    for method in ("fedavg", "fedavg+", "fedprox"):
        experiment = semifed.Experiment.read(None, [*SETTINGS, f"method={method}"])
        with console.status(f"training with {method}"):
            records.append((method, semifed.run(experiment)))
    title = "MNIST, 5,000 images: 20 clients, 400 labels in all, 25 rounds of 10 clients"
    console.print(result_table(records, title))


if __name__ == "__main__":
    main()
