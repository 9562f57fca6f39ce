"""FedLab: its standalone pipeline with the serial SGD trainer and the synchronous server."""

import random
import sys
from types import ModuleType
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from frameworks.work import BATCH, EPOCHS, LR, Order, Turns, Work, optimiser, read_work

# FedLab imports torchvision for data sets that are not used here; there is not always one that loads.
for _name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):
    sys.modules[_name] = ModuleType(_name)
sys.modules["torchvision"].__dict__.update(
    transforms=sys.modules["torchvision.transforms"], datasets=sys.modules["torchvision.datasets"]
)

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Shares(FedDataset):  # type: ignore[misc]
    """The clients' images in torch's own loader."""

    def __init__(self, work: Work) -> None:
        self._sets = [TensorDataset(*share) for share in work.clients]

    def get_dataloader(self, id: int, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self._sets[id], batch_size, shuffle=True)


class Trainer(SGDSerialClientTrainer):  # type: ignore[misc]
    """FedLab's trainer with momentum; its own keeps one optimiser for all clients, which would carry momentum over."""

    def train(self, model_parameters: Tensor, train_loader: Any) -> Any:
        self.optimizer = optimiser(self._model)
        return super().train(model_parameters, train_loader)


class Pipeline(StandalonePipeline):  # type: ignore[misc]
    """FedLab's loop, which stops after each round."""

    def __init__(self, handler: Any, trainer: Any, work: Work, turns: Turns) -> None:
        super().__init__(handler, trainer)
        self._work, self._turns = work, turns

    def evaluate(self) -> None:
        self._turns.end()
        self._turns.tell(self._work.accuracy(self.handler.model))


def main() -> None:
    order = Order.read()
    random.seed(order.seed)
    work, turns = read_work(order.data), Turns(order.rounds)
    trainer = Trainer(work.net(), len(work.clients))
    trainer.setup_dataset(Shares(work))
    trainer.setup_optim(EPOCHS, BATCH, LR)
    pipeline = Pipeline(SyncServerHandler(work.net(), order.rounds, 1.0), trainer, work, turns)
    turns.begin()
    pipeline.main()


if __name__ == "__main__":
    main()
