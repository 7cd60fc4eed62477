"""The report says what the comparison says, whatever it is made from, and says so when it may not."""

from __future__ import annotations

import html
import json
import math
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.browser import asked_for, browser, complaints, overflow, prefer, resize
from tests.support.comparisons import six
from tests.support.federations import blobs
from typer.testing import CliRunner, Result

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.algorithm_text import parse
from fedarena.config.comparison_plan import Plan
from fedarena.config.components import Component
from fedarena.config.errors import BadValue
from fedarena.engine.record import RoundRecord
from fedarena.experiments.plan import build_plan
from fedarena.reports import collect_runs, why_no_verdict, write_report
from fedarena.reports.charts import style_sheet
from fedarena.reports.charts.lines import Series, line_chart
from fedarena.reports.charts.posteriors import PosteriorPair, format_probability, format_sign, posterior_chart
from fedarena.reports.charts.svg import breakable
from fedarena.reports.collect import combine_runs
from fedarena.reports.commands import about, commands, toml
from fedarena.reports.contestant_text import typed
from fedarena.reports.curves import Axis, axes, curve
from fedarena.reports.metrics_section import metrics, pooled
from fedarena.reports.page import SECTIONS
from fedarena.reports.report_data import ReportData
from fedarena.results.comparison import Comparison
from fedarena.results.json_files import write_table
from fedarena.results.run import Run
from fedarena.results.run_folder import read_facts
from fedarena.statistics.bayes import Posterior


@pytest.fixture(scope="module")
def match(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return six(tmp_path_factory.mktemp("report") / "match")


@pytest.fixture(scope="module")
def page(match: Comparison, tmp_path_factory: pytest.TempPathFactory) -> str:
    return read(write_report(match, tmp_path_factory.mktemp("page") / "report.html"))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def made_up(label: str, curve: list[float], **record: Any) -> Run:
    """A run with this accuracy after every round, 10 uploads a round."""
    experiment = fa.Experiment.make("digits", rounds=len(curve), clients=2, partition="iid", algorithm=label)
    records = [RoundRecord(t, a, 1.0, uploads=10 * t, answered=2, **record) for t, a in enumerate(curve, 1)]
    return Run(experiment, records, "sha", np.array([0.5, 0.7]), np.array([50, 60]))


class Tags(HTMLParser):
    """Every tag that is opened is closed, in order; and what the attributes are."""

    EMPTY = ("meta", "link", "input", "br", "wbr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# What it says


@pytest.mark.slow
def test_one_well_formed_file_that_points_nowhere(page: str) -> None:
    tags = Tags(page)
    ids = [value for _, name, value in tags.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for tag, name, value in tags.attributes:
        if name in ("src", "href", "xlink:href", "srcset", "action"):
            assert value == "data:," or (value[:1] == "#" and value[1:] in ids), f"<{tag} {name}={value}>"
    assert not re.search(r"https?:|@import|url\(", page)


def test_every_section_is_there_in_order(page: str) -> None:
    headings = [html.unescape(h) for h in re.findall(r"<h2>(.*?)</h2>", page)]
    # of sweeps, of comparisons with `local`, of those without a client, and of those with clients that never train
    elsewhere = ("tradeoff", "attackers", "gains", "left-out", "unseen")
    assert headings == [name for key, (name, _) in SECTIONS.items() if key not in elsewhere]


def test_the_verdict_is_the_comparisons(match: Comparison, page: str) -> None:
    for sentence in match.words:
        assert f">{html.escape(sentence)}</p>" in page
    tables = re.findall(r'<table class="duels">(.*?)</table>', page, re.DOTALL)
    for which, table in zip(("final", "best"), tables, strict=True):
        lines = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        rows = [re.findall(r"<t[hd].*?</t[hd]>", line, re.DOTALL) for line in lines]
        names = [re.sub("<.*?>", "", cell) for cell in rows[0][1:]]
        assert sorted(names) == sorted(match.labels)
        for row in rows[1:]:
            name = re.sub("<.*?>", "", row[0])
            for column, cell in zip(names, row[1:], strict=True):
                if name == column:
                    assert 'class="self"' in cell
                    continue
                duel = match.duel(name, column, which)  # type: ignore[arg-type]
                shown = [html.unescape(p) for p in re.findall(r"<span>(.*?)</span>", cell)]
                chances = (duel.p_better, duel.p_equal, duel.p_worse)
                assert f"<b>{format_sign(duel.verdict)}</b>" in cell
                assert shown == [format_probability(p).replace("0.", ".") for p in chances]


def test_the_rows_are_the_comparisons(match: Comparison, page: str) -> None:
    first = re.findall(r'<table class="rows">(.*?)</table>', page, re.DOTALL)[0]
    lines = re.findall(r"<tr.*?</tr>", first, re.DOTALL)
    for row in match.rows():
        line = next(line for line in lines if f"<span>{breakable(row['algorithm'])}</span></li>" in line)
        assert f"{100 * row['best']:.1f}% ± {100 * row['best_sd']:.1f}" in line
        assert f"{row['reached']} of {row['runs']}" in line


@pytest.mark.slow
def test_the_same_comparison_is_the_same_page(match: Comparison, page: str, tmp_path: Path) -> None:
    assert read(write_report(Comparison.load(match.dir or ""), tmp_path / "again.html")) == page


def test_names_are_text_never_markup(tmp_path: Path) -> None:
    bad = '<img src=x onerror="alert(1)">'
    curves = {bad: [0.5, 0.6], "fedavg": [0.4, 0.7]}
    runs = {label: [made_up("fedavg", c), made_up("fedavg", c[::-1])] for label, c in curves.items()}
    plan = Plan({}, {label: {"algorithm": "fedavg"} for label in [*curves, "</script>"]}, repeats=2, notes=(bad,))
    text = read(write_report(Comparison(plan, runs, {"</script>": bad}), tmp_path / "report.html"))
    assert "<img" not in text
    assert html.escape(bad) in text
    assert text.count("</script>") == 1


def test_failures_and_divergence_are_shown_plainly(tmp_path: Path) -> None:
    diverged = [made_up("fedprox", [0.2, 0.1]), made_up("fedprox", [0.3, 0.1])]
    lost = [replace(r, loss=math.inf) for r in diverged[0].records]
    runs = {"fedavg": [made_up("fedavg", [0.5, 0.8])] * 2, "fedprox": [replace(diverged[0], records=lost), diverged[1]]}
    plan = Plan({}, {label: {"algorithm": label} for label in ("fedavg", "fedprox", "scaffold")}, repeats=2)
    text = read(write_report(Comparison(plan, runs, {"scaffold": "ClientFailed: client 3"}), tmp_path / "report.html"))
    assert text.count("scaffold has no result: ClientFailed: client 3") == 2  # beside the verdict, and among the notes
    assert "fedprox diverged in 1 of 2 runs" in text
    assert "<td>1 of 2</td></tr>" in text.replace(' class="edge"', "")  # in the table


def test_nothing_to_report_is_refused(tmp_path: Path) -> None:
    empty = Comparison(Plan({}, {"fedavg": {"algorithm": "fedavg"}}), {}, {"fedavg": "DataMissing: gone"})
    with pytest.raises(BadValue, match="DataMissing: gone"):
        write_report(empty, tmp_path / "report.html")


# What it is made from


def cells(match: Comparison, *labels: str) -> list[Path]:
    return [run.dir for label in labels or match.runs for run in match.runs[label] if run.dir is not None]


def test_runs_that_are_pairs_are_judged_as_the_comparison_is(match: Comparison) -> None:
    found = collect_runs(cells(match))
    assert why_no_verdict(found) is None
    renamed = {label: label.partition(":")[0] for label in match.labels}  # only one fedprox: its mu goes without saying
    for duel in match.duels():
        assert found.duel(renamed[duel.row], renamed[duel.column]) == replace(
            duel, row=renamed[duel.row], column=renamed[duel.column]
        )
    assert found.plan.reference == "centralized"
    assert found.plan.test == match.plan.test


def test_settings_tell_runs_of_one_algorithm_apart() -> None:
    slow = made_up("fedavg", [0.5, 0.6])
    other = [replace(slow, experiment=slow.experiment.with_(local={"lr": lr})) for lr in (0.01, 0.5)]
    assert list(combine_runs(other).runs) == ["fedavg:local.lr=0.01", "fedavg:local.lr=0.5"]


def variants(match: Comparison) -> Iterator[tuple[str, Comparison]]:
    fold = [match.runs["fedavg"][k] for k in range(3)], [match.runs["scaffold"][k] for k in range(3)]
    yield "Only one algorithm", combine_runs(fold[0])
    yield "not run on the same splits", combine_runs([*fold[0][:2], *fold[1][1:]])
    yield "not run on the same splits", combine_runs([*fold[0], *fold[1][:2]])
    yield "one and the same split", combine_runs([*fold[0], fold[0][0], *fold[1]])
    yield "not complete: 2 of its 3 splits", combine_runs([*fold[0][:2], *fold[1][:2]])
    yield "says nothing about chance", combine_runs([made_up("fedavg", [0.5]), made_up("scaffold", [0.6])])
    longer = [replace(run, experiment=run.experiment.with_(rounds=9)) for run in fold[1]]
    yield "they differ in rounds", combine_runs([*fold[0], *longer])


@pytest.mark.slow
def test_runs_that_are_no_pairs_get_no_verdict_and_hear_why(match: Comparison, tmp_path: Path) -> None:
    for number, (why, found) in enumerate(variants(match)):
        assert why in (why_no_verdict(found) or "")
        text = read(write_report(found, tmp_path / f"{number}.html"))
        assert f"There is no verdict. {html.escape(why_no_verdict(found) or '')}" in text
        assert '<table class="duels">' not in text
        assert 'id="sure"' not in text
        for shown in ("curves", "costs", "clients", "partition", "repeat"):
            assert f'<section id="{shown}">' in text


def test_other_rows_under_the_same_settings_are_no_pairs(match: Comparison, tmp_path: Path) -> None:
    """A table that was changed between two runs: the experiments are alike, the data are not."""
    copies = []
    for number, folder in enumerate(cells(match, "fedavg", "scaffold")):
        copies.append(shutil.copytree(folder, tmp_path / str(number)))
    write_table(copies[4] / "versions.json", {**read_facts(copies[4]), "data_sha256": "0" * 64})
    assert "other rows or other initial weights" in (why_no_verdict(collect_runs(copies)) or "")


# The command


@pytest.mark.slow
def test_the_command_writes_beside_the_runs(match: Comparison, tmp_path: Path) -> None:
    folder = shutil.copytree(match.dir or "", tmp_path / "match")
    done = call("report", folder)
    assert (done.exit_code, done.stdout) == (0, f"{folder / 'report.html'}\n")
    assert done.stderr.splitlines() == match.words
    assert call("report", folder, "-q").stderr == ""


@pytest.mark.slow
def test_the_command_tells_a_program(match: Comparison, tmp_path: Path) -> None:
    done = call("report", match.dir, "-o", tmp_path / "a.html", "--table", "markdown", "--json")
    shown = json.loads(done.stdout)
    assert shown["report"] == str(tmp_path / "a.html")
    assert (shown["verdict"], shown["no_verdict"], shown["algorithms"]) == (match.words, None, match.labels)
    assert shown["tables"].startswith("| algorithm ")
    single = json.loads(call("report", cells(match)[0], "-o", tmp_path / "b.html", "--json").stdout)
    assert (single["verdict"], single["no_verdict"]) == ([], "Only one algorithm has results: fedavg.")


@pytest.mark.slow
def test_folders_that_cannot_be_used_are_reported_and_nothing_is_written(match: Comparison, tmp_path: Path) -> None:
    root = shutil.copytree(match.dir or "", tmp_path / "match")
    cell = root / "cells" / "fedavg" / "repeat0-fold0"
    damaged = shutil.copytree(cell, tmp_path / "damaged")
    (damaged / "result.json").write_text("{")
    (cell / "result.json").unlink()
    (tmp_path / "empty").mkdir()
    expected = {
        (root,): "1 of 3 runs of fedavg are not finished",
        (cell,): "holds a run that has not finished",
        (damaged,): "damaged",
        (tmp_path / "empty",): "is not a run folder",
        (tmp_path / "nowhere",): "there is no folder",
        (root, damaged): "is a comparison of its own",
    }
    for folders, message in expected.items():
        done = call("report", *folders, "-o", tmp_path / "report.html")
        assert done.exit_code == 2, folders
        assert message in done.stderr
        assert "\n  -> " in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "report.html").exists()
    done = call("report", match.dir, "-o", tmp_path / "no" / "folder" / "r.html")
    assert (done.exit_code, "CannotWrite" in done.stderr) == (2, True)


@pytest.mark.slow
def test_from_python_a_comparison_or_folders(match: Comparison, page: str, tmp_path: Path) -> None:
    assert read(fa.report(match, tmp_path / "a.html")) == page
    assert read(fa.report(match.dir or "", tmp_path / "b.html")) == page
    copies = [shutil.copytree(folder, tmp_path / folder.name) for folder in cells(match, "fedavg")]
    assert fa.report(copies) == copies[0] / "report.html"


# Repeating


@pytest.mark.slow
def test_what_the_page_says_to_type_gives_the_same_scores(
    match: Comparison, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, toml = (html.unescape(text) for text in re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL))
    Path("experiment.toml").write_text(toml, encoding="utf-8")
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:2] == ["fedarena", "compare"]
    again = json.loads(call(*words[1:], "--out", "again", "--workers", 1, "--json", "-q").stdout)
    before = match.as_dict()
    for part in ("scores", "final_scores", "table", "test", "target"):
        assert again[part] == json.loads(json.dumps(before[part])), part


@pytest.mark.parametrize(
    ("label", "table"),
    [
        ("fedavg", {"algorithm": "fedavg"}),
        ("mine", {"algorithm": {"name": "fedprox", "mu": 0.5}}),
        ("tuned", {"algorithm": {"name": "fedavg", "server_lr": 0.5}, "local": {"lr": 0.03, "epochs": 2}}),
        ("both", {"algorithm": {"name": "fedavgm", "with": [{"name": "fedvc", "n_vc": 64}, {"name": "fedir"}]}}),
        ("fedprox:mu=0.01", {"algorithm": {"name": "fedprox", "mu": 0.01}}),
    ],
)
def test_a_contestant_is_typed_as_it_was(label: str, table: dict[str, Any]) -> None:
    base = fa.Experiment.make("digits")
    complete = build_plan(base, {label: table}).contestants[label]
    text, again = parse(typed(label, complete))
    assert text == label or label == "fedprox:mu=0.01"  # the default goes without saying
    assert base.with_(**again).algorithm == base.with_(**table).algorithm
    assert again.get("local") == table.get("local")
    assert isinstance(base.with_(**again).algorithm, Component)


def test_rope_and_threshold_are_shown_to_the_last_digit() -> None:
    plan = Plan({}, {"fedavg": {"algorithm": "fedavg"}}, repeats=2, rope=0.0123456789, threshold=0.9999999)
    [command] = commands(Comparison(plan, {"fedavg": [made_up("fedavg", [0.5])]}))
    assert "--rope 0.0123456789 --threshold 0.9999999" in command


@pytest.mark.slow
def test_a_tuned_comparison_is_repeated_as_it_was_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(
        "[fast]\nlocal.lr = { low = 0.1, high = 0.9 }\nlocal.clip = { choices = [1.0, 9.0] }\n"
    )
    entered = ["fast=fedavg", "fedprox:mu=0.01", "slow=fedprox:mu=0.01,local.lr=0.001", "fedavgm"]
    small: dict[str, Any] = {"rounds": 2, "clients": 4, "model": "logreg", "local": {"lr": 0.05}}
    how: dict[str, Any] = {"tune": 3, "tune_per": "once", "tune_method": "random", "spaces": "mine.toml"}
    first = fa.compare("digits", entered, seeds=2, baseline=False, out="c", report="r.html", **how, **small)
    Path("mine.toml").unlink()
    page = read(Path("r.html"))
    assert "<dt>Local training</dt><dd>tuned, 3 trials each (tuning.json)</dd>" in page
    blocks = [html.unescape(text) for text in re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)]
    words = shlex.split(blocks[0].replace("\\\n", ""))
    assert [text for word, text in pairwise(words) if word == "-a"] == entered
    Path("experiment.toml").write_text(blocks[1], encoding="utf-8")
    Path("spaces.toml").write_text(blocks[2], encoding="utf-8")
    assert "lr = 0.05" in blocks[1]
    again = call(*words[1:], "--out", "again", "-q")
    assert again.exit_code == 0, again.output
    found = fa.Comparison.load("again")
    assert found.plan.tuned == first.plan.tuned
    assert found.plan.notes == first.plan.notes
    assert found.scores() == first.scores()


def in_code(text: str, **known: Any) -> Comparison:
    """What the page says to run in Python."""
    exec(text.replace("fa.compare(", "again = fa.compare("), known)
    again: Comparison = known["again"]
    return again


@pytest.mark.slow
def test_a_name_that_cannot_be_typed_is_repeated_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"a: b": fa.FedProx(mu=0.5), "c+d=e": {"algorithm": "fedavg", "local": {"lr": 0.01}}}
    first = fa.compare("digits", names, seeds=2, rounds=2, clients=4, model="logreg", out="c", threshold=0.9999999)
    assert "This comparison was made from Python" in about(first)
    Path("experiment.toml").write_text(toml(first), encoding="utf-8")
    again = in_code(commands(first)[0])
    assert again.plan.contestants == first.plan.contestants
    assert again.plan.threshold == 0.9999999
    assert again.scores() == first.scores()


@dataclass(frozen=True)
class Half(fa.FedAvg):
    """Only this file knows it."""

    server_lr: float = 0.5


@pytest.mark.slow
def test_what_came_from_python_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = fa.arrays(*blobs())
    how: dict[str, Any] = {"rounds": 2, "clients": 4, "model": "logreg", "folds": 2, "baseline": False}
    first = fa.compare(data, {"half": Half(), "whole": "fedavg"}, out=False, **how)
    assert "with your own data, half in place of the dots" in about(first)
    Path("experiment.toml").write_text(toml(first), encoding="utf-8")
    text = commands(first)[0]
    filled = text.replace("data=...", "data=data").replace("'half': ...", "'half': half")
    assert in_code(filled, data=data, half=Half()).scores() == first.scores()


# What the pictures show

ROUNDS = Axis("rounds", "round", lambda r: r.round)
UPLOADS = Axis("uploads", "uploads", lambda r: r.uploads)


def test_a_curve_is_the_mean_within_its_range() -> None:
    c = curve([made_up("fedavg", [0.2, 0.6, 0.4]), made_up("fedavg", [0.4, 0.4, 0.8])], ROUNDS)
    assert c.x.tolist() == [1, 2, 3]
    assert c.mean == pytest.approx([0.3, 0.5, 0.6])
    assert (c.low.tolist(), c.high.tolist()) == ([0.2, 0.4, 0.4], [0.4, 0.6, 0.8])
    assert c.best == pytest.approx([0.3, 0.5, 0.7])  # best so far 0.2, 0.6, 0.6 and 0.4, 0.4, 0.8


def test_a_run_that_stopped_keeps_what_it_had() -> None:
    c = curve([made_up("fedavg", [0.2]), made_up("fedavg", [0.4, 0.6])], UPLOADS)
    assert c.mean == pytest.approx([0.3, 0.4])
    assert c.x.tolist() == [10, 15]  # ten uploads and no more, and twenty


def test_costs_that_no_run_has_get_no_axis() -> None:
    run = made_up("fedavg", [0.5, 0.6])
    assert [axis.name for axis in axes([run])] == ["rounds", "uploads"]
    timed = made_up("fedavg", [0.5, 0.6], clock=7200.0, bytes_up=4_000_000)
    assert [axis.label for axis in axes([timed])][2:] == ["MB sent, up and down", "simulated minutes"]


def test_lines_stand_where_their_values_are() -> None:
    drawn = line_chart([Series("a", [0, 10], [0.0, 1.0])], x_label="round", width=350, height=300)
    line = re.search(r'<path d="M([\d.]+),([\d.]+)L([\d.]+),([\d.]+)" class="line s0 d0"/>', drawn)
    ticks = {
        text: float(x)
        for x, text in re.findall(r'<text x="([\d.]+)" y="276.0" text-anchor="middle" class="tick">(\d+)<', drawn)
    }
    levels = {
        text: float(y) - 4
        for y, text in re.findall(r'<text x="38.0" y="([\d.]+)" text-anchor="end" class="tick">(\d+)%<', drawn)
    }
    assert line is not None
    x1, y1, x2, y2 = map(float, line.groups())
    assert (x1, y1, x2, y2) == (ticks["0"], levels["0"], ticks["10"], levels["100"])


def area(points: str) -> float:
    """Of a polygon (shoelace formula)."""
    x, y = np.array([[float(v) for v in p.split(",")] for p in points.split("L")]).T
    return abs(float(x @ np.roll(y, 1) - y @ np.roll(x, 1))) / 2


@pytest.mark.parametrize(("mean", "scale"), [(-0.00689, 0.009898), (0.02, 0.01), (0.0, 0.004)])
def test_areas_are_probabilities(mean: float, scale: float) -> None:
    """Drawn in pixels and cut at 1% on either side, so to two digits."""
    known = Posterior(mean, scale, 14)
    drawn = posterior_chart(PosteriorPair("a", "b", known, "?"), 0.01, width=2000, height=1500)
    parts = {kind: area(d) for d, kind in re.findall(r'<path d="M([^"]*?)z" class="area (\w+)"', drawn)}
    whole = sum(parts.values())
    for kind, p in zip(("worse", "equal", "better"), known.regions(0.01), strict=True):
        assert parts.get(kind, 0.0) / whole == pytest.approx(p, abs=0.015)


def test_a_single_point_is_a_needle_where_it_is() -> None:
    drawn = posterior_chart(PosteriorPair("a", "twin", Posterior(0.0, 0.0, 4), "="), 0.01)
    assert 'class="needle equal"' in drawn
    assert "area" not in drawn


# Colours


def colours() -> dict[str, tuple[str, str]]:
    found = re.findall(r"--(\w[\w-]*): light-dark\((#\w{6}), (#\w{6})\)", style_sheet())
    return {name: (light, dark) for name, light, dark in found}


def contrast(one: str, other: str) -> float:
    """WCAG 2: (L1 + 0.05) / (L2 + 0.05) of relative luminances."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_everything_stands_out_from_the_paper_in_both_themes() -> None:
    known = colours()
    for theme in (0, 1):
        paper = known["paper"][theme]
        for name in ("ink", "quiet", *(f"c{k}" for k in range(8))):  # names of lines are text in their colour
            assert contrast(known[name][theme], paper) >= 4.5, (name, theme)
        for name in ("better", "worse", "equal", "axis"):
            assert contrast(known[name][theme], paper) >= (2 if name == "axis" else 3), (name, theme)


# In a real browser


@pytest.fixture(scope="module")
def sight(page: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium; `look` loads the page again."""
    path = tmp_path_factory.mktemp("site") / "report.html"
    path.write_text(page, encoding="utf-8")
    with browser() as driver:
        driver.address = path.as_uri()
        yield driver


def look(sight: Any, width: int = 1280, scheme: str = "light", media: str = "screen") -> Any:
    resize(sight, width)
    prefer(sight, scheme, media)
    sight.get(sight.address)
    return sight


def shown(sight: Any, selector: str) -> list[Any]:
    return [element for element in sight.find_elements("css selector", selector) if element.is_displayed()]


def colour_of(sight: Any, selector: str, name: str) -> str:
    text: str = sight.execute_script(
        "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, name
    )
    return text


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 760, 390, 320])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_quietly_and_fits_the_screen(sight: Any, width: int, scheme: str) -> None:
    look(sight, width, scheme)
    assert complaints(sight) == []
    assert asked_for(sight) == [sight.address]
    assert overflow(sight) == 0
    sight.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert overflow(sight) == 0


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_no_label_is_cut_off_tiny_or_under_another(sight: Any, width: int) -> None:
    look(sight, width).execute_script("document.querySelectorAll('details').forEach(d => { d.open = true })")
    texts = sight.execute_script(
        """return [...document.querySelectorAll('svg text')].filter(t => t.checkVisibility()).map(t => {
            const {left, right, top, bottom} = t.getBoundingClientRect(), own = t.ownerSVGElement.getBoundingClientRect();
            const size = parseFloat(getComputedStyle(t).fontSize) * own.width / t.ownerSVGElement.viewBox.baseVal.width;
            const chart = [...document.querySelectorAll('svg')].indexOf(t.ownerSVGElement);
            return {text: t.textContent, left, right, top, bottom, size, chart, slanted: t.hasAttribute('transform')};
        })"""
    )
    assert len(texts) > 200
    for t in texts:
        assert t["size"] >= 10, t
        assert t["left"] >= 0, t
        assert t["right"] <= width, t
    for k, a in enumerate(texts):
        for b in texts[k + 1 :]:
            if a["chart"] != b["chart"] or a["slanted"] or b["slanted"]:
                continue
            apart = a["right"] <= b["left"] + 1 or b["right"] <= a["left"] + 1
            above = a["bottom"] <= b["top"] + 4 or b["bottom"] <= a["top"] + 4
            assert apart or above, (a["text"], b["text"])


@pytest.mark.slow
def test_both_themes_apply_and_the_reader_may_choose(sight: Any) -> None:
    light = colour_of(look(sight, scheme="light"), "body", "backgroundColor")
    dark = colour_of(look(sight, scheme="dark"), "body", "backgroundColor")
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 23, 27)")
    line = colour_of(sight, ".line.s0", "stroke")
    button = sight.find_element("css selector", "button.theme")
    assert button.text == "Light"
    button.click()
    assert (button.text, colour_of(sight, "body", "backgroundColor")) == ("Dark", light)
    assert colour_of(sight, ".line.s0", "stroke") != line
    sight.refresh()
    assert colour_of(sight, "body", "backgroundColor") == light  # it is remembered
    sight.execute_script("localStorage.clear()")


@pytest.mark.slow
@pytest.mark.parametrize("with_script", [True, False])
def test_the_axis_can_be_switched_even_without_script(sight: Any, with_script: bool) -> None:
    sight.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not with_script})
    try:
        look(sight)
        assert len(sight.find_elements("css selector", "button.theme")) == with_script
        labels = []
        for choice in sight.find_elements("css selector", ".switch label"):
            choice.click()
            (chart,) = shown(sight, ".panel svg.chart")
            labels.append(chart.get_attribute("aria-label").partition(",")[0])
        assert labels[:3] == ["accuracy over round", "accuracy over uploads", "accuracy over kB sent"]
        assert len(labels) == 4
        for heading in sight.find_elements("css selector", "h2"):
            assert heading.is_displayed()
    finally:
        sight.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.slow
def test_the_pointer_hears_all_values(sight: Any, match: Comparison) -> None:
    from selenium.webdriver import ActionChains

    last = shown(look(sight), ".panel.rounds .probe")[-1]
    ActionChains(sight).scroll_to_element(last).move_to_element(last).perform()
    lines = sight.find_element("css selector", ".tip").text.splitlines()
    assert lines[0] == "round 4"
    assert len(lines) == 1 + len(match.runs)
    best = max(match.runs, key=lambda label: np.mean([run.final.accuracy for run in match.runs[label]]))
    assert lines[1].startswith(f"{best} {np.mean([run.final.accuracy for run in match.runs[best]]):.1%}")


@pytest.mark.slow
def test_paper_gets_everything_in_ink(sight: Any) -> None:
    look(sight, 688, "dark", "print")  # A4 within its margins
    assert colour_of(sight, "body", "backgroundColor") == "rgb(255, 255, 255)"
    for section in sight.find_elements("css selector", "section"):
        assert section.is_displayed()
    assert [len(shown(sight, f".panel.{axis}")) for axis in ("rounds", "uploads", "bytes", "simulated-time")] == [1] * 4
    assert not shown(sight, "button.theme, .switch, nav")
    assert overflow(sight) == 0
    printed = sight.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    assert len(printed) > 50_000


def test_a_run_is_as_good_as_its_folder(tmp_path: Path) -> None:
    run = fa.run("digits", rounds=1, clients=3, partition="iid", out=tmp_path / "r", runtime="serial")
    assert fa.report(run) == tmp_path / "r" / "report.html"
    with pytest.raises(BadValue, match="not saved in a folder"):
        fa.report(fa.run("digits", rounds=1, clients=3, partition="iid", out=False, runtime="serial"))
    with pytest.raises(BadValue, match="neither a run nor a comparison"):
        fa.report(5)


def test_the_metrics_of_every_algorithm_are_in_the_report(match: Comparison, page: str) -> None:
    part = page.partition('<section id="metrics">')[2].partition("</section>")[0]
    assert '<th scope="col">average precision</th>' in part
    for label in match.labels:
        auc = np.mean([run.metrics["auc"] for run in match.runs[label]])
        assert f">{auc:.3f}<" in part
        assert f"Confusion matrix of {label}" in part
    assert 'aria-label="Accuracy over confidence of ' in part


def test_a_report_of_runs_without_metrics_has_no_such_section() -> None:
    subject = ReportData(combine_runs([made_up("fedavg", [0.5, 0.6]), made_up("fedprox", [0.4, 0.5])]))
    assert metrics(subject) == ""


def test_the_calibration_bins_of_several_runs_are_pooled_by_samples() -> None:
    one = {"confidence": 0.9, "accuracy": 0.5, "samples": 1.0}
    other = {"confidence": 0.92, "accuracy": 1.0, "samples": 3.0}
    found = pooled([[one], [other, {"confidence": 0.1, "accuracy": 0.2, "samples": 2.0}]])
    assert [b["samples"] for b in found] == [2.0, 4.0]
    assert found[1]["accuracy"] == pytest.approx(0.875)
    assert found[1]["confidence"] == pytest.approx(0.915)
