"""The page of a comparison: how far it is, its curves, what may be said by now, and every cell."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedarena.errors import DataBroken, FedarenaError
from fedarena.results.comparison import SIGNS, Comparison
from fedarena.results.report.charts import NARROW, Pair, Series, escape, legend, line_chart, posterior_rows
from fedarena.results.report.posteriors import chance
from fedarena.results.suite import SuiteComparison
from fedarena.ui.catalogue import Catalogue, Match, Sight, SuiteSight
from fedarena.ui.files import reason
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
from fedarena.ui.log import Log
from fedarena.ui.run_page import AXES
from fedarena.ui.scores import Pairing, judged, means, pairing, score

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
    from fedarena.results.report.gather import gather
    from fedarena.results.report.page import render
    from fedarena.results.report.subject import Subject
    from fedarena.results.report.suite import render_suite

    try:
        catalogue.files.check_tree(found.folder)
        if isinstance(found, SuiteSight):
            return render_suite(SuiteComparison.load(found.folder))
        return render(Subject(gather([found.folder])))
    except FedarenaError:
        raise
    except Exception as error:
        raise DataBroken(f"the report cannot be made: {reason(error)}", remedy=f"look into {found.folder}") from error


def _body(catalogue: Catalogue, match: Match, query: dict[str, str]) -> Iterator[str]:
    yield _head(match)
    if match.plan is None:
        yield f'<p class="why">{escape(match.why)}</p>'
        return
    result = _result(catalogue, match)
    yield _verdict(match, result)
    yield _curves(catalogue, match, query.get("over", "round"))
    if isinstance(result, Comparison):
        yield _costs(result)
    yield _cells(match)
    yield _how(match)


def _result(catalogue: Catalogue, match: Match) -> Comparison | str | None:
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


def _head(match: Match) -> str:
    cells = len(match.everyone)
    done = match.over
    link = f'<a class="button" href="/report/{match.id}">Report</a>' if match.state == "finished" else ""
    facts = ""
    if match.plan is not None:
        parts = (match.plan.experiment.get(key) for key in ("data", "partition", "model"))
        names = [str(part.get("name", "?") if isinstance(part, dict) else part) for part in parts]
        facts = f'<p class="facts">{escape(" · ".join(names))}<br>{escape(match.plan.test)}<br>{escape(match.plan.about)}</p>'
        facts += (
            f'<div class="rounds long">{bar(done / max(cells, 1), match.state, "runs")}'
            f"<span>{done} of {cells} runs</span></div>"
        )
    return (
        f'<nav class="path"><a href="/">All runs</a> / <span>{escape(match.name)}</span></nav>'
        f'<div class="head"><h1>{escape(match.name)}</h1>{badge(match.state)}{link}</div>{facts}'
    )


# What may be said


def _verdict(match: Match, result: Comparison | str | None) -> str:
    assert match.plan is not None
    names = judged(match)
    pairs = {(a, b): pairing(match, a, b) for a in names for b in names if a != b}
    known = [pair for pair in pairs.values() if pair is not None]
    over = match.state == "finished"
    told = "".join(f"<p>{escape(text)}</p>" for text in result.words) if isinstance(result, Comparison) else ""
    if isinstance(result, str):
        told = f'<p class="note">{escape(result)}</p>'
    if not known:
        soon = "" if over else "<p>As soon as two algorithms have finished two splits, a first one stands here.</p>"
        return section("verdict", "Verdict", told or soon)
    note = (
        ""
        if over
        else f"provisional, from {min(p.splits for p in known)} of {len(match.plan.splits)} splits: it may change"
    )
    against = [pair for other in names[1:] if (pair := pairs[names[0], other]) is not None]
    shown = [Pair(pair.row, pair.column, pair.known, pair.sign) for pair in against]
    rope = match.plan.rope
    drawn = both(lambda width: posterior_rows(shown, rope, width=width)) if shown else ""
    matrix = _matrix(names, pairs, rope)
    kind = "" if over else "provisional"
    return section("verdict", "Verdict", f'<div class="{kind}">{told}{drawn}{matrix}</div>', note=note)


def _matrix(names: Sequence[str], pairs: dict[tuple[str, str], Pairing | None], rope: float) -> str:
    rows = []
    for row in names:
        cells = ["" if row == column else _sign(pairs[row, column], rope) for column in names]
        rows.append([escape(row), *cells])
    signs = ", ".join(f"<b>{_typeset(sign)}</b> {word}" for sign, word in SIGNS.items())
    how = f'<p class="note">Row against column: {signs}. Below: the probabilities of better, equal, worse.</p>'
    return table(["", *map(escape, names)], rows, "duels") + how


def _sign(pair: Pairing | None, rope: float) -> str:
    if pair is None:
        return '<span class="note">…</span>'
    worse, equal, better = pair.known.regions(rope)
    kind = {"+": "better", "=": "equal", "-": "worse", "?": "open"}[pair.sign]
    chances = " ".join(f"<span>{escape(chance(p))}</span>" for p in (better, equal, worse))
    return f'<div class="duel {kind}"><b>{_typeset(pair.sign)}</b><small>{chances}</small></div>'


def _typeset(sign: str) -> str:
    return "\N{MINUS SIGN}" if sign == "-" else sign


# How it goes


@dataclass(frozen=True)
class Mean:
    """Over the splits that have come so far, at every round that one of them has reached."""

    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]


def _mean(logs: Sequence[Log], over: str) -> Mean:
    rounds = sorted({r for log in logs for r, a in zip(log["round"], log["accuracy"], strict=True) if math.isfinite(a)})
    chosen = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), POINTS)).round().astype(int))
    at = np.array(rounds)[chosen] if rounds else np.empty(0)
    x, y = (np.full((len(logs), len(at)), np.nan) for _ in range(2))
    for k, log in enumerate(logs):
        known = np.array(log["round"])
        place = np.minimum(np.searchsorted(known, at), max(len(known) - 1, 0))
        there = known[place] == at if len(known) else np.zeros(len(at), bool)
        x[k, there], y[k, there] = np.array(log[over])[place[there]], np.array(log["accuracy"])[place[there]]
    seen = np.isfinite(y).any(axis=0)
    x, y = x[:, seen], y[:, seen]
    means = np.maximum.accumulate(np.nanmean(x, axis=0)) if len(logs) and seen.any() else np.empty(0)
    edges = [f(y, axis=0).tolist() if y.size else [] for f in (np.nanmean, np.nanmin, np.nanmax)]
    return Mean(means.tolist(), *edges)


def _curves(catalogue: Catalogue, match: Match, over: str) -> str:
    logs = {label: [catalogue.log(s) for s in row if s.round] for label, row in match.cells.items()}
    everyone = [log for row in logs.values() for log in row if len(log)]
    known = {key: axis for key, axis in AXES.items() if any(log[key][-1] > 0 for log in everyone)}
    if not known:
        return ""
    over = over if over in known else "round"
    lines = [_series(match, label, k, [log for log in logs[label] if len(log)], over) for k, label in enumerate(logs)]
    lines = [line for line in lines if len(line.x)]
    label = AXES[over][1]
    drawn = both(lambda width: line_chart(lines, x_label=label, width=width, height=430 if width > NARROW else 300))
    choice = tabs({key: axis[0] for key, axis in known.items()}, over, "over") if len(known) > 1 else ""
    note = "the mean of the splits so far, and the range from worst to best"
    return section("curves", "Learning curves", choice, legend(lines), drawn, note=note)


def _series(match: Match, label: str, index: int, logs: Sequence[Log], over: str) -> Series:
    mean = _mean(logs, over)
    band: dict[str, Any] = {"low": mean.low, "high": mean.high} if len(logs) > 1 else {}
    aside = match.plan is not None and label == match.plan.reference
    return Series(label, mean.x, mean.y, **band, index=index, aside=aside)


def _costs(result: Comparison) -> str:
    head = ["", "final", "P(best)", "own samples", "rounds", "sent", "simulated time", "worst clients", "time a run"]
    scoring, rows = result.scoring("final"), []
    for row in result.rows():
        sent = row["bytes_to_target"]
        rows.append(
            [
                escape(row["algorithm"]) + (f" {badge('diverged')}" if row["diverged"] else ""),
                f"{scoring.shown(row['final'])} <small>± {scoring.shown(row['final_sd'])}</small>",
                "–" if row["p_best"] is None else f"{row['p_best']:.2f}",
                scoring.shown(row["own"]),
                decimal(row["rounds_to_target"]),
                size(None if sent is None else sent / 1e6),
                duration(row["clock_to_target"]),
                percent(row["client_worst"]),
                duration(row["wall_seconds"]),
            ]
        )
    note = f"final: {scoring.name}; rounds, sent and simulated time: median to reach {scoring.shown(result.target, 0)}"
    return section("costs", "What it gave and what it cost", table(head, rows, "numbers"), note=note)


# Every cell


def _cells(match: Match) -> str:
    assert match.plan is not None
    known = means(match)
    rows = []
    for label, row in match.cells.items():
        over = sum(score(sight) is not None for sight in row)
        mean = f"{percent(known[label])} <small>{over} of {len(row)}</small>"
        rows.append([escape(label), mean, *map(_cell, row)])
    head = ["", "mean best", *(escape(split.name) for split in match.plan.splits)]
    failed = {s.why: label for label, row in match.cells.items() for s in row if s.state == "failed"}
    told = "".join(f'<p class="why">{escape(label)}: {escape(why)}</p>' for why, label in failed.items())
    return section("cells", "Runs", table(head, rows, "cells"), told, note=when(match.changed))


def _cell(sight: Sight) -> str:
    text = {"waiting": "waiting", "failed": "failed", "damaged": "damaged"}.get(sight.state, percent(sight.best))
    done = f"{sight.round}/{sight.rounds}" if sight.rounds else str(sight.round)
    inner = f'<span class="light {sight.state}"></span>{text}'
    if sight.state in ("running", "interrupted"):
        inner += f" <small>{done}</small>"
    tip = f"{sight.state}, round {done}"
    if sight.state == "waiting" or not sight.table:
        return f'<span class="cell {sight.state}" title="{escape(tip)}">{inner}</span>'
    return f'<a class="cell {sight.state}" href="/run/{sight.id}" title="{escape(tip)}">{inner}</a>'


def _how(match: Match) -> str:
    assert match.plan is not None
    notes = "".join(f"<p>{escape(note)}</p>" for note in match.plan.notes)
    if match.state == "running":
        return section("how", "Notes", notes) if notes else ""
    command = "report" if match.state == "finished" else "compare --resume"
    told = "Keep the report:" if match.state == "finished" else "Go on with it:"
    more = " -o report.html" if match.state == "finished" else ""
    line = f"fedarena {command} {shlex.quote(str(match.folder))}{more}"
    return section("how", "Next", notes, f"<p>{told}</p><pre>{escape(line)}</pre>")
