"""A long run that is killed again and again, with a client that sends NaN: does it end, the same, in the same memory?

    python benchmarks/soak.py [--rounds 2000] [--kills 20] [--seed 0] [--folder DIR]

The experiment is run twice on the embedded data: in peace, and with `kill -9` in random rounds, each time gone on with
by --resume. Rows and model must be the same to the last bit. Memory is that of the run in peace, seen every second.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

WORDS = (
    "data=mnist5k",
    "net=mlp",
    "method=fedcon",
    "scenario.labels=server",
    "scenario.clients=20",
    "train.clients_per_round=5",
    "client.steps=1",
    "client.unlabelled_batch=10",
    "server.steps=1",
    "attack.kind=nans",
    "attack.share=0.05",
)


def start(out: Path, rounds: int, log: Path) -> "subprocess.Popen[bytes]":
    """The run in a process of its own, begun or gone on with."""
    words = ["run", "--quiet", "--out", str(out)]
    if (out / "experiment.toml").exists():
        words += ["--resume"]
    else:
        for word in (*WORDS, f"train.rounds={rounds}"):
            words += ["--set", word]
    with log.open("ab") as said:
        return subprocess.Popen([sys.executable, "-m", "semifed", *words], stdout=said, stderr=said)


def rows(out: Path) -> list[dict[str, Any]]:
    """The rounds so far, without their times; a line that is being written is none."""
    path = out / "rounds.jsonl"
    lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def count(out: Path) -> int:
    """How many rounds there are."""
    path = out / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def in_peace(out: Path, rounds: int, log: Path) -> list[tuple[int, float]]:
    """Run to the end; the memory in MB at each second, with the round it was in."""
    process, seen = start(out, rounds, log), list[tuple[int, float]]()
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        time.sleep(1)
        try:
            seen.append((count(out), watched.memory_info().rss / 2**20))
        except psutil.NoSuchProcess:
            break
    assert process.wait() == 0, log.read_text()
    return seen


def with_kills(out: Path, rounds: int, kills: int, seed: int, log: Path) -> list[int]:
    """Run to the end, killed in so many rounds drawn by the seed; the rounds that were there at each kill."""
    draw, found = random.Random(seed), list[int]()  # noqa: S311  not for secrets
    for target in sorted(draw.sample(range(rounds), kills)):
        process = start(out, rounds, log)
        while process.poll() is None and count(out) < target:
            time.sleep(0.05)
        time.sleep(draw.random() / 10)  # anywhere in a round
        process.kill()
        if process.wait() != 0:
            found.append(count(out))
    assert start(out, rounds, log).wait() == 0, log.read_text()
    return found


def main() -> None:
    known = argparse.ArgumentParser(description=__doc__)
    known.add_argument("--rounds", type=int, default=2000)
    known.add_argument("--kills", type=int, default=20)
    known.add_argument("--seed", type=int, default=0)
    known.add_argument("--folder", type=Path)
    chosen = known.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    peace, war, log = folder / "in-peace", folder / "with-kills", folder / "log.txt"
    memory = [one for one in in_peace(peace, chosen.rounds, log) if one[0] and one[1]]
    first, last = memory[0], memory[-1]
    print(f"in peace: {count(peace)} rounds, {len(list((peace / 'kept').iterdir()))} files of kept states left")
    print(f"RSS: {first[1]:.0f} MB at round {first[0]}, {last[1]:.0f} MB at round {last[0]}, ", end="")
    print(f"most {max(size for _, size in memory):.0f} MB", flush=True)
    killed = with_kills(war, chosen.rounds, chosen.kills, chosen.seed, log)
    one, two = rows(peace), rows(war)
    refused = sum(len(row["refused"]) for row in one)
    models = [json.loads((path / "summary.json").read_text("utf-8"))["model"] for path in (peace, war)]
    print(f"killed {len(killed)} times, with {killed} rounds there")
    print(f"{refused} updates set aside; rows the same: {one == two}; model the same: {models[0] == models[1]}")
    sys.exit(0 if one == two and models[0] == models[1] and len(one) == chosen.rounds and refused else 1)


if __name__ == "__main__":
    main()
