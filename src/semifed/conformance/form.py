"""A first look at a method, before the questions: do its parts and functions fit together at all?

What is wrong here would make every question fail in words that do not help, so it is told first and alone.
"""

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from semifed.batch import Batch, Pool
from semifed.conformance.compare import describe
from semifed.conformance.world import World, twin, worlds
from semifed.data.views import VIEW_NAMES
from semifed.methods.base import Descend, Follow, Method, Move, Terms, Visit
from semifed.nets.net import Pass
from semifed.params import Parts
from semifed.settings import nearest


class Misshapen(Exception):  # noqa: N818  a finding, not a failure of ours
    """What a method's function gives back cannot be used; the message says why and what to do."""


def first_look(method: Method) -> Iterator[str]:
    """What does not fit together, each in a sentence that says what to do."""
    kind = type(method)
    yield from _not_options(kind)
    for name, purpose in (("reads", "which samples a step reads"), ("client", "what a client does in a step")):
        if getattr(kind, name) is getattr(Method, name):
            yield f"{kind.__name__} has no {name}(): write one that says {purpose}"
            return
    for role, pools in (("reads", method.reads()), ("server_reads", method.server_reads())):
        yield from _wrong_pools(role, pools)
    for role, moves in (("client", method.client()), ("server", method.server())):
        yield from _wrong_moves(role, moves)


def try_a_round(method: Method) -> None:
    """Play one round, and say in plain words what cannot work; `Misshapen` if there is such a thing."""
    for world in worlds(method):
        _look_at_parts(world)
        changed = {role: _as_given(_looked_at(role, moves)) for role, moves in _roles(method)}
        next(world.changed(method=twin(method, **changed)).scenes(1))


def _roles(method: Method) -> list[tuple[str, tuple[Move, ...]]]:
    return [("client", method.client()), ("server", method.server())]


def _as_given(moves: tuple[Move, ...]) -> Any:
    return lambda: moves


def _not_options(kind: type[Method]) -> Iterator[str]:
    """Annotated fields that did not become options, because the class is not a dataclass of its own."""
    hints = {name: str(hint) for name, hint in inspect.get_annotations(kind).items()}
    own = {name for name, hint in hints.items() if not hint.startswith(("ClassVar", "typing.ClassVar"))}
    lost = sorted(own - {one.name for one in dataclasses.fields(kind)})
    if lost:
        yield f"{kind.__name__}.{lost[0]} is not an option: put @dataclass(frozen=True) above the class"


def _wrong_pools(role: str, pools: Any) -> Iterator[str]:
    if not isinstance(pools, Mapping) or not all(isinstance(one, Pool) for one in pools.values()):
        yield f'{role}() must give a dict of Pools, such as {{"labelled": Pool("labelled", ("weak",))}}'
        return
    for name, pool in pools.items():
        if pool.holds not in ("labelled", "unlabelled", "all"):
            yield f'{role}(): pool {name} holds {pool.holds!r}; it can hold "labelled", "unlabelled" or "all"'
        if isinstance(pool.views, str):
            yield f'{role}(): the views of pool {name} are a text; write a tuple, such as ("{pool.views}",)'
            return
        for view in pool.views:
            if view not in VIEW_NAMES:
                yield f"{role}(): pool {name} asks for the view {view!r}; {nearest(view, VIEW_NAMES)}"


def _wrong_moves(role: str, moves: Any) -> Iterator[str]:
    if not isinstance(moves, Sequence) or not all(isinstance(move, Descend | Follow) for move in moves):
        yield f'{role}() must give a tuple of moves, such as (Descend(("net",), self.loss),): mind the last comma'
        return
    for move in moves:
        parts = move.parts if isinstance(move, Descend) else move.of
        if isinstance(parts, str):
            yield f'{role}(): {type(move).__name__} names its parts as a text; write a tuple, such as ("{parts}",)'


def _look_at_parts(world: World) -> None:
    """Do the parts that are named exist where they are needed?"""
    method, net = world.method, world.assembly.net
    server = method.init(net, 0)
    _require("init()", server, method.down, "down")
    down = method.download(server, Visit(0, 0, 0))
    kept = method.enroll(net, down, 0)
    _require("enroll()", kept, method.keeps, "keeps")
    parts = method.start(down, kept)
    _require("start()", parts, method.keeps, "keeps")
    for move in method.client():
        _require("start()", parts, move.parts if isinstance(move, Descend) else (move.part, *move.of), "client()")
    for move in method.server():
        _require("init()", server, move.parts if isinstance(move, Descend) else (move.part, *move.of), "server()")
    _require("upload()", method.upload(net, parts, down), method.up, "up")


def _require(source: str, parts: Any, names: Iterable[str], wanted_by: str) -> None:
    if not isinstance(parts, Mapping):
        raise Misshapen(f"{source} must give a dict of parts by name, not {type(parts).__name__}")
    for name in names:
        if name not in parts:
            have = ", ".join(map(str, parts)) or "nothing"
            raise Misshapen(f"{wanted_by} names the part {name!r}, but {source} has {have}")


def _looked_at(role: str, moves: Sequence[Move]) -> tuple[Move, ...]:
    """The same moves, whose losses are looked at before they are used."""

    def looked(move: Descend) -> Descend:
        def loss(net: Pass, parts: Parts, batch: Batch) -> Terms:
            terms = move.loss(net, parts, batch)
            _check_terms(role, move, terms)
            return terms

        return Descend(move.parts, loss)

    return tuple(looked(move) if isinstance(move, Descend) else move for move in moves)


def _check_terms(role: str, move: Descend, terms: Any) -> None:
    name = getattr(move.loss, "__name__", "the loss")
    if not isinstance(terms, Mapping):
        example = '{"cross_entropy": ...}'
        raise Misshapen(f"{role}: {name}() gives a {type(terms).__name__}; it must give named terms, as {example}")
    for term, value in terms.items():
        if not isinstance(value, Tensor):
            raise Misshapen(f"{role}: term {term} of {name}() is a {type(value).__name__}, not a tensor")
        if value.dim():
            raise Misshapen(f"{role}: term {term} of {name}() is {describe(value)}; take its mean over the real rows")
