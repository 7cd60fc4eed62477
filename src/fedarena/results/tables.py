"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedarena.data.statistics import Statistics
from fedarena.results.run import Run
from fedarena.spec import Experiment


def show_partition(experiment: Experiment, facts: Statistics) -> None:
    """How the rows are dealt, in numbers."""
    table = Table(
        title=f"{experiment.data.name} · {experiment.partition.name} · seed {experiment.seed}", show_header=False
    )
    lines: dict[str, str] = {
        "clients with rows": str(facts.clients),
        "rows a client, min / median / max": f"{facts.rows_min} / {facts.rows_median:g} / {facts.rows_max}",
        "coefficient of variation, Gini of rows": f"{facts.rows_cv:.3f}, {facts.rows_gini:.3f}",
        "training rows nobody owns": str(facts.unused),
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


def show_runs(runs: Mapping[str, Run]) -> None:
    """Runs side by side: accuracy, rounds to the target, bytes, time."""
    target = next(iter(runs.values())).experiment.evaluate.target
    table = Table(title="What it cost and what it gave", box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    goal = f"to {target:.0%}" if target is not None else "best at"
    table.add_column("", no_wrap=True)
    for column in ("accuracy", "best", "own rows", "worst 10%", goal, "sent", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, run in runs.items():
        s = run.summary()
        to_target = s["best_round"] if target is None else s["rounds_to_target"]
        table.add_row(
            name,
            f"{s['final_accuracy']:.4f}",
            f"{s['best_accuracy']:.4f}",
            "-" if s["weighted_accuracy"] is None else f"{s['weighted_accuracy']:.4f}",
            f"{run.fairness['worst_tenth']:.4f}" if run.fairness else "-",
            "never" if to_target is None else str(to_target),
            f"{run.bytes / 1e6:.1f} MB" if run.bytes else "-",
            f"{s['wall_seconds']:.1f} s",
        )
    table.caption = "own rows: clients on their own test rows; worst 10%: the worst tenth of them; to, at: rounds"
    Console().print(table)
