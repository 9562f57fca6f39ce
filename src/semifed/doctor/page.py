"""The report of `semifed doctor` as one HTML page that needs nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from semifed.doctor.report import Report

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { border-bottom: 1px solid #8886; padding: .4rem .6rem; text-align: left; vertical-align: top; }
.error { color: #c62828; font-weight: 600; } .warning { color: #b26a00; font-weight: 600; }
.good { color: #2e7d32; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  .error { color: #ff8a80; } .warning { color: #ffcc80; } .good { color: #a5d6a7; }
}
"""


def page(report: Report) -> str:
    """The whole page; every text from the data is escaped."""
    verdict = (
        f'<p class="error">{report.errors} kinds of error, {report.warnings} of warning.</p>'
        if report.errors
        else f'<p class="warning">No error, {report.warnings} kinds of warning.</p>'
        if report.warnings
        else '<p class="good">Nothing is wrong.</p>'
    )
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{escape(report.data)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(report.data)}</h1>",
        verdict,
        _findings(report),
        "<h2>What there is</h2>",
        _pairs(report.facts),
        _table(["class", "labelled", "test"], ([name, *row.values()] for name, row in report.classes.items())),
        "<h2>Can these labels work?</h2>",
        *(f"<p>{escape(word)}</p>" for word in report.budget),
        "<h2>What this site would send</h2>",
        _pairs(report.sends) if report.sends else "<p>Not known while there are errors.</p>",
        "<p><small>This page names files of yours; it is for you alone.</small></p></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _findings(report: Report) -> str:
    if not report.findings:
        return ""
    rows = "".join(
        f'<tr><td class="{finding.level}">{finding.level}</td><td>{escape(finding.kind)}</td>'
        f"<td>{finding.count}</td><td>{'<br>'.join(map(escape, finding.examples))}</td></tr>"
        for finding in report.findings
    )
    return f"<table><tr><th></th><th>finding</th><th>how many</th><th>such as</th></tr>{rows}</table>"


def _pairs(facts: Mapping[str, Any]) -> str:
    return _table(["", ""], ([name, in_words(value)] for name, value in facts.items()))


def in_words(value: Any) -> str:
    """A plain value as a person reads it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {in_words(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value)) or "nothing"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns) if any(columns) else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>" if head else f"<table>{body}</table>"
