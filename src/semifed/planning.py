"""What a run will take, before it is run: time, memory and traffic, from a few timed steps on this machine.

    forecast = plan(experiment)
    forecast.seconds, forecast.memory, forecast.down, forecast.up

Two runs of a few rounds are made in a folder that is thrown away, the same but for the steps of clients and server: by
how much longer these take is what a step takes, the rest is what a round takes besides. The steps of real rounds are
counted, not timed. So it holds for this machine as busy as it is now. Memory is that of the processes here while they
train, of a worker what is its alone; on other systems than Linux it is the peak of this process so far.
"""

import ctypes
import dataclasses
import gc
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from semifed import keys
from semifed.data.file_settings import FileSettings
from semifed.data.sources import Dataset
from semifed.engine.assemble import Assembly, load_data, prepare
from semifed.engine.local import Absent, Clients, Outcome, Reply, Task
from semifed.engine.rounds import draw_cohort
from semifed.engine.workers import open_clients
from semifed.experiment import Experiment
from semifed.methods.base import Visit
from semifed.payload import Partial, nbytes
from semifed.run import Event, run

clock = time.perf_counter
_FEW, _MORE, _MOST = 2, 6, 60  # steps of the short runs, and of the longer ones at least and at most
_AIM = 1.5  # seconds that a round of the longer ones may take if it has more steps than that
_WARM = 3  # rounds of a timed run until mapped steps are replayed (engine/recording.py); others take one
_COUNT, _COUNT_MOST = 2, 20  # rounds that count, between these and one that is tested
_DEALT = ("partition", "alpha", "classes_per_client", "shards_per_client", "rounds_per_arrival")
_SAMPLES, _VISITS = 12, 120  # rounds whose steps are counted, at least; visits in them, about


@dataclass(frozen=True)
class Pace:
    """What things take on this machine, in seconds and bytes."""

    start: float  # until the first round
    round: float  # besides steps and tests
    step: float  # of a chunk, or of a client where clients train one by one
    server_step: float
    test: float
    memory: int  # the peak of its processes
    down: float  # a client receives
    up: tuple[float, float]  # and sends: at least, at most; they differ where a method chooses what to send


class Forecast(NamedTuple):
    """What a run will take."""

    seconds: float
    memory: int
    down: int
    up: int
    up_range: tuple[int, int]
    rounds: int
    steps: int  # of clients, in all
    seconds_a_round: float


class _Timed(NamedTuple):
    """One short run."""

    start: float
    training: float  # of the clients, in a round
    besides: float  # what else a round takes
    test: float
    workers: int  # bytes of memory
    down: float  # to a client
    up: float


class _Stopwatch:
    """Clients whose training is timed: all else of a round would drown the difference of a few steps."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self.rounds, self.workers = clients, list[float](), 0

    def present(self, round: int) -> Sequence[int] | None:
        """As those that are timed."""
        return self._clients.present(round)

    def train(self, round: int, tasks: Sequence[Task]) -> Sequence[Outcome | Absent | Reply]:
        """As those that are timed."""
        started = clock()
        outcomes = self._clients.train(round, tasks)
        self.rounds.append(clock() - started)
        return outcomes

    def close(self) -> None:
        """As those that are timed; what their processes have is seen while they are there."""
        self.workers = sum(_own_memory(process.pid) for process in multiprocessing.active_children())
        self._clients.close()


def plan(experiment: Experiment, data_dir: Path | str | None = None) -> Forecast:
    """Predict what a run of an experiment takes here."""
    return plan_all([experiment], data_dir)[0]


def plan_all(experiments: Iterable[Experiment], data_dir: Path | str | None = None) -> list[Forecast]:
    """Predict several; those that differ in seed, partition or rounds alone are timed once."""
    folder = None if data_dir is None else Path(data_dir)
    datasets, paces, found = dict[str, Dataset](), dict[str, Pace](), list[Forecast]()
    for experiment in experiments:
        data = _data_key(experiment)
        if data not in datasets:
            datasets[data] = load_data(experiment, folder)
        assembly = prepare(dataclasses.replace(experiment, data=datasets[data], files=FileSettings()))
        counts = [_visits(assembly, round) for round in _sampled(assembly)]
        key = _pace_key(experiment, counts)
        if key not in paces:
            _forget_peak()
            paces[key] = _time(assembly)
        found.append(_forecast(assembly, paces[key], counts))
    return found


def _data_key(experiment: Experiment) -> str:
    name = experiment.data if isinstance(experiment.data, str) else f"own {id(experiment.data)}"
    return f"{name} {experiment.files} {experiment.scenario.skip_corrupt}"


def _pace_key(experiment: Experiment, counts: Sequence[Sequence[int]]) -> str:
    """Equal for experiments whose steps take the same time, and whose visits are long enough to tell it alike."""
    tables = experiment.tables()
    tables["seed"], tables["data"] = 0, _data_key(experiment)
    tables["scenario"] = {name: value for name, value in tables["scenario"].items() if name not in _DEALT}
    tables["train"] |= {"rounds": 0, "evaluate_every": None}
    return repr((tables, min(_longest(counts), _MORE)))


def _forecast(assembly: Assembly, pace: Pace, counts: Sequence[Sequence[int]]) -> Forecast:
    """From what things take to what the whole takes."""
    train = assembly.experiment.train
    load = statistics.fmean(_load(assembly, steps) for steps in counts)
    steps, visits = (statistics.fmean(map(tally, counts)) * train.rounds for tally in (sum, len))
    tests = sum(train.tests_after(round + 1) for round in range(train.rounds))
    a_round = pace.round + load * pace.step + assembly.workshop.server_steps(0) * pace.server_step
    seconds = pace.start + train.rounds * a_round + tests * pace.test
    least, most = (round(visits * one) for one in pace.up)
    down, middle = round(visits * pace.down), (least + most) // 2
    return Forecast(seconds, pace.memory, down, middle, (least, most), train.rounds, round(steps), a_round)


def _sampled(assembly: Assembly) -> list[int]:
    """Rounds that stand for all; more where few clients take part, as with [privacy] a round may then have none."""
    train = assembly.experiment.train
    number = min(train.rounds, max(_SAMPLES, _VISITS // train.clients_per_round))
    return [(2 * place + 1) * train.rounds // (2 * number) for place in range(number)]


def _counted(assembly: Assembly) -> range:
    """Rounds of a timed run that count: as many as it takes until they have about as many clients as others have."""
    usual = statistics.fmean(len(draw_cohort(assembly, round)) for round in _sampled(assembly))
    first, drawn = _WARM if assembly.workshop.form.mapped else 1, 0
    for number in range(1, _COUNT_MOST + 1):
        drawn += len(draw_cohort(assembly, first + number - 1))
        if number >= _COUNT and abs(drawn - number * usual) <= number * usual / 10:
            break
    return range(first, first + number)


def _visits(assembly: Assembly, round: int) -> list[int]:
    """The steps of each client of a round."""
    return [assembly.workshop.steps_of(round, client) for client in draw_cohort(assembly, round)]


def _longest(counts: Sequence[Sequence[int]]) -> int:
    return max((steps for visits in counts for steps in visits), default=0)


def _load(assembly: Assembly, steps: Sequence[int], cap: int | None = None) -> int:
    """The steps of a round as the engine takes them: a chunk goes on as long as its longest visit."""
    chunk, steps = assembly.experiment.engine.chunk, [min(one, cap or one) for one in steps]
    if not assembly.workshop.form.mapped:
        return sum(steps)
    return sum(max(steps[start : start + chunk]) for start in range(0, len(steps), chunk))


def _time(assembly: Assembly) -> Pace:
    """A short run with few steps and one with more, at the clients and, if it trains, at the server."""
    counted = _counted(assembly)
    counts = [_visits(assembly, round) for round in counted]

    def load(cap: int) -> float:
        return statistics.fmean(_load(assembly, steps, cap) for steps in counts)

    server = assembly.workshop.server_steps(0)
    few, few_there = load(_FEW), min(server, _FEW)
    short = _short_run(assembly, counted, _FEW, few_there)
    most = _longest(counts)
    guess = max(short.training, 1e-3) / max(few, 1)
    more = max(_MORE, min(most, _MOST, math.ceil(_AIM / guess / max(few / _FEW, 1))))
    more_there = min(server, max(_MORE, min(_MOST, math.ceil(_AIM / guess))))
    longer = _short_run(assembly, counted, more, more_there)
    step = _slope(longer.training - short.training, load(more) - few)
    server_step = _slope(longer.besides - short.besides, more_there - few_there)
    besides = max(short.besides + short.training - few * step - few_there * server_step, 0.0)
    least, most_bytes = longer.up, max(longer.up, _dense(assembly))
    test = max(short.test, longer.test, 0.0) if min(short.test, longer.test) <= 0 else (short.test + longer.test) / 2
    memory = _peak_memory() + longer.workers
    return Pace(short.start, besides, step, server_step, test, memory, longer.down, (least, most_bytes))


def _slope(seconds: float, steps: float) -> float:
    return max(seconds, 0.0) / steps if steps > 0 else 0.0


def _short_run(assembly: Assembly, counted: range, steps: int, server_steps: int) -> _Timed:
    """A few rounds of a few steps, in a folder as a run has it."""
    experiment, rounds = assembly.experiment, counted.stop + 1
    short = dataclasses.replace(
        experiment,
        train=dataclasses.replace(experiment.train, rounds=rounds, evaluate_every=rounds, stop_on_collapse=0),
        client=dataclasses.replace(experiment.client, steps=min(steps, experiment.client.steps or steps)),
        server=dataclasses.replace(experiment.server, steps=max(server_steps, 1)),
    )
    times, watches = [clock()], list[_Stopwatch]()

    def hear(_event: Event) -> None:
        times.append(clock())

    def watched(assembly: Assembly) -> _Stopwatch:
        watches.append(_Stopwatch(open_clients(assembly)))
        return watches[0]

    with tempfile.TemporaryDirectory(prefix="semifed-plan-") as folder:
        record = run(short, Path(folder) / "run", split=assembly.scenario, watch=hear, clients=watched)
    begun, *ends = times[1:]
    lengths = [end - start for start, end in zip([begun, *ends], ends, strict=False)]
    trained, first = watches[0].rounds, counted.start
    besides = [length - training for length, training in zip(lengths, trained, strict=True)]
    usual = statistics.fmean(besides[first:-1])
    last = next((row for row in reversed(record.rows) if row["clients"]), record.rows[-1])
    down, up = (last["bytes"][way] / max(len(last["clients"]), 1) for way in ("down", "up"))
    test, workers = besides[-1] - usual, watches[0].workers
    return _Timed(begun - times[0], statistics.fmean(trained[first:-1]), usual, test, workers, down, up)


def _dense(assembly: Assembly) -> int:
    """What a client would send if a method that chooses sent everything."""
    experiment, method = assembly.experiment, assembly.experiment.method
    server = method.init(assembly.net, keys.key(experiment.seed, "init"))
    down = method.download(server, Visit(int(assembly.scenario.active()[0]), 0, 0))
    sent = method.upload(assembly.net, {**method.start(down, method.enroll(assembly.net, down, 0))}, down)
    return nbytes({name: part.values if isinstance(part, Partial) else part for name, part in sent.items()})


def _forget_peak() -> None:
    """Give back what is free and see the peak from here on, or a run would have that of those before; Linux only."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory() -> int:
    """The most memory that this process has had, in bytes; 0 where it is not told."""
    try:
        import resource  # noqa: PLC0415  # not on Windows
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _own_memory(process: int | None) -> int:
    """What a worker shares with nobody, in bytes, as most of a forked one is this process's too; 0 but for Linux."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private"))


def totals(forecasts: Sequence[Forecast], jobs: int) -> Mapping[str, Any]:
    """What several runs take, so many at a time: seconds, bytes of memory and of traffic."""
    longest = max((one.seconds for one in forecasts), default=0.0)
    return {
        "seconds": max(sum(one.seconds for one in forecasts) / jobs, longest),
        "memory": sum(sorted((one.memory for one in forecasts), reverse=True)[:jobs]),
        "down": sum(one.down for one in forecasts),
        "up": sum(one.up for one in forecasts),
    }
