"""`semifed serve`: a run whose clients are sites. The round loop, the records and the folder are those of any run."""

import json
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from semifed.data.scenario import Holding, Scenario
from semifed.data.sources import Dataset
from semifed.engine.assemble import Assembly, load_data, make_split
from semifed.engine.flower_server import Federation, FlowerClients
from semifed.errors import RunError, SettingError
from semifed.experiment import Experiment
from semifed.federation import keys
from semifed.federation.addresses import check_insecure
from semifed.federation.front import Door, Front
from semifed.federation.link import FlowerLink
from semifed.results.files import write_json
from semifed.results.folder import is_begun
from semifed.results.participation import Part, participation
from semifed.results.record import Record, Row
from semifed.run import Event, Watch, run
from semifed.settings import read_toml


class Address(NamedTuple):
    """Where the front listens."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str) -> "Address":
        """HOST:PORT."""
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise SettingError(f"--address {text}: expected HOST:PORT, such as 0.0.0.0:8443")
        return cls(host.strip("[]"), int(port))


def serve(
    experiment: Experiment | None,
    out: Path,
    *,
    keys_folder: Path,
    address: str = "127.0.0.1:8443",
    insecure: bool = False,
    resume: bool = False,
    data_dir: Path | None = None,
    watch: Watch | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Record:
    """Run an experiment between sites; the sites are those whose public keys lie in the folder of keys."""
    need_flower()
    place = Address.read(address)
    check_insecure(place.host, insecure)
    experiment = experiment or _experiment_in(out)
    _check(experiment)
    sites = keys.site_keys(keys_folder)
    if not insecure:
        keys.load_key(keys_folder / "server.key")
    board = _Board()

    def hear(event: Event) -> None:
        board.hear(event)
        if watch:
            watch(event)

    def open_clients(assembly: Assembly) -> FlowerClients:
        return _open(assembly, out, sites, place, None if insecure else keys_folder, board, say)

    with _terminated_as_interrupted():
        split = None if resume and is_begun(out) else _split(experiment, data_dir)
        return run(experiment, out, resume=resume, split=split, data_dir=data_dir, watch=hear, clients=open_clients)


def need_flower() -> None:
    """Say which extra is missing, if it is."""
    if find_spec("flwr") is None:
        raise SettingError("a federation needs Flower: pip install 'semifed[federation]'")


def _experiment_in(out: Path) -> Experiment:
    if not is_begun(out):
        raise SettingError(f"serve: there is nothing to go on with in {out}; give an experiment")
    return Experiment.of(read_toml(out / "experiment.toml"))


def _check(experiment: Experiment) -> None:
    """What cannot be sent to a site as settings cannot be served."""
    if isinstance(experiment.net, nn.Module):
        raise SettingError("net: a module of your own is not known to the sites; use a named net")
    if isinstance(experiment.data, Dataset):
        raise SettingError("data: give the server's data by name")
    if experiment.privacy.on and not experiment.privacy.source:
        raise SettingError(
            "privacy.source: noise from the seed, which the sites know, hides nothing; make a file of random bytes, "
            "`head -c 32 /dev/urandom > noise.bin && chmod 600 noise.bin`, and name it there"
        )


def _split(experiment: Experiment, data_dir: Path | None) -> Scenario | None:
    """The split for a server whose whole data are its own; None to make the scenario's, as in a simulation."""
    if experiment.federation.server_data == "split":
        return None
    dataset = load_data(experiment, data_dir)
    return whole(make_split(experiment, dataset), experiment, dataset.labels.numpy() >= 0)


def whole(split: Scenario, experiment: Experiment, known: NDArray[np.bool_]) -> Scenario:
    """The same split with everything that clients would hold at the server, labelled if it has the labels."""
    nothing = np.zeros(0, np.int64)
    empty = Holding(nothing, nothing)
    clients = [holding for one in split.clients for holding in (one.labelled, one.unlabelled)]
    everything = np.sort(np.concatenate([split.server.labelled, split.server.unlabelled, split.unused, *clients]))
    at_server = experiment.scenario.labels == "server"
    return Scenario(
        clients=(empty,) * len(split.clients),
        server=Holding(everything[known[everything]], everything[~known[everything]]) if at_server else empty,
        validation=split.validation,
        test=split.test,
        unused=nothing if at_server else everything,
        arrival_sizes=np.zeros_like(split.arrival_sizes),
        size=split.size,
        rounds_per_arrival=split.rounds_per_arrival,
        data=split.data,
        missing=split.missing,
    )


def _open(
    assembly: Assembly,
    out: Path,
    sites: dict[str, bytes],
    place: Address,
    keys_folder: Path | None,
    board: "_Board",
    say: Callable[[str], None],
) -> FlowerClients:
    """The link, the front before it, and the clients behind both."""
    federation = _members(assembly, out, list(sites))
    link = FlowerLink({name: sites[name] for name in federation.sites}, out / "flower.log")
    try:
        limit = assembly.experiment.federation.limit * 10**6
        link.door = Door(link.address, link.verify, limit, _readers(sites, keys_folder), board.state)
        front = Front(link.door, place.host, place.port, keys_folder)
    except BaseException:
        link.close()
        raise
    link.on_close(front.close)
    clients = FlowerClients(assembly, link, federation, say)
    board.show(federation, clients)
    say(f"listening on {place.host}:{place.port} for {', '.join(federation.sites)}")
    return clients


def _readers(sites: dict[str, bytes], keys_folder: Path | None) -> dict[str, bytes]:
    """Who may ask how the run goes: the sites, and whoever has the server's key."""
    if keys_folder is None:
        return sites
    return {**sites, "@server": keys.public_bytes(keys.load_key(keys_folder / "server.key"))}


def _members(assembly: Assembly, out: Path, names: Sequence[str]) -> Federation:
    """The run's number and the order of its sites, made once: a client keeps its id whoever comes later."""
    path = out / "federation.json"
    there: dict[str, Any] = _read(path) if path.exists() else {"run": secrets.token_hex(16), "sites": []}
    sites = [*there["sites"], *(name for name in names if name not in there["sites"])]
    gone = [name for name in there["sites"] if name not in names]
    if gone:
        raise SettingError(f"--keys: the key of {gone[0]}, which takes part in this run, is not there; put it back")
    room = assembly.experiment.scenario.clients
    if len(sites) > room:
        raise SettingError(f"scenario.clients: is {room}, but {len(sites)} sites have a key; set it to {len(sites)}")
    if {"run": there["run"], "sites": sites} != there or not path.exists():
        write_json(path, {"run": there["run"], "sites": sites})
    return Federation(there["run"], sites)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        if re.fullmatch("[0-9a-f]{32}", content["run"]) and all(isinstance(one, str) for one in content["sites"]):
            return {"run": content["run"], "sites": content["sites"]}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise RunError(f"{path}: is damaged; put it back from a copy")


class _Board:
    """How the run goes, for `semifed status`."""

    def __init__(self) -> None:
        self._rows: Sequence[Row] = ()
        self._rounds, self._since = 0, time.monotonic()
        self._federation: Federation | None = None
        self._clients: FlowerClients | None = None

    def hear(self, event: Event) -> None:
        """A round is done."""
        self._rows, self._rounds = list(event.rows), event.assembly.experiment.train.rounds

    def show(self, federation: Federation, clients: FlowerClients) -> None:
        """From here on there are sites to tell of."""
        self._federation, self._clients = federation, clients

    def state(self) -> dict[str, Any]:
        """Sites, rounds, stragglers, refused updates and bytes."""
        names = self._federation.sites if self._federation else []
        joined, here = (self._clients.joined, self._clients.connected) if self._clients else ({}, set())
        parts = participation(self._rows)
        return {
            "round": len(self._rows),
            "rounds": self._rounds,
            "seconds": round(time.monotonic() - self._since, 1),
            "bytes": {way: sum(row["bytes"][way] for row in self._rows) for way in ("down", "up")},
            "models": self._rows[-1]["models"] if self._rows else {},
            "sites": {
                name: {"connected": name in here, "joined": name in joined, **_told(parts.get(number))}
                for number, name in enumerate(names)
            },
        }


def _told(part: Part | None) -> dict[str, Any]:
    """A site's part in the run so far."""
    own = part or Part(0, 0, 0, 0, 0, {})
    return {"drawn": own.drawn, "straggled": own.late, "refused": own.refused}


@contextmanager
def _terminated_as_interrupted() -> Any:
    """A service manager's request to end is heard as Ctrl-C: the folder is left so that the run can go on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
