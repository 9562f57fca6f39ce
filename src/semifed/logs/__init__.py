"""Runs written for other tools as they go: TensorBoard, Weights & Biases, MLflow. Off unless asked for.

    with Log(["tensorboard"], "runs/first") as log:
        semifed.run(experiment, "runs/first", watch=log)

A run's own folder stays the truth: a writer that fails is told of once and left out, and the run goes on.
"""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from semifed.errors import SettingError
from semifed.logs.mlflow_log import MlflowWriter
from semifed.logs.numbers import numbers
from semifed.logs.tensorboard_log import TensorBoardWriter
from semifed.logs.wandb_log import WandbWriter
from semifed.logs.writer import Writer
from semifed.run import Event
from semifed.settings import nearest

WRITERS: Mapping[str, type[Writer]] = {
    "tensorboard": TensorBoardWriter,
    "wandb": WandbWriter,
    "mlflow": MlflowWriter,
}


class Log:
    """Hears of every round of a run and tells its writers; a `watch` for `semifed.run`."""

    def __init__(self, kinds: Iterable[str], folder: Path | str) -> None:
        """Look at once whether the packages are there: a run should not end for want of one."""
        self.folder, self._writers, self._written, self._begun = Path(folder), list[Writer](), 0, False
        for kind in dict.fromkeys(kinds):
            if kind not in WRITERS:
                raise SettingError(f"--log: there is no writer {kind!r}; {nearest(kind, WRITERS)}")
            try:
                self._writers.append(WRITERS[kind]())
            except ImportError as error:
                raise SettingError(f"--log {kind}: {error}; pip install 'semifed[{kind}]'") from None

    def __call__(self, event: Event) -> None:
        """Write the rounds that are new; of a run that goes on, those before it too."""
        tables = event.assembly.experiment.tables()
        if not self._begun:
            self._begun = True
            self._each("begin", self.folder, tables)
        for row in event.rows[self._written :]:
            self._each("write", int(row["round"]), numbers(row))
        self._written = len(event.rows)

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error is None)

    def close(self, well: bool = True) -> None:
        """Let all writers finish."""
        if self._begun:
            self._each("close", well)
        self._writers = []

    def _each(self, action: str, *given: object) -> None:
        for writer in list(self._writers):
            try:
                getattr(writer, action)(*given)
            except Exception as error:  # another tool's fault in any form must not end a run
                self._writers.remove(writer)
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                warnings.warn(f"--log {writer.kind}: fails and is left out from here on ({reason})", stacklevel=2)
