"""The site's side of a federation: it answers the server's letters with what it trains on its own data.

It runs no code but its own: the experiment arrives as settings, and is refused unless the method is one of this
package, or one that the site itself has named, and has the same hash as the server's.
"""

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from semifed import keys
from semifed.engine import site_data, wire
from semifed.engine.assemble import Assembly, assemble
from semifed.engine.blame import own_fault
from semifed.engine.local import Task
from semifed.engine.site_state import StateFolder
from semifed.engine.threads import threads
from semifed.engine.wire import Letter, LetterError
from semifed.errors import DataError, RunError, SemifedError, SettingError
from semifed.experiment import EngineSettings, Experiment
from semifed.methods import METHODS
from semifed.payload import pack, unpack
from semifed.results.evaluate import Examiner
from semifed.results.files import write_json
from semifed.results.record import strict

LARGEST = 2**31
"""Bytes of a message that a site takes, whatever the server's limit is."""

MOST_CLIENTS = 1_000_000

_RUN_ID = re.compile(r"[0-9a-f]{32}")


class SiteOptions(NamedTuple):
    """What a site decides for itself."""

    name: str
    data: str  # a source of its own, or part:DATA:K/N
    folder: Path  # where its state lies
    data_dir: Path | None = None
    own_method: str = ""  # module:Class, where the method does not come with the package
    device: str = "cpu"
    threads: int = 1


class Membership(NamedTuple):
    """A run that the site takes part in."""

    run: str
    client: int
    assembly: Assembly
    states: StateFolder
    limit: int


class Site:
    """Answers one letter after the other; training is warm, since it is the same process from round to round."""

    def __init__(
        self, options: SiteOptions, agree: Callable[[str], bool], say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._options, self._agree, self._say = options, agree, say
        self._member: Membership | None = None
        self.ended = ""  # the run that the server has said is over
        self.refused = ""  # why this site does not take part

    def answer(self, letter: Letter) -> Letter:
        """The answer to a letter; what goes wrong becomes an answer too, and nothing that is old is ever sent."""
        answers = {"invite": self._join, "train": self._train, "test": self._test, "end": self._end}
        kind = letter.head["kind"]
        if kind not in answers:
            return Letter({"kind": "failed", "reason": f"unknown kind of message {kind[:40]!r}"})
        try:
            return answers[kind](letter)
        except Exception as error:  # whatever a server sends, a site lives on
            self._say(f"{kind}: {self._place_of(error)}")
            refused = kind == "invite" and isinstance(error, SemifedError)
            self.refused = str(error) if refused else self.refused
            return Letter({"kind": "refused" if refused else "failed", "reason": _to_tell(error)})

    def _place_of(self, error: Exception) -> str:
        """An error for the people at this site; one in a method of their own with its file and line."""
        experiment = self._member.assembly.experiment if self._member else None
        fault = own_fault(error, experiment.method, experiment.net) if experiment else None
        return str(fault) if fault else f"{type(error).__name__}: {error}"

    def _join(self, letter: Letter) -> Letter:
        head = letter.head
        run = str(head.get("run", ""))
        if self._member is None or self._member.run != run:
            self._member = self._enter(run, head)
        own = self._member.assembly.scenario.clients[self._member.client]
        return Letter(
            {
                "kind": "joined",
                "run": run,
                **wire.identity(self._member.assembly.experiment.method),
                "labelled": len(own.labelled),
                "unlabelled": len(own.unlabelled),
            }
        )

    def _enter(self, run: str, head: dict[str, Any]) -> Membership:
        """Look whether this site can take part and ask whether it may."""
        if not _RUN_ID.fullmatch(run):
            raise LetterError("the invitation has no run number")
        experiment = self._experiment(head)
        place = _place(head)
        dataset, scenario = site_data.load(self._options.data, experiment, place, self._options.data_dir)
        assembly = assemble(experiment, dataset, scenario)
        states = StateFolder(self._options.folder / run)
        self._ask(assembly, place, states.folder / "agreed.json")
        return Membership(run, place.client, assembly, states, min(experiment.federation.limit * 10**6, LARGEST))

    def _experiment(self, head: dict[str, Any]) -> Experiment:
        """The server's experiment with this site's own device, once it is clear that both have the same method."""
        name, own = str(head.get("method", "")), self._options.own_method
        if name not in METHODS and name != own:
            raise SettingError(
                f"the server trains with {name[:60]!r}, which does not come with semifed; if you know it, "
                f"install it here and join with --method {name[:60]}"
            )
        try:
            tables = tomllib.loads(str(head.get("experiment", "")))
        except ValueError:
            raise LetterError("the experiment of the invitation is not TOML") from None
        method = tables.get("method")
        if (method.get("name") if isinstance(method, dict) else method) != name:  # its module would be imported
            raise LetterError("the experiment of the invitation has another method than the invitation says")
        experiment = Experiment.of(tables)
        if mismatch := wire.difference(head, wire.identity(experiment.method)):
            raise SettingError(f"{mismatch}; install the same on both sides")
        form = experiment.engine
        engine = EngineSettings(
            mode="auto" if form.mode == "fastest" else form.mode,
            layout=form.layout,
            device=self._options.device,
            threads=self._options.threads,
        )
        files = dataclasses.replace(experiment.files, cache=False)  # no copies of a site's data that it did not ask for
        return dataclasses.replace(experiment, engine=engine, files=files)

    def _ask(self, assembly: Assembly, place: site_data.Place, noted: Path) -> None:
        """Show what will happen and go on if someone says so; a yes holds for as long as nothing changes."""
        text = what_happens(assembly, place, self._options)
        agreed = {"site": self._options.name, "text": text}
        try:
            if json.loads(noted.read_bytes()) == agreed:
                return
        except (OSError, ValueError):
            pass
        if not self._agree(text):
            raise SettingError(f"the site {self._options.name} does not want to take part")
        write_json(noted, agreed)

    def _end(self, letter: Letter) -> Letter:
        """The run is over; so is this site's part in it."""
        self.ended = self._current(letter).run
        return Letter({"kind": "ended", "run": self.ended})

    def _current(self, letter: Letter) -> Membership:
        if self._member is None or letter.head.get("run") != self._member.run:
            raise LetterError("this site has not joined that run; invite it")
        return self._member

    def _train(self, letter: Letter) -> Letter:
        member, round = self._current(letter), letter.head.get("round")
        if type(round) is not int or not 0 <= round < member.assembly.experiment.train.rounds:
            raise LetterError("the letter is of no round of this run")
        workshop, method = member.assembly.workshop, member.assembly.experiment.method
        down = unpack(letter.body, member.limit)
        state = member.states.before(round)
        kept = state.kept
        if kept is None:
            key = keys.key(member.assembly.experiment.seed, "enroll", member.client)
            kept = method.enroll(member.assembly.net, down, key)
        with threads(self._options.threads):
            outcome = workshop.train(round, [Task(member.client, down, kept, state.visits + 1)])[0]
        body = pack(outcome.up)
        if len(body) > member.limit:
            raise RunError(f"the update has {len(body):,} bytes, over the limit of {member.limit:,}")
        member.states.save(round, outcome.kept, state.visits + 1)
        seen = {"examples": outcome.examples, "terms": outcome.terms, "notes": outcome.notes}
        return Letter({"kind": "trained", "run": member.run, "round": round, **strict(seen)}, body)

    def _test(self, letter: Letter) -> Letter:
        """The score of models on this site's own test images: two sums and a count leave, nothing else."""
        member = self._current(letter)
        images, labels = member.assembly.test_set()
        if not len(labels):
            return Letter({"kind": "tested", "run": member.run, "count": 0, "scores": {}})
        workshop = member.assembly.workshop
        examine = Examiner(workshop.net, images, labels, workshop.views["clean"], workshop.form.channels_last)
        models = unpack(letter.body, member.limit)
        scores = {name: examine(model)._asdict() for name, model in models.items()}
        return Letter({"kind": "tested", "run": member.run, "count": len(labels), "scores": strict(scores)})


def _to_tell(error: Exception) -> str:
    """What the server may hear of an error: names of a site's files and what stands in them are not its business."""
    if isinstance(error, SemifedError) and (not isinstance(error, DataError) or isinstance(error, site_data.TaskError)):
        return str(error)[:500]
    return f"{type(error).__name__} at the site, which has been told more"


def _place(head: dict[str, Any]) -> site_data.Place:
    """Which client of how many this site is, and of what task, as the invitation says."""
    client, clients, task = _number(head, "client"), _number(head, "clients"), head.get("task")
    if not client < clients <= MOST_CLIENTS:
        raise LetterError(f"the invitation makes this site client {client} of {clients}, which cannot be")
    if not isinstance(task, dict):
        raise LetterError("the invitation does not say what the task is")
    if missing := sorted({"classes", "shape", "mean", "std", "flips"} - set(task)):
        raise LetterError(f"the invitation does not say the task's {missing[0]}")
    return site_data.Place(client, clients, task)


def _number(head: dict[str, Any], name: str) -> int:
    value = head.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise LetterError(f"the invitation's {name}: {str(value)[:40]!r} is not a number")
    return value


def what_happens(assembly: Assembly, place: site_data.Place, options: SiteOptions) -> str:
    """What a person at the site should know before it takes part."""
    experiment, method = assembly.experiment, assembly.experiment.method
    own, kept = assembly.scenario.clients[place.client], ", ".join(method.keeps)
    keeps = f"its images, its labels, {kept}" if kept else "its images and its labels"
    lines = [
        f"site {options.name}, client {place.client} of {place.clients}",
        f"trains   {wire.identity(method)['method']} for up to {experiment.train.rounds} rounds on "
        f"{len(own.labelled)} labelled and {len(own.unlabelled)} unlabelled images of {options.data}",
        f"         {method.title}",
        f"receives {', '.join(method.down)}",
        f"sends    {', '.join(method.up)} ({assembly.net.size:,} parameters a net), how many images it has, "
        "and the means of its losses and of what the method counts (such as which classes it guesses)",
        f"         {method.leaves}",
        f"keeps    {keeps}; in {options.folder}",
    ]
    if len(assembly.scenario.test):
        lines.append(f"tests    models on {len(assembly.scenario.test)} images of its own; accuracy and loss are sent")
    return "\n".join(lines)
