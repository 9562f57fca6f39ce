"""TensorBoard: event files in the run's folder, `tensorboard --logdir runs` shows them."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar


class TensorBoardWriter:
    """Scalars by round, and the settings as text."""

    kind: ClassVar[str] = "tensorboard"

    def __init__(self) -> None:
        self._make = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._writer: Any = None

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        # What a run that goes on writes again takes the place of what was there.
        self._writer = self._make(str(folder / "tensorboard"), purge_step=0)
        self._writer.add_text("settings", f"```json\n{json.dumps(settings, indent=2, default=str)}\n```", 0)

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self, well: bool) -> None:
        self._writer.close()
