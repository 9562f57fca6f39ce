"""semifed run."""

import itertools
import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from semifed.commands import options
from semifed.data.file_settings import short_name
from semifed.data.scenario import Scenario
from semifed.errors import RunError, SettingError, StoppedError
from semifed.experiment import Experiment, method_name
from semifed.logs import WRITERS, Log
from semifed.results.folder import is_begun
from semifed.run import Event, Watch
from semifed.run import run as run_experiment
from semifed.terminal import Watcher, result_table, standard_output


@click.command()
@options.experiment
@options.assignments
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run (else a new one under runs/).")
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@click.option("--override", is_flag=True, help="With --resume: go on although the experiment has changed.")
@click.option("--previous", is_flag=True, help="With --resume: start from the checkpoint before the newest one.")
@click.option(
    "--split", "split_file", type=click.Path(path_type=Path), help="Use a split made by `semifed split make`."
)
@click.option("--quiet", is_flag=True, help="Show nothing but the result.")
@click.option(
    "--log", "logs", multiple=True, type=click.Choice(list(WRITERS)), help="Also write for this tool, round by round."
)
@options.data_dir
@options.as_json
def run(
    experiment: Path | None,
    assignments: Sequence[str],
    out: Path | None,
    resume: bool,
    override: bool,
    previous: bool,
    split_file: Path | None,
    quiet: bool,
    logs: Sequence[str],
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Train a federation; without arguments, FedAvg on the embedded data.

    \b
    semifed run
    semifed run exp.toml --set method=fedprox --set train.rounds=20 --out runs/prox
    semifed run --out runs/prox --resume
    """
    wanted = _experiment(experiment, assignments, out, resume)
    split = Scenario.load(split_file) if split_file else None
    log = Log(logs, out or Path())  # a package that is not there shows now
    folder = out or _claim_folder(wanted or Experiment())
    log.folder, watcher = folder, Watcher(Console(stderr=True), quiet)
    try:
        going = partial(run_experiment, resume=resume, override=override, previous=previous, data_dir=data_dir)
        record = going(wanted, folder, split=split, watch=_both(watcher, log))
        log.close()
    except KeyboardInterrupt:
        raise StoppedError(_how_to_go_on(folder, data_dir)) from None
    finally:
        watcher.close()
        log.close(well=False)
        if out is None:
            with suppress(OSError):  # it holds something, as it should
                folder.rmdir()
    if as_json:
        click.echo(json.dumps({**record.summary, "folder": str(folder)}, indent=2))
    else:
        standard_output().print(result_table([(folder.name, record)]))
        if privacy := record.summary.get("privacy"):
            click.echo(
                f"differential privacy of clients: epsilon {privacy['epsilon']:.3g} at delta {privacy['delta']:g}"
            )
        click.echo(f"everything is in {folder}")


def _both(watcher: Watcher, log: Log) -> Watch:
    def hear(event: Event) -> None:
        watcher(event)
        log(event)

    return hear


def _experiment(file: Path | None, assignments: Sequence[str], out: Path | None, resume: bool) -> Experiment | None:
    """The experiment that is asked for, on top of the one in the folder on resume; None to go on with that one."""
    if resume and out is None:
        raise SettingError("--resume: say which run with --out DIR")
    if resume and not file and not assignments:
        return None
    there = out / "experiment.toml" if resume and out and is_begun(out) else None
    return Experiment.read(file or there, assignments)


def _claim_folder(experiment: Experiment) -> Path:
    """A new folder under runs/, made at once, so that no other run takes the same name."""
    data = short_name(experiment.tables()["data"])
    stem = f"{method_name(type(experiment.method)).replace(':', '.')}-{data}-{experiment.scenario.partition}"
    for number in itertools.count(1):
        folder = Path("runs") / f"{stem}-{number:03d}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"{folder}: cannot be made: {error.strerror}; give --out") from None
        return folder
    raise AssertionError("there is always a next number")


def _how_to_go_on(folder: Path, data_dir: Path | None) -> str:
    if not is_begun(folder):
        return "stopped before the run had begun"
    where = ["--data-dir", str(data_dir)] if data_dir else []
    return f"stopped; go on with: {shlex.join(['semifed', 'run', '--out', str(folder), '--resume', *where])}"
