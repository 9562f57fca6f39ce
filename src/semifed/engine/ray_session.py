"""A connection to Ray: one that the process has already, a cluster at an address, or a Ray of this run's own.

A Ray of our own has no dashboard and no usage statistics, keeps its files in a folder that goes with it, and is closed
to others: its ports, which it opens on all interfaces, want a token that is drawn anew.
"""

import importlib
import importlib.util
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semifed.errors import RunError, SettingError
from semifed.experiment import EngineSettings

_ADDRESS = re.compile(r"(ray://)?(?P<host>[^\s:/]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_KNOCK_SECONDS = 10
_LONGEST_FOLDER = 24  # the names of Ray's sockets go beneath it, and a socket's name has about 100 letters
_TOKENS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")  # who has set one of these knows what to do


@dataclass(frozen=True)
class Session:
    """Ray as a run uses it."""

    ray: Any
    owned: bool  # whether it ends with the run
    folder: Path | None = None  # which goes with it

    def close(self, workers: Iterable[Any]) -> None:
        """End the workers, and all that was started or opened for them."""
        if not self.owned:
            for worker in workers:
                self.ray.kill(worker)
            return
        try:
            self.ray.shutdown()
        finally:
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)  # what is left there is only logs


def check_engine(engine: EngineSettings) -> None:
    """Look whether Ray is there if it is asked for, and whether its address has a form that it knows."""
    if engine.address not in ("", "auto") and not _ADDRESS.fullmatch(engine.address):
        raise SettingError(
            f"engine.address: {engine.address!r} is not HOST:PORT, ray://HOST:PORT, auto for the Ray that runs on this "
            "machine, or empty for one of the run's own"
        )
    if engine.address and engine.name != "ray":
        raise SettingError('engine.address: goes with engine.name = "ray" only; set that, or leave it out')
    if engine.name == "ray" and importlib.util.find_spec("ray") is None:
        raise SettingError(
            "engine.name: Ray is not installed; do `pip install 'semifed[ray]'`, or set engine.name = \"local\""
        )


def open_session(engine: EngineSettings) -> Session:
    """Ray for a run; errors name the address and what to do."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = importlib.import_module("ray")
    if ray.is_initialized() and not engine.address:
        return Session(ray, owned=False)
    if ray.is_initialized():
        raise RunError(
            "engine.address: this process is connected to Ray already; leave it empty or call ray.shutdown()"
        )
    options = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    if engine.address:
        _knock(engine.address)
        return _initialised(
            Session(ray, owned=True), f"engine.address: Ray at {engine.address}", address=engine.address, **options
        )
    if not any(name in os.environ for name in _TOKENS):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    folder = Path(tempfile.mkdtemp(prefix="ray-")) if len(tempfile.gettempdir()) <= _LONGEST_FOLDER else None
    return _initialised(
        Session(ray, owned=True, folder=folder),
        "engine.name: a Ray of its own",
        address="local",
        num_cpus=engine.workers * engine.threads,
        include_dashboard=False,
        _temp_dir=str(folder) if folder else None,
        **options,
    )


def _initialised(session: Session, name: str, **options: Any) -> Session:
    try:
        with _quietly(), _own_signals():
            session.ray.init(**options)
    except BaseException as error:
        session.close(())
        if isinstance(error, Exception):  # Ray has no common kind for these
            raise RunError(f"{name} cannot be used: {first_line(error)}; see docs/how-to/ray.md") from None
        raise
    return session


def _knock(address: str) -> None:
    """Ray itself waits for minutes where nobody answers, and then ends the process."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), _KNOCK_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise RunError(
            f"engine.address: nobody answers at {address} ({error}); start Ray there with `ray start --head`, or leave "
            "engine.address empty to use this machine"
        ) from None


@contextmanager
def _quietly() -> Iterator[None]:
    """Without Ray's advice: that it wants a token is as it should be."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; it stays with whoever had it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with suppress(ValueError):  # not the main thread, where Ray takes none
            signal.signal(signal.SIGTERM, before)


def first_line(error: BaseException) -> str:
    """The first line of an error that says something."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__).rstrip(".")
