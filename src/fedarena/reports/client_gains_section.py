"""Who gains by the federation, and whom the others would miss: sections of the report and of the pages of `fedarena ui`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from fedarena.common.formatting import format_duration, format_size
from fedarena.reports.charts.intervals import Interval, Row, histogram, interval_chart
from fedarena.reports.charts.lines import Series, legend
from fedarena.reports.charts.posteriors import chance, typeset
from fedarena.reports.charts.svg import NARROW, WIDE, escape
from fedarena.reports.report_data import ReportData
from fedarena.results.client_gains import MOST_SHRUNK, ClientGain, ClientGains, GainShares, Share
from fedarena.results.comparison import Comparison
from fedarena.results.leave_one_out import ClientEffect, LeaveOneOut, about
from fedarena.statistics.hierarchical import LEAST_FEDERATIONS

MANY = 16  # clients from which only the extreme ones are drawn
EXTREME = 5  # of them at either end
LONG = 16  # rows of a table from which it is folded up
GAIN_HEAD = ("", "algorithm", "alone", "federated", "gain", "90% interval", "P(gain)", "P(loss)", "")
COST_HEAD = ("", "algorithm", "training samples", "sent", "simulated time", "training time")
Draw = Callable[[float], str]
Both = Callable[[Draw], str]  # a chart for a desk and one for a telephone, as the page shows them


def gains(subject: ReportData) -> str:
    """Return the section of the report about what clients gain; nothing where local training takes no part."""
    return gains_section(subject.result, _both) if subject.why_not is None else ""


def effects(subject: ReportData) -> str:
    """Return the section of the report about clients that were left out; nothing where none was."""
    return effects_section(subject.result, _both) if subject.why_not is None else ""


def _both(draw: Draw) -> str:
    return f'<div class="wide">{draw(WIDE)}</div><div class="narrow">{draw(NARROW)}</div>'


def gains_section(result: Comparison, both: Both) -> str:
    """Return what clients gain over training alone: a chart, a table and how it is read."""
    found = result.client_gains()
    if found is None:
        return ""
    if found.kind == "drawn":
        return _drawn(result, found, both)
    lead = next(label for label in result.ranked if label in found.algorithms)
    order = [gain.client for gain in sorted(found.of(lead), key=lambda gain: -_or_lowest(gain.mean))]
    shown = _extreme(order)
    known = [gain for gain in found.clients if gain.client in shown and gain.mean is not None]
    rows = _rows(shown, [_gain_interval(result, gain) for gain in known], [gain.client for gain in known])
    unit = _unit(result)
    drawn = ""
    if known:
        draw = lambda width: interval_chart(
            rows, x_label=f"gain over {found.reference}, {unit}", rope=found.rope, factor=_factor(result), width=width
        )
        drawn = _keys(result, found.algorithms) + both(draw)
    told = (
        f"The gain of a client is the final {found.metric} of the federated model minus that of its own model "
        f"({found.reference}), both on the test samples of that client; to the right the federation is better. The line "
        f"holds 90% of the probability, the mark is the mean.{_shrunk(found)}"
    )
    listed = [gain for name in shown for gain in found.clients if gain.client == name]
    table = _table(GAIN_HEAD, [_gain_cells(result, gain) for gain in listed], "What every client gains")
    table += _table(COST_HEAD, [_cost_cells(gain) for gain in listed], "What every client pays")
    paid = (
        "Sent: bytes up and down of a run over its clients. Simulated: seconds on the clock of the devices until the "
        "federated model is final. Training: the client's part of the measured training time."
    )
    return (
        _figure(drawn + _many(result, found, lead, order, both), f"{told} {' '.join(found.notes)}") + table + _how(paid)
    )


def _shrunk(found: ClientGains) -> str:
    """Say why a gain is not the difference of two means, where it is not."""
    if not LEAST_FEDERATIONS <= len(found.clients) // max(len(found.algorithms), 1) <= MOST_SHRUNK:
        return ""
    return (
        " Means are drawn towards those of the other clients, the more so the less the splits agree: they are not the "
        "difference of the two scores."
    )


def _many(result: Comparison, found: ClientGains, lead: str, order: Sequence[str], both: Both) -> str:
    """Return the histogram of all clients where only the extreme ones are drawn."""
    means = [gain.mean for gain in found.of(lead) if gain.mean is not None]
    if len(order) <= MANY or not means:
        return ""
    draw = lambda width: histogram(
        means, x_label=f"mean gain from {lead}, {_unit(result)}", y_label="clients", factor=_factor(result), width=width
    )
    told = (
        f"Above are the {EXTREME} clients that gain most from {lead} and the {EXTREME} that gain least, below all "
        f"{len(order)} clients."
    )
    return f"<p>{escape(told)}</p>{both(draw)}"


def _drawn(result: Comparison, found: ClientGains, both: Both) -> str:
    """Return the shares of drawn clients that gain, are practically equal and lose."""
    kinds = {"gain": "gain", "equal": "practically equal", "loss": "lose"}
    rows: list[Row] = []
    for key, name in kinds.items():
        shares = [(share.algorithm, getattr(share, key)) for share in found.shares]
        rows.append((name, [_share_interval(result, label, name, share) for label, share in shares]))
    draw = lambda width: interval_chart(rows, x_label="share of drawn clients, percent", factor=100, width=width)
    rope = result.scoring().difference(found.rope)
    told = (
        f"The share of drawn clients whose final {found.metric} on their own test samples is better with the federation "
        f"than alone ({found.reference}) by more than {rope}, worse by more than that, or neither; with the interval over "
        f"splits that holds 90% of the probability. {' '.join(found.notes)}"
    )
    table = _table(
        ["", "gain", "equal", "lose", "clients", "sent", "simulated"],
        [_share_cells(share) for share in found.shares],
        "Shares of drawn clients, and what a client pays",
    )
    return _figure(_keys(result, found.algorithms) + both(draw), told) + table


def effects_section(result: Comparison, both: Both) -> str:
    """Return what the others lose without each client: a chart, a table and how it is read."""
    found = result.leave_one_out()
    if found is None or not found.effects:
        return ""
    lead = next(label for label in result.ranked if label in found.algorithms)
    order = [one.client for one in sorted(found.of(lead), key=lambda one: -_or_lowest(one.mean))]
    shown = _extreme(order)
    known = [one for one in found.effects if one.client in shown and one.mean is not None]
    rows = _rows(shown, [_effect_interval(result, one) for one in known], [one.client for one in known])
    drawn = ""
    if known:
        draw = lambda width: interval_chart(
            rows,
            x_label=f"what the others lose without it, {_unit(result)}",
            rope=found.rope,
            factor=_factor(result),
            width=width,
        )
        drawn = _keys(result, found.algorithms) + both(draw)
    table = _table(
        ["", "algorithm", "others with it", "without it", "loss", "90% interval", "P(they lose)", "P(gain)", ""],
        [_effect_cells(result, one) for name in shown for one in found.effects if one.client == name],
        "What the others lose without each client",
    )
    told = f"{about(found)} To the right the others lose where this client is not there."
    return _figure(drawn, told) + table + _failed(found)


def _failed(found: LeaveOneOut) -> str:
    return "".join(_how(f"{cell} has no result: {why}") for cell, why in found.failures.items())


# Pieces


def _extreme(order: Sequence[str]) -> list[str]:
    """Return all clients, or of many those at either end."""
    return [*order] if len(order) <= MANY else [*order[:EXTREME], *order[-EXTREME:]]


def _rows(names: Sequence[str], intervals: Sequence[Interval], of: Sequence[str]) -> list[Row]:
    """Return a row for each client that has an interval."""
    rows = [(name, [one for one, client in zip(intervals, of, strict=True) if client == name]) for name in names]
    return [(name, found) for name, found in rows if found]


def _gain_interval(result: Comparison, gain: ClientGain) -> Interval:
    assert gain.mean is not None
    assert gain.interval is not None
    told = (
        f"{gain.client}, {gain.algorithm}: gain {signed(result, gain.mean)}, 90% {_interval(result, gain.interval)}, "
        f"P(gain) {_chance(gain.p_gain)}, P(loss) {_chance(gain.p_loss)}"
    )
    return Interval(gain.algorithm, _index(result, gain.algorithm), gain.mean, *gain.interval, gain.verdict, told)


def _effect_interval(result: Comparison, one: ClientEffect) -> Interval:
    assert one.mean is not None
    assert one.interval is not None
    told = (
        f"without {one.client}, {one.algorithm}: the others lose {signed(result, one.mean)}, 90% "
        f"{_interval(result, one.interval)}"
    )
    return Interval(one.algorithm, _index(result, one.algorithm), one.mean, *one.interval, one.verdict, told)


def _share_interval(result: Comparison, label: str, name: str, share: Share) -> Interval:
    return Interval(label, _index(result, label), share.mean, *share.interval, told=f"{label}: {_share(share)} {name}")


def _gain_cells(result: Comparison, gain: ClientGain) -> list[str]:
    shown = result.scoring("final").shown
    undefined = f" ({gain.undefined} splits undefined)" if gain.undefined else ""
    return [
        gain.client,
        gain.algorithm,
        shown(gain.local),
        shown(gain.federated),
        signed(result, gain.mean) + undefined,
        "–" if gain.interval is None else _interval(result, gain.interval),
        _chance(gain.p_gain),
        _chance(gain.p_loss),
        typeset(gain.verdict),
    ]


def _cost_cells(gain: ClientGain) -> list[str]:
    times = [_time(gain.clock_seconds), _time(gain.training_seconds)]
    return [gain.client, gain.algorithm, f"{gain.samples:,.0f}", format_size(gain.bytes), *times]


def _effect_cells(result: Comparison, one: ClientEffect) -> list[str]:
    shown = result.scoring("final").shown
    return [
        one.client,
        one.algorithm,
        shown(one.with_client),
        shown(one.without_client),
        signed(result, one.mean),
        "–" if one.interval is None else _interval(result, one.interval),
        _chance(one.p_helps),
        _chance(one.p_harms),
        typeset(one.verdict),
    ]


def _share_cells(share: GainShares) -> list[str]:
    drawn = str(share.clients) + (f" ({share.undefined} undefined)" if share.undefined else "")
    counts = [drawn, format_size(share.bytes), _time(share.clock_seconds)]
    return [share.algorithm, *(_share(one) for one in (share.gain, share.equal, share.loss)), *counts]


def gain_table(result: Comparison) -> tuple[str, list[list[str]]] | None:
    """Return the gains as a table of texts with what it shows, for Markdown and LaTeX; None without any."""
    found = result.client_gains()
    if found is None:
        return None
    rope = result.scoring().difference(found.rope)
    if found.kind == "drawn":
        head = ["algorithm", "gain", "equal", "lose", "clients", "sent", "simulated time"]
        cells = [_share_cells(share) for share in found.shares]
        return f"share of drawn clients that gain over {found.reference} by more than {rope}", [head, *cells]
    head = ["client", *GAIN_HEAD[1:-1], "sign", *COST_HEAD[2:]]
    body = [[*_gain_cells(result, gain), *_cost_cells(gain)[2:]] for gain in found.clients]
    told = f"{found.metric} on each client's own test samples, federated minus {found.reference}; P of more than {rope}"
    return told, [head, *body]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """Return a table as both pages show it; a long one is folded up."""
    lines = [*rows]
    top = "".join(f'<th scope="col">{escape(cell)}</th>' if cell else "<td></td>" for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in lines
    )
    table = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="rows numbers">'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    return table if len(lines) <= LONG else f"<details><summary>{escape(caption)}</summary>{table}</details>"


def _figure(body: str, caption: str) -> str:
    return f"<figure>{body}<figcaption>{escape(caption)}</figcaption></figure>"


def _how(text: str) -> str:
    return f'<p class="how note">{escape(text)}</p>'


def _keys(result: Comparison, labels: Sequence[str]) -> str:
    """Return the legend; one algorithm has one too, so that its mark has a name."""
    return legend([Series(label, [], [], index=_index(result, label)) for label in labels])


def _index(result: Comparison, label: str) -> int:
    """Return the number of its colour and mark, as in all charts of the page."""
    return result.labels.index(label)


def _factor(result: Comparison) -> float:
    return 100.0 if result.scoring().is_share else 1.0


def _unit(result: Comparison) -> str:
    return "percentage points" if result.scoring().is_share else result.plan.metric


def signed(result: Comparison, value: float | None) -> str:
    """Return a difference with its sign, in points or in units of the metric; a dash where it is unknown."""
    if value is None or math.isnan(value):
        return "–"
    text = f"{100 * value:+.1f}" if result.scoring().is_share else f"{value:+.3g}"
    return text.replace("-", "\N{MINUS SIGN}")


def _interval(result: Comparison, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{signed(result, low)} to {signed(result, high)}"


def _chance(p: float | None) -> str:
    return "–" if p is None else chance(p)


def _share(share: Share) -> str:
    low, high = share.interval
    return f"{share.mean:.0%} ({low:.0%} to {high:.0%})"


def _time(seconds: float) -> str:
    """Return a time, in milliseconds where it is short."""
    return format_duration(seconds) if seconds >= 0.1 or seconds == 0 else f"{1000 * seconds:.1f} ms"


def _or_lowest(value: float | None) -> float:
    return -math.inf if value is None else value
