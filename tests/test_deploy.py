"""The deployment kit: every command in it and in its pages is one that the command line takes, and its files agree."""

import itertools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from semifed import __version__
from semifed.cli import cli
from semifed.errors import RunError
from semifed.results.folder import check_free
from test_snippets import ELSEWHERE

ROOT = Path(__file__).parent.parent
KIT = ROOT / "deploy"
PAGES = [ROOT / name for name in sorted(ELSEWHERE)]
SHELL = {">", ">>", "<", "|", "&", "&&", "||", ";", "2>&1"}
"""From the first of these on a line is the shell's."""

SAMPLES = {"SERVER": "server.example.org:8443", "SITE": "north", "DATA": "folder:/data/north", "%i": "north"}


def _documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def _filled(word: str) -> str:
    """A word with something in the place of variables."""
    word = re.sub(r"\$\{(\w+)(:[^}]*)?\}", lambda found: SAMPLES[found[1]], word)
    return word.replace("%i", SAMPLES["%i"])


def _services(path: Path) -> dict[str, dict[str, Any]]:
    (content,) = _documents(path)
    services: dict[str, dict[str, Any]] = content["services"]
    return services


def _pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((KIT / "kubernetes").glob("*.yaml")):
        for content in _documents(path):
            if content["kind"] == "Job":
                yield path.name, content["spec"]["template"]["spec"]


def _in_pages() -> Iterator[tuple[str, str]]:
    """Command lines of the pages' code blocks; a backslash at the end goes on in the next line."""
    for page in PAGES:
        for block in re.findall(r"```(?:console|sh|bash)\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                yield page.name, line.strip().removeprefix("$ ")


def _commands() -> Iterator[tuple[str, list[str]]]:
    for path in sorted(KIT.glob("compose.*.yaml")):
        for service in _services(path).values():
            yield path.name, service["command"]
    for name, pod in _pods():
        for container in pod["containers"]:
            yield name, container["args"]
    for path in sorted((KIT / "systemd").iterdir()):
        for line in re.findall(r"^ExecStart=(.*)$", path.read_text("utf-8"), flags=re.MULTILINE):
            program, *words = shlex.split(line)
            assert program == "/opt/semifed/bin/semifed"
            yield path.name, words
    for name, line in _in_pages():
        if line.startswith("semifed "):
            words = shlex.split(line, comments=True)[1:]
            yield name, list(itertools.takewhile(lambda word: word not in SHELL, words))


COMMANDS = [(where, [_filled(word) for word in words]) for where, words in _commands()]


def _parse(command: click.Command, words: Sequence[str]) -> None:
    """Parse a command line as far as its last command, without running anything."""
    if isinstance(command, click.Group):
        inner = command.get_command(click.Context(command), words[0])
        if inner is None:
            raise click.UsageError(f"there is no command {words[0]}")
        _parse(inner, words[1:])
    else:
        command.make_context(command.name, list(words)).close()


@pytest.mark.parametrize(("where", "words"), COMMANDS, ids=[f"{where}-{' '.join(words)}" for where, words in COMMANDS])
def test_every_command_is_one_that_the_command_line_takes(where: str, words: list[str]) -> None:
    _parse(cli, words)


def test_the_search_finds_commands_and_the_parser_refuses() -> None:
    assert {where for where, _ in COMMANDS} >= {
        "compose.server.yaml",
        "compose.site.yaml",
        "server.yaml",
        "site.yaml",
        "semifed-server.service",
        "semifed-site@.service",
        "deploy.md",
        "ray.md",
    }
    for words in (["run", "--nonsense"], ["no-such-command"], ["split", "make", "--nonsense"]):
        with pytest.raises(click.UsageError):
            _parse(cli, words)


def test_versions_agree_with_the_package() -> None:
    dockerfile = (KIT / "Dockerfile").read_text("utf-8")
    constraints = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    (torch,) = re.findall(r'"(torch==[^"]+)"', dockerfile)
    assert torch in constraints
    images = {service["image"] for path in KIT.glob("compose.*.yaml") for service in _services(path).values()}
    for _, pod in _pods():
        images |= {container["image"] for container in (*pod["initContainers"], *pod["containers"])}
    assert images == {f"semifed:{__version__}"}
    bases = set(re.findall(r"^FROM (\S+)", dockerfile, flags=re.MULTILINE))
    assert len(bases) == 1, "built and run on the same"
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", bases.pop())


def test_nothing_runs_as_root_or_may_become_it() -> None:
    dockerfile = (KIT / "Dockerfile").read_text("utf-8")
    assert re.findall(r"^USER (.*)$", dockerfile, flags=re.MULTILINE) == ["10001:10001"]
    for path in KIT.glob("compose.*.yaml"):
        for service in _services(path).values():
            assert service["user"].startswith("${SEMIFED_UID:-10001}")
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
            assert service["security_opt"] == ["no-new-privileges:true"]
    for _, pod in _pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        for container in (*pod["initContainers"], *pod["containers"]):
            closed = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["securityContext"] == closed
    for path in (KIT / "systemd").iterdir():
        text = path.read_text("utf-8")
        assert "\nUser=semifed\n" in text
        assert "\nNoNewPrivileges=yes\n" in text


def test_sites_open_no_port_and_read_their_data_only() -> None:
    (site,) = _services(KIT / "compose.site.yaml").values()
    assert "ports" not in site
    assert next(volume for volume in site["volumes"] if ":/data" in volume).endswith(":/data:ro")
    assert not any(content["kind"] == "Service" for content in _documents(KIT / "kubernetes" / "site.yaml"))
    (pod,) = [pod for name, pod in _pods() if name == "site.yaml"]
    for container in pod["containers"]:
        assert "ports" not in container
        assert {"name": "data", "mountPath": "/data", "readOnly": True} in container["volumeMounts"]


def test_paths_in_commands_are_mounted() -> None:
    for name, pod in _pods():
        for container in pod["containers"]:
            mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
            values = [word.partition("=")[2] if word.startswith("--") else word for word in container["args"]]
            paths = [value.removeprefix("folder:") for value in values if value.removeprefix("folder:").startswith("/")]
            assert len(paths) == 3
            for path in paths:
                assert any(Path(path).is_relative_to(mount) for mount in mounted), f"{name}: {path}"


def test_the_folder_of_the_run_is_made_before_the_server_starts(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no such run"):
        check_free(tmp_path / "federation", leftover=True)
    (tmp_path / "federation").mkdir()
    check_free(tmp_path / "federation", leftover=True)
    assert "\nExecStartPre=/usr/bin/mkdir -p federation\n" in (KIT / "systemd/semifed-server.service").read_text(
        "utf-8"
    )
    (pod,) = [pod for name, pod in _pods() if name == "server.yaml"]
    assert "/work/runs/federation" in pod["initContainers"][0]["args"][0]
    assert {"name": "work", "mountPath": "/work"} in pod["initContainers"][0]["volumeMounts"]
    assert "mkdir -p data runs/federation" in (ROOT / "docs/how-to/deploy.md").read_text("utf-8")


# linters, where they are installed; `make check-deploy` installs and runs all of them


def _tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(ROOT / ".venv-lint" / "bin"))
    if found is None:
        pytest.skip(f"{name} is not installed; `make check-deploy` has it")
    return found


def _passes(*words: str | Path) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_passes_its_linter() -> None:
    _passes(_tool("hadolint"), KIT / "Dockerfile")


def test_compose_files_fit_their_schema() -> None:
    tool = _tool("check-jsonschema")
    _passes(tool, "--builtin-schema", "vendor.compose-spec", *sorted(KIT.glob("compose.*.yaml")))


def test_kubernetes_files_fit_their_schemas() -> None:
    _passes(_tool("kubernetes-validate"), "--strict", *sorted((KIT / "kubernetes").glob("*.yaml")))


def test_systemd_units_are_sound(tmp_path: Path) -> None:
    tool = _tool("systemd-analyze")
    for path in (KIT / "systemd").iterdir():
        unit = tmp_path / path.name
        unit.write_text(path.read_text("utf-8").replace("/opt/semifed/bin/semifed", sys.executable), "utf-8")
        _passes(tool, "verify", "--man=no", unit)
