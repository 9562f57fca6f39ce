"""The experiment files that come with the project can be run: every setting is known and fits."""

from pathlib import Path

import pytest

from semifed.experiment import Experiment

FILES = sorted((Path(__file__).parent.parent / "experiments").glob("*.toml"))  # presets: test_papers.py


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_experiment_file_is_valid_and_survives_being_written(path: Path) -> None:
    experiment = Experiment.read(path)
    assert Experiment.of(experiment.tables()) == experiment
    assert path.read_text(encoding="utf-8").startswith("# "), "the head says which table of which paper it is"
