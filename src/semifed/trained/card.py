"""A model's card: what it was trained on, how, how good it is, and how to make and use it again."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semifed.data.scenario import Scenario
from semifed.errors import SemifedError
from semifed.experiment import read_method
from semifed.nets.net import in_words
from semifed.results.folder import read_json
from semifed.settings import read_toml
from semifed.trained.model import Model

USE = {
    "onnx": """import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
images = np.zeros((1, {shape}), np.{kind})  # {about}
logits, probabilities = session.run(None, {{"images": images}})""",
    "torch": """import torch

program = torch.export.load("model.pt2").module()
images = torch.zeros(1, {shape}, dtype=torch.{kind})  # {about}
logits, probabilities = program(images)""",
    "safetensors": """from safetensors.torch import load_file

state = load_file("model.safetensors")  # for load_state_dict of the net; model.json says how images are made ready""",
}


def card(model: Model, files: Mapping[str, Path]) -> str:
    """The card as Markdown, all of it read from the run's folder."""
    tables = read_toml(model.run / "experiment.toml")
    summary, environment = (read_json(model.run / f"{name}.json") for name in ("summary", "environment"))
    title = f"# {tables['method']['name']} on {tables['data']}"
    sections = {
        "The model": _model(model),
        "Data": _data(model, tables, environment),
        "Method": _method(tables),
        "Result": _result(summary),
        "Limits": _limits(summary),
        "How to use it": _use(model, files),
        "How to make it again": _again(tables, environment),
        "Software": _software(environment),
    }
    return "\n\n".join([title, *(f"## {name}\n\n{text}" for name, text in sections.items())]) + "\n"


def _model(model: Model) -> str:
    taken = model.taken
    return (
        f"A classifier of {in_words(taken.shape)} into {len(taken.classes)} "
        f"classes: {', '.join(taken.classes)}. The net is `{model.net.name}` with {model.net.size:,} parameters."
    )


def _data(model: Model, tables: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    split = Scenario.load(model.run / "split.safetensors")
    labelled = sum(len(client.labelled) for client in split.clients)
    unlabelled = sum(len(client.unlabelled) for client in split.clients)
    rows = {
        "data": f"`{tables['data']}`, SHA-256 of the images `{environment['data'][:16]}`",
        "sites": f"{len(split.clients)}, partition `{tables['scenario']['partition']}`",
        "labels at": tables["scenario"]["labels"],
        "labelled samples at the sites": f"{labelled:,}",
        "unlabelled samples at the sites": f"{unlabelled:,}",
        "labelled samples at the server": f"{len(split.server.labelled):,}",
        "held out for validation": f"{len(split.validation):,}",
        "test": f"{len(split.test):,}",
        "split": f"`{split.digest()[:16]}`, in full in the run's `split.safetensors`",
    }
    return _table(rows)


def _method(tables: Mapping[str, Any]) -> str:
    options = {name: value for name, value in tables["method"].items() if name != "name"}
    try:
        kind = type(read_method(tables["method"]))
        about = f"{kind.title}. {kind.leaves}" if kind.title else kind.leaves
    except SemifedError:  # a method of one's own that is not importable here
        about = "A method of one's own."
    train, client = tables["train"], tables["client"]
    lines = [
        f"`{tables['method']['name']}`: {about}",
        f"{train['rounds']} rounds of {train['clients_per_round']} sites; at a site {client['epochs']} epochs with "
        f"batches of {client['batch']}, SGD, learning rate {client['lr']}, momentum {client['momentum']}; "
        f"seed {tables['seed']}.",
        _table({f"`{name}`": f"`{value}`" for name, value in options.items()}),
    ]
    return "\n\n".join(lines)


def _result(summary: Mapping[str, Any]) -> str:
    rows = ["| model | last round % | best round % |", "|---|---:|---:|"]
    for name, places in summary["models"].items():
        cells = [f"{places[one]['accuracy']:.2f} (round {places[one]['round']})" for one in ("last", "best")]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    sent = sum(summary["bytes"].values()) / 1e6
    told = f"The numbers here are those of the last round. {summary['rounds']} rounds, {sent:,.1f} MB sent in all, "
    told += f"{summary['seconds']:,.0f} s; the run is {summary['status']}."
    return "\n".join([*rows, "", told])


def _limits(summary: Mapping[str, Any]) -> str:
    lines = [
        "The accuracy is that of one run with one seed on the test set above; elsewhere it may be lower.",
        "The best round was picked on the test set and is no estimate for new images.",
        "Probabilities are as the net gives them, not calibrated.",
    ]
    if summary.get("alarms"):
        lines.append(
            f"In {summary['alarms']} rounds there was an alarm: pseudo-labels almost all, or one client's, of one "
            "class, or clients that sent next to nothing."
        )
    return "\n".join(f"- {line}" for line in lines)


def _use(model: Model, files: Mapping[str, Path]) -> str:
    shape = ", ".join(map(str, model.taken.shape))
    kind = ("float32", "numbers as they are") if model.taken.vectors else ("uint8", "pixels as they are, 0 to 255")
    made = [USE[name].format(shape=shape, kind=kind[0], about=kind[1]) for name in USE if name in files]
    blocks = [f"```python\n{text}\n```" for text in made]
    order = "The order of the classes is the one above."
    return "\n\n".join([f"With Semifed: `semifed predict {model.run.as_posix()} FOLDER`. {order}", *blocks])


def _again(tables: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    command = environment.get("command") or []
    words = shlex.join(["semifed", *command[1:]]) if command else "semifed run experiment.toml"
    flat = [f"{name}={value}" for name, value in tables.items() if not isinstance(value, Mapping)]
    told = "The run's `experiment.toml` runs it again, to the last bit on the same software"
    return f"It was started with\n\n```text\n{words}\n```\n\n{told} (`semifed run experiment.toml`; {', '.join(flat)})."


def _software(environment: Mapping[str, Any]) -> str:
    names = ("semifed", "python", "torch", "numpy", "platform", "device")
    return _table({name: str(environment.get(name, "not recorded")) for name in names})


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
