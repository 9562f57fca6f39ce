"""A run starts without what it does not need."""

import subprocess
import sys

import pytest

import semifed

SLOW = ("pyarrow", "PIL", "scipy", "matplotlib", "sympy", "semifed.report", "semifed.trained", "semifed.doctor")
ENTRIES = {
    "import": "import semifed",
    "engine": "import semifed.engine.rounds, semifed.engine.workers",
    "command": "from semifed.cli import cli; cli.get_command(None, 'run')",
}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_start_imports_only_what_a_run_needs(name: str) -> None:
    script = f"{ENTRIES[name]}; import sys; print([name for name in {SLOW!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_steps_import_no_compiler() -> None:
    """Torch has parts that import it unasked, which takes longer than many runs."""
    wishes = ["client.steps=5", "train.rounds=1", "scenario.clients=2", "train.clients_per_round=2"]
    script = f"import sys, semifed; semifed.run(semifed.Experiment.read(None, {wishes!r}))"
    script += "; print([name for name in ('torch._dynamo', 'sympy', 'scipy', 'pyarrow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_every_public_name_is_there_and_no_other() -> None:
    assert {*semifed.__all__} <= {*dir(semifed)}
    assert all(getattr(semifed, name) for name in semifed.__all__)
    assert callable(semifed.run)
    with pytest.raises(AttributeError, match="no attribute 'runs'"):
        semifed.runs  # noqa: B018
