"""Weights & Biases: kept offline in the run's folder unless WANDB_MODE says otherwise; `wandb sync` sends it later."""

import hashlib
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from semifed.logs.numbers import plain


class WandbWriter:
    """One run of the project `semifed`, or of WANDB_PROJECT; a run that goes on keeps its id."""

    kind: ClassVar[str] = "wandb"

    def __init__(self) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        self._run: Any = None

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        own = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "semifed"),
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=str(folder),
            id=own,
            name=folder.name,
            resume="allow",
            config=plain(settings),
        )

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=round)

    def close(self, well: bool) -> None:
        self._run.finish(exit_code=0 if well else 1)
