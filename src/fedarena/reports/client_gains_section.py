"""Sections of the report and of `fedarena ui`: gains of clients by the federation, and losses of the others without one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from markupsafe import Markup

from fedarena.common.formatting import format_duration, format_size
from fedarena.reports.charts.distributions import histogram
from fedarena.reports.charts.gain_grid import gain_grid
from fedarena.reports.charts.intervals import CredibleInterval, IntervalRow, interval_chart
from fedarena.reports.charts.lines import Series
from fedarena.reports.charts.posteriors import format_probability, format_sign
from fedarena.reports.charts.svg import WIDE
from fedarena.reports.page_elements import Row, Table
from fedarena.reports.report_data import ReportData, colour_index
from fedarena.reports.templating import macros
from fedarena.results.client_gains import MOST_SHRUNK, ClientEstimate, ClientGain, ClientGains, GainShares, Share
from fedarena.results.comparison import Comparison
from fedarena.results.leave_one_out import ClientEffect, about
from fedarena.statistics.hierarchical import LEAST_FEDERATIONS

MANY = 16  # clients from which only the extreme ones are drawn
EXTREME = 5  # of them at either end
MOST_IN_GRID = 60  # clients up to which all of them are in the grid
GAIN_HEAD = ("algorithm", "alone", "federated", "gain", "90% interval", "P(gain)", "P(loss)")
EFFECT_HEAD = ("algorithm", "others with it", "without it", "loss", "90% interval", "P(they lose)", "P(gain)", "")
COST_HEAD = ("algorithm", "training samples", "sent", "simulated time", "training time")
SHARE_HEAD = ("gain", "equal", "lose", "clients", "sent", "simulated")
QUANTILE_NAMES = (
    "least gain", "lowest tenth", "lowest quarter", "median", "highest quarter", "highest tenth", "largest gain",
)  # fmt: skip
COSTS_NOTE = (
    "Sent: bytes up and down of a run over its clients. Simulated: seconds on the clock of the devices until the "
    "federated model is final. Training: the client's part of the measured training time."
)
Found = TypeVar("Found", ClientGain, ClientEffect)


def gains(data: ReportData) -> Markup:
    """Return the section of the report about what clients gain; nothing where local training takes no part."""
    return gains_section(data.result) if data.no_verdict_reason is None else Markup()


def effects(data: ReportData) -> Markup:
    """Return the section of the report about clients that were left out; nothing where none was."""
    return effects_section(data.result) if data.no_verdict_reason is None else Markup()


def gains_section(result: Comparison, width: float = WIDE) -> Markup:
    """Return what clients gain over training alone: a chart, a table and how it is read."""
    found = result.client_gains()
    if found is None:
        return Markup()
    if found.kind == "drawn":
        return _shares_section(result, found, width)
    lead = next(label for label in result.ranked if label in found.algorithms)
    order = _by_mean(found.of(lead))
    shown = _extreme(order)
    caption = (
        f"The gain of a client is the final {found.metric} of the federated model minus that of its own model "
        f"({found.reference}), both on the test samples of that client; to the right the federation is better. The line "
        f"holds 90% of the probability, the mark is the mean.{_shrinkage_note(found)} {' '.join(found.notes)}"
    )
    listed = [gain for name in shown for gain in found.clients if gain.client == name]
    tables = [
        _table("What every client gains", (*GAIN_HEAD, ""), [_gain_cells(result, gain) for gain in listed]),
        _table("What every client pays", COST_HEAD, [_cost_cells(gain) for gain in listed]),
    ]
    x_label = f"gain over {found.reference}, {result.scoring().unit}"
    charts = _interval_chart(result, listed, _gain_summary, x_label, found.rope)
    charts += _grid(result, found, order)
    means = [gain.mean for gain in found.of(lead) if gain.mean is not None]
    if len(order) > MANY and means:
        x_label = f"mean gain from {lead}, {result.scoring().unit}"
        how: dict[str, Any] = {"x_label": x_label, "y_label": "clients", "factor": result.scoring().scale}
        charts += [
            f"At the top are the {EXTREME} clients that gain most from {lead} and the {EXTREME} that gain least, below all "
            f"{len(order)} clients.",
            lambda width: histogram(means, width=width, **how),
        ]
    return _render(result, found.algorithms, width, charts, caption, tables, [COSTS_NOTE])


def _grid(result: Comparison, found: ClientGains, order: Sequence[str]) -> list[Any]:
    """Return the grid of mean gains, clients by algorithms; nothing with one algorithm or very many clients."""
    known = {(g.client, g.algorithm): g.mean for g in found.clients if g.mean is not None and math.isfinite(g.mean)}
    if len(found.algorithms) < 2 or len(order) > MOST_IN_GRID or not known:
        return []
    write = lambda gain: signed(result, gain)
    how = "The mean gain of each client from each algorithm; blue is a gain, orange a loss, and darker is more."
    return [how, lambda width: gain_grid(order, found.algorithms, known, write, width)]


def _shrinkage_note(found: ClientGains) -> str:
    """Explain why a gain is not the difference of two means, where it is not."""
    if not LEAST_FEDERATIONS <= len(found.clients) // max(len(found.algorithms), 1) <= MOST_SHRUNK:
        return ""
    return (
        " Means are drawn towards those of the other clients, the more so the less the splits agree: they are not the "
        "difference of the two scores."
    )


def _shares_section(result: Comparison, found: ClientGains, width: float) -> Markup:
    """Return the shares of sampled clients that gain, are practically equal and lose."""
    rows: list[IntervalRow] = []
    for key, name in {"gain": "gain", "equal": "practically equal", "loss": "lose"}.items():
        intervals = []
        for shares in found.shares:
            share: Share = getattr(shares, key)
            summary = f"{shares.algorithm}: {share} {name}"
            index = colour_index(result.plan, shares.algorithm)
            intervals.append(CredibleInterval(index, share.mean, *share.interval, summary))
        rows.append((name, intervals))
    rope = result.scoring().difference(found.rope)
    caption = (
        f"The share of drawn clients whose final {found.metric} on their own test samples is better with the federation "
        f"than alone ({found.reference}) by more than {rope}, worse by more than that, or neither; with the interval over "
        f"splits that holds 90% of the probability. {' '.join(found.notes)}"
    )
    cells = [_share_cells(share) for share in found.shares]
    table = _table("Shares of drawn clients, and what a client pays", SHARE_HEAD, cells)
    draw = lambda width: interval_chart(rows, x_label="share of drawn clients, percent", factor=100, width=width)
    return _render(result, found.algorithms, width, [draw, *_quantile_grid(result, found)], caption, [table])


def _quantile_grid(result: Comparison, found: ClientGains) -> list[Any]:
    """Return the grid of the gains of drawn clients, from the least to the largest; nothing with one algorithm."""
    if len(found.algorithms) < 2:
        return []
    known = {
        (name, shares.algorithm): gain
        for shares in found.shares
        for name, gain in zip(QUANTILE_NAMES, shares.quantiles, strict=True)
    }
    write = lambda gain: signed(result, gain)
    how = (
        "The gains of drawn clients from each algorithm, sorted, of all splits together: every column for itself, so that a "
        "row is no client. Blue is a gain, orange a loss, and darker is more."
    )
    about = "Gains of drawn clients from each algorithm, sorted."
    return [how, lambda width: gain_grid(QUANTILE_NAMES, found.algorithms, known, write, width, about)]


def effects_section(result: Comparison, width: float = WIDE) -> Markup:
    """Return what the others lose without each client: a chart, a table and how it is read."""
    found = result.leave_one_out()
    if found is None or not found.effects:
        return Markup()
    lead = next(label for label in result.ranked if label in found.algorithms)
    shown = _extreme(_by_mean(found.of(lead)))
    listed = [effect for name in shown for effect in found.effects if effect.client == name]
    cells = [_effect_cells(result, effect) for effect in listed]
    table = _table("What the others lose without each client", EFFECT_HEAD, cells)
    x_label = f"what the others lose without it, {result.scoring().unit}"
    charts = _interval_chart(result, listed, _effect_summary, x_label, found.rope)
    caption = f"{about(found)} To the right the others lose where this client is not there."
    failures = [f"{cell} has no result: {why}" for cell, why in found.failures.items()]
    return _render(result, found.algorithms, width, charts, caption, [table], failures)


def _render(
    result: Comparison,
    algorithms: Sequence[str],
    width: float,
    charts: Sequence[Any],
    caption: str,
    tables: Sequence[Table],
    notes: Sequence[str] = (),
) -> Markup:
    """Return a figure, tables and notes; a long table is folded."""
    keys = [Series(label, index=colour_index(result.plan, label)) for label in algorithms] if charts else []
    figure = macros.figure(charts, caption, keys, width=width)
    shown = [macros.table(t) if len(t.rows) <= MANY else macros.folded(t.caption, macros.table(t)) for t in tables]
    return Markup().join([figure, *shown, macros.paragraphs(notes, "how note")])


def _by_mean(found: Sequence[ClientEstimate]) -> list[str]:
    """Return the clients from the largest mean to the smallest; those without one last."""
    return [one.client for one in sorted(found, key=lambda one: math.inf if one.mean is None else -one.mean)]


def _extreme(order: Sequence[str]) -> list[str]:
    """Return all clients, or of many those at either end."""
    return [*order] if len(order) <= MANY else [*order[:EXTREME], *order[-EXTREME:]]


def _interval_chart(
    result: Comparison,
    listed: Sequence[Found],
    summarize: Callable[[Comparison, Found], str],
    x_label: str,
    rope: float,
) -> list[Any]:
    """Return the chart of clients, a row each, that have an interval; nothing where none has."""
    rows: dict[str, list[CredibleInterval]] = {}
    for one in listed:
        if one.mean is not None and one.interval is not None:
            index, summary = colour_index(result.plan, one.algorithm), summarize(result, one)
            rows.setdefault(one.client, []).append(
                CredibleInterval(index, one.mean, *one.interval, summary, one.verdict)
            )
    how: dict[str, Any] = {"x_label": x_label, "rope": rope, "factor": result.scoring().scale}
    return [lambda width: interval_chart([*rows.items()], width=width, **how)] if rows else []


def _gain_summary(result: Comparison, gain: ClientGain) -> str:
    return (
        f"{gain.client}, {gain.algorithm}: gain {signed(result, gain.mean)}, 90% {_interval(result, gain.interval)}, "
        f"P(gain) {_probability(gain.p_gain)}, P(loss) {_probability(gain.p_loss)}"
    )


def _effect_summary(result: Comparison, effect: ClientEffect) -> str:
    return (
        f"without {effect.client}, {effect.algorithm}: the others lose {signed(result, effect.mean)}, 90% "
        f"{_interval(result, effect.interval)}"
    )


def _gain_cells(result: Comparison, gain: ClientGain) -> list[str]:
    undefined = f" ({gain.undefined} splits undefined)" if gain.undefined else ""
    return _estimate_cells(result, gain, (gain.local, gain.federated), (gain.p_gain, gain.p_loss), undefined)


def _effect_cells(result: Comparison, effect: ClientEffect) -> list[str]:
    scores = effect.with_client, effect.without_client
    return _estimate_cells(result, effect, scores, (effect.p_helps, effect.p_harms))


def _estimate_cells(
    result: Comparison,
    one: ClientEstimate,
    scores: Sequence[float | None],
    chances: Sequence[float | None],
    undefined: str = "",
) -> list[str]:
    """Return the client, the algorithm, two scores, their difference with its interval, two probabilities, the sign."""
    numbers = [*map(result.scoring("final").shown, scores), signed(result, one.mean) + undefined]
    probabilities = [_interval(result, one.interval), *map(_probability, chances)]
    return [one.client, one.algorithm, *numbers, *probabilities, format_sign(one.verdict)]


def _cost_cells(gain: ClientGain) -> list[str]:
    times = [_time(gain.clock_seconds), _time(gain.training_seconds)]
    return [gain.client, gain.algorithm, f"{gain.samples:,.0f}", format_size(gain.bytes), *times]


def _share_cells(share: GainShares) -> list[str]:
    clients = str(share.clients) + (f" ({share.undefined} undefined)" if share.undefined else "")
    counts = [clients, format_size(share.bytes), _time(share.clock_seconds)]
    return [share.algorithm, *map(str, (share.gain, share.equal, share.loss)), *counts]


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table(caption, head, [Row(name, cells) for name, *cells in rows], "rows numbers")


def gain_table(result: Comparison) -> tuple[str, list[list[str]]] | None:
    """Return the gains as a table of texts with what it shows, for Markdown and LaTeX; None without any."""
    found = result.client_gains()
    if found is None:
        return None
    rope = result.scoring().difference(found.rope)
    if found.kind == "drawn":
        head = ["algorithm", *SHARE_HEAD[:-1], "simulated time"]
        cells = [_share_cells(share) for share in found.shares]
        return f"share of drawn clients that gain over {found.reference} by more than {rope}", [head, *cells]
    head = ["client", *GAIN_HEAD, "sign", *COST_HEAD[1:]]
    body = [[*_gain_cells(result, gain), *_cost_cells(gain)[2:]] for gain in found.clients]
    caption = (
        f"{found.metric} on each client's own test samples, federated minus {found.reference}; P of more than {rope}"
    )
    return caption, [head, *body]


def signed(result: Comparison, value: float | None) -> str:
    """Return a difference with its sign, in points or in units of the metric; a dash where it is unknown."""
    return "–" if value is None or math.isnan(value) else result.scoring().signed(value)


def _interval(result: Comparison, interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else " to ".join(signed(result, end) for end in interval)


def _probability(p: float | None) -> str:
    return "–" if p is None else format_probability(p)


def _time(seconds: float) -> str:
    """Return a time, in tenths of milliseconds where it is short."""
    return format_duration(seconds) if seconds >= 0.1 or seconds == 0 else f"{1000 * seconds:.1f} ms"
