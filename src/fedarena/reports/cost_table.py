"""The table of rows: what every algorithm gave and what it cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedarena.common.formatting import format_duration, format_percent, format_size
from fedarena.reports.charts import Series, escape, legend
from fedarena.reports.charts.posteriors import chance
from fedarena.reports.report_data import ReportData
from fedarena.results.scoring import VIEW_NAMES
from fedarena.statistics.metric_registry import OPTIMISTIC

Row = dict[str, Any]
MANY_COLUMNS = 7  # from which a table is wider than the text


@dataclass(frozen=True)
class TableColumn:
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


def tables(subject: ReportData) -> list[list[TableColumn]]:
    """Two tables, of the columns that tell something about these runs."""
    several, scoring = max(row["runs"] for row in subject.rows) > 1, subject.result.scoring()
    metric, loss, top = scoring.metric, scoring.loss, max if scoring.sign > 0 else min
    score = metric
    target = scoring.shown(subject.result.target, 0)
    goal = f"To reach {target}" + (", median over splits" if several else "")

    def mean(row: Row, key: str) -> str:
        return scoring.shown(row[key]) + (f" ± {scoring.shown(row[f'{key}_sd']).rstrip('%')}" if several else "")

    first = [
        TableColumn(score, "final", f"final {metric}", "final", lambda r: mean(r, "final"), top),
        TableColumn(score, "validated", f"validated {metric}", "validated", lambda r: mean(r, "validated"), top),
        TableColumn(score, "best round*", f"best {metric}*", "best", lambda r: mean(r, "best"), top),
        TableColumn("Joint posterior", "P(best)", "P(best)", "p_best", lambda r: chance(r["p_best"]), max),
        TableColumn(
            "Joint posterior",
            "expected loss",
            "expected loss",
            "expected_loss",
            lambda r: loss(r["expected_loss"]),
            min,
        ),
        TableColumn(goal, "runs", f"runs at {target}", "reached", lambda r: f"{r['reached']} of {r['runs']}"),
        TableColumn(
            goal, "rounds", f"rounds to {target}", "rounds_to_target", lambda r: f"{r['rounds_to_target']:g}", min
        ),
        TableColumn(
            goal, "uploads", f"uploads to {target}", "uploads_to_target", lambda r: f"{r['uploads_to_target']:,g}", min
        ),
        TableColumn(
            goal, "sent", f"sent to {target}", "bytes_to_target", lambda r: format_size(r["bytes_to_target"]), min
        ),
        TableColumn(
            goal,
            "simulated",
            f"simulated time to {target}",
            "clock_to_target",
            lambda r: format_duration(r["clock_to_target"]),
            min,
        ),
    ]
    own = "Accuracy on clients' own test samples"
    second = [
        TableColumn(own, "mean", "own samples", "weighted_accuracy", lambda r: format_percent(r["weighted_accuracy"]), max),
        TableColumn(
            own, "of pooled", "of pooled", "relative_accuracy", lambda r: format_percent(r["relative_accuracy"]), max
        ),
        TableColumn(own, "worst tenth", "worst tenth", "client_worst", lambda r: format_percent(r["client_worst"]), max),
        TableColumn(
            own, "deviation", "deviation over clients", "client_std", lambda r: f"{100 * r['client_std']:.1f}", min
        ),
        TableColumn("Whole run", "uploads", "uploads", "uploads", lambda r: f"{r['uploads']:,g}"),
        TableColumn("Whole run", "sent", "sent", "bytes", lambda r: format_size(r["bytes"])),
        TableColumn("Whole run", "epsilon", "epsilon", "epsilon", lambda r: f"{r['epsilon']:.3g}", min),
        TableColumn("Whole run", "simulated", "simulated time", "clock", lambda r: format_duration(r["clock"])),
        TableColumn(
            "Whole run", "real time", "real time", "wall_seconds", lambda r: format_duration(r["wall_seconds"])
        ),
        TableColumn("Whole run", "diverged", "diverged", "diverged", lambda r: f"{r['diverged']} of {r['runs']}"),
    ]
    return [[c for c in columns if any(row[c.key] for row in subject.rows)] for columns in (first, second)]


def rows_tables(subject: ReportData) -> str:
    """As HTML; the best of a column stands out, the reference aside."""
    first, second = tables(subject)
    several = max(row["runs"] for row in subject.rows) > 1
    told = [about_scores(subject), f"* Best round on the common test samples ({OPTIMISTIC})."]
    if any(row["reached"] for row in subject.rows):
        told.append(
            "Costs to reach the target are those of the first round that reaches it on the common test samples."
        )
        if several:
            told.append("A dash means that at most half of the runs reached it.")
    else:
        told.append(f"No algorithm reached the target, {subject.result.scoring().shown(subject.result.target, 0)}.")
    return (
        _table(subject, first, "Scores, and the cost of reaching the target")
        + f'<p class="how">{escape(" ".join(told))}</p>'
        + _table(subject, second, "Clients, and the whole run")
        + f'<p class="how">{_about_clients(second)}</p>'
    )


def about_scores(subject: ReportData) -> str:
    """Say in one sentence which score the final column holds."""
    several = max(row["runs"] for row in subject.rows) > 1
    over = ", mean over splits ± standard deviation" if several else ""
    scoring = subject.result.scoring("final")
    return f"Final: {scoring.metric} {VIEW_NAMES[scoring.evaluate_on]}, after the last round{over}."


def _table(subject: ReportData, shown: list[TableColumn], caption: str) -> str:
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
    table = (
        f'<table class="rows"><caption class="hidden">{caption}</caption>'
        f"<thead><tr><td></td>{above}</tr><tr><td></td>{below}</tr></thead><tbody>{body}</tbody></table>"
    )
    return scrolling(table, caption, "beyond" * (len(shown) > MANY_COLUMNS))


def scrolling(table: str, caption: str, kind: str = "") -> str:
    """A table that scrolls sideways where it is wider than the screen, with a hint that it does."""
    return (
        f'<div class="scrolls {kind}"><div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'{table}</div><p class="hint" aria-hidden="true">Scroll sideways for more columns \N{RIGHTWARDS ARROW}</p></div>'
    )


def _best(subject: ReportData, column: TableColumn) -> float | None:
    """Of the judged ones, unless most of them have it: then it distinguishes nobody."""
    values = [row[column.key] for row in subject.rows if not subject.is_aside(row["algorithm"])]
    known = [value for value in values if value is not None]
    if column.good is None or len(known) < 2:
        return None
    best = column.good(known)
    return best if values.count(best) <= max(len(values) // 2, 1) and known.count(best) < len(known) else None


def _cell(row: Row, column: TableColumn, edge: bool, best: bool) -> str:
    text = escape(column.text(row))
    return f"<td{_edge(edge)}>{f'<b>{text}</b>' if best and text != '–' else text}</td>"


def _edge(first: bool) -> str:
    return ' class="edge"' if first else ""


def _about_clients(shown: list[TableColumn]) -> str:
    keys = {c.key for c in shown}
    if "weighted_accuracy" not in keys:
        return ""
    pooled = " Of pooled: that mean relative to the accuracy of training on all samples in one place."
    return (
        "Mean: the final model on each client's own test samples, weighted by training samples."
        f"{pooled if 'relative_accuracy' in keys else ''} Worst tenth: the mean of the worst tenth of clients. Deviation: "
        "the standard deviation over clients, in percentage points."
    )
