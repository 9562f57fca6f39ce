"""semifed check."""

import json

import click

from semifed import conformance
from semifed.commands import options
from semifed.errors import SemifedError
from semifed.experiment import find_method


@click.command()
@click.argument("method")
@options.as_json
def check(method: str, as_json: bool) -> None:
    """Put the conformance questions to a method: a name, or your own as module:Class.

    \b
    semifed check fedavg
    semifed check my_module:MyMethod
    """
    findings = conformance.check(find_method(method)())
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        for finding in findings:
            click.echo(f"{'passed' if finding.passed else 'FAILED'}  {finding.question}  {finding.detail}".rstrip())
    failed = [finding.question for finding in findings if not finding.passed]
    if failed:
        raise SemifedError(f"{method} fails {len(failed)} of {len(findings)} questions: {', '.join(failed)}")
