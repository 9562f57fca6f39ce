"""Folders of runs as fixtures, for test files that say ``pytest_plugins = ("folders",)``."""

import shutil
from pathlib import Path

import pytest

from semifed import Experiment, run
from toys import TINY, call, stop_after, tiny


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds that is done."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert call(*tiny(folder)).code == 0
    return folder


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped after three rounds."""
    folder = tmp_path_factory.mktemp("runs") / "half"
    with pytest.raises(KeyboardInterrupt):
        run(Experiment.read(None, TINY), folder, watch=stop_after(3))
    return folder


@pytest.fixture
def stopped(half: Path, tmp_path: Path) -> Path:
    """A copy of it, in another place, for one test to spoil."""
    return shutil.copytree(half, tmp_path / "stopped")
