"""semifed check."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from semifed import conformance
from semifed.commands import options
from semifed.engine.leaving import Leaving, leaving
from semifed.errors import SemifedError
from semifed.experiment import Experiment, read_method


@click.command()
@click.argument("method", shell_complete=lambda _context, _option, text: options.complete_method(text))
@options.assignments
@options.data_dir
@options.as_json
def check(method: str, assignments: Sequence[str], data_dir: Path | None, as_json: bool) -> None:
    """Put the conformance questions to a method, and list what leaves a client.

    METHOD is a name, your own as module:Class, or an experiment file. Of an experiment it is listed what a client sends
    with its method and net: parts, layers, bytes and counts; and what stays. To a method alone the questions are put
    first, and data and net are the default ones. A question that is not passed is told with what was asked and what to
    do. The exit code is 0 if all are passed.

    \b
    semifed check fedavg
    semifed check my_module:MyMethod
    semifed check exp.toml --set method=fedcon
    """
    is_file = method.endswith(".toml")
    findings = [] if is_file else conformance.check(read_method(method))
    found = None
    if all(one.passed for one in findings):
        experiment = Experiment.read(Path(method), assignments) if is_file else _experiment_of(method, assignments)
        found = leaving(experiment, data_dir)
    if as_json:
        extra = [{"meaning": finding.meaning, "advice": finding.advice} for finding in findings]
        asked = [one._asdict() | more for one, more in zip(findings, extra, strict=True)]
        click.echo(json.dumps({"findings": asked, "leaves": found and found.plain()}, indent=2))
    else:
        lines = [line for finding in findings for line in _lines(finding)]
        click.echo("\n".join([*lines, *(_told(found) if found else [])]))
    failed = [finding.question for finding in findings if not finding.passed]
    if failed:
        raise SemifedError(f"{method} fails {len(failed)} of {len(findings)} questions: {', '.join(failed)}")


def _experiment_of(name: str, assignments: Sequence[str]) -> Experiment:
    """The default experiment with a method, where labels are as it needs them."""
    method = read_method(name)
    words = [f"method={name}", f"scenario.labels={method.labels[0]}"]
    words += ["scenario.validation=20"] if method.needs_validation() else []
    return Experiment.read(None, [*words, *assignments])


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


def _told(found: Leaving) -> list[str]:
    """What leaves a client, for a person."""
    most = " at most" if any(one.partly for one in found.up) else ""
    lines = [f"what leaves a client at each visit ({found.method}, net {found.net}): {found.bytes:,} bytes{most}"]
    for part in dict.fromkeys(one.part for one in found.up):
        for one in (one for one in found.up if one.part == part):
            shapes = ", ".join(f"{name} {shape}" for name, shape in one.tensors.items())
            name = f"{part} / {one.layer}" if one.layer else part
            lines.append(f"  sends   {name}: {one.bytes:,} bytes{' at most' if one.partly else ''} ({shapes})")
    lines += ["  sends   no tensor"] if not found.up else []
    lines += [f"  tells   {name}: {meaning}" for name, meaning in found.counts.items()]
    lines += [f"  stays   {what}" for what in found.stays]
    lines += [f"  gets    {part}: {size:,} bytes" for part, size in found.down.items()]
    return [*lines, f"  could reveal: {found.reveals}", f"  differential privacy: {found.privacy}"]
