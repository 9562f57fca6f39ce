"""A trained model with all it takes to use it: its net, its numbers, and how images were made ready for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from semifed.data.file_settings import FileSettings
from semifed.data.views import normalise
from semifed.engine.assemble import load_data
from semifed.engine.environment import taken_by
from semifed.errors import RunError, SemifedError
from semifed.experiment import Experiment
from semifed.nets import zoo
from semifed.nets.net import Net, Shape, in_words
from semifed.params import Params
from semifed.results.evaluate import AT_ONCE
from semifed.results.files import read_tensors
from semifed.results.folder import is_begun, read_json
from semifed.settings import build, read_toml


@dataclass(frozen=True)
class Taken:
    """What a model takes: images of one shape, with mean and std of pixels in 0..1, or vectors; and its classes."""

    shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    files: FileSettings = field(default_factory=FileSettings)  # how files became samples for training

    @classmethod
    def of(cls, facts: Mapping[str, Any], files: Mapping[str, Any]) -> "Taken":
        """From what a run's environment.json and the table [files] of its experiment say."""
        shape, mean, std, classes = (tuple(facts[name]) for name in ("shape", "mean", "std", "classes"))
        return cls(shape, mean, std, classes, build(FileSettings, files, "files"))

    @property
    def vectors(self) -> bool:
        """Whether samples are rows of numbers and not images."""
        return len(self.shape) == 1


@dataclass(frozen=True, eq=False)
class Model:
    """The model a run hands out."""

    run: Path
    net: Net
    params: Params
    taken: Taken

    @classmethod
    def load(cls, run: Path | str, net: nn.Module | None = None, data_dir: Path | None = None) -> "Model":
        """The model of a run's folder; a net of your own that no file names is given as `net`."""
        path = Path(run)
        tables = _tables(path)
        params, _ = read_tensors(_there(path))
        taken = _taken(path, tables, data_dir)
        made = _net(path, tables, taken, net)
        _check_fits(path, made, params)
        return cls(path, made, params, taken)

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """What the net says of uint8 images, before it becomes a probability."""
        self.check(images)
        parts = [self.net.evaluate(self.params, self.ready(some)) for some in torch.split(images, AT_ONCE)]
        return torch.cat(parts) if parts else torch.zeros(0, len(self.taken.classes))

    def probabilities(self, images: Tensor) -> Tensor:
        """The probability of each class for each of some uint8 images [N, channels, height, width]."""
        return self.logits(images).softmax(1)

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """What goes into the net's last linear layer, or the logits of a net without one: near means alike."""
        self.check(images)
        seen: list[Tensor] = []
        module, last = self.module, _last_linear(self.module)
        handle = last.register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(1))) if last else None
        try:
            outputs = [module(self.ready(some)) for some in torch.split(images, AT_ONCE)]
        finally:
            if handle:
                handle.remove()
        return torch.cat(seen if len(seen) == len(outputs) else outputs)

    @cached_property
    def module(self) -> nn.Module:
        """An ordinary module with the model's numbers, in evaluation mode."""
        return self.net.module(self.params)

    def ready(self, images: Tensor) -> Tensor:
        """Images as the net takes them."""
        if self.taken.vectors:
            return (images - torch.tensor(self.taken.mean)) / torch.tensor(self.taken.std)
        return normalise(images, self.taken.mean, self.taken.std)

    def check(self, images: Tensor) -> None:
        """Refuse images that are not of the model's shape."""
        wanted = torch.float32 if self.taken.vectors else torch.uint8
        if images.dtype != wanted or tuple(images.shape[1:]) != self.taken.shape:
            raise SemifedError(
                f"{self.run}: this model takes {wanted} {in_words(self.taken.shape)}, "
                f"not {images.dtype} of shape {tuple(images.shape[1:])}"
            )


def _tables(path: Path) -> dict[str, Any]:
    if not is_begun(path):
        raise RunError(f"{path}: is not the folder of a run; give the one that `semifed run` has named")
    return read_toml(path / "experiment.toml")


def _there(path: Path) -> Path:
    """The file of the model, if the run has come so far."""
    file = path / "model.safetensors"
    if not file.exists():
        raise RunError(f"{path}: has no model yet; let it finish: semifed run --out {path} --resume")
    return file


def _taken(path: Path, tables: Mapping[str, Any], data_dir: Path | None) -> Taken:
    """What the model takes: as noted when the run began, else (older runs) as the data themselves say."""
    facts = read_json(path / "environment.json").get("input")
    return Taken.of(facts or taken_by(load_data(Experiment.of(tables), data_dir)), tables.get("files", {}))


def _net(path: Path, tables: Mapping[str, Any], taken: Taken, own: nn.Module | None) -> Net:
    if own is not None:
        return Net.of(own, taken.shape)
    try:
        # Its data are not needed, and may be elsewhere.
        experiment = Experiment.of({**tables, "data": "synthetic", "files": {}})
    except SemifedError as error:
        raise RunError(
            f"{path / 'experiment.toml'}: {error}; a net or method of your own must be importable from here, or give "
            "the net in Python: semifed.Model.load(run, net=...)"
        ) from None
    return zoo.make(cast(zoo.NetSettings, experiment.net), taken.shape, len(taken.classes), experiment.method.norm)


def _check_fits(path: Path, net: Net, params: Params) -> None:
    wanted = net.init(0)
    for name in [*wanted, *params]:
        if name not in wanted or name not in params or wanted[name].shape != params[name].shape:
            raise RunError(f"{path / 'model.safetensors'}: does not fit the net {net.name}: {name} differs")


def _last_linear(module: nn.Module) -> nn.Linear | None:
    return next((one for one in reversed(list(module.modules())) if isinstance(one, nn.Linear)), None)
