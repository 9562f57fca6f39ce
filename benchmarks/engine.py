"""How fast local steps are, mapped over a chunk of clients and one by one, on one thread; minimum of several, in turns.

python benchmarks/engine.py [--short]
"""

import sys
import time

import torch

from semifed.batch import Batch, Clock, Samples
from semifed.engine.step import State, Stepper
from semifed.methods.fedavg import FedAvg
from semifed.nets.zoo import NetSettings, make
from semifed.params import Parts, at, stack
from semifed.training import Training

CLIENTS, ROWS = 5, 10
NETS = {"mlp": (1, 28, 28), "mnist-cnn": (1, 28, 28), "cifar-cnn": (3, 32, 32), "resnet9": (3, 32, 32)}


def cohort_batch(shape: tuple[int, int, int]) -> Batch:
    """Random rows for a stacked cohort."""
    samples = Samples(
        (torch.randn(CLIENTS, ROWS, *shape),),
        torch.randint(10, (CLIENTS, ROWS)),
        torch.ones(CLIENTS, ROWS, dtype=torch.bool),
    )
    zero = torch.zeros(CLIENTS, dtype=torch.int64)
    return Batch({"labelled": samples}, Clock(*[zero] * 7))


def seconds(stepper: Stepper, parts: list[Parts], batches: list[Batch], keys: list[torch.Tensor]) -> float:
    """The time of one step of every client."""
    started = time.perf_counter()
    for own, batch, key in zip(parts, batches, keys, strict=True):
        stepper(State(own, {}), batch, key, None)
    return time.perf_counter() - started


def main() -> None:
    torch.set_num_threads(1)
    short = "--short" in sys.argv
    repeats = 6 if short else 12  # a mapped step is replayed from the fourth on
    print(f"{'net':12} {'mapped ms':>10} {'one by one ms':>14} {'ratio':>7}   ({CLIENTS} clients, {ROWS} rows each)")
    for name, shape in list(NETS.items())[: 2 if short else None]:  # the large ones take their time
        net = make(NetSettings(name), shape, 10)
        method = FedAvg()
        server = {"net": net.init(0)}
        batch, keys = cohort_batch(shape), torch.arange(CLIENTS)
        alone = [at(batch, place) for place in range(CLIENTS)]
        mapped = Stepper(net, method.client(), Training(), mapped=True)
        single = Stepper(net, method.client(), Training(), mapped=False)
        times: dict[str, list[float]] = {"mapped": [], "single": []}
        for _ in range(repeats):
            times["mapped"].append(seconds(mapped, [stack([server] * CLIENTS)], [batch], [keys]))
            times["single"].append(seconds(single, [server] * CLIENTS, alone, list(keys)))
        one, two = (1000 * min(times[form]) for form in ("mapped", "single"))
        print(f"{name:12} {one:10.1f} {two:14.1f} {two / one:6.2f}x")


if __name__ == "__main__":
    main()
