"""The command line. Every command has its equal in Python; errors become one line and an exit code."""

import contextlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from importlib import import_module
from typing import Any

import click

from semifed import __version__
from semifed.errors import SemifedError, StoppedError

COMMANDS = {
    "run": "run:run",
    "sweep": "sweep:sweep",
    "watch": "watch:watch",
    "plan": "plan:plan",
    "compare": "compare:compare",
    "report": "report:report",
    "reproduce": "reproduce:reproduce",
    "doctor": "doctor:doctor",
    "list": "listing:listing",
    "split": "split:split",
    "check": "check:check",
    "new": "new:new",
    "predict": "trained:predict_command",
    "next": "trained:next_command",
    "export": "trained:export_command",
    "keys": "federation:keys",
    "serve": "federation:serve",
    "join": "federation:join",
    "status": "federation:status",
}
"""In which file of semifed.commands each command stands, and under which name."""


class Commands(MutableMapping[str, click.Command]):
    """All commands by name; the file of one is imported when it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        file, _, within = COMMANDS[name].partition(":")
        command: click.Command = getattr(import_module(f"semifed.commands.{file}"), within)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __setitem__(self, name: str, command: click.Command) -> None:
        raise TypeError("commands stand in COMMANDS")

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands stand in COMMANDS")


@click.group(commands=Commands(), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--no-colour", "--no-color", is_flag=True, help="No colours, as with the variable NO_COLOR.")
def cli(debug: bool, no_colour: bool) -> None:
    """Federated semi-supervised learning: many sites train one model, and almost nobody has labels.

    \b
    semifed run --set method=fedavg+ --set train.rounds=20

    \b
    Exit codes: 0 done, 1 refused or failed, 2 a setting is wrong, 3 data, 4 the run's folder, 5 your own
    method or net failed, 70 a fault of ours (--debug shows where), 130 stopped.
    """


COLOURLESS = frozenset({"--no-colour", "--no-color"})


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: errors become one line and an exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug, plain = "--debug" in words, not COLOURLESS.isdisjoint(words)
    rest = [word for word in words if word != "--debug" and word not in COLOURLESS]  # wherever they stand
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show must not end a run
        sys.stdout.reconfigure(errors="backslashreplace")
    if "" not in sys.path:
        sys.path.append("")  # a user's own method lies in the current folder
    with warnings.catch_warnings(), _colours(plain):
        warnings.showwarning = lambda message, *_rest, **_more: click.echo(f"note: {message}", err=True)
        code = _guarded(lambda: cli.main(rest, "semifed", standalone_mode=False), debug)
    sys.exit(code)


@contextlib.contextmanager
def _colours(off: bool) -> Iterator[None]:
    """Without colours if asked: what prints looks at NO_COLOR."""
    before = os.environ.get("NO_COLOR")
    if off:
        os.environ["NO_COLOR"] = "1"
    try:
        yield
    finally:
        if off and before is None:
            del os.environ["NO_COLOR"]


def _guarded(command: Callable[[], Any], debug: bool) -> int:
    try:
        command()
    except click.exceptions.NoArgsIsHelpError as error:  # `semifed split` alone
        error.show()
        return error.exit_code
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, code = _explain(error)
        click.echo(f"semifed: {' '.join(message.split())}", err=True)
        return code
    return 0


def _explain(error: Exception) -> tuple[str, int]:
    """What to say of an error in one line, and the exit code."""
    match error:
        case StoppedError():
            message, code = str(error), error.exit_code
        case click.Abort():  # what click makes of Ctrl-C
            message, code = "stopped", StoppedError.exit_code
        case SemifedError():
            message, code = f"error: {error}", error.exit_code
        case click.UsageError(ctx=click.Context() as context):
            message, code = f"error: {error.format_message()} See {context.command_path} --help", error.exit_code
        case click.ClickException():
            message, code = f"error: {error.format_message()}", error.exit_code
        case _:  # the last resort: a fault of ours, still told in one line
            message, code = f"internal error: {type(error).__name__}: {error}; --debug shows where", 70
    return message, code
