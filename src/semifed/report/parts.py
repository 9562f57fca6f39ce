"""Who took part, for a report: every site of a federation, and of a simulation the clients with whom something was."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from semifed.report.tables import number, rendered
from semifed.results.collection import StoredRun
from semifed.results.folder import read_json
from semifed.results.participation import Part, participation

MOST = 50
"""Lines of one run; those with the most trouble."""

Plain = Mapping[str, Any]


def parts_of(run: StoredRun) -> dict[str, Any] | None:
    """The sites or clients of a run and what became of their answers; None if there is nothing to tell."""
    parts, names = participation(run.rows), _sites(run)
    told = (
        [parts.get(place, Part(place, 0, 0, 0, 0, {})) for place in range(len(names))]
        if names
        else list(parts.values())
    )
    if not names:
        told = sorted((one for one in told if _trouble(one)), key=lambda one: (-_trouble(one), one.client))
    if not told:
        return None
    return {
        "run": run.name,
        "rounds": [len(run.rows), run.rounds],
        "skipped": sum(1 for row in run.rows if row.get("skipped")),
        "sites": bool(names),
        "members": [
            {"name": names[one.client] if names else str(one.client), "counted": one.counted, **one._asdict()}
            for one in told[:MOST]
        ],
        "more": max(0, len(told) - MOST),
    }


def _trouble(part: Part) -> int:
    return part.late + part.refused + part.clipped


def _sites(run: StoredRun) -> list[str]:
    """The names of the sites by their number; none in a simulation."""
    file = run.path / "federation.json"
    found = read_json(file).get("sites") if file.exists() else None
    return [str(name) for name in found] if isinstance(found, list) else []


def parts_table(parts: Sequence[Plain]) -> str:
    """The section of the page; nothing where all is well in a simulation."""
    if not parts:
        return ""
    heads = ("Run", "Site or client", "#Drawn", "#Counted", "#Too late", "#Refused", "#Shortened", "Why")
    lead = (
        "Rounds for which a site, or in a simulation a client, was drawn, and what became of its answers. "
        "A federation shows all its sites, a simulation the clients with whom something was."
    )
    notes = "".join(f'<p class="sub">{html.escape(note)}</p>' for note in _notes(parts))
    table = rendered(heads, (_row(run, member) for run in parts for member in run["members"]))
    return (
        f'<section id="parts"><h2>Who took part</h2><p class="lead">{lead}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Who took part">{table}</div>{notes}</section>'
    )


def _row(run: Plain, member: Plain) -> Iterable[str]:
    done, wanted = run["rounds"]
    rounds = f"{done} of {wanted} rounds" if done != wanted else f"{done} rounds"
    name = member["name"] if run["sites"] else f"client {member['name']}"
    why = ", ".join(f"{reason} ({times})" for reason, times in member["why"].items())
    return (
        f'<th scope="row">{html.escape(run["run"])}<small>{rounds}</small></th>',
        f"<td>{html.escape(name)}</td>",
        *(number(member[one], str(member[one])) for one in ("drawn", "counted", "late", "refused", "clipped")),
        f'<td class="words">{html.escape(why)}</td>',
    )


def _notes(parts: Sequence[Plain]) -> Iterable[str]:
    for run in parts:
        if run["more"]:
            yield f"{run['run']}: and {run['more']} more clients"
        if run["skipped"]:
            yield f"{run['run']}: {run['skipped']} rounds without a quorum left the model as it was"
