"""Tables of runs, partitions and comparisons for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations
from pathlib import PurePath
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedarena.common.formatting import format_duration, format_size
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset
from fedarena.data.partition_statistics import Statistics
from fedarena.data.table_summary import TableSummary
from fedarena.privacy.accountant import LARGEST_DELTA, LARGEST_EPSILON
from fedarena.reports.unseen_section import unseen_table
from fedarena.results.comparison import Comparison, PairwiseVerdict
from fedarena.results.comparison_verdict import SIGNS
from fedarena.results.next_step import next_step
from fedarena.results.scoring import VALIDATED, VIEW_NAMES, Scoring
from fedarena.results.suite_pairs import PairChances
from fedarena.statistics.metric_registry import OPTIMISTIC

WIDTH = 100  # columns, where the output is not a terminal
LABEL = 24  # columns of a label, then it is folded
GUARANTEES = {"epsilon": "epsilon", "record_epsilon": "record eps"}  # key of a row -> column
EMPTY = " !"  # after an epsilon that promises nothing
MOST_CLIENTS = 20  # of a table, listed with their rows
PADDING, GAP = (0, 1, 0, 0), 2  # of a cell; and columns from one to the next, with the box between them


def open_console(console: Console | None = None, width: int = WIDTH) -> Console:
    """Return the console to print on; output that goes to no terminal has this width."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = width
    return console


def plain_table(first: str = "", columns: Iterable[str] = (), *, most: int | None = None, **look: Any) -> Table:
    """Return a table without lines between rows: a column of names, then columns of numbers."""
    table = Table(box=SIMPLE_HEAD, padding=PADDING, pad_edge=False, **look)
    table.add_column(first, max_width=most, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def show_partition(experiment: Experiment, facts: Statistics) -> None:
    """Print the statistics of a partition."""
    table = Table(
        title=f"{experiment.data.name} · {experiment.partition.name} · seed {experiment.seed}", show_header=False
    )
    lines: dict[str, str] = {
        "clients with rows": str(facts.clients),
        "rows a client, min / median / max": f"{facts.rows_min} / {facts.rows_median:g} / {facts.rows_max}",
        "coefficient of variation, Gini of rows": f"{facts.rows_cv:.3f}, {facts.rows_gini:.3f}",
        "training rows without a client": str(facts.unused),
    }
    if facts.classes_per_client is not None:
        held = ", ".join(f"{n} x {c}" for c, n in facts.classes_per_client.items())
        lines |= {
            "clients x classes they hold": held,
            "mean label entropy (nats)": f"{facts.label_entropy:.3f}",
            "mean L1 distance to the whole": f"{facts.l1:.3f}",
            "mean Hellinger distance": f"{facts.hellinger:.3f}",
            "mean Jensen-Shannon distance": f"{facts.jensen_shannon:.3f}",
        }
    for name, value in lines.items():
        table.add_row(name, value)
    Console().print(table)


def show_table(summary: TableSummary, data: Dataset) -> None:
    """Print the columns of a table, its task, and the rows of its clients."""
    console = open_console()
    console.print(f"{PurePath(summary.title).name}: {summary.rows} rows, {data.task}", markup=False)
    table = Table(box=SIMPLE_HEAD, padding=PADDING, pad_edge=False)
    table.add_column("column", overflow="fold", max_width=LABEL)
    table.add_column("kind")
    table.add_column("missing", justify="right")
    table.add_column("values", overflow="fold")
    for column in summary.columns:
        missing = "" if column.missing is None else str(column.missing)
        table.add_row(Text(column.name), column.kind, missing, Text(column.values))
    console.print(table)
    if summary.clients:
        rows = ", ".join(f"{name} {count}" for name, count in [*summary.clients.items()][:MOST_CLIENTS])
        more = f", and {len(summary.clients) - MOST_CLIENTS} more" if len(summary.clients) > MOST_CLIENTS else ""
        console.print(f"rows of clients: {rows}{more}", markup=False)


def show_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print the verdict in words, what each algorithm gave and cost, and the table of + = - ?."""
    console = open_console(console)
    console.print("\n".join(["", *comparison.words]), markup=False)
    if comparison.labels:
        plan = comparison.plan
        looks = "".join(f"Look at {found}.\n" for found in plan.looks)
        further = "".join(f"{text}\n" for text in [next_step(comparison)] if text)
        console.print(
            f"{further}{looks}{plan.about}\n{plan.test[0].upper()}{plan.test[1:]}.\n", style="dim", markup=False
        )
        costs = _costs(comparison, console.width)
        console.print(costs)
        console.print(_legend(comparison, {str(column.header) for column in costs.columns}), style="dim", markup=False)
    if len(comparison.labels) > 1 and not comparison.plan.sweep:  # all pairs at all values are too many
        _show_signs(comparison, console)
    _show_unseen(comparison, console)


def _show_unseen(comparison: Comparison, console: Console) -> None:
    """Print what each algorithm gives to clients that never trained, where there are any."""
    found = unseen_table(comparison, intervals=False)
    if found is None:
        return
    about, (head, *rows) = found
    table = plain_table(columns=head[1:], most=LABEL)
    for name, *cells in rows:
        table.add_row(Text(name), *cells, style="dim" if name == comparison.plan.reference else None)
    console.print("Clients that never trained:")
    console.print(table)
    console.print(f"{about}\n", style="dim", markup=False)


def _legend(comparison: Comparison, shown: set[str]) -> str:
    """Return an explanation of the columns that are shown."""
    scoring, runs = comparison.scoring(), len(comparison.scores()[comparison.labels[0]])
    how = {"best": f" of the best round ({OPTIMISTIC})", "validated": f", of the round {VALIDATED}"}
    chosen, unit = how.get(comparison.plan.score, ""), ", in points" if scoring.is_share else ""
    loss = f"; loss: expected distance to the best{unit}" if "loss" in shown else ""
    worst = "; worst: accuracy of the worst tenth of clients" if "worst" in shown else ""
    attack = "attack: percent of triggered test samples taken for the class of the backdoor.\n" if "attack" in shown else ""
    is_empty = any(r["empty_promises"] for r in comparison.rows())
    limits = f"epsilon is above {LARGEST_EPSILON:g}, or delta above {LARGEST_DELTA:g} or 1 / n"
    empty = f"!: promises nothing, because {limits}.\n" if is_empty else ""
    columns = {"rounds": "rounds", "sent": "sent", "time": "time (simulated)"}
    to_target = ", ".join(text for name, text in columns.items() if name in shown)
    is_given = comparison.given_target is not None
    origin = "" if is_given else " (no target was set: this is what all reach on average)"
    return (
        f"{comparison.plan.score}: {scoring.metric} {VIEW_NAMES[scoring.evaluate_on]}{chosen}, mean over {runs} splits ± "
        f"standard deviation.\nP(best): probability of being the best{loss}.\n"
        f"common, own: final score on the common and on clients' own test samples{worst}.\n"
        f"{to_target}: median to reach {scoring.shown(comparison.target, 0)} on the common "
        f"test samples{origin}; - if most runs did not.\n{attack}{empty}"
    )


def _show_signs(comparison: Comparison, console: Console) -> None:
    """Print row against column, with the probabilities in the table or, where it would be too wide, below it."""
    labels, plan = comparison.labels, comparison.plan
    legend = ", ".join(f"{sign} {word}" for sign, word in SIGNS.items())
    scoring = comparison.scoring()
    numbers = f"better, equal (within {scoring.difference(plan.rope)} of {plan.score} {plan.metric}), worse"
    label = min(max(map(len, labels)), LABEL)
    first = min(label, console.width - 3 - len(labels) * (len(".98 .01 .01") + GAP))
    detailed = first >= min(label, 12)
    room = (console.width - 3 - first) // len(labels) - GAP if detailed else None
    console.print(_signs(comparison, first if detailed else label, room))
    console.print(
        f"{legend} (row against column, above {plan.threshold:.0%} probability).\n"
        + (f"The three numbers: {numbers}.\n" if detailed else ""),
        style="dim",
    )
    pairs = (comparison.duel(row, column) for row, column in combinations(labels, 2))
    undecided = [duel for duel in pairs if duel.verdict == "?"]
    if undecided and not detailed:
        console.print(f"Undecided: {numbers}", style="dim")
        for duel in undecided:
            console.print(f"  {chances(duel)}  {duel.row} against {duel.column}", markup=False)
        console.print()


def _signs(comparison: Comparison, first: int, room: int | None) -> Table:
    """Return the signs under numbers or, with room for them, under labels and with probabilities."""
    labels = comparison.labels
    table = plain_table(most=first + (0 if room else 3))
    for number, label in enumerate(labels, 1):
        table.add_column(label if room else str(number), justify="center", max_width=room, overflow="fold")
    for number, row in enumerate(labels, 1):
        duels = [None if row == column else comparison.duel(row, column) for column in labels]
        name = Text(row if room else f"{number} {row}")
        table.add_row(name, *("" if duel is None else _sign(duel, bool(room)) for duel in duels))
    return table


def _sign(duel: PairwiseVerdict, detailed: bool) -> Text:
    colour = {"+": "green", "-": "red", "=": "blue"}.get(duel.verdict, "")
    sign = Text(duel.verdict, style=f"bold {colour}")
    if detailed:
        sign.append(f"\n{chances(duel)}", style="not bold dim")
    return sign


def chances(found: PairwiseVerdict | PairChances, unknown: str = "-") -> str:
    """Return the probabilities of better, equal and worse, without the zero before the point."""
    numbers = (found.p_better, found.p_equal, found.p_worse)
    return " ".join(unknown if math.isnan(p) else f"{p:.2f}"[1:] if p < 0.995 else "1.0" for p in numbers)


def _costs(comparison: Comparison, width: int) -> Table:
    """Return a row for each algorithm, the baseline last; the least informative columns are dropped if there is no room."""
    rows, scoring, plan = comparison.rows(), comparison.scoring(), comparison.plan

    def value(number: float | None) -> str:
        return scoring.shown(number, 2)

    columns = {
        plan.score: [f"{value(r[plan.score])} ±{value(r[f'{plan.score}_sd'])}" for r in rows],
        "P(best)": [_number(r["p_best"], 1, 2) for r in rows],
        "loss": [_loss(r["expected_loss"], scoring) for r in rows],
        "common": [value(r["common"]) for r in rows],
        "own": [value(r["own"]) for r in rows],
        "rounds": [_number(r["rounds_to_target"]) for r in rows],
        "sent": ["-" if not r["bytes_to_target"] else format_size(r["bytes_to_target"]) for r in rows],
        "time": ["-" if r["clock_to_target"] is None else format_duration(r["clock_to_target"]) for r in rows],
        "worst": ["-" if r["client_worst"] is None else f"{r['client_worst']:.1%}" for r in rows],
    }
    if all(r["client_worst"] is None for r in rows):  # the task has no accuracy
        del columns["worst"]
    for key, name in reversed(GUARANTEES.items()):
        if any(r[key] is not None for r in rows):
            columns = {name: [_number(r[key], 1, 2) + EMPTY * (key in r["empty_promises"]) for r in rows], **columns}
    if any(r["attack_success"] is not None for r in rows):
        columns = {"attack": [_number(r["attack_success"], 100) for r in rows], **columns}
    label = min(max(len(r["algorithm"]) for r in rows), LABEL)
    for least in ("time", "worst", "loss", "sent"):
        if label + 3 + sum(max(map(len, [name, *cells])) + GAP for name, cells in columns.items()) > width:
            columns.pop(least, None)
    table = plain_table(columns=columns, most=LABEL)
    for r, *cells in zip(rows, *columns.values(), strict=True):
        style = "dim" if r["algorithm"] == comparison.plan.reference else None
        table.add_row(Text(r["algorithm"]), *cells, style=style)
    return table


def _loss(value: float | None, scoring: Scoring) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{100 * value:.2f}" if scoring.is_share else f"{value:.2g}"


def _number(value: float | None, times: float = 1, digits: int = 0) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value * times:.{digits}f}"
