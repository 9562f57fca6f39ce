"""Are the tests of docs/reliability.md worth something? Each behaviour is taken away, and its test must fail.

    python tools/mutate.py [--cases 1 2 3] [--slow] [--list]

tests/removals.toml says of each case which text of which file becomes what. It is changed in a copy of the project, and
the tests of the case run there, in a fork of this process. A test that passes all the same is told, and the exit code
is 1. Cases whose tests are slow are left out unless --slow is given.
"""

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("src", "tests", "fuzz", "docs", "experiments", "pyproject.toml", "README.md", "tools", "constraints.txt")
LONGEST = 900.0
"""Seconds for the tests of one case; those that do not end have failed too: a removal may let them wait for ever."""


def removals() -> list[dict[str, Any]]:
    """Every removal, with the tests that must notice it."""
    cases = tomllib.loads((ROOT / "tests/cases.toml").read_text("utf-8"))["case"]
    tests = {case["number"]: case["tests"] for case in cases}
    found = tomllib.loads((ROOT / "tests/removals.toml").read_text("utf-8"))["removal"]
    return [{"slow": False, "tests": tests[one["case"]], **one} for one in found]


@contextlib.contextmanager
def taken_away(copy: Path, removal: dict[str, Any]) -> Iterator[None]:
    """The copy without the behaviour."""
    file = copy / removal["file"]
    whole = file.read_text("utf-8")
    if whole.count(removal["text"]) != 1:
        raise SystemExit(f"case {removal['case']}: {removal['file']} has not exactly once: {removal['text']}")
    file.write_text(whole.replace(removal["text"], removal["becomes"]), "utf-8")
    try:
        yield
    finally:
        file.write_text(whole, "utf-8")


def result_of(copy: Path, tests: list[str], slow: bool) -> str:
    """What becomes of the tests in the copy: "passed", "failed", or what else went wrong."""
    child = os.fork()
    if not child:
        code = 3
        try:
            os.setsid()
            code = _run(copy, tests, slow)
        finally:
            os._exit(code)  # never back into the loop of the parent
    end = time.monotonic() + LONGEST
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.05)
    if done == (0, 0):
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "failed"
    code = os.waitstatus_to_exitcode(done[1])
    # A test that fails before it has ended its processes lets pytest itself stumble over them.
    stumbled = code == pytest.ExitCode.INTERNAL_ERROR and "\nE  " in (copy / "said.txt").read_text("utf-8")
    return "failed" if stumbled else {0: "passed", 1: "failed"}.get(code, f"ended with {code}")


def _own() -> set[str]:
    """Where this project's code would be found instead of the copy's; its environment may lie inside it and stays."""
    return {str(ROOT), *(str(ROOT / name) for name in ("src", "tests", "tools"))}


def _run(copy: Path, tests: list[str], slow: bool) -> int:
    """In a process of its own: pytest on the copy and on nothing else of the project."""
    os.chdir(copy)
    sys.path[:] = [str(copy / "src"), str(copy / "tests"), *(one for one in sys.path if one not in _own())]
    os.environ |= {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    said = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(said, stream)
    which = () if slow else ("-m", "not slow")
    try:
        return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *which, *tests]))
    except BaseException:
        traceback.print_exc()
        raise


def main() -> None:
    known = argparse.ArgumentParser(description=__doc__)
    known.add_argument("--cases", type=int, nargs="+")
    known.add_argument("--slow", action="store_true")
    known.add_argument("--list", action="store_true")
    chosen = known.parse_args()
    wanted = [one for one in removals() if not chosen.cases or one["case"] in chosen.cases]
    if chosen.list:
        print("\n".join(f"{one['case']:3} {one['file']}: {one['text'].strip()}" for one in wanted))
        return
    sys.dont_write_bytecode = True
    for name in ("torch", "numpy", "PIL.Image", "scipy.special", "pyarrow.parquet", "rich.progress"):
        importlib.import_module(name)  # once for all forks
    survived = []
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copy = Path(folder)
        for name in COPIED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, copy / name)
        for one in wanted:
            if one["slow"] and not chosen.slow:
                continue
            with taken_away(copy, one):
                result = result_of(copy, one["tests"], one["slow"])
            print(f"{one['case']:3} {'noticed' if result == 'failed' else result.upper()}  {one['file']}", flush=True)
            if result != "failed":
                survived.append(one["case"])
                if (copy / "said.txt").exists():
                    print((copy / "said.txt").read_text("utf-8")[-1500:], flush=True)
    if survived:
        sys.exit(f"not noticed: {', '.join(map(str, survived))}")


if __name__ == "__main__":
    main()
