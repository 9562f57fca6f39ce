"""The shape of the house: sizes, one way of importing, nothing unreachable, nothing unsafe."""

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import semifed
from semifed.cli import COMMANDS

ROOT = Path(semifed.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
COMMAND_FILES = {f"semifed.commands.{place.partition(':')[0]}" for place in COMMANDS.values()}
ENTRANCES = ("semifed", "semifed.cli", "semifed.__main__", "semifed.federation.relay", *COMMAND_FILES)

ORDER: list[set[str]] = [
    {"errors", "keys", "writing", "batch", "params", "library"},
    {"settings", "payload"},
    {"training", "trust", "federation_settings"},
    {"data", "nets"},
    {"methods"},
    {"experiment"},
    {"results"},
    {"engine"},
    {"run", "conformance", "doctor", "trained", "skeletons"},
    {"federation"},
    {"planning", "sweeps"},
    {"papers"},
    {"terminal", "report", "logs"},
    {"live"},
    {"commands"},
    {"cli"},
    {"__main__"},
    {"__init__"},
]
"""A room imports from those before it; rooms in one line do not know each other."""

UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {"eval", "exec", "yaml.load", "os.system", "torch.jit.load"}
DEVICES = {"cuda", "mps", "xpu"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("semifed", *parts)).removesuffix(".__init__")


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


MODULES = {name_of(path): path for path in FILES}


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, by its full name."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path}: imports are absolute"
            assert node.level == 0, f"{path}: imports are absolute"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in inner)


def ids(path: Path) -> str:
    return name_of(path)


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_files_and_functions_are_short(path: Path) -> None:
    lines = len(path.read_text("utf-8").splitlines())
    is_method = room_of(path) == "methods" and path.stem != "base"  # which is what all methods share
    assert lines <= (150 if is_method else 300), f"{lines} lines"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 50, f"{node.name} is longer than 50 lines"


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_names_say_something(path: Path) -> None:
    empty = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
    assert not empty & set(name_of(path).split("."))
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef):
            assert not node.name.startswith("get_"), node.name
        if isinstance(node, ast.ClassDef):
            assert not node.name.startswith("Base"), node.name


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path)) or not path.read_text("utf-8").strip()


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_imports_point_one_way(path: Path) -> None:
    ranks = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
    own = room_of(path)
    assert own in ranks, f"{own} is new: say in ORDER where it stands"
    for name in imports(path):
        room = name.split(".")[1] if name.startswith("semifed.") else own
        assert room == own or ranks[room] < ranks[own], f"{name_of(path)} imports {name}"
    if own in ("methods", "data", "nets"):
        assert not any(name.split(".")[0] == "flwr" for name in imports(path))


def test_every_module_is_reached_from_an_entrance() -> None:
    waiting, seen = [name for name in ENTRANCES if name in MODULES], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        parents = [name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1)]
        waiting += [other for other in [*imports(MODULES[name]), *parents] if other in MODULES]
    assert set(MODULES) - seen == set()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_module_can_be_imported(name: str) -> None:
    importlib.import_module(name)


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def unsafe(path: Path) -> Iterator[str]:
    yield from UNSAFE_MODULES & {name.split(".")[0] for name in imports(path)}
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        options = {one.arg: one.value for one in node.keywords}
        values = {name: value.value for name, value in options.items() if isinstance(value, ast.Constant)}
        if called in UNSAFE_CALLS or values.get("allow_pickle") or values.get("shell"):
            yield called
        if values.get("weights_only") is False or (called == "torch.load" and values.get("weights_only") is not True):
            yield called


def fixed_devices(path: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.split(":")[0] in DEVICES:
            yield node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in DEVICES:
            yield node.func.attr


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_nothing_unsafe_is_called(path: Path) -> None:
    assert list(unsafe(path)) == []


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_no_tensor_is_made_on_a_fixed_device(path: Path) -> None:
    assert name_of(path) == "semifed.engine.assemble" or list(fixed_devices(path)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "eval(text)",
        "yaml.load(file)",
        "numpy.load(path, allow_pickle=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "subprocess.run(text, shell=True)",
        "x.cuda()",
        'torch.zeros(1, device="cuda:0")',
    ],
)
def test_the_searches_find_what_they_look_for(source: str, tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text(source, "utf-8")
    assert [*unsafe(path), *fixed_devices(path)]
    path = tmp_path / "other.py"
    path.write_text("torch.load(path, weights_only=True)\nmodule.eval()\ntorch.device(name)", "utf-8")
    assert [*unsafe(path), *fixed_devices(path)] == []
