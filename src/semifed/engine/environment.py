"""Where and with what a run was begun, so that another can repeat it and a resumed one can be held to it."""

import datetime
import hashlib
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from semifed import __version__
from semifed.data.sources import Dataset
from semifed.engine.assemble import Assembly
from semifed.engine.notices import notices
from semifed.nets import kernels


def content(assembly: Assembly) -> dict[str, str]:
    """Hashes of what an experiment file names but does not hold."""
    own = assembly.experiment.net
    text = repr(own) if isinstance(own, nn.Module) else repr(assembly.net.module({})) if own.own else ""
    net = {"net": hashlib.sha256(text.encode()).hexdigest()} if text else {}
    return {"data": _hash_data(assembly.dataset), **net}


def _hash_data(dataset: Dataset) -> str:
    total = hashlib.sha256(f"{tuple(dataset.images.shape)} {dataset.mean} {dataset.std} {dataset.flips}".encode())
    total.update(dataset.images.contiguous().numpy().data)
    return total.hexdigest()


def taken_by(dataset: Dataset) -> dict[str, Any]:
    """What a model of these data takes, so that it can be used where the data are not."""
    return {
        "shape": list(dataset.images.shape[1:]),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
        "classes": list(dataset.classes),
        "samples": len(dataset.images),
    }


def versions() -> dict[str, str]:
    """Of everything that a run's numbers come from."""
    return {
        "semifed": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def environment(assembly: Assembly) -> dict[str, Any]:
    """Versions, machine, device, hashes and notices."""
    engine = assembly.experiment.engine
    return {
        **versions(),
        "platform": platform.platform(),
        "device": str(assembly.workshop.device),
        "mode": "mapped" if assembly.workshop.form.mapped else "single",
        "layout": "channels-last" if assembly.workshop.form.channels_last else "channels-first",
        "kernels": kernels.status(),
        "threads": engine.threads,
        "workers": engine.workers,
        "split": assembly.scenario.digest(),
        **content(assembly),
        "input": taken_by(assembly.dataset),
        "parameters": assembly.net.size,
        "notices": notices(assembly),
        "command": sys.argv,
        "begun": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
    }


def commit() -> str | None:
    """The commit of the code where it lies in its repository, with "+" if files have changed since; else None."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    words = ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
