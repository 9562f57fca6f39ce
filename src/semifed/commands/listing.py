"""semifed list."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from semifed.commands import options
from semifed.data.file_settings import KINDS
from semifed.data.scenario import SCENARIOS, ScenarioSettings
from semifed.data.sources import SOURCES
from semifed.methods import METHODS
from semifed.nets.zoo import NETS


@click.command("list")
@click.argument("what", type=click.Choice(["methods", "data", "nets", "scenarios"]))
@options.as_json
def listing(what: str, as_json: bool) -> None:
    """Show what there is, with options and defaults.

    \b
    semifed list methods
    semifed list scenarios --json
    """
    content = {"methods": _methods, "data": _data, "nets": _nets, "scenarios": _scenarios}[what]()
    if as_json:
        click.echo(json.dumps(content, indent=2))
        return
    console = Console()
    for name, entry in content.items():
        console.print(Text.assemble((name, "bold"), f"  {entry['description']}"), soft_wrap=True)
        for option in entry.get("options", []):
            line = f"    {option['name']} = {_as_in_a_file(option['default'])}    {option['help']}"
            console.print(Text(line), soft_wrap=True)


def _as_in_a_file(default: Any) -> str:
    return "(not set)" if default is None else json.dumps(default)


def _fields(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _options(kind: type[Any], names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    return [
        {"name": field.name, "default": field.default, "help": field.metadata.get("help", "")}
        for field in dataclasses.fields(kind)
        if names is None or field.name in names
    ]


def _methods() -> dict[str, Any]:
    return {
        name: {
            "description": method.title,
            "labels": list(method.labels),
            "down": list(method.down),
            "up": list(method.up),
            "keeps": list(method.keeps),
            "options": _options(method, [one for one in _fields(method) if one not in method.idle]),
        }
        for name, method in METHODS.items()
    }


def _data() -> dict[str, Any]:
    own = {f"{kind}:{'NAME' if kind == 'hf' else 'PATH'}": words for kind, words in KINDS.items()}
    known = {name: source.description for name, source in SOURCES.items()}
    return {name: {"description": words} for name, words in (known | own).items()}


def _nets() -> dict[str, Any]:
    return {
        name: {
            "description": (plan.build.__doc__ or "").strip(),
            "options": [{"name": "norm", "default": plan.norm, "help": "batch, group or none"}],
        }
        for name, plan in NETS.items()
    }


def _scenarios() -> dict[str, Any]:
    return {
        name: {
            "description": f"{kind.description} (labels at: {', '.join(kind.labels)})",
            "labels": list(kind.labels),
            "options": _options(ScenarioSettings, kind.uses),
        }
        for name, kind in SCENARIOS.items()
    }
