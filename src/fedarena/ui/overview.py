"""The first page: everything under the folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fedarena.reports.charts import escape
from fedarena.statistics.metric_registry import OPTIMISTIC
from fedarena.ui.catalogue import STATES, Catalogue, ComparisonSummary, Listing, RunSummary, SuiteSight, part_name
from fedarena.ui.html import badge, bar, frame, percent, progress, section, settings, spark, when
from fedarena.ui.partial_scores import by_mean, scoring_of
from fedarena.ui.safe_files import reason

SHOWN = 8  # contestants of a card


def page(catalogue: Catalogue) -> str:
    """The list of comparisons, and the list of runs."""
    listing = catalogue.look()
    running = sum(s.state == "running" for s in (*listing.runs, *(c for m in listing.matches for c in m.everyone)))
    title = f"({running}) fedarena" if running else "fedarena"
    return frame(title, _body(listing), running=running, folder=catalogue.name)


def _body(listing: Listing) -> Iterator[str]:
    if not listing.runs and not listing.matches and not listing.suites:
        yield (
            '<section class="empty"><h1>No runs yet</h1><p>Start one in another terminal, and it appears here:</p>'
            "<pre>fedarena run digits</pre></section>"
        )
    if listing.partial:
        yield '<p class="note">There are too many folders here: some were not looked into. Name a smaller one.</p>'
    if listing.suites:
        suites = "".join(map(_suite, listing.suites))
        yield section("suites", "Several federations", suites)
    if listing.matches:
        cards = "".join(map(_safe_card, listing.matches))
        yield section("comparisons", "Comparisons", f'<div class="cards">{cards}</div>')
    if listing.runs:
        rows = "".join(map(_safe_row, listing.runs))
        heads = "".join(
            f'<th scope="col">{head}</th>'
            for head in ("Run", "Algorithm", "Data", "Accuracy", "Best*", "", "Rounds", "Changed")
        )
        find = (
            '<input id="find" type="search" placeholder="Filter: name, algorithm, data, state" '
            'aria-label="Filter the runs" autocomplete="off">'
        )
        yield section(
            "runs",
            "Runs",
            f'<div class="tools">{find}</div>',
            f'<table class="runs"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>',
            f'<p class="note">* {OPTIMISTIC}</p>',
            note=_counted(listing.runs),
        )


def _counted(runs: list[RunSummary]) -> str:
    count = Counter(sight.state for sight in runs)
    return ", ".join(f"{count[state]} {state}" for state in STATES if count[state])


def _safe_row(sight: RunSummary) -> str:
    """The row of a run; one whose contents cannot be shown says why, and the others are shown all the same."""
    try:
        return _row(sight)
    except Exception as error:
        return _row(RunSummary(sight.id, sight.folder, sight.name, "damaged", {}, why=reason(error)))


def _safe_card(match: ComparisonSummary) -> str:
    """The card of a comparison, with the same care."""
    try:
        return _card(match)
    except Exception as error:
        return _card(ComparisonSummary(match.id, match.folder, match.name, None, why=reason(error)))


def _suite(suite: SuiteSight) -> str:
    """Return the verdict sentences of a suite; its federations stand among the comparisons."""
    link = f' <a class="button" href="/report/{suite.id}">Report</a>' if suite.state == "finished" else ""
    names = ", ".join(suite.federations)
    told = "".join(f"<p>{escape(text)}</p>" for text in suite.words)
    why = f'<p class="why">{escape(suite.why)}</p>' if suite.why else ""
    head = f"<h3>{escape(suite.name)}</h3>{badge(suite.state)}{link}"
    return (
        f'<article class="card suite" id="suite-{suite.id}">{head}{why}{told}'
        f'<p class="note">{len(suite.federations)} federations: {escape(names)}. {when(suite.changed)}</p></article>'
    )


def _row(sight: RunSummary) -> str:
    text = " ".join(
        [sight.name, sight.state, *(sight.part(key) for key in ("algorithm", "data", "partition", "model"))]
    )
    algorithm = (
        f"<b>{escape(sight.part('algorithm'))}</b> <small>{escape(settings(sight.settings('algorithm')))}</small>"
    )
    data = f"{escape(sight.part('data'))} <small>{escape(sight.part('partition'))}</small>"
    if sight.state == "damaged":
        algorithm, data = f'<small class="why">{escape(sight.why)}</small>', ""
    return (
        f'<tr id="run-{sight.id}" data-text="{escape(text.lower())}">'
        f'<th scope="row"><a href="/run/{sight.id}">{escape(sight.name)}</a> {badge(sight.state)}</th>'
        f'<td class="algorithm">{algorithm}</td><td class="data">{data}</td>'
        f'<td class="number accuracy">{percent(sight.accuracy)}</td><td class="number best">{percent(sight.best)}</td>'
        f'<td class="curve">{spark(sight.spark)}</td>'
        f'<td class="rounds">{bar(sight.share, sight.state, "rounds")}<span>{progress(sight)}</span></td>'
        f'<td class="when">{when(sight.changed)}</td></tr>'
    )


def _card(match: ComparisonSummary) -> str:
    if match.plan is None:
        return (
            f'<article class="card" id="comparison-{match.id}"><h3>{escape(match.name)}</h3>{badge("damaged")}'
            f'<p class="why">{escape(match.why)}</p></article>'
        )
    cells = len(match.everyone)
    lines, scoring = by_mean(match), scoring_of(match.plan)
    order = {label: k for k, label in enumerate(match.cells)}
    rows = "".join(_contestant(match, label, mean, order[label]) for label, mean in lines[:SHOWN])
    more = f'<li class="more">and {len(lines) - SHOWN} more</li>' if len(lines) > SHOWN else ""
    table = match.plan.experiment
    what = " · ".join(part_name(table.get(key)) for key in ("data", "partition", "model"))
    score = match.plan.metric if scoring is None else scoring.name + f" ({OPTIMISTIC})" * (match.plan.score == "best")
    return (
        f'<article class="card" id="comparison-{match.id}"><h3><a href="/comparison/{match.id}">{escape(match.name)}</a>'
        f"</h3>{badge(match.state)}<p>{escape(what)}</p>"
        f'<p class="score">{escape(score)}</p>'
        f'<ol class="contestants">{rows}{more}</ol>'
        f'<div class="rounds">{bar(match.over / max(cells, 1), match.state, "runs")}'
        f"<span>{match.over} of {cells} runs, {when(match.changed)}</span></div></article>"
    )


def _contestant(match: ComparisonSummary, label: str, mean: float | None, index: int) -> str:
    aside = match.plan is not None and label == match.plan.reference
    look = "aside" if aside else f"s{index % 8}"
    scoring = None if match.plan is None else scoring_of(match.plan)
    shown = percent(mean) if scoring is None else "–" if mean is None else scoring.shown(mean)
    known = "failed" if any(sight.state == "failed" for sight in match.cells[label]) else shown
    share = bar(mean or 0.0, "own", "mean score") if scoring is None or scoring.is_share else "<i></i>"
    return f'<li class="{look}"><span>{escape(label)}</span>{share}<b>{known}</b></li>'
