"""What a writer for another tool does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol


class Writer(Protocol):
    """Made before a run, so that a package that is not there raises ImportError then."""

    kind: ClassVar[str]

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """A run begins, or goes on, in a folder."""
        ...

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        """One round; of a run that goes on, the rounds before are written again."""
        ...

    def close(self, well: bool) -> None:
        """The run has ended, well or not."""
        ...
