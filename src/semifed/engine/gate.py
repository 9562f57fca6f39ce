"""The gate before merging, the same for every engine: what a client sends is looked at before it is used.

A reply is refused with a reason, `code` or `code: what exactly`:

    examples  metrics      counts and losses that are not numbers, out of range, or of another kind than the others'
    keys  shape  dtype     not the tensors that this method sends
    non_finite             NaN or infinity, in what is sent or kept
    norm                   longer than gate.norm times the median of its round
    unchanged              claims a loss, but sends back what it received

Replies of strangers, of other rounds, and second ones are not looked at: the first one that fits counts. Who sends
none in time is a straggler, not refused.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semifed.engine.local import Absent, Outcome, Reply, Task
from semifed.methods.base import Method
from semifed.nets.net import Net
from semifed.params import Parts, expand_as, leaves
from semifed.payload import Partial
from semifed.trust import GateSettings

FEWEST = 3
"""With fewer updates than these a median says nothing of the single ones."""


class Turn(NamedTuple):
    """One client's task, what came of it, and what it would have sent had it done nothing."""

    task: Task
    outcome: Outcome
    idle: Parts


class Passed(NamedTuple):
    """What a gate makes of a round's replies."""

    sound: list[Turn]
    refused: dict[str, str]  # reason by client
    stragglers: dict[str, str]  # who gave no answer, and why
    ignored: list[str]  # replies that were not looked at
    clipped: list[int]  # clients whose update was shortened
    idle: list[int]  # clients that had something to read, but changed nothing

    def told(self) -> dict[str, Any]:
        """What a round's row says of it."""
        told = self._asdict()
        return {name: told[name] for name in ("refused", "stragglers", "ignored", "clipped", "idle")}


class Gate(NamedTuple):
    """The rules, and what they need to know of the run."""

    rules: GateSettings
    method: Method
    net: Net
    private: bool = False  # each reply is judged by itself: no client may decide on another

    def __call__(self, round: int, tasks: Sequence[Task], answers: Sequence[Outcome | Absent | Reply]) -> Passed:
        """The turns that are sound, in the order of the tasks, and what is wrong with the others.

        An answer that does not say whose it is belongs to the task in its place.
        """
        replies = [
            one if isinstance(one, Reply) else Reply(tasks[place].client, round, one)
            for place, one in enumerate(answers)
        ]
        chosen, ignored = _first_of_each(round, tasks, replies)
        usual = _usual_metrics([one for one in chosen.values() if isinstance(one, Outcome)])
        turns, reasons, stragglers = list[Turn](), dict[str, str](), dict[str, str]()
        asked: Task | None = None  # whose idle upload is at hand: often all receive the same
        for task in tasks:
            outcome = chosen.get(task.client, Absent("no reply"))
            if isinstance(outcome, Absent):
                (reasons if outcome.refused else stragglers)[str(task.client)] = outcome.reason
                continue
            if asked is None or not (_same(task.down, asked.down) and _same(task.kept, asked.kept)):
                asked, idle = task, idle_upload(self.method, self.net, task)
            turn = Turn(task, outcome, idle)
            if reason := self._reason(turn, usual):
                reasons[str(task.client)] = reason
            else:
                turns.append(turn)
        norms = [update_norm(turn.outcome.up, turn.idle) for turn in turns]
        unmoved = {turn.task.client for turn, norm in zip(turns, norms, strict=True) if not norm}
        turns, clipped = self._within_norm(turns, norms, reasons)
        sound, still = self._that_moved(turns, unmoved, reasons)
        return Passed(sound, reasons, stragglers, ignored, clipped, still)

    def _reason(self, turn: Turn, usual: "_Metrics | None") -> str:
        """Why one outcome cannot be used, by itself; empty if it can."""
        outcome, most = turn.outcome, self.rules.most_examples
        if type(outcome.examples) is not int or not 0 <= outcome.examples <= most:
            return f"examples: {_plain(outcome.examples)} is not a number from 0 to {most}"
        if outcome.examples and (_metrics(outcome) is None if self.private else _metrics(outcome) != usual):
            return "metrics: not those that the others of this round send"
        if complaint := _misfit(outcome.up, turn.idle, "up"):
            return complaint
        # What is withheld does not matter, but is seldom anything else.
        if not _finite(outcome.up) and not _finite(tuple(one for one, _ in _pairs(outcome.up, turn.idle))):
            return "non_finite: in what is sent"
        return "" if _finite(outcome.kept) else "non_finite: in what is kept"

    def _within_norm(
        self, turns: Sequence[Turn], norms: Sequence[float], reasons: dict[str, str]
    ) -> tuple[list[Turn], list[int]]:
        """The turns whose updates are not too long, or have been made shorter, and whose have."""
        moved = [norm for norm in norms if norm > 0]
        limit = math.inf
        if self.rules.norm and len(moved) >= FEWEST and not self.private:
            limit = self.rules.norm * float(torch.tensor(moved, dtype=torch.float64).median())
        kept, clipped = list[Turn](), list[int]()
        for turn, norm in zip(turns, norms, strict=True):
            if norm <= limit and math.isfinite(norm):
                kept.append(turn)
            elif self.rules.beyond_norm == "clip" and math.isfinite(norm):
                shorter = scaled(turn.outcome.up, turn.idle, limit / norm)
                kept.append(turn._replace(outcome=turn.outcome._replace(up=shorter)))
                clipped.append(turn.task.client)
            else:
                reasons[str(turn.task.client)] = f"norm: {norm:.3g}, where the round allows {limit:.3g}"
        return kept, clipped

    def _that_moved(
        self, turns: Sequence[Turn], unmoved: set[int], reasons: dict[str, str]
    ) -> tuple[list[Turn], list[int]]:
        """All turns but those of free riders, and who had something to read but changed nothing."""
        kept, idle = list[Turn](), list[int]()
        for turn in turns:
            outcome, client = turn.outcome, turn.task.client
            still = outcome.examples > 0 and bool(outcome.up) and client in unmoved
            # Nothing sent at all is what a method makes of small changes (FedMatch): idle, but no lie.
            sent = still and any(True for _ in _pairs(outcome.up, turn.idle))
            if sent and any(outcome.terms.values()) and self.rules.unchanged == "refuse":
                reasons[str(client)] = "unchanged: claims a loss, but sends what it received"
                continue
            kept.append(turn)
            if still:
                idle.append(client)
        return kept, idle


def idle_upload(method: Method, net: Net, task: Task) -> Parts:
    """What a client would send that received its task and did nothing: what each update is measured from."""
    return method.upload(net, method.start(task.down, task.kept), task.down)


def update_norm(up: Parts, idle: Parts) -> float:
    """How far an upload is from one of a client that did nothing; what is withheld has not moved."""
    norms = [torch.linalg.vector_norm(one - two, dtype=torch.float64) for one, two in _pairs(up, idle)]
    return float(torch.stack(norms).norm()) if norms else 0.0


def scaled(up: Any, idle: Any, factor: float) -> Any:
    """An upload whose update is so many times as long; counters and masks stay."""
    if isinstance(up, Partial):
        return Partial(scaled(up.values, idle.values, factor), up.sent)
    if isinstance(up, Mapping):
        return {name: scaled(up[name], idle[name], factor) for name in up}
    return idle + factor * (up - idle) if up.is_floating_point() else up


def capped(examples: Sequence[int], share: float) -> list[int]:
    """Counts of which none is more than this share of their sum; equal ones where that cannot be."""
    claimed = [count for count in examples if count > 0]
    low, high = min(claimed, default=0), max(claimed, default=0)
    while low < high:
        cap = (low + high + 1) // 2
        if cap <= share * sum(min(count, cap) for count in claimed):
            low = cap
        else:
            high = cap - 1
    return [min(count, low) for count in examples]


def _first_of_each(
    round: int, tasks: Sequence[Task], replies: Sequence[Reply]
) -> tuple[dict[int, Outcome | Absent], list[str]]:
    """What each client first replied to its task of this round, and a word on every other reply."""
    chosen, ignored, wanted = dict[int, Outcome | Absent](), list[str](), {task.client for task in tasks}
    for reply in replies:
        if reply.client not in wanted:
            ignored.append(f"client {_plain(reply.client)}: was not asked")
        elif reply.round != round:
            ignored.append(f"client {reply.client}: of round {_plain(reply.round)}")
        elif reply.client in chosen:
            ignored.append(f"client {reply.client}: a second time")
        else:
            chosen[reply.client] = reply.outcome
    return chosen, ignored


_Metrics = tuple[tuple[str, int], ...]


def _metrics(outcome: Outcome) -> _Metrics | None:
    """Which terms and notes an outcome has, and of which lengths (-1: a single number); None if they are no numbers."""
    found = []
    for kind, numbers in (("term", outcome.terms), ("note", outcome.notes)):
        if not isinstance(numbers, Mapping):
            return None
        for name, value in numbers.items():
            if not all(type(number) in (int, float) for number in (value if isinstance(value, list) else [value])):
                return None
            found.append((f"{kind} {name}", len(value) if isinstance(value, list) else -1))
    return tuple(sorted(found))


def alike(turns: Sequence[Turn]) -> list[Turn]:
    """Those whose clients report what most do."""
    usual = _usual_metrics([turn.outcome for turn in turns])
    return [turn for turn in turns if _metrics(turn.outcome) == usual]


def _usual_metrics(outcomes: Sequence[Outcome]) -> _Metrics | None:
    """What most clients that had anything to read report; of equally many the first."""
    seen = Counter(found for outcome in outcomes if outcome.examples and (found := _metrics(outcome)) is not None)
    return seen.most_common(1)[0][0] if seen else None


def _misfit(got: Any, wanted: Any, path: str) -> str:
    """Where a payload is not made as the method makes it; empty if it is."""
    if isinstance(wanted, Tensor):
        return _misfit_tensor(got, wanted, path)
    if isinstance(got, Partial) != isinstance(wanted, Partial) or not isinstance(got, Partial | Mapping):
        return f"keys: {path} is not of the kind that was expected"
    if isinstance(got, Partial):
        return _misfit(got.values, wanted.values, path) or _misfit(got.sent, wanted.sent, f"mask of {path}")
    if strange := [name for name in got if name not in wanted]:
        return f"keys: {path} has a {_plain(strange[0])}, which this method does not send"
    if missing := [name for name in wanted if name not in got]:
        return f"keys: {path} lacks {missing[0]!r}"
    return next((found for name in wanted if (found := _misfit(got[name], wanted[name], f"{path}/{name}"))), "")


def _misfit_tensor(got: Any, wanted: Tensor, path: str) -> str:
    if not isinstance(got, Tensor):
        return f"keys: {path} is not a tensor"
    if got.dtype != wanted.dtype:
        return f"dtype: {path} is {_plain(got.dtype)}, not {wanted.dtype}"
    return "" if got.shape == wanted.shape else f"shape: {path} is {tuple(got.shape)}, not {tuple(wanted.shape)}"


def _pairs(up: Any, idle: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Every floating tensor that is sent beside that of a client that did nothing; 0 in both where it is withheld."""
    if isinstance(up, Partial):
        for name, value in up.values.items():
            mask = up.sent[name]
            if value.is_floating_point() and bool(mask.any()):
                pair = value, idle.values[name]
                if not bool(mask.all()):
                    withheld = ~expand_as(mask, value)
                    pair = pair[0].masked_fill(withheld, 0), pair[1].masked_fill(withheld, 0)
                yield pair
    elif isinstance(up, Mapping):
        for name in up:
            yield from _pairs(up[name], idle[name])
    elif up.is_floating_point():
        yield up, idle


def _finite(tree: Any) -> bool:
    """Whether no number of a tree is NaN or infinite: then a sum is neither, unless it is too large."""
    numbers = (tensor for tensor in leaves(tree) if tensor.is_floating_point())
    return all(bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all()) for tensor in numbers)


def _same(one: Any, two: Any) -> bool:
    """Whether two trees hold the very same tensors; masks may be copies."""
    if isinstance(one, Mapping):
        return one.keys() == two.keys() and all(_same(one[name], two[name]) for name in one)
    if isinstance(one, tuple):
        return all(_same(*pair) for pair in zip(one, two, strict=True))
    return one is two or (isinstance(one, Tensor) and one.dtype == torch.bool and torch.equal(one, two))


def _plain(value: Any) -> str:
    """What a stranger has sent, safe to print."""
    return repr(value)[:80]
