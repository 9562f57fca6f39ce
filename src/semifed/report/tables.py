"""Tables of a page, which need no script; with one, a click on a head sorts them."""

import html
from collections.abc import Iterable


def rendered(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table that a click on a head sorts; '#' marks a column of numbers."""
    cells = [
        f'<th scope="col"{" class=number" if head.startswith("#") else ""}>'
        + (f'<button type="button">{html.escape(head.lstrip("#"))}</button>' if head else "")
        + "</th>"
        for head in heads
    ]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<table class="sortable"><thead><tr>{"".join(cells)}</tr></thead><tbody>{body}</tbody></table>'


def number(value: float | None, text: str) -> str:
    """A cell with a number, by which the column is sorted, as a text."""
    return f'<td class="number" data-value="{"" if value is None else value}">{html.escape(text)}</td>'
