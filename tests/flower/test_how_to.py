"""The how-to, word for word: three terminals, and a trained model."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")
PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "run-a-federation.md"


@pytest.mark.slow
def test_the_commands_of_the_page_train_a_model_in_three_terminals(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[:3]
    assert [block.count("semifed join") for block in blocks] == [1, 1, 1]
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "semifed"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from semifed.cli import main; main()" "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    begun, terminals = time.monotonic(), []
    for block in blocks:
        terminals.append(
            subprocess.Popen(["bash", "-ec", f"{block}\nwait"], cwd=tmp_path, env=environment)  # noqa: S607
        )
        while not (tmp_path / "keys" / "sites" / "west" / "ca.crt").exists():
            assert terminals[0].poll() is None
            time.sleep(0.2)
    for terminal in terminals:
        assert terminal.wait(1200) == 0, (tmp_path / "serve.log").read_text()
    assert (tmp_path / "runs" / "hospitals" / "model.safetensors").exists()
    print(f"\n{time.monotonic() - begun:.0f} s")  # noqa: T201
