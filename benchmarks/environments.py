"""The frameworks' own environments, so that none of them is ever installed beside semifed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# Just this torch: a looser wish makes pip fetch gigabytes for graphics cards.
TORCH = ("torch==2.13.0", "numpy==2.4.6")

PACKAGES: dict[str, tuple[str, ...]] = {
    "fedlab": ("fedlab==1.3.0",),
    "pfl": ("pfl[pytorch]==0.6.0",),
    "flower": ("flwr[simulation]==1.41.0",),
}

INSTALL_SECONDS = 1200


class CannotRunError(Exception):
    """A framework cannot take part; the message says why."""


def default_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "semifed" / "bench"


def version(name: str) -> str:
    """The framework as it is pinned, for a table."""
    return PACKAGES[name][0]


def python_of(name: str, folder: Path) -> Path:
    """The interpreter of a framework's environment, which is made if it is not there as it should be."""
    home, wanted = folder / name, " ".join((*TORCH, *PACKAGES[name]))
    python, mark = home / "bin" / "python", home / "packages.txt"
    if mark.exists() and mark.read_text("utf-8") == wanted:
        return python
    print(f"  making {home}: {wanted}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(home)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TORCH, *PACKAGES[name]])
    mark.write_text(wanted, "utf-8")  # last, so that half an environment is made anew
    return python


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        raise CannotRunError(f"not installed: {last_line(error.stderr)}") from None
    except subprocess.TimeoutExpired:
        raise CannotRunError(f"not installed in {INSTALL_SECONDS} s") from None


def last_line(text: str) -> str:
    """What a program said last, which is mostly why it ended."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"
