"""Settings: what cannot be meant is refused with the key, what was given and what is expected; TOML in and out."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semifed.errors import SettingError
from semifed.settings import Settings, build, nearest, option, override, parse_value, read_toml, write_toml


@dataclass(frozen=True)
class Inner(Settings):
    table: ClassVar[str] = "inner"

    size: int = option(3, "a size", least=1, most=9)


@dataclass(frozen=True)
class Sample(Settings):
    table: ClassVar[str] = "sample"

    count: int = option(1, "how many", least=0)
    share: float = option(0.5, "a share", above=0, below=1)
    most: float = option(1.0, "at most ten", most=10)
    flag: bool = option(True, "yes or no")
    word: str = option("a", "a word")
    kind: Literal["red", "green"] = option("red", "a colour")
    limit: int | None = option(None, "none or a number", least=1)
    names: tuple[str, ...] = option((), "some names")
    sides: tuple[int, ...] = option((1,), "some numbers")
    inner: Inner = field(default_factory=Inner)


def test_values_are_made_what_the_field_says() -> None:
    made = build(Sample, {"share": 1 / 4, "most": 3, "names": ["x", "y"], "inner": {"size": 2}})
    assert made == Sample(share=0.25, most=3.0, names=("x", "y"), inner=Inner(2))
    assert isinstance(made.most, float)
    assert Sample(limit=None).limit is None
    assert build(Sample, {"limit": "none"}).limit is None
    assert hash(made) == hash(Sample(share=0.25, most=3.0, names=("x", "y"), inner=Inner(2)))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"cuont": 1}, "s.cuont: no such setting; did you mean count?"),
        (
            {"zzz": 1},
            "s.zzz: no such setting; known are: count, share, most, flag, word, kind, limit, names, sides, inner",
        ),
        ({"count": "ten"}, "s.count: expected a whole number, not 'ten'"),
        ({"count": 1.0}, "s.count: expected a whole number, not 1.0"),
        ({"count": True}, "s.count: expected a whole number, not True"),
        ({"count": None}, "s.count: expected a whole number, not None"),
        ({"share": "0.5"}, "s.share: expected a number, not '0.5'"),
        ({"share": False}, "s.share: expected a number, not False"),
        ({"flag": 1}, "s.flag: expected true or false, not 1"),
        ({"flag": "false"}, "s.flag: expected true or false, not 'false'"),
        ({"word": 3}, "s.word: expected text, not 3"),
        ({"kind": "gren"}, "s.kind: 'gren' is unknown; did you mean green?"),
        ({"kind": ["red"]}, "s.kind: ['red'] is unknown; did you mean red?"),
        ({"limit": "all"}, "s.limit: expected a whole number, not 'all'"),
        ({"names": "x"}, "s.names: expected a list, not 'x'"),
        ({"names": [3]}, "s.names: expected text, not 3"),
        ({"sides": [1, 2.5]}, "s.sides: expected a whole number, not 2.5"),
        ({"inner": 3}, "s.inner: expected a table, not 3"),
        ({"inner": {"size": "x"}}, "s.inner.size: expected a whole number, not 'x'"),
        ({"inner": {"sise": 1}}, "s.inner.sise: no such setting; did you mean size?"),
        ({"inner": {"size": 10}}, "inner.size: must be at least 1 and at most 9, not 10"),
        ({"count": -1}, "sample.count: must be at least 0, not -1"),
        ({"share": 0}, "sample.share: must be above 0 and below 1, not 0.0"),
        ({"share": 1}, "sample.share: must be above 0 and below 1, not 1.0"),
        ({"share": float("nan")}, "sample.share: must be above 0 and below 1, not nan"),
        ({"most": float("-inf")}, "sample.most: must be a number of reasonable size, not -inf"),
        ({"most": 10**400}, "sample.most: must be at most 10, not 9.223372036854776e+18"),
        ({"count": 2**63}, "sample.count: must be a number of reasonable size, not 9223372036854775808"),
        ({"limit": 0}, "sample.limit: must be at least 1, not 0"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        build(Sample, table, "s")
    assert str(caught.value) == message


def test_the_same_holds_in_python() -> None:
    for wrong in ({"count": "ten"}, {"share": 2.0}, {"kind": "blue"}, {"names": "xy"}):
        with pytest.raises(SettingError, match=r"^sample\."):
            Sample(**wrong)


def test_a_field_without_default_must_be_given() -> None:
    @dataclass(frozen=True)
    class Strict(Settings):
        level: int

    assert build(Strict, {"level": 3}).level == 3
    with pytest.raises(SettingError, match=r"^method\.level: must be given$"):
        build(Strict, {}, "method")


def test_nearest_names_one_or_all() -> None:
    assert nearest("fedavgg", ["fedavg", "fedprox"]) == "did you mean fedavg?"
    assert nearest("q", ["fedavg", "fedprox"]) == "known are: fedavg, fedprox"


@pytest.mark.parametrize(
    "content",
    [b'a = 1\n[t]\nb = "x"\n', b'\xef\xbb\xbfa = 1\n[t]\nb = "x"\n', b'a = 1\r\n[t]\r\nb = "x"\r\n'],
    ids=["plain", "byte order mark", "Windows line ends"],
)
def test_files_of_any_editor_are_read(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "über uns.toml"
    path.write_bytes(content)
    assert read_toml(path) == {"a": 1, "t": {"b": "x"}}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'a = "\xff"', "is not UTF-8 text"),
        ('a = "x"'.encode("utf-16"), "is not UTF-8 text"),
        (b"a = 1\na = 2", "is not valid TOML: Cannot overwrite a value"),
        (b"[t]\na = 1\n[t]\nb = 2", "is not valid TOML: Cannot declare"),
        (b"a = ", "is not valid TOML: Invalid value"),
        (b"a = " + b"9" * 5000, "is not valid TOML"),
        (b"a = " + b"[" * 3000, "is not valid TOML"),
    ],
    ids=["latin-1", "utf-16", "duplicate key", "duplicate table", "no value", "endless number", "endless list"],
)
def test_bad_files_are_named(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=rf"e\.toml: {problem}"):
        read_toml(path)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"none\.toml: there is no such file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(SettingError, match="is a folder"):
        read_toml(tmp_path)
    with pytest.raises(SettingError, match="cannot be read"):
        read_toml(tmp_path / ("x" * 300))


def test_toml_out_has_plain_values_first_and_leaves_out_nothing() -> None:
    tables = {"a": {"x": 1, "gone": None}, "seed": 3, "b": {}, "list": (1.0, 2.5), "none": None}
    assert write_toml(tables) == "seed = 3\nlist = [1.0, 2.5]\n\n[a]\nx = 1\n\n[b]\n"


texts = st.text(st.characters(codec="utf-8"))
values = texts | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
names = st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True)


@given(st.dictionaries(names, values | st.lists(values) | st.dictionaries(names, values | st.lists(values))))
def test_any_tables_come_back_from_toml(tables: dict[str, Any]) -> None:
    assert tomllib.loads(write_toml(tables)) == tables


@pytest.mark.parametrize("text", ['"', "\\", "a\nb\r\n", "\x7f\x00\x1b", "日本 ümläut 🙂", "'''", "#", "= ["])
def test_odd_text_comes_back_from_toml(text: str) -> None:
    assert tomllib.loads(write_toml({"t": {"x": text}})) == {"t": {"x": text}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("false", False),
        ("true", True),
        ("False", "False"),
        ("3", 3),
        ("1e-3", 0.001),
        ("0.5", 0.5),
        ("-2", -2),
        ("fedavg+", "fedavg+"),
        ('"quoted"', "quoted"),
        ("[1, 2]", [1, 2]),
        ('["shift"]', ["shift"]),
        ("[shift]", "[shift]"),
        ("", ""),
        ('{name = "fedprox", mu = 0.1}', {"name": "fedprox", "mu": 0.1}),
        ("1\nother = 2", "1\nother = 2"),
        ("9" * 5000, "9" * 5000),
    ],
    ids=lambda value: str(value)[:20],
)
def test_values_of_the_command_line(text: str, value: Any) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_override_reaches_into_tables() -> None:
    tables: dict[str, Any] = {"method": "fedavg", "train": {"rounds": 3}, "seed": 1}
    for assignment in ("train.rounds=5", " method.repeat = 2", "seed=7", "new.deep.key=a=b"):
        override(tables, assignment)
    assert tables == {
        "method": {"name": "fedavg", "repeat": 2},
        "train": {"rounds": 5},
        "seed": 7,
        "new": {"deep": {"key": "a=b"}},
    }


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("rounds", "--set rounds: expected key=value, such as train.rounds=50"),
        ("=3", "--set =3: expected key=value"),
        ("seed.x=3", "--set seed.x=3: seed is a plain value, not a table"),
    ],
)
def test_bad_assignments_are_named(assignment: str, problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        override({"seed": 1}, assignment)
    assert problem in str(caught.value)
