"""A table of text as Markdown, as LaTeX (booktabs), and plain records as CSV and back."""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from semifed.errors import SettingError

FORMATS = ("text", "markdown", "latex", "csv")

_LATEX = {
    **{"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "<": "$<$", ">": "$>$"},
    **{"γ": r"$\gamma$", "–": "--", "·": r"$\cdot$", "≤": r"$\leq$", "≥": r"$\geq$", "…": r"\dots{}"},
    "|": r"\textbar{}",
}


class TextTable(NamedTuple):
    """Columns and rows as people read them, and notes that a row may name by their number."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()

    def numbered(self) -> list[str]:
        """The notes, a line each."""
        return [f"({number}) {note}" for number, note in enumerate(self.notes, 1)]


def markdown(table: TextTable) -> str:
    """A table as GitHub and others render it; numbers to the right."""
    lines = [f"**{table.title}**", ""] if table.title else []
    lines.append(f"| {' | '.join(map(_markdown_cell, table.columns))} |")
    lines.append("|" + "|".join("---:" if right else "---" for right in _numeric(table)) + "|")
    lines += [f"| {' | '.join(map(_markdown_cell, row))} |" for row in table.rows]
    for note in table.numbered():
        lines += ["", _markdown_cell(note)]
    return "\n".join(lines) + "\n"


def _markdown_cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def latex(table: TextTable) -> str:
    """A tabular with booktabs' rules, to be put into a paper; needs \\usepackage{booktabs}."""
    spec = "".join("r" if right else "l" for right in _numeric(table))
    lines = [f"% {table.title}"] if table.title else []
    lines += [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", _latex_row(table.columns), r"\midrule"]
    lines += [*map(_latex_row, table.rows), r"\bottomrule", r"\end{tabular}"]
    for note in table.numbered():
        lines += ["", _latex_cell(note)]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex_cell, cells)) + r" \\"


def _latex_cell(text: str) -> str:
    """Plain text for TeX; a letter that pdflatex may not know becomes a question mark."""
    text = re.sub(r"(?<!\S)-(?=[\d.])", "−", text)  # the sign of a number, not a hyphen
    escaped = "".join(_LATEX.get(letter, letter if ord(letter) < 256 else "?") for letter in text)
    return f"{{}}{escaped}" if escaped.startswith("[") else escaped  # a bracket after \\ would be its option


def _numeric(table: TextTable) -> list[bool]:
    """Which columns hold numbers."""
    number = re.compile(r"[-+−]?[\d.,]+(e[-+]?\d+)?( ± [\d.]+)?.{0,12}|[–-]?")
    return [all(number.fullmatch(row[place]) for row in table.rows) for place in range(len(table.columns))]


def write_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as CSV: numbers in full, nothing as an empty field; `read_csv` gives the same records."""
    columns = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        writer.writerow([_field(record.get(name)) for name in columns])
    return text.getvalue()


def _field(value: Any) -> str:
    """A value as text that reads back as the same: text that looks like something else is put in quotes.

    So is text with a carriage return, which csv takes for the end of a line.
    """
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text) if isinstance(value, str) and (_value(text) != value or "\r" in text) else text


def read_csv(text: str) -> list[dict[str, Any]]:
    """Records as `write_csv` wrote them."""
    header, *rows = csv.reader(io.StringIO(text))
    return [{name: _value(field) for name, field in zip(header, row, strict=True)} for row in rows]


def _value(field: str) -> Any:
    if field == "":
        return None
    try:
        return json.loads(field)
    except ValueError:
        return field


def check_format(name: str) -> str:
    """A format there is."""
    if name not in FORMATS:
        raise SettingError(f"--format: {name!r} is unknown; known are: {', '.join(FORMATS)}")
    return name
