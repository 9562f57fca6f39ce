"""pfl-research: FederatedAveraging over its simulated backend, in one process."""

import functools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from frameworks.work import BATCH, EPOCHS, LR, MOMENTUM, Order, Turns, Work, read_work


class Model(nn.Module):
    """The net with the loss and the metrics that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        self.net.train()
        return F.cross_entropy(self.net(images), labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        self.net.eval()
        return {"loss": Weighted(float(F.cross_entropy(self.net(images), labels, reduction="sum")), len(labels))}


class EndOfRound(TrainingProcessCallback):  # type: ignore[misc]
    """Stops after each round."""

    def __init__(self, work: Work, turns: Turns) -> None:
        self._work, self._turns = work, turns

    def after_central_iteration(self, _metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
        self._turns.end()
        self._turns.tell(self._work.accuracy(model.pytorch_model.net))
        return False, Metrics()


def shares(work: Work) -> Any:
    """The clients' images, in a new order at every visit."""

    def visit(client: int) -> Any:
        order = torch.randperm(len(work.clients[client].labels))
        return Dataset(tuple(values[order] for values in work.clients[client]), user_id=str(client))

    return FederatedDataset(visit, get_user_sampler("minimize_reuse", range(len(work.clients))))


def main() -> None:
    order = Order.read()
    np.random.seed(order.seed)
    work, turns = read_work(order.data), Turns(order.rounds)
    net = Model(work.net())
    model = PyTorchModel(
        net, functools.partial(torch.optim.SGD, momentum=MOMENTUM), torch.optim.SGD(net.parameters(), 1.0)
    )
    many = len(work.clients)
    # Clients are also scored in round 0, whatever the frequency; the first round is not counted.
    algorithm = NNAlgorithmParams(order.rounds, evaluation_frequency=1000, train_cohort_size=many, val_cohort_size=None)
    training = NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=EPOCHS, local_learning_rate=LR)
    backend = SimulatedBackend(shares(work), None)
    turns.begin()
    FederatedAveraging().run(algorithm, backend, model, training, callbacks=[EndOfRound(work, turns)])


if __name__ == "__main__":
    main()
