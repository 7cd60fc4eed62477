"""The result of a suite on a terminal: the answer in words, then the federations, the average and the next one."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedarena.reports.terminal_tables import chances, open_console, plain_table
from fedarena.results.comparison_verdict import SIGNS
from fedarena.results.suite import SuiteComparison
from fedarena.results.suite_pairs import PairEstimate, SuitePair

UNKNOWN = "  -"  # in place of a probability
MOST_TABLES = 4  # pairs with a table of their own; of more, one row each


def show_suite(result: SuiteComparison, console: Console | None = None) -> None:
    """Print the verdict in words, the first algorithm against the others on every federation, and mean ranks."""
    console = open_console(console)
    console.print("\n".join(["", *result.words]), markup=False)
    if len(result.labels) < 2:
        return
    console.print(f"{result.about}\n{result.test[0].upper()}{result.test[1:]}.\n", style="dim", markup=False)
    pairs = [pair for pair in result.pairs if pair.row == result.ranked[0]]
    for pair in pairs[:MOST_TABLES]:
        console.print(_pair_table(result, pair))
    if len(result.pairs) > 1:
        console.print(_overview(result))
    console.print(_legend(result), style="dim", markup=False)
    ranks = ", ".join(f"{label} {result.mean_ranks[label]:.2f}" for label in result.ranked)
    console.print(f"Mean ranks over {len(result.judged)} federations: {ranks}\n", markup=False)


def _pair_table(result: SuiteComparison, pair: SuitePair) -> Table:
    """Return every federation, the average and the next one, of one pair."""
    columns = ("by itself", "shrunk", "90% interval", "better equal worse")
    title = Text(f"{pair.row} minus {pair.column}")
    table = plain_table(columns=columns, most=36, title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for estimate in pair.by_federation:
        own = _number(result, estimate.own.mean)
        table.add_row(Text(estimate.federation), own, *_estimate(result, estimate.shrunk))
    if pair.average.is_known:
        table.add_section()
        table.add_row("average", "", *_estimate(result, pair.average))
        table.add_row("next federation", "", *_estimate(result, pair.next), style="bold")
    return table


def _overview(result: SuiteComparison) -> Table:
    """Return one row a pair: the next federation, the average and the signed-rank test."""
    table = plain_table("row against column", ("next federation", "average", "signed-rank"))
    for pair in result.pairs:
        cells = [f"{chances(e, UNKNOWN)} {e.verdict}" for e in (pair.next, pair.average, pair.signed_rank)]
        table.add_row(Text(f"{pair.row} against {pair.column}"), *cells)
    return table


def _estimate(result: SuiteComparison, found: PairEstimate) -> tuple[str, str, str, str]:
    low, high = (_number(result, end) for end in found.interval)
    return _number(result, found.mean), f"{low} to {high}", chances(found, UNKNOWN), found.verdict


def _number(result: SuiteComparison, value: float) -> str:
    return "-" if math.isnan(value) else result.difference(value).removesuffix(" points")


def _legend(result: SuiteComparison) -> str:
    unit = "points" if result.scoring.is_share and not result.is_ratio else result.scoring.metric
    signs = ", ".join(f"{sign} {word}" for sign, word in SIGNS.items())
    return (
        f"Differences in {unit} of {result.scoring.name}; equal: within {result.margin}. {signs} (above "
        f"{result.threshold:.0%} probability).\n"
        "by itself: from the splits of that federation; shrunk: given the other federations too."
    )
