"""From an experiment to everything its run needs, checked against each other before any work starts."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from semifed import keys
from semifed.data import scenario as scenarios
from semifed.data import sources, views
from semifed.data.file_settings import kind_of
from semifed.data.scenario import Scenario
from semifed.data.sources import Dataset
from semifed.data.vector_views import vector_views
from semifed.data.views import View
from semifed.engine.hostile import with_spoilt_data
from semifed.engine.local import Form, Workshop
from semifed.engine.memory import keep_freed_memory
from semifed.engine.privacy import check_private
from semifed.engine.ray_session import check_engine
from semifed.errors import DataError, SemifedError, SettingError
from semifed.experiment import Experiment, method_name
from semifed.nets import zoo
from semifed.nets.net import LARGE, Net, Shape, in_words
from semifed.params import Params, lay_out, stack

MAPPED_BELOW = LARGE
"""Nets with fewer parameters train faster mapped over the cohort on a CPU; larger ones one by one."""


@dataclass(frozen=True, eq=False)
class Assembly:
    """A run about to start."""

    experiment: Experiment
    dataset: Dataset
    scenario: Scenario
    net: Net
    workshop: Workshop
    twins: int = 0  # images of the training data that stand there more than once
    notes: tuple[str, ...] = ()  # what a user should know of how it was put together

    def validation_set(self) -> tuple[Tensor, Tensor] | None:
        """Images, as a net takes them, and labels that the server holds out; None where it holds out none."""
        index = torch.tensor(self.scenario.validation)
        if not len(index):
            return None
        device = self.workshop.device
        images, labels = self.workshop.images[index.to(device)], self.dataset.labels[index]
        clean: Tensor = self.workshop.views["clean"](images, index.to(device))
        return lay_out(clean, self.workshop.form.layout), labels.to(device)

    def test_set(self) -> tuple[Tensor, Tensor]:
        """Images and labels that models are tested on."""
        index = torch.tensor(self.scenario.test)
        return self.workshop.images[index.to(self.workshop.device)], self.dataset.labels[index]


def prepare(experiment: Experiment, data_dir: Path | None = None, split: Scenario | None = None) -> Assembly:
    """Load the data, make the split or check the given one, and put the run together."""
    find_device(experiment.engine.device)
    check_engine(experiment.engine)
    dataset = load_data(experiment, data_dir)
    given = split is not None
    split = split or make_split(experiment, dataset)
    content = sources.fingerprints(dataset.images).numpy()
    split.verify(dataset.labels.numpy(), content)
    if given:
        _check_split(experiment, split)
    held = np.setdiff1d(np.arange(split.size), split.test)
    twins = len(held) - len(np.unique(content[held]))
    return dataclasses.replace(assemble(experiment, dataset, split), twins=twins)


def assemble(experiment: Experiment, dataset: Dataset, scenario: Scenario) -> Assembly:
    """Make the net and the workshop, and look whether they fit the data."""
    device = find_device(experiment.engine.device)
    shape = tuple(dataset.images.shape[1:])
    named = with_net(experiment, shape)
    net = _make_net(named, shape, len(dataset.classes))
    keep_freed_memory(net.size >= LARGE)
    notes = () if named is experiment else (_about_choice(net),)
    experiment = named
    check_private(experiment, net)
    workshop = Workshop(
        net=net,
        method=experiment.method,
        scenario=scenario,
        images=dataset.images.to(device),
        labels=dataset.labels,
        views=_make_views(experiment, dataset),
        training=experiment.client,
        server_training=experiment.server,
        seed=experiment.seed,
        rounds=experiment.train.rounds,
        form=find_form(experiment, net),
        device=device,
    )
    spoilt = with_spoilt_data(workshop, experiment, len(dataset.classes))
    return Assembly(experiment, dataset, scenario, net, spoilt, notes=notes)


def with_net(experiment: Experiment, shape: Shape) -> Experiment:
    """The experiment with the net that these samples get where it names none, so that its record names one."""
    net = experiment.net
    if isinstance(net, nn.Module) or net.name != zoo.AUTO:
        return experiment
    return dataclasses.replace(experiment, net=dataclasses.replace(net, name=zoo.choose(shape)))


def _about_choice(net: Net) -> str:
    return (
        f"no net is named, so {net.name} with {net.size:,} parameters is taken, as it is quick and fits "
        f"{in_words(net.shape)}; `semifed list nets` shows others"
    )


def _make_views(experiment: Experiment, dataset: Dataset) -> dict[str, View]:
    """The views of these data; a method that asks for one that they cannot have is refused."""
    if not dataset.vectors:
        return views.views(experiment.views, dataset.mean, dataset.std, dataset.flips)
    made = vector_views(experiment.views, dataset.mean, dataset.std)
    method = experiment.method
    for pool in (*method.reads().values(), *method.server_reads().values()):
        for name in pool.views:
            if name not in made:
                raise SettingError(
                    f"method: {method_name(type(method))} reads samples in the view {name!r}, which needs images, but "
                    f"{dataset.name} holds vectors; choose a method that reads {', '.join(made)} alone, e.g. fedsiam-d"
                )
    return made


def load_data(experiment: Experiment, data_dir: Path | None) -> Dataset:
    """The data set an experiment names, or the one it holds."""
    if isinstance(experiment.data, Dataset):
        return experiment.data
    skip_corrupt = experiment.scenario.skip_corrupt
    if not kind_of(experiment.data):
        return sources.load(experiment.data, data_dir, skip_corrupt=skip_corrupt)

    from semifed.data import own  # noqa: PLC0415  it imports what reads images, which takes a while

    return own.load(experiment.data, data_dir, experiment.files, skip_corrupt=skip_corrupt)


def make_split(experiment: Experiment, dataset: Dataset) -> Scenario:
    """The split of an experiment."""
    labels = dataset.labels.numpy()
    scenario = scenarios.make(experiment.scenario, labels, dataset.train, experiment.seed, dataset.classes)
    _check_split(experiment, scenario)
    return scenario


def _check_split(experiment: Experiment, scenario: Scenario) -> None:
    """Look whether a split, made now or before, is one for this experiment."""
    settings, clients, active = experiment.scenario, len(scenario.clients), len(scenario.active())
    if clients != settings.clients:
        raise SettingError(f"scenario.clients: is {settings.clients}, but the split has {clients}; make them the same")
    if len(scenario.server.labelled) and settings.labels == "client":
        raise SettingError('scenario.labels: the split has labels at the server; set scenario.labels = "server"')
    if not len(scenario.server.labelled) and settings.labels == "server":
        raise SettingError('scenario.labels: the split has no labels at the server; set scenario.labels = "client"')
    elsewhere = not active and experiment.federation.server_data == "all"  # the sites have data of their own
    if active < experiment.train.clients_per_round and not elsewhere:
        raise DataError(
            f"train.clients_per_round: only {active} of {clients} clients hold any data, fewer than the "
            f"{experiment.train.clients_per_round} a round; lower it or use fewer clients"
        )


def find_form(experiment: Experiment, net: Net) -> Form:
    """How clients are trained: by a rule if the user has not said, so that a run repeats to the last bit."""
    engine, large = experiment.engine, net.size >= MAPPED_BELOW
    mapped = engine.mode == "mapped" or (engine.mode != "single" and not large and not net.unmapped)
    return Form(mapped, not mapped and (engine.layout == "channels-last" or (engine.layout == "auto" and large)))


def find_device(name: str) -> torch.device:
    """The device a setting names, which must be there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).tolist()  # "meta" makes tensors too, but without numbers
    except (RuntimeError, AssertionError, ValueError) as error:
        raise SettingError(
            f"engine.device: {name!r} is not to be had here ({_first_line(error)}); use cpu or auto"
        ) from None
    return device


def _make_net(experiment: Experiment, shape: Shape, classes: int) -> Net:
    """The net, tried on two blank images so that a wrong shape is found now."""
    given, norm = experiment.net, experiment.method.norm
    try:
        net = Net.of(given, shape) if isinstance(given, nn.Module) else zoo.make(given, shape, classes, norm)
        logits = net.evaluate(net.init(0), torch.zeros(2, *shape))
    except SemifedError:
        raise
    except Exception as error:  # a user's own module may fail in any way
        name = type(given).__name__ if isinstance(given, nn.Module) else given.name
        raise SettingError(f"net: {name} does not take {in_words(shape)}: {_first_line(error)}") from None
    if not isinstance(logits, Tensor) or logits.shape != (2, classes):
        made = f"of shape {tuple(logits.shape[1:])}" if isinstance(logits, Tensor) else type(logits).__name__
        raise SettingError(f"net: {net.name} gives outputs {made}, but the data have {classes} classes")
    if isinstance(given, nn.Module) or given.own:
        # Which form is the fastest is not known yet; each is looked at when it is timed.
        _check_own(net)
        if find_form(experiment, net).mapped and experiment.engine.mode != "fastest":
            _check_mapped(net, experiment.engine.mode == "mapped")
    return net


def _check_own(net: Net) -> None:
    """Look whether a user's own module trains as a pure function: no draws of its own, nothing changed in place."""
    params, count = net.init(0), math.prod(net.shape)
    before = {name: value.clone() for name, value in params.items()}
    images, rows = keys.uniform(torch.arange(4), count).reshape(4, *net.shape), torch.ones(4, dtype=torch.bool)

    def train(key: Tensor, params: Params, images: Tensor) -> Tensor:
        return net.pass_with(key)(params, images, rows)

    with torch.random.fork_rng(devices=[]):
        state = torch.random.get_rng_state()
        one, two = (train(torch.tensor(1), params, images) for _ in range(2))
        same = torch.allclose(one, two, rtol=0, atol=0, equal_nan=True)
        if not same or not torch.equal(state, torch.random.get_rng_state()):
            raise SettingError(
                f"net: {net.name} draws random numbers of its own in training, so a run with it could not be repeated; "
                "use nn.Dropout layers, which are drawn from the seed"
            )
    for name, value in params.items():
        if not torch.equal(value, before[name]):
            raise SettingError(
                f"net: {net.name} changes {name} itself in training; only batch normalisation may do that"
            )


def _check_mapped(net: Net, asked: bool) -> None:
    """Look whether several clients can train at once; if that was asked for it must, else they train one by one."""
    params, count = net.init(0), math.prod(net.shape)
    images, rows = keys.uniform(torch.arange(4), count).reshape(4, *net.shape), torch.ones(4, dtype=torch.bool)

    def train(key: Tensor, params: Params, images: Tensor) -> Tensor:
        return net.pass_with(key)(params, images, rows)

    try:
        vmap(train)(torch.arange(2), stack([params] * 2), stack([images] * 2))
    except Exception as error:  # a user's own module may fail in any way
        if asked:
            raise SettingError(
                f"engine.mode: {net.name} cannot train several clients at once ({_first_line(error)}); "
                'set engine.mode = "single"'
            ) from None
        net.unmapped = _first_line(error)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
