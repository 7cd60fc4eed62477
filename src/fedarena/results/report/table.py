"""The table of rows: what every algorithm gave and what it cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedarena.results.report.charts import Series, escape, legend
from fedarena.results.report.subject import Subject

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: under which heading, by which name alone, how a row is written, and which end of it is the good one."""

    group: str
    head: str
    name: str
    key: str
    write: Callable[[Row], str]
    good: Callable[[list[float]], float] | None = None

    def text(self, row: Row) -> str:
        """The cell; a dash for what is not known, and for what costs nothing."""
        value = row[self.key]
        free = value == 0 and self.key.startswith(("bytes", "uploads", "clock"))
        return "–" if value is None or free else self.write(row)


def tables(subject: Subject) -> list[list[Column]]:
    """Two tables, of the columns that tell something about these runs."""
    several, scoring = max(row["runs"] for row in subject.rows) > 1, subject.result.scoring()
    metric, loss, top = scoring.metric, scoring.loss, max if scoring.sign > 0 else min
    score = metric.replace("_", " ").capitalize()
    target = f"{subject.result.target:.0%}"
    goal = f"To reach {target}" + (", median over splits" if several else "")
    first = [
        Column(score, "final", f"final {metric}", "final", lambda r: _with_sd(r, "final", several), top),
        Column(score, "best round", f"best {metric}", "best", lambda r: _with_sd(r, "best", several), top),
        Column("Joint posterior", "P(best)", "P(best)", "p_best", lambda r: f"{r['p_best']:.2f}", max),
        Column(
            "Joint posterior", "expected loss", "expected loss", "expected_loss", lambda r: loss(r["expected_loss"]), min
        ),
        Column(goal, "runs", f"runs at {target}", "reached", lambda r: f"{r['reached']} of {r['runs']}"),
        Column(goal, "rounds", f"rounds to {target}", "rounds_to_target", lambda r: f"{r['rounds_to_target']:g}", min),
        Column(
            goal, "uploads", f"uploads to {target}", "uploads_to_target", lambda r: f"{r['uploads_to_target']:,g}", min
        ),
        Column(goal, "sent", f"sent to {target}", "bytes_to_target", lambda r: size(r["bytes_to_target"]), min),
        Column(
            goal,
            "simulated",
            f"simulated time to {target}",
            "clock_to_target",
            lambda r: duration(r["clock_to_target"]),
            min,
        ),
    ]
    own = "Clients, on their own rows"
    second = [
        Column(own, "mean", "own rows", "weighted_accuracy", lambda r: _percent(r["weighted_accuracy"]), max),
        Column(own, "of pooled", "of pooled", "relative_accuracy", lambda r: _percent(r["relative_accuracy"]), max),
        Column(own, "worst tenth", "worst tenth", "client_worst", lambda r: _percent(r["client_worst"]), max),
        Column(own, "deviation", "deviation over clients", "client_std", lambda r: f"{100 * r['client_std']:.1f}", min),
        Column("Whole run", "uploads", "uploads", "uploads", lambda r: f"{r['uploads']:,g}"),
        Column("Whole run", "sent", "sent", "bytes", lambda r: size(r["bytes"])),
        Column("Whole run", "epsilon", "epsilon", "epsilon", lambda r: f"{r['epsilon']:.3g}", min),
        Column("Whole run", "simulated", "simulated time", "clock", lambda r: duration(r["clock"])),
        Column("Whole run", "real time", "real time", "wall_seconds", lambda r: duration(r["wall_seconds"])),
        Column("Whole run", "diverged", "diverged", "diverged", lambda r: f"{r['diverged']} of {r['runs']}"),
    ]
    return [[c for c in columns if any(row[c.key] for row in subject.rows)] for columns in (first, second)]


def rows_tables(subject: Subject) -> str:
    """As HTML; the best of a column stands out, the reference aside."""
    first, second = tables(subject)
    told = []
    several = max(row["runs"] for row in subject.rows) > 1
    if several:
        told.append("Means over splits, ± their standard deviation.")
    if any(row["reached"] for row in subject.rows):
        told.append("Costs to reach the target are of the first round that has it.")
        if several:
            told.append("There is a dash where no more than half the runs have.")
    else:
        told.append(f"Nobody reached the target, {subject.result.target:.0%}.")
    return (
        _table(subject, first, "Accuracy, and the cost of reaching the target")
        + f'<p class="how">{" ".join(told)}</p>'
        + _table(subject, second, "Clients, and the whole run")
        + f'<p class="how">{_about_clients(second)}</p>'
    )


def _table(subject: Subject, shown: list[Column], caption: str) -> str:
    groups: dict[str, int] = {}
    for column in shown:
        groups[column.group] = groups.get(column.group, 0) + 1
    above = "".join(f'<th colspan="{n}" scope="colgroup">{escape(name)}</th>' for name, n in groups.items())
    firsts = [c for k, c in enumerate(shown) if k == 0 or shown[k - 1].group != c.group]
    below = "".join(f'<th scope="col"{_edge(c in firsts)}>{escape(c.head)}</th>' for c in shown)
    best = {c.key: _best(subject, c) for c in shown}
    body = ""
    for row in subject.rows:
        label, aside = row["algorithm"], subject.is_aside(row["algorithm"])
        key = legend([Series(label, [], [], index=subject.index(label), aside=aside)])
        cells = "".join(
            _cell(row, c, c in firsts, not aside and best[c.key] is not None and row[c.key] == best[c.key])
            for c in shown
        )
        body += f'<tr{" class=aside" if aside else ""}><th scope="row">{key}</th>{cells}</tr>'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table class="rows">'
        f'<caption class="hidden">{caption}</caption>'
        f"<thead><tr><td></td>{above}</tr><tr><td></td>{below}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _best(subject: Subject, column: Column) -> float | None:
    """Of the judged ones, unless most of them have it: then it distinguishes nobody."""
    values = [row[column.key] for row in subject.rows if not subject.is_aside(row["algorithm"])]
    known = [value for value in values if value is not None]
    if column.good is None or len(known) < 2:
        return None
    best = column.good(known)
    return best if values.count(best) <= max(len(values) // 2, 1) and known.count(best) < len(known) else None


def _cell(row: Row, column: Column, edge: bool, best: bool) -> str:
    text = escape(column.text(row))
    return f"<td{_edge(edge)}>{f'<b>{text}</b>' if best else text}</td>"


def _edge(first: bool) -> str:
    return ' class="edge"' if first else ""


def _about_clients(shown: list[Column]) -> str:
    keys = {c.key for c in shown}
    if "weighted_accuracy" not in keys:
        return ""
    pooled = "; of pooled: relative to training on all rows in one place" if "relative_accuracy" in keys else ""
    return (
        "On their own rows: the final model on test rows dealt like each client's own, weighted by training rows"
        f"{pooled}; worst tenth: the mean of those clients; deviation: over clients, in points."
    )


def size(n: float) -> str:
    """Bytes, short.

    >>> size(26_501_760), size(900)
    ('26.5 MB', '900 bytes')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n >= unit:
            return f"{n / unit:.1f} {name}"
    return f"{n:.0f} bytes"


def duration(seconds: float) -> str:
    """Time, short.

    >>> duration(0.61), duration(75), duration(7300)
    ('0.6 s', '1.2 min', '2.0 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _with_sd(row: Row, key: str, several: bool) -> str:
    return _percent(row[key]) + (f" ± {100 * row[f'{key}_sd']:.1f}" if several else "")
