"""The page of a comparison: how far it is, its curves, what may be said by now, and every cell."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedarena.config.comparison_plan import Score
from fedarena.config.errors import DataBroken, FedarenaError
from fedarena.reports.charts import NARROW, PosteriorPair, Series, breakable, escape, legend, line_chart, posterior_rows
from fedarena.reports.charts.posteriors import chance
from fedarena.reports.client_gains_section import effects_section, gains_section
from fedarena.reports.report_data import ReportData
from fedarena.results.comparison import Comparison
from fedarena.results.comparison_verdict import SIGNS
from fedarena.results.scoring import Scoring
from fedarena.results.suite import SuiteComparison
from fedarena.statistics.metric_registry import OPTIMISTIC
from fedarena.ui.catalogue import Catalogue, ComparisonSummary, RunSummary, SuiteSight, part_name
from fedarena.ui.html import (
    badge,
    bar,
    both,
    decimal,
    duration,
    frame,
    percent,
    section,
    size,
    table,
    tabs,
    unreadable,
    when,
)
from fedarena.ui.partial_scores import OVER, judged, means, pairing, score, scoring_of
from fedarena.ui.round_log import RoundLog
from fedarena.ui.run_page import AXES, followed, unit_of_axis
from fedarena.ui.safe_files import reason

POINTS = 400  # of a curve


def page(catalogue: Catalogue, id: str, query: dict[str, str]) -> str | None:
    """All that its folder tells; None if there is no such comparison."""
    match = catalogue.match(id)
    if match is None:
        return None
    running = sum(sight.state == "running" for sight in match.everyone)
    try:
        body = list(_body(catalogue, match, query))
    except Exception as error:  # the folder holds something that no page expects
        body = [unreadable(match.name, error)]
    return frame(match.name, body, running=running, folder=catalogue.name)


def report(catalogue: Catalogue, id: str) -> str | None:
    """The report of a finished comparison or run, made now; nothing is written."""
    found = catalogue.match(id) or catalogue.run(id) or catalogue.suite(id)
    if found is None:
        return None
    from fedarena.reports.collect import collect_runs
    from fedarena.reports.page import render
    from fedarena.reports.suite_report import render_suite

    try:
        catalogue.files.check_tree(found.folder)
        if isinstance(found, SuiteSight):
            return render_suite(SuiteComparison.load(found.folder))
        return render(ReportData(collect_runs([found.folder])))
    except FedarenaError:
        raise
    except Exception as error:
        raise DataBroken(f"the report cannot be made: {reason(error)}", remedy=f"look into {found.folder}") from error


def _body(catalogue: Catalogue, match: ComparisonSummary, query: dict[str, str]) -> Iterator[str]:
    yield _head(match)
    if match.plan is None:
        yield f'<p class="why">{escape(match.why)}</p>'
        return
    result = _result(catalogue, match)
    yield _verdict(match, result)
    yield _curves(catalogue, match, query.get("over", "round"))
    if isinstance(result, Comparison):
        yield _costs(result)
        yield from _clients(result)
    yield _cells(match)
    yield _how(catalogue, match)


def _result(catalogue: Catalogue, match: ComparisonSummary) -> Comparison | str | None:
    """The comparison as it will be reported, once all cells have ended; or why it cannot be read."""
    if match.state != "finished":
        return None

    def load() -> Comparison | str:
        try:
            catalogue.files.check_tree(match.folder)
            loaded = Comparison.load(match.folder)
        except Exception as error:
            return reason(error)
        runs = {label: [replace(run, state={}) for run in runs] for label, runs in loaded.runs.items()}
        return replace(loaded, runs=runs)  # no page shows the models

    return catalogue.comparison(match, load)


def _head(match: ComparisonSummary) -> str:
    cells = len(match.everyone)
    done = match.over
    link = f'<a class="button" href="/report/{match.id}">Report</a>' if match.state == "finished" else ""
    facts = ""
    if match.plan is not None:
        names = [part_name(match.plan.experiment.get(key)) for key in ("data", "partition", "model")]
        facts = f'<p class="facts">{escape(" · ".join(names))}<br>{escape(match.plan.test)}<br>{escape(match.plan.about)}</p>'
        if match.plan.at_most is not None:
            facts += f'<p class="facts">Repeats are added until it is decided, at most {match.plan.at_most} splits.</p>'
        facts += (
            f'<div class="rounds long">{bar(done / max(cells, 1), match.state, "runs")}'
            f"<span>{done} of {cells} runs</span></div>"
        )
    return (
        f'<nav class="path"><a href="/">All runs</a> / <span>{escape(match.name)}</span></nav>'
        f'<div class="head"><h1>{escape(match.name)}</h1>{badge(match.state)}{link}</div>{facts}'
    )


# What may be said


def _verdict(match: ComparisonSummary, result: Comparison | str | None) -> str:
    assert match.plan is not None
    plan, over = match.plan, match.state == "finished"
    if isinstance(result, Comparison) and len(result.labels) > 1:
        subject = ReportData(result)
        names, splits = result.ranked, len(result.scores()[result.labels[0]])
        known = [(a, b) for a in names for b in names if a != b and math.isfinite(result.duel(a, b).mean)]
        pairs = {(a, b): subject.pair(a, b) for a, b in known}
    else:
        names = judged(match)
        found = {(a, b): pairing(match, a, b) for a in names for b in names if a != b}
        pairs = {key: one.pair for key, one in found.items() if one is not None}
        splits = min((one.splits for one in found.values() if one is not None), default=0)
    told = "".join(f"<p>{escape(text)}</p>" for text in result.words) if isinstance(result, Comparison) else ""
    if isinstance(result, str):
        told = f'<p class="note">{escape(result)}</p>'
    if not pairs:
        soon = "" if over else "<p>A first verdict appears when two algorithms have finished two splits.</p>"
        return section("verdict", "Verdict", told or soon)
    note = "" if over else f"provisional, from {splits} of {len(plan.splits)} splits: it may change"
    shown = [pairs[names[0], other] for other in names[1:] if (names[0], other) in pairs]
    drawn = both(lambda width: posterior_rows(shown, plan.rope, width=width)) if shown else ""
    scoring = next(iter(pairs.values())).scoring
    best = f" ({OPTIMISTIC})" if plan.score == "best" else ""
    by = f'<p class="note">Differences in {escape(scoring.name + best)}.</p>'
    kind = "" if over else "provisional"
    body = f'<div class="{kind}">{told}{by}{drawn}{_matrix(names, pairs, plan.rope)}</div>'
    return section("verdict", "Verdict", body, note=note)


def _matrix(names: Sequence[str], pairs: Mapping[tuple[str, str], PosteriorPair], rope: float) -> str:
    rows = []
    for row in names:
        cells = ["" if row == column else _sign(pairs.get((row, column)), rope) for column in names]
        rows.append([breakable(row), *cells])
    signs = ", ".join(f"<b>{_typeset(sign)}</b> {word}" for sign, word in SIGNS.items())
    how = f'<p class="note">Row against column: {signs}. Below: the probabilities of better, equal, worse.</p>'
    return table(["", *map(breakable, names)], rows, "duels") + how


def _sign(pair: PosteriorPair | None, rope: float) -> str:
    if pair is None:
        return '<span class="note">…</span>'
    kind = {"+": "better", "=": "equal", "-": "worse", "?": "open"}[pair.sign]
    chances = " ".join(f"<span>{escape(chance(p).replace('0.', '.'))}</span>" for p in pair.chances(rope))
    return f'<div class="duel {kind}"><b>{_typeset(pair.sign)}</b><small>{chances}</small></div>'


def _typeset(sign: str) -> str:
    return "\N{MINUS SIGN}" if sign == "-" else sign


# How it goes


@dataclass(frozen=True)
class MeanCurve:
    """Over the splits that have come so far, at every round that one of them has reached."""

    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]


def _mean(logs: Sequence[RoundLog], over: str, column: str) -> MeanCurve:
    rounds = sorted({r for log in logs for r, a in zip(log["round"], log[column], strict=True) if math.isfinite(a)})
    chosen = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), POINTS)).round().astype(int))
    at = np.array(rounds)[chosen] if rounds else np.empty(0)
    x, y = (np.full((len(logs), len(at)), np.nan) for _ in range(2))
    for k, log in enumerate(logs):
        known = np.array(log["round"])
        place = np.minimum(np.searchsorted(known, at), max(len(known) - 1, 0))
        there = known[place] == at if len(known) else np.zeros(len(at), bool)
        x[k, there], y[k, there] = np.array(log[over])[place[there]], np.array(log[column])[place[there]]
    seen = np.isfinite(y).any(axis=0)
    x, y = x[:, seen], y[:, seen]
    means = np.maximum.accumulate(np.nanmean(x, axis=0)) if len(logs) and seen.any() else np.empty(0)
    edges = [f(y, axis=0).tolist() if y.size else [] for f in (np.nanmean, np.nanmin, np.nanmax)]
    return MeanCurve(means.tolist(), *edges)


def _curves(catalogue: Catalogue, match: ComparisonSummary, over: str) -> str:
    logs = {label: [catalogue.log(s) for s in row if s.round] for label, row in match.cells.items()}
    everyone = [log for row in logs.values() for log in row if len(log)]
    known = {key: axis for key, axis in AXES.items() if any(log[key][-1] > 0 for log in everyone)}
    if not known:
        return ""
    over = over if over in known else "round"
    assert match.plan is not None
    metric, column, is_share = followed(match.plan.metric, everyone)
    lines = [_series(match, name, k, logs[name], over, column) for k, name in enumerate(logs)]
    lines = [line for line in lines if len(line.x)]
    times, label = unit_of_axis(over, max(log[over][-1] for log in everyone))
    lines = [replace(line, x=[times * x for x in line.x]) for line in lines]
    drawn = both(
        lambda width: line_chart(
            lines,
            x_label=label,
            y_label=metric,
            width=width,
            height=430 if width > NARROW else 300,
            fractions=is_share,
        )
    )
    choice = tabs({key: axis[0] for key, axis in known.items()}, over, "over") if len(known) > 1 else ""
    note = f"{metric} on the common test samples: the mean over the splits so far, and the range from worst to best"
    return section("curves", "Learning curves", choice, legend(lines), drawn, note=note)


def _series(
    match: ComparisonSummary, label: str, index: int, logs: Sequence[RoundLog], over: str, column: str
) -> Series:
    logs = [log for log in logs if len(log)]
    mean = _mean(logs, over, column)
    band: dict[str, Any] = {"low": mean.low, "high": mean.high} if len(logs) > 1 else {}
    aside = match.plan is not None and label == match.plan.reference
    return Series(label, mean.x, mean.y, **band, index=index, aside=aside)


def _costs(result: Comparison) -> str:
    which: Score = "validated" if result.plan.score == "validated" else "final"
    head = ["", which, "P(best)", "common", "own", "rounds", "sent", "simulated time", "worst clients", "time a run"]
    scoring, rows = result.scoring(which), []
    for row in result.rows():
        rows.append(
            [
                escape(row["algorithm"]) + (f" {badge('diverged')}" if row["diverged"] else ""),
                f"{scoring.shown(row[which])} <small>± {scoring.shown(row[f'{which}_sd'])}</small>",
                "–" if row["p_best"] is None else escape(chance(row["p_best"])),
                scoring.shown(row["common"]),
                scoring.shown(row["own"]),
                decimal(row["rounds_to_target"]),
                size(row["bytes_to_target"]),
                duration(row["clock_to_target"]),
                percent(row["client_worst"]),
                duration(row["wall_seconds"]),
            ]
        )
    note = (
        f"{which}: {scoring.explained}; common, own: the same on the common and on clients' own test samples; rounds, sent "
        f"and simulated time: median to reach {scoring.shown(result.target, 0)}; worst clients: accuracy of the worst tenth"
    )
    return section("costs", "Results and costs", table(head, rows, "numbers"), note=note)


def _clients(result: Comparison) -> Iterator[str]:
    """What clients gain, and what the others lose without one, as the report shows it."""
    if gains := gains_section(result, both):
        yield section("gains", "Who gains by the federation", gains)
    if effects := effects_section(result, both):
        yield section("left-out", "Without one client", effects)


# Every cell


def _cells(match: ComparisonSummary) -> str:
    assert match.plan is not None
    plan, known, scoring, rows = match.plan, means(match), scoring_of(match.plan), []
    for label, row in match.cells.items():
        over = sum(score(plan, sight) is not None for sight in row)
        mean = f"{_shown(scoring, known[label])} <small>{over} of {len(row)}</small>"
        cells = [_cell(sight, _shown(scoring, score(plan, sight))) for sight in row]
        rows.append([escape(label), mean, *cells])
    head = ["", "mean", *(escape(split.name) for split in plan.splits)]
    optimistic = f" ({OPTIMISTIC})" if plan.score == "best" else ""
    named = plan.metric if scoring is None else f"{scoring.name}{optimistic}"
    failed = {s.why: label for label, row in match.cells.items() for s in row if s.state == "failed"}
    told = "".join(f'<p class="why">{escape(label)}: {escape(why)}</p>' for why, label in failed.items())
    return section("cells", "Runs", table(head, rows, "cells"), told, note=f"{named}; {when(match.changed)}")


def _shown(scoring: Scoring | None, value: float | None) -> str:
    return percent(value) if scoring is None or value is None else scoring.shown(value)


def _cell(sight: RunSummary, score: str) -> str:
    texts = {"waiting": "waiting", "failed": "failed", "damaged": "damaged"}
    text = texts.get(sight.state, score if sight.state in OVER else "")
    done = f"{sight.round}/{sight.rounds}" if sight.rounds else str(sight.round)
    inner = f'<span class="light {sight.state}"></span>{text}'
    if sight.state in ("running", "interrupted"):
        inner += f" <small>{done}</small>"
    tip = f"{sight.state}, round {done}"
    if sight.state == "waiting" or not sight.table:
        return f'<span class="cell {sight.state}" title="{escape(tip)}">{inner}</span>'
    return f'<a class="cell {sight.state}" href="/run/{sight.id}" title="{escape(tip)}">{inner}</a>'


def _how(catalogue: Catalogue, match: ComparisonSummary) -> str:
    assert match.plan is not None
    looks = [f"Look at {found}." for found in match.plan.looks]
    notes = "".join(f"<p>{escape(note)}</p>" for note in (*match.plan.notes, *looks))
    if match.state == "running":
        return section("how", "Notes", notes) if notes else ""
    command = "report" if match.state == "finished" else "compare --resume"
    told = "Write the report to a file:" if match.state == "finished" else "Resume it:"
    more = " -o report.html" if match.state == "finished" else ""
    line = f"fedarena {command} {shlex.quote(catalogue.path(match.folder))}{more}"
    return section("how", "Next", notes, f"<p>{told}</p><pre>{escape(line)}</pre>")
