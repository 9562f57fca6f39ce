"""Where all runs of a sweep are, and how long the rest will take."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WAITING, RUNNING, FINISHED, FAILED, STOPPED = "waiting", "running", "finished", "failed", "stopped"


@dataclass
class RunProgress:
    """One run: what it is doing, its rounds, its newest score, and its seconds a round where known."""

    rounds: int
    state: str = WAITING
    done: int = 0
    accuracy: float | None = None
    pace: float | None = None
    failure: str | None = None


class SweepProgress:
    """All runs of a sweep."""

    def __init__(self, path: Path, rounds: Mapping[str, int], jobs: int) -> None:
        self.path, self.jobs, self.started = path, jobs, time.monotonic()
        self.runs = {name: RunProgress(count) for name, count in rounds.items()}

    def set_state(self, name: str, state: str) -> None:
        """Say what a run is doing now."""
        self.runs[name].state = state

    def note(self, name: str, state: str, done: int, accuracy: float | None, pace: float | None) -> None:
        """Say how far a run is."""
        run = self.runs[name]
        run.state, run.done = state, done
        run.accuracy = run.accuracy if accuracy is None else accuracy
        run.pace = pace or run.pace

    def fail(self, name: str, failure: str) -> None:
        """Say that a run has ended badly, and why."""
        self.runs[name].state, self.runs[name].failure = FAILED, failure

    def count(self, state: str) -> int:
        """How many runs are in a state."""
        return sum(run.state == state for run in self.runs.values())

    def seconds_left(self) -> float | None:
        """What is left at the pace so far; runs of which nothing is known take the mean of the others."""
        known = [run.pace for run in self.runs.values() if run.pace]
        if not known:
            return None
        usual = sum(known) / len(known)
        left = [
            (run.rounds - run.done) * (run.pace or usual)
            for run in self.runs.values()
            if run.state in (WAITING, RUNNING)
        ]
        return max([sum(left) / self.jobs, *left], default=0.0)
