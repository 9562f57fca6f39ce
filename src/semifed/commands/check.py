"""semifed check."""

import json

import click

from semifed import conformance
from semifed.commands import options
from semifed.errors import SemifedError
from semifed.experiment import read_method


@click.command()
@click.argument("method", shell_complete=lambda _context, _option, text: options.complete_method(text))
@options.as_json
def check(method: str, as_json: bool) -> None:
    """Put the conformance questions to a method: a name, or your own as module:Class.

    A question that is not passed is told with what was asked and what to do. The exit code is 0 if all are passed.

    \b
    semifed check fedavg
    semifed check my_module:MyMethod
    """
    findings = conformance.check(read_method(method))
    if as_json:
        extra = [{"meaning": finding.meaning, "advice": finding.advice} for finding in findings]
        click.echo(json.dumps([one._asdict() | more for one, more in zip(findings, extra, strict=True)], indent=2))
    else:
        for finding in findings:
            click.echo("\n".join(_lines(finding)))
    failed = [finding.question for finding in findings if not finding.passed]
    if failed:
        raise SemifedError(f"{method} fails {len(failed)} of {len(findings)} questions: {', '.join(failed)}")


def _lines(finding: conformance.Finding) -> list[str]:
    """One line of a question that is passed; what was found, what was asked and what to do of another."""
    name = finding.question.replace("_", " ")
    if finding.passed:
        return [f"passed  {name}{f'  ({finding.detail})' if finding.detail else ''}"]
    return [
        f"FAILED  {name}",
        f"        found: {finding.detail}",
        f"        asked: {finding.meaning}",
        f"        to do: {finding.advice}",
    ]
