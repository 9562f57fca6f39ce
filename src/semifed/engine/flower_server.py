"""The server's side of a federation: the clients of a run are sites behind a link, asked round by round.

Nothing waits for ever: a round has a deadline and a quorum, waiting for sites has an end, and a link that was lost
is made anew by whoever carries the letters, whereupon what was under way is asked again.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from semifed.engine import site_data, wire
from semifed.engine.assemble import Assembly
from semifed.engine.local import Absent, Outcome, Task
from semifed.engine.replies import read_trained
from semifed.engine.wire import Letter, LetterError
from semifed.errors import RunError
from semifed.params import place
from semifed.payload import PayloadError, pack


class LinkLostError(Exception):
    """The link broke and is up again; letters that were under way are gone."""


class Link(Protocol):
    """Whoever carries letters to sites, known by name, and their answers back."""

    def online(self) -> Collection[str]:
        """The sites that are connected."""
        ...

    def send(self, letters: Mapping[str, Letter], seconds: float) -> dict[str, str]:
        """Send a letter to each of these sites, good for so long; a receipt for each that was taken."""
        ...

    def collect(self, receipts: Collection[str]) -> dict[str, "Letter | Absent"]:
        """What has come back for these receipts; Absent if nothing will."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Federation(NamedTuple):
    """Who takes part in a run: its number, and the names of the sites in the order of their client ids."""

    run: str
    sites: Sequence[str]


class FlowerClients:
    """The clients of a run, at their own sites."""

    def __init__(
        self,
        assembly: Assembly,
        link: Link,
        federation: Federation,
        say: Callable[[str], None] = lambda _: None,
        poll: float = 0.3,
    ) -> None:
        self._assembly, self._link, self._run, self._sites = assembly, link, federation.run, list(federation.sites)
        self._say, self._poll = say, poll
        self._settings, train = assembly.experiment.federation, assembly.experiment.train
        self._least = self._settings.min_sites or min(train.clients_per_round, len(self._sites))
        self._quorum = self._settings.quorum or self._least
        self._limit = self._settings.limit * 10**6
        self._invited: dict[str, str] = {}  # receipts of invitations by site
        self._refusals: dict[str, str] = {}
        self._faults: dict[str, str] = {}  # why an answer of the last round was refused, by site
        self.joined: dict[str, dict[str, Any]] = {}
        self.connected: set[str] = set()
        self._done = 0  # rounds

    def present(self, round: int) -> list[int]:
        """The sites that have joined and are connected, once there are enough."""
        end, told = time.monotonic() + self._settings.patience, False
        while True:
            online = self._welcome()
            ready = [number for number, site in enumerate(self._sites) if site in self.joined and site in online]
            if len(ready) >= self._least:
                return ready
            if not told:
                here = f"{len(ready)} of {self._least} are here{self._why_fewer()}"
                self._say(f"round {round + 1}: waiting for sites, {here}")
                told = True
            if time.monotonic() > end:
                raise RunError(
                    f"federation.patience: after {self._settings.patience:g} s {len(ready)} of {self._least} sites are "
                    f"here{self._why_fewer()}; nothing is lost, go on with --resume when they are back"
                )
            time.sleep(self._poll)

    def train(self, round: int, tasks: Sequence[Task]) -> list[Outcome | Absent]:
        """The outcome of every task; a round without a quorum is held again, with those that have not answered."""
        answers: dict[int, Outcome | Absent] = {}
        for attempt in range(self._settings.attempts):
            missing = [task for task in tasks if not isinstance(answers.get(task.client), Outcome)]
            if attempt:
                self._say(f"round {round + 1}: {len(tasks) - len(missing)} answers are no quorum; asking again")
            answers |= _Turn(self, round, missing).hold()
            good = sum(1 for one in answers.values() if isinstance(one, Outcome))
            if good >= min(self._quorum, len(tasks)) or all(_final(one) for one in answers.values()):
                self._done = round + 1
                refused = {c: one.reason for c, one in answers.items() if isinstance(one, Absent) and one.refused}
                self._faults = {self._sites[client]: reason for client, reason in refused.items()}
                return [answers[task.client] for task in tasks]
        reasons = "; ".join(f"{self._sites[c]}: {one.reason}" for c, one in answers.items() if isinstance(one, Absent))
        raise RunError(
            f"federation.quorum: round {round + 1} got {good} of {min(self._quorum, len(tasks))} answers in "
            f"{self._settings.attempts} attempts of {self._settings.deadline:g} s ({reasons}); nothing is lost, go on "
            "with --resume when the sites are back"
        )

    def test(self, round: int, models: Mapping[str, Any]) -> dict[str, Any]:
        """The mean score of models over the sites' own test images, weighted by their number."""
        if not self._settings.site_test or not models:
            return {}
        letter = Letter({"kind": "test", "run": self._run, "round": round}, pack(dict(models)))
        online = self._welcome()
        receipts = self._link.send({site: letter for site in self.joined if site in online}, self._settings.deadline)
        found, end = dict[str, Letter | Absent](), time.monotonic() + self._settings.deadline
        while len(found) < len(receipts) and time.monotonic() < end:
            found |= self._link.collect(set(receipts.values()) - set(found))
            time.sleep(self._poll)
        heads = [one.head for one in found.values() if isinstance(one, Letter) and one.head["kind"] == "tested"]
        return _mean_scores(heads, list(models))

    def close(self) -> None:
        """Tell the sites that it is over, if it is, and let go of the link."""
        try:
            if self._done == self._assembly.experiment.train.rounds:
                self._farewell()
        finally:
            self._link.close()

    def _farewell(self) -> None:
        """Sites that hear it end; who does not hear it in a few seconds finds out by itself."""
        end = time.monotonic() + 10
        try:
            letter = Letter({"kind": "end", "run": self._run, "rounds": self._done})
            online = self._link.online()
            open_ = set(self._link.send({site: letter for site in self.joined if site in online}, 10).values())
            while open_ and time.monotonic() < end:
                open_ -= set(self._link.collect(open_))
                time.sleep(self._poll)
        except LinkLostError:
            pass

    def _welcome(self) -> set[str]:
        """Invite who is connected and has not joined, and hear who has; the sites that are connected."""
        try:
            online = set(self._link.online()) & set(self._sites)
            asked = set(self._invited) | set(self.joined) | set(self._refusals)
            letters = {site: self._invitation(site) for site in sorted(online - asked)}
            if letters:
                self._invited |= self._link.send(letters, self._settings.patience)
            replies = self._link.collect(set(self._invited.values()))
        except LinkLostError:
            self._invited.clear()
            return set()
        for site, receipt in list(self._invited.items()):
            if receipt in replies:
                del self._invited[site]
                self._hear(site, replies[receipt])
        self._refusals = {site: reason for site, reason in self._refusals.items() if site in online}
        self.connected = online
        return online

    def _hear(self, site: str, reply: Letter | Absent) -> None:
        """What a site says to its invitation; without an answer it is asked again when it is next seen."""
        if isinstance(reply, Absent) or reply.head["kind"] == "failed":
            return
        head = reply.head
        mismatch = wire.difference(head, wire.identity(self._assembly.experiment.method))
        if head["kind"] == "joined" and head.get("run") == self._run and not mismatch:
            self.joined[site] = {name: head.get(name) for name in ("labelled", "unlabelled")}
            self._say(f"{site} has joined")
        else:
            self._refusals[site] = str(head.get("reason", mismatch or head["kind"]))[:500]
            self._say(f"{site} does not join: {self._refusals[site]}")

    def _invitation(self, site: str) -> Letter:
        experiment = self._assembly.experiment
        return Letter(
            {
                "kind": "invite",
                "run": self._run,
                **wire.identity(experiment.method),
                "experiment": wire.shared(experiment),
                "client": self._sites.index(site),
                "clients": experiment.scenario.clients,
                "task": site_data.task_of(self._assembly.dataset),
            }
        )

    def _why_fewer(self) -> str:
        """What is known of sites that are not here: some do not join, some left because they were refused."""
        gone = {site: reason for site, reason in self._faults.items() if site not in self.connected}
        parts = [f"; {site} does not join: {reason}" for site, reason in self._refusals.items()]
        return "".join(
            [*parts, *(f"; {site} was refused in the last round: {reason}" for site, reason in gone.items())]
        )


class _Turn:
    """One attempt at a round: every site is asked once, and again if it was lost and came back in time."""

    def __init__(self, clients: FlowerClients, round: int, tasks: Sequence[Task]) -> None:
        self._all, self._round = clients, round
        self._open = {clients._sites[task.client]: task for task in tasks}
        self._end = time.monotonic() + clients._settings.deadline
        self._receipts: dict[str, str] = {}
        self._answers: dict[int, Outcome | Absent] = {}
        self._packed: dict[int, bytes] = {}

    def hold(self) -> dict[int, Outcome | Absent]:
        """The answers by client."""
        while self._open and time.monotonic() < self._end:
            try:
                self._step()
            except LinkLostError:
                self._receipts.clear()
            if self._open:
                time.sleep(self._all._poll)
        late = {task.client: Absent("no answer before the deadline") for task in self._open.values()}
        return self._answers | late

    def _step(self) -> None:
        online = self._all._welcome()
        wanting = [site for site in self._open if site not in self._receipts and site in online]
        letters = {site: self._letter(self._open[site]) for site in wanting if site in self._all.joined}
        if letters:
            left = max(self._end - time.monotonic(), 1.0)
            self._receipts |= self._all._link.send(letters, left)
        replies = self._all._link.collect(set(self._receipts.values()))
        for site, receipt in list(self._receipts.items()):
            if receipt in replies:
                del self._receipts[site]
                self._take(site, replies[receipt])

    def _letter(self, task: Task) -> Letter:
        own = id(task.down)
        if own not in self._packed:
            self._packed[own] = pack(task.down)
        return Letter({"kind": "train", "run": self._all._run, "round": self._round}, self._packed[own])

    def _take(self, site: str, reply: Letter | Absent) -> None:
        """Keep an answer; who was lost stays open, and is asked again when it is back."""
        everyone = self._all
        if isinstance(reply, Absent):
            if reply.refused:
                self._settle(site, reply)
            return
        if reply.head["kind"] == "failed" and "has not joined" in str(reply.head.get("reason")):
            everyone.joined.pop(site, None)  # it was started anew: invite it, then ask again
            return
        try:
            outcome = read_trained(reply, everyone._run, self._round, everyone._limit)
            self._settle(site, outcome._replace(up=place(outcome.up, everyone._assembly.workshop.device)))
        except (LetterError, PayloadError) as error:
            self._settle(site, Absent(str(error), refused=reply.head["kind"] != "failed"))

    def _settle(self, site: str, answer: Outcome | Absent) -> None:
        self._answers[self._open.pop(site).client] = answer


def _final(answer: Outcome | Absent) -> bool:
    """Whether asking again is of no use: an answer that was refused would be refused again."""
    return isinstance(answer, Outcome) or answer.refused


def _mean_scores(heads: Sequence[Mapping[str, Any]], models: Sequence[str]) -> dict[str, Any]:
    """Means over all images of all sites, of numbers that are in range."""
    sums: dict[str, list[float]] = {}
    total = 0
    for head in heads:
        count, scores = head.get("count"), head.get("scores")
        if type(count) is not int or not 0 < count < 2**40 or not isinstance(scores, dict):
            continue
        rows = [scores.get(name) for name in models]
        pairs = [[row.get("accuracy"), row.get("loss")] for row in rows if isinstance(row, dict)]
        numbers = [one for pair in pairs for one in pair]
        if len(pairs) != len(models) or not all(isinstance(one, int | float) for one in numbers):
            continue
        total += count
        for name, pair in zip(models, pairs, strict=True):
            before = sums.get(name, [0.0, 0.0])
            sums[name] = [old + count * float(new or 0) for old, new in zip(before, pair, strict=True)]
    means = {name: [one / total for one in pair] for name, pair in sums.items()}
    return {name: {"accuracy": pair[0], "loss": pair[1], "images": total} for name, pair in means.items()}
