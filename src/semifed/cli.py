"""The command line. Every command has its equal in Python; errors become one line and an exit code."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from semifed import __version__
from semifed.commands.check import check
from semifed.commands.listing import listing
from semifed.commands.run import run
from semifed.commands.split import split
from semifed.errors import SemifedError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Federated semi-supervised learning: many sites train one model, and almost nobody has labels.

    \b
    Exit codes: 0 done, 1 refused or failed, 2 a setting is wrong, 3 data, 4 the run's folder, 130 stopped.
    """


for command in (run, listing, split, check):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: errors become one line and an exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_guarded(lambda: cli.main(words, "semifed", standalone_mode=False), "--debug" in words))


def _guarded(command: Callable[[], Any], debug: bool) -> int:
    try:
        command()
    except SemifedError as error:
        if debug:
            raise
        click.echo(f"semifed: error: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("semifed: stopped; go on with --resume", err=True)
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:  # the last resort: a fault of ours, still told in one line
        if debug:
            raise
        click.echo(f"semifed: internal error: {type(error).__name__}: {error}; --debug shows where", err=True)
        return 70
    return 0
