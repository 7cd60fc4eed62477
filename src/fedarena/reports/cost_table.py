"""The tables of scores and costs: what every algorithm achieved and what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fedarena.common.formatting import format_duration, format_percent, format_size
from fedarena.privacy.accountant import LARGEST_DELTA, LARGEST_EPSILON
from fedarena.reports.charts.posteriors import format_probability
from fedarena.reports.page_elements import Cell, Row, Table
from fedarena.reports.report_data import ReportData
from fedarena.reports.templating import macros
from fedarena.results.scoring import VIEW_NAMES
from fedarena.statistics.metric_registry import OPTIMISTIC

ReportRow = dict[str, Any]
UNITS = "number of clients, or of their records"
MANY_COLUMNS = 7  # from which a table is wider than the text


@dataclass(frozen=True)
class TableColumn:
    """One column: its group and heading, its name by itself, how a row is written, and which end of it is the good one."""

    group: str
    head: str
    name: str
    key: str
    write: Callable[[Any], str]
    good: Callable[[list[float]], float] | None = None

    def text(self, row: ReportRow) -> str:
        """Return the text of a cell; a dash for what is not known, and for what costs nothing."""
        value = row[self.key]
        free = value == 0 and self.key.startswith(("bytes", "uploads", "clock"))
        return "–" if value is None or free else self.write(row)


def tables(data: ReportData) -> tuple[list[TableColumn], list[TableColumn]]:
    """Return the columns of both tables that have a value for these runs."""
    several, scoring = data.has_splits, data.result.scoring()
    metric, top = scoring.metric, max if scoring.sign > 0 else min
    target = scoring.shown(data.result.target, 0)
    goal = f"To reach {target}" + (", median over splits" if several else "")
    own, whole, joint = "Accuracy on clients' own test samples", "Whole run", "Joint posterior"

    def value(key: str, write: Callable[[Any], str]) -> tuple[str, Callable[[ReportRow], str]]:
        return key, lambda row: write(row[key])

    def mean(key: str) -> tuple[str, Callable[[ReportRow], str]]:
        def write(row: ReportRow) -> str:
            spread = f" ± {scoring.shown(row[f'{key}_sd']).rstrip('%')}" if several else ""
            return scoring.shown(row[key]) + spread

        return key, write

    def share(key: str) -> tuple[str, Callable[[ReportRow], str]]:
        return key, lambda row: f"{row[key]} of {row['runs']}"

    def guarantee(key: str) -> tuple[str, Callable[[ReportRow], str]]:
        return key, lambda row: f"{row[key]:.3g}{' (promises nothing)' * (key in row['empty_promises'])}"

    count = "{:,g}".format
    first = [
        TableColumn(metric, "final", f"final {metric}", *mean("final"), top),
        TableColumn(metric, "validated", f"validated {metric}", *mean("validated"), top),
        TableColumn(metric, "best round*", f"best {metric}*", *mean("best"), top),
        TableColumn(joint, "P(best)", "P(best)", *value("p_best", format_probability), max),
        TableColumn(joint, "expected loss", "expected loss", *value("expected_loss", scoring.loss), min),
        TableColumn(goal, "runs", f"runs at {target}", *share("reached")),
        TableColumn(goal, "rounds", f"rounds to {target}", *value("rounds_to_target", "{:g}".format), min),
        TableColumn(goal, "uploads", f"uploads to {target}", *value("uploads_to_target", count), min),
        TableColumn(goal, "sent", f"sent to {target}", *value("bytes_to_target", format_size), min),
        TableColumn(goal, "simulated", f"simulated time to {target}", *value("clock_to_target", format_duration), min),
    ]
    second = [
        TableColumn(own, "mean", "own samples", *value("weighted_accuracy", format_percent), max),
        TableColumn(own, "of pooled", "of pooled", *value("relative_accuracy", format_percent), max),
        TableColumn(own, "worst tenth", "worst tenth", *value("client_worst", format_percent), max),
        TableColumn(own, "deviation", "deviation over clients", *value("client_std", lambda v: f"{100 * v:.1f}"), min),
        TableColumn(whole, "attack success", "attack success", *value("attack_success", format_percent), min),
        TableColumn(whole, "uploads", "uploads", *value("uploads", count)),
        TableColumn(whole, "sent", "sent", *value("bytes", format_size)),
        TableColumn(whole, "epsilon", "epsilon", *guarantee("epsilon"), min),
        TableColumn(whole, "epsilon of a record", "epsilon of a record", *guarantee("record_epsilon"), min),
        TableColumn(whole, "simulated", "simulated time", *value("clock", format_duration)),
        TableColumn(whole, "real time", "real time", *value("wall_seconds", format_duration)),
        TableColumn(whole, "diverged", "diverged", *share("diverged")),
    ]
    known = {column for column in (*first, *second) if any(row[column.key] for row in data.rows)}
    return [column for column in first if column in known], [column for column in second if column in known]


def costs(data: ReportData) -> Markup:
    """Return the section with both tables; the best value of a column stands out, the reference is grey."""
    first, second = tables(data)
    sentences = [about_scores(data), f"* Best round on the common test samples ({OPTIMISTIC})."]
    if any(row["reached"] for row in data.rows):
        sentences.append(
            "Costs to reach the target are those of the first round that reaches it on the common test samples."
        )
        if data.has_splits:
            sentences.append("A dash means that at most half of the runs reached it.")
    else:
        sentences.append(f"No algorithm reached the target, {data.result.scoring().shown(data.result.target, 0)}.")
    tables_with_notes = [
        (_table(data, first, "Scores, and the cost of reaching the target"), " ".join(sentences)),
        (_table(data, second, "Clients, and the whole run"), _about_clients(second) + _about_privacy(data)),
    ]
    return Markup().join(macros.table(table) + macros.paragraphs([note], "how") for table, note in tables_with_notes)


def about_scores(data: ReportData) -> str:
    """Return in one sentence which score the final column holds."""
    over = ", mean over splits ± standard deviation" if data.has_splits else ""
    scoring = data.result.scoring("final")
    return f"Final: {scoring.metric} {VIEW_NAMES[scoring.evaluate_on]}, after the last round{over}."


def _table(data: ReportData, columns: Sequence[TableColumn], caption: str) -> Table:
    groups = Counter(column.group for column in columns)  # in the order of the columns
    edges = ["edge" if k == 0 or columns[k - 1].group != c.group else "" for k, c in enumerate(columns)]
    best = [_best(data, column) for column in columns]
    rows = []
    for row in data.rows:
        is_candidate = not data.is_aside(row["algorithm"])
        cells = []
        for column, edge, value in zip(columns, edges, best, strict=True):
            text = column.text(row)
            is_best = is_candidate and value is not None and row[column.key] == value and text != "–"
            cells.append(Cell(text, best=is_best, kind=edge))
        rows.append(Row(row["algorithm"], cells, data.key(row["algorithm"])))
    head = [Cell(column.head, kind=edge) for column, edge in zip(columns, edges, strict=True)]
    return Table(caption, head, rows, groups=[*groups.items()], is_wide=len(columns) > MANY_COLUMNS)


def _best(data: ReportData, column: TableColumn) -> float | None:
    """Return the best value of the candidates; None where most of them have it, so that it distinguishes none."""
    values = [row[column.key] for row in data.rows if not data.is_aside(row["algorithm"])]
    known = [value for value in values if value is not None]
    if column.good is None or len(known) < 2:
        return None
    best = column.good(known)
    return best if values.count(best) <= max(len(values) // 2, 1) and known.count(best) < len(known) else None


def _about_privacy(data: ReportData) -> str:
    """Return when a guarantee promises nothing, where one of the table does."""
    if not any(row["empty_promises"] for row in data.rows):
        return ""
    return (
        f" Promises nothing: epsilon is above {LARGEST_EPSILON:g}, or delta is above {LARGEST_DELTA:g} or 1 / n, n being "
        f"the {UNITS}."
    )


def _about_clients(columns: Sequence[TableColumn]) -> str:
    keys = {column.key for column in columns}
    if "weighted_accuracy" not in keys:
        return ""
    pooled = " Of pooled: that mean relative to the accuracy of training on all samples in one place."
    return (
        "Mean: the final model on each client's own test samples, weighted by training samples."
        f"{pooled if 'relative_accuracy' in keys else ''} Worst tenth: the mean of the worst tenth of clients. Deviation: "
        "the standard deviation over clients, in percentage points."
    )
