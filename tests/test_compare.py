"""Comparisons: the numbers against hand-made ones, and the tables as Markdown, LaTeX and CSV."""

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from semifed import collect
from semifed.errors import RunError, SettingError
from semifed.results.collection import StoredRun, groups, unsaid
from semifed.results.comparison import comparison_table, pair_table
from semifed.results.statistics import compare, find, pair_up, spread
from semifed.results.tables import TextTable, latex, markdown, read_csv, write_csv
from toys import call, summary_in

pytest_plugins = ("folders",)


def made(method: str, seed: int, *accuracies: float, split: str = "s", **more: Any) -> StoredRun:
    """A run with these accuracies, 10 bytes a round and direction."""
    rows: list[dict[str, Any]] = [
        {"round": place, "models": {"global": {"accuracy": score, "loss": 1.0}}, "bytes": {"down": 10, "up": 10}}
        for place, score in enumerate(accuracies, 1)
    ]
    best = max(rows, key=lambda row: row["models"]["global"]["accuracy"])
    places = {"best": best, "last": rows[-1]}
    models = {"global": {name: {"round": row["round"], **row["models"]["global"]} for name, row in places.items()}}
    summary = {"status": "finished", "models": models, "bytes": {"down": 10 * len(rows), "up": 10 * len(rows)}}
    experiment = {"seed": seed, "data": "mnist", "method": {"name": method}, "train": {"rounds": len(rows)}, **more}
    name = f"{method}-{seed}"
    return StoredRun(name, Path(name), experiment, rows, {**summary, "seconds": 2.0}, {"split": f"{split}{seed}"})


RUNS = [
    *(made("a", seed, 50.0, score, score - 1) for seed, score in enumerate((91.0, 92.0, 96.0))),
    *(made("b", seed, 40.0, 80.0, score) for seed, score in enumerate((85.0, 88.0, 90.0))),
]


def test_means_deviations_and_intervals() -> None:
    one, two = compare(RUNS, target=88)
    assert (one.label, one.model, one.seeds) == ("a", "global", (0, 1, 2))
    assert one.last.mean == pytest.approx(92)
    assert one.last.std == pytest.approx(7**0.5)
    assert one.last.low == pytest.approx(92 - 4.302652729911275 * (7 / 3) ** 0.5)
    assert (one.best.mean, one.best_round.mean) == (93, 2)
    assert one.rounds_to_target is not None
    assert one.bytes_to_target is not None
    assert (one.rounds_to_target.mean, one.bytes_to_target.mean, one.reached) == (2, 40, 3)
    assert two.rounds_to_target is not None
    assert (two.reached, two.rounds_to_target.mean) == (2, 3)
    assert (one.bytes.mean, one.seconds.mean) == (60, 2)
    assert compare(RUNS)[0].record()["reached_target"] is None
    assert spread([5.0]) == (5.0, None, None, None)


def test_pairs_are_those_of_equal_seed_and_split() -> None:
    one, two = compare(RUNS)
    (pair,) = pair_up([one, two], one)
    expected = stats.ttest_rel([85.0, 88.0, 90.0], [90.0, 91.0, 95.0])
    assert (pair.label, pair.against, pair.pairs) == ("b", "a", 3)
    assert pair.p == pytest.approx(expected.pvalue)
    assert pair.difference is not None
    assert pair.difference.mean == pytest.approx(-13 / 3)
    elsewhere = [made("c", seed, 99.0, split="other") for seed in range(3)]
    none = pair_up(compare([*RUNS, *elsewhere]), one)[-1]
    assert (none.pairs, none.difference, none.p) == (0, None, None)
    other_seeds = [made("d", seed, 99.0 + seed / 100) for seed in (1, 2, 3)]
    assert pair_up(compare([*RUNS, *other_seeds]), one)[-1].pairs == 2


def test_a_copy_is_no_second_seed() -> None:
    copies = [dataclasses.replace(run, path=Path("copy", run.name)) for run in RUNS]
    found = compare([*RUNS, *copies])
    assert [one.record() for one in found] == [one.record() for one in compare(RUNS)]
    assert pair_up(found, found[0])[0].pairs == 3
    again = dataclasses.replace(made("a", 0, 99.0, 99.0, 99.0), path=Path("again"))
    with pytest.raises(RunError, match=r"a-0 and again: .* the scores are not; give one"):
        compare([*RUNS, again])


def test_of_a_run_and_a_copy_of_its_first_rounds_the_run_counts() -> None:
    whole = RUNS[0]
    early = dataclasses.replace(whole, path=Path("early"), rows=whole.rows[:1], summary={"status": "begun"})
    for both in ([whole, early], [early, whole]):
        (group,) = groups(both)
        assert list(group.runs) == [whole]
    other = dataclasses.replace(early, rows=[{**whole.rows[0], "models": {"global": {"accuracy": 1.0, "loss": 1.0}}}])
    with pytest.raises(RunError, match="the scores are not; give one"):
        groups([whole, other])


def test_runs_whose_split_is_not_known_are_no_pairs() -> None:
    found = compare([dataclasses.replace(run, environment={}) for run in RUNS])
    assert (found[0].seeds, pair_up(found, found[0])[0].pairs) == ((0, 1, 2), 0)


def test_a_distance_that_is_equal_but_for_rounding_has_no_spread() -> None:
    scores = (90.00, 91.30, 92.17)
    mine, theirs = (
        [made(name, seed, score + more) for seed, score in enumerate(scores)] for name, more in (("a", 0), ("b", 0.1))
    )
    found = compare([*mine, *theirs])
    assert pair_up(found, found[0])[0].p is None


def test_a_model_that_a_run_lacks_is_counted_where_it_is() -> None:
    one, two = made("a", 0, 50.0), made("a", 1, 60.0)
    two.summary["models"]["local"] = two.summary["models"]["global"]
    (found,) = compare([one, two], model="local")
    assert (found.model, found.seeds) == ("local", (1,))


def test_several_tests_are_put_right_after_holm() -> None:
    near = [made("c", seed, score) for seed, score in enumerate((90.5, 90.5, 95.5))]
    found = compare([*RUNS, *near])
    pairs = pair_up(found, found[0])
    smaller, larger = sorted(pair.p or 0 for pair in pairs)
    assert sorted(pair.p_holm or 0 for pair in pairs) == [pytest.approx(2 * smaller), pytest.approx(larger)]
    same = compare([*RUNS, *(made("c", seed, score) for seed, score in enumerate((91.0, 92.0, 96.0)))])
    assert pair_up(same, same[0])[1].p is None  # the same distance in every pair has no spread to test with


def test_a_group_or_model_that_is_not_there_is_named() -> None:
    found = compare(RUNS)
    assert find(found, "b") is found[1]
    with pytest.raises(SettingError, match="--against: there is no group 'z'"):
        find(found, "z")
    with pytest.raises(SettingError, match="--model: no run has a model 'target'"):
        compare(RUNS, model="target")
    assert compare([]) == []


def test_groups_whose_settings_have_the_same_last_word_are_told_apart() -> None:
    clips = ((1.0, None), (None, 1.0))
    found = compare([made("a", 0, 90.0, client={"clip": one}, server={"clip": two}) for one, two in clips])
    assert [one.label for one in found] == ["a, client.clip=1.0", "a, server.clip=1.0"]
    with pytest.raises(SettingError, match=r"'a' are several; give one of: a, client\.clip=1\.0; a, server\.clip"):
        find(found, "a")
    assert find(found, "a, server.clip=1.0") is found[1]


def test_what_methods_differ_in_is_said() -> None:
    runs = [made("a", 0, 90.0, client={"lr": 0.1}), made("b", 0, 90.0, 91.0, client={"lr": 0.2})]
    assert [one.label for one in compare(runs)] == ["a, rounds=1", "b, rounds=2"]
    assert unsaid(runs) == ["client.lr"]
    assert unsaid(RUNS) == []


def test_csv_reads_back_equal() -> None:
    records = [one.record() for one in compare(RUNS, target=88)]
    assert read_csv(write_csv(records)) == records
    odd = [
        {
            "a": 'x,"y"\nz',
            "b": 0.1 + 0.2,
            "c": None,
            "d": "12",
            "e": "null",
            "f": True,
            "g": 1e-300,
            "h": '"q"',
            "i": "\r",
        }
    ]
    assert read_csv(write_csv(odd)) == odd


def test_markdown_keeps_its_columns() -> None:
    text = markdown(TextTable(["name | x", "n"], [["a|b\nc", "1.5"], ["<b>", "–"]], "T"))
    assert text.splitlines() == [
        "**T**",
        "",
        "| name \\| x | n |",
        "|---|---:|",
        "| a\\|b c | 1.5 |",
        "| &lt;b> | – |",
    ]


def test_latex_is_escaped() -> None:
    text = latex(TextTable(["m_1", "%"], [["[a] & b", "97.1 ± 0.1"]]))
    assert r"m\_1 & \% \\" in text
    assert r"{}[a] \& b & 97.1 $\pm$ 0.1 \\" in text
    assert r"\begin{tabular}{lr}" in text
    negative = latex(TextTable(["a", "b"], [["a-b|c", "-6.20 to -1.30"]]))
    assert r"a-b\textbar{}c & $-$6.20 to $-$1.30 \\" in negative


def test_the_command_compares_folders(finished: Path, stopped: Path, tmp_path: Path) -> None:
    said = call("compare", str(finished), str(stopped), "--target", "20")
    assert (said.code, "1 runs are not finished and left out: stopped" in said.err) == (0, True)
    assert "rounds to 20%" in said.out
    assert "fedavg is the only line" in call("compare", str(finished), "--pairs", "--format", "csv").line
    copy = shutil.copytree(finished, tmp_path / "copy")
    assert "1 runs are left out, as copies of others" in call("compare", str(finished), str(copy)).err
    summary = summary_in(copy) | {"status": "collapsed"}
    (copy / "summary.json").write_text(json.dumps(summary))
    assert "1 runs collapsed and ended early: copy" in call("compare", str(copy)).err
    answer = json.loads(call("compare", str(finished), "--json").out)
    (run,) = collect([finished])
    assert answer["groups"][0]["last_mean"] == run.summary["models"]["global"]["last"]["accuracy"]
    csv = call("compare", str(finished), "--format", "csv").out
    assert read_csv(csv) == answer["groups"]
    assert call("compare", str(stopped)).code == 4
    assert call("compare", str(finished), "--format", "markdown").out.startswith("| runs | seeds |")


def test_two_tables_are_apart(finished: Path, tmp_path: Path) -> None:
    other = shutil.copytree(finished, tmp_path / "other")
    experiment = other / "experiment.toml"
    experiment.write_text(experiment.read_text().replace("lr = 0.01", "lr = 0.02"))
    said = call("compare", str(finished), str(other), "--format", "markdown")
    assert "|\n\n**Last rounds on equal seeds and splits, paired t-test**\n\n| runs |" in said.out


def _has_booktabs() -> bool:
    """Whether pdflatex and the package of the rules are there; Debian has them in two."""
    if not (shutil.which("pdflatex") and (find := shutil.which("kpsewhich"))):
        return False
    return subprocess.run([find, "booktabs.sty"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not _has_booktabs(), reason="LaTeX is not installed (Debian: texlive-latex-recommended)")
def test_latex_compiles(tmp_path: Path) -> None:
    found = compare([*RUNS, *(made("odd_name & 100% #1", seed, 50.0, 60.0 + seed) for seed in range(3))], target=88)
    tables = [latex(comparison_table(found, 88)), latex(pair_table(pair_up(found, found[0])))]
    head = "\\documentclass{article}\\usepackage[utf8]{inputenc}\\usepackage{booktabs}\\begin{document}\n"
    (tmp_path / "table.tex").write_text(head + "\n\n".join(tables) + "\\end{document}\n")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "table.pdf").stat().st_size > 1000
