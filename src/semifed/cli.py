"""The command line. Every command has its equal in Python; errors become one line and an exit code."""

import contextlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from semifed import __version__
from semifed.commands.check import check
from semifed.commands.compare import compare
from semifed.commands.doctor import doctor
from semifed.commands.federation import join, keys, serve, status
from semifed.commands.listing import listing
from semifed.commands.new import new
from semifed.commands.plan import plan
from semifed.commands.report import report
from semifed.commands.reproduce import reproduce
from semifed.commands.run import run
from semifed.commands.split import split
from semifed.commands.sweep import sweep
from semifed.commands.trained import export_command, next_command, predict_command
from semifed.commands.watch import watch
from semifed.errors import SemifedError, StoppedError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
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


COMMANDS = (
    run,
    sweep,
    watch,
    plan,
    compare,
    report,
    reproduce,
    doctor,
    listing,
    split,
    check,
    new,
    predict_command,
    next_command,
    export_command,
    keys,
    serve,
    join,
    status,
)

COLOURLESS = frozenset({"--no-colour", "--no-color"})

for command in COMMANDS:
    cli.add_command(command)


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
