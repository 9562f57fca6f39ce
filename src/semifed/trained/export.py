"""A model for use elsewhere: its numbers, an ONNX or torch program with everything inside, and a card.

The programs take uint8 images as they are, normalise them, and give logits and probabilities. Each is tried against
our own model before its file gets its name.
"""

import contextlib
import importlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from semifed import library, writing
from semifed.engine.assemble import load_data
from semifed.errors import RunError, SemifedError, SettingError
from semifed.experiment import Experiment
from semifed.settings import read_toml
from semifed.trained.card import card
from semifed.trained.model import Model

FORMATS = ("safetensors", "onnx", "torch")
TOLERANCE = 1e-4
"""How far the probabilities of an exported program may be from ours."""

TRIED = 64  # images that a program is tried on


class Program(nn.Module):
    """From samples as they are to logits and probabilities, normalisation included."""

    scale: Tensor
    offset: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        taken = model.taken
        self.net = model.net.module(model.params)
        scale = torch.tensor([1 / std if taken.vectors else 1 / (255 * std) for std in taken.std])
        offset = torch.tensor([-mean / std for mean, std in zip(taken.mean, taken.std, strict=True)])
        axes = [len(scale)] if taken.vectors else [len(scale), 1, 1]
        self.register_buffer("scale", scale.reshape(axes))
        self.register_buffer("offset", offset.reshape(axes))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.net(images.float() * self.scale + self.offset)
        return logits, logits.softmax(1)


def export(
    model: Model, out: Path | str | None = None, formats: Sequence[str] = ("safetensors",), data_dir: Path | None = None
) -> dict[str, Path]:
    """Write the model in these formats, and its card, into a folder (`export` in the run's own if none is given)."""
    folder = Path(out) if out else model.run / "export"
    for name in formats:
        if name not in FORMATS:
            raise SettingError(f"--format: there is no format {name!r}; choose of {', '.join(FORMATS)}")
    makers = {"safetensors": _as_safetensors, "onnx": _as_onnx, "torch": _as_torch}
    images = _images_to_try(model, data_dir)
    files: dict[str, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in dict.fromkeys(formats):
            files |= makers[name](model, folder, images)
        files["card"] = folder / "README.md"
        writing.write_whole(files["card"], card(model, files).encode())
    except OSError as error:
        raise RunError(f"{folder}: cannot be written: {error.strerror}; give another -o") from None
    return files


def _as_safetensors(model: Model, folder: Path, _images: Tensor) -> dict[str, Path]:
    """The numbers under the names of the net's own state_dict, and what is needed to use them."""
    files = {"safetensors": folder / "model.safetensors", "input": folder / "model.json"}
    taken = model.taken
    facts = {
        "net": model.net.name,
        "shape": taken.shape,
        "mean": taken.mean,
        "std": taken.std,
        "classes": taken.classes,
        "input": "float32 vectors [N, columns] become (x - mean) / std"
        if taken.vectors
        else "uint8 images [N, channels, height, width] become (x / 255 - mean) / std",
    }
    writing.write_whole(files["safetensors"], (model.run / "model.safetensors").read_bytes())
    writing.write_whole(files["input"], (json.dumps(facts, indent=2) + "\n").encode())
    return files


def _as_torch(model: Model, folder: Path, images: Tensor) -> dict[str, Path]:
    """A program for `torch.export.load`, which needs nothing of Semifed."""
    path, batch = folder / "model.pt2", torch.export.Dim("batch", min=1)
    with _traceable(), torch.no_grad():
        program = torch.export.export(Program(model).eval(), (images[:2],), dynamic_shapes=({0: batch},))
        content = io.BytesIO()
        torch.export.save(program, content)
        content.seek(0)
        again = torch.export.load(content).module()
        _compare("torch", again(images)[1], model.probabilities(images))
    writing.write_whole(path, content.getvalue())
    return {"torch": path}


def _as_onnx(model: Model, folder: Path, images: Tensor) -> dict[str, Path]:
    """A graph for onnxruntime and whatever else reads ONNX."""
    for module in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(module) is None:
            raise SettingError(f"--format onnx: needs {module}: pip install 'semifed[export]'")
    path, batch = folder / "model.onnx", torch.export.Dim("batch", min=1)
    with _traceable(), torch.no_grad():
        made = torch.onnx.export(
            Program(model).eval(),
            (images[:2],),
            dynamo=True,
            input_names=["images"],
            output_names=["logits", "probabilities"],
            dynamic_shapes=({0: batch},),
            verbose=False,
        )
    content = cast(torch.onnx.ONNXProgram, made).model_proto.SerializeToString()
    session = importlib.import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    said = session.run(["probabilities"], {"images": images.numpy()})[0]
    _compare("onnx", torch.from_numpy(said), model.probabilities(images))
    writing.write_whole(path, content)
    return {"onnx": path}


def _compare(name: str, theirs: Tensor, ours: Tensor) -> None:
    worst = float((theirs - ours).abs().max())
    if not worst <= TOLERANCE:
        raise SemifedError(
            f"--format {name}: the exported model differs from ours by {worst:.1e}, more than {TOLERANCE}; "
            "nothing was written for it"
        )


def _images_to_try(model: Model, data_dir: Path | None) -> Tensor:
    """Real images of the run's data where they are at hand, else noise."""
    with contextlib.suppress(SemifedError):
        images = load_data(Experiment.of(read_toml(model.run / "experiment.toml")), data_dir).images
        if tuple(images.shape[1:]) == model.taken.shape:
            return images[-TRIED:].contiguous()
    draw = torch.Generator().manual_seed(0)
    if model.taken.vectors:
        mean, std = torch.tensor(model.taken.mean), torch.tensor(model.taken.std)
        return mean + std * torch.randn(TRIED, *model.taken.shape, generator=draw)
    return torch.randint(0, 256, (TRIED, *model.taken.shape), dtype=torch.uint8, generator=draw)


@contextlib.contextmanager
def _traceable() -> Iterator[None]:
    """Only torch's own operations, and without the exporters' talk about themselves."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [one.level for one in loggers]
    with library.off(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in loggers:
            one.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for one, level in zip(loggers, levels, strict=True):
                one.setLevel(level)
