"""Any method with any partition, any data and any net runs, or is refused at once with the reason."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch

import semifed
from semifed.data.scenario_settings import SCENARIOS
from semifed.data.sources import Dataset
from semifed.errors import SettingError
from semifed.methods import METHODS
from semifed.nets.zoo import NETS

SHORT = (
    "train.rounds=2",
    "train.clients_per_round=2",
    "client.steps=2",
    "client.batch=3",
    "client.unlabelled_batch=3",
    "server.steps=2",
    "server.batch=3",
    "scenario.validation=20",
    "scenario.gamma=0.3",
)


def dataset(channels: int, size: int) -> Dataset:
    """Images of ten classes, of a size."""
    draw = torch.Generator().manual_seed(channels)
    images = torch.randint(0, 256, (700, channels, size, size), dtype=torch.uint8, generator=draw)
    labels = torch.arange(700) % 10
    return Dataset("noise", images, labels, 650, tuple("0123456789"), (0.5,) * channels, (0.25,) * channels, True)


SMALL, GREY, COLOUR = dataset(1, 8), dataset(1, 28), dataset(3, 32)


def run(method: str, labels: str, partition: str, net: str, data: Dataset) -> semifed.Record:
    clients = 100 if partition.endswith("-pairs") else 10
    words = [*SHORT, f"method={method}", f"scenario.labels={labels}", f"scenario.partition={partition}", f"net={net}"]
    words += [f"scenario.clients={clients}", f"scenario.arrivals={2 if partition == 'streaming' else 1}"]
    return semifed.run(dataclasses.replace(semifed.Experiment.read(None, words), data=data))


def where(method: str) -> Iterator[str]:
    """Where the labels may be for a method; elsewhere it is refused."""
    for labels in ("client", "server"):
        if labels in METHODS[method].labels:
            yield labels
        else:
            with pytest.raises(SettingError, match=rf"scenario.labels: {method} does not work with labels at the"):
                run(method, labels, "iid", "mlp", SMALL)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_takes_every_partition(method: str) -> None:
    for labels in where(method):
        for partition, kind in SCENARIOS.items():
            if labels in kind.labels:
                assert len(run(method, labels, partition, "mlp", SMALL).rows) == 2
            else:
                with pytest.raises(SettingError, match=rf"scenario.partition: '{partition}' does not fit labels"):
                    run(method, labels, partition, "mlp", SMALL)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_takes_images_of_any_size_and_colour(method: str) -> None:
    for labels in where(method):
        for data in (GREY, COLOUR):
            assert len(run(method, labels, "iid", "mnist-cnn", data).rows) == 2


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_takes_every_net(method: str, net: str) -> None:
    for labels in where(method):
        assert len(run(method, labels, "iid", net, COLOUR).rows) == 2
