"""The page of a run: its progress, its curves, its clients and its experiment."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedarena.common.formatting import unit_of
from fedarena.config.errors import FedarenaError
from fedarena.reports.charts.distributions import strip_chart
from fedarena.reports.charts.lines import Series, line_chart
from fedarena.reports.charts.svg import WIDE
from fedarena.reports.page_elements import Section
from fedarena.reports.templating import macros
from fedarena.statistics.metric_registry import OPTIMISTIC, all_metrics
from fedarena.ui.catalogue import Catalogue
from fedarena.ui.metric_sections import metric_sections
from fedarena.ui.rendering import (
    HALF,
    decimal,
    duration,
    format_settings,
    percent,
    render_page,
    render_unreadable,
    size,
    ui_macros,
    when,
)
from fedarena.ui.round_log import RoundLog
from fedarena.ui.summaries import RunSummary, part_table

AXES = {
    "round": ("rounds", "round"),
    "uploads": ("uploads", "uploads"),
    "sent": ("bytes sent", "sent, up and down"),
    "clock": ("simulated time", "simulated seconds"),
}
TEXT = 100_000  # characters of an experiment that are shown
POINTS = 2_000  # of a curve: more cannot be distinguished


def unit_of_axis(key: str, largest: float) -> tuple[float, str]:
    """Return the factor by which a column of the log is drawn, and the label of its axis."""
    if key != "sent" or not math.isfinite(largest):
        return 1.0, AXES[key][1]
    unit, name = unit_of(1e6 * largest)
    return 1e6 / unit, f"{name} {AXES[key][1]}"


def page(catalogue: Catalogue, id: str, query: dict[str, str]) -> str | None:
    """Return the page of a run; None if there is no such run."""
    run = catalogue.find(id, "run")
    if run is None:
        return None
    title = f"{run.part('algorithm')} · {run.name}"
    frame: dict[str, Any] = {"running": int(run.state == "running"), "folder": catalogue.name}
    try:
        return render_page("run.html", title, **frame, **_values(catalogue, run, query))
    except Exception as error:  # the folder holds something that no page expects
        return render_unreadable(title, run.name, error, **frame)


def _values(catalogue: Catalogue, run: RunSummary, query: dict[str, str]) -> dict[str, Any]:
    """Return what the template of the page shows."""
    log, table = catalogue.log(run), run.table
    facts = [run.part("partition"), run.part("model"), f"{table.get('clients', 'natural')} clients"]
    facts.append(f"seed {table.get('seed', '?')}")
    if "fold" in table:
        facts.append(f"fold {table['fold']} of {table.get('folds')}")
    note = ""
    if log.is_cut:
        note = f"The log of this run is very long: only its last {len(log):,} rounds are shown."
    elif not len(log) and run.state == "running":
        note = "The first round is under way."
    return {
        "run": run,
        "comparison": catalogue.comparison_of(run),
        "algorithm": run.part("algorithm"),
        "data": run.part("data"),
        "facts": " · ".join(facts),
        "settings": format_settings(run.settings("algorithm")),
        "note": note,
        "curve": _curve(run, log, query.get("over", "round")) if len(log) else None,
        "tiles": _tiles(run, log) if len(log) else [],
        "rows": _rows(catalogue, run, log) if len(log) else [],
        "experiment": _experiment(catalogue, run),
    }


def _rows(catalogue: Catalogue, run: RunSummary, log: RoundLog) -> list[Section | list[Section]]:
    """Return the sections below the curve; those of a list stand side by side."""
    halves = (_losses(log), _clients(catalogue, run, log))
    return [[section for section in halves if section], *metric_sections(catalogue, run)]


def _tiles(run: RunSummary, log: RoundLog) -> list[tuple[str, str, str]]:
    """Return numbers with their names; each may have a note below it."""
    best = run.best
    best_round = next((int(r) for r, a in zip(log["round"], log["accuracy"], strict=True) if a == best), None)
    uploads, wall = log["uploads"][-1], log["wall_seconds"][-1]
    tiles = [
        ("accuracy", percent(run.accuracy), ""),
        ("best", percent(best), "" if best_round is None else f"round {best_round}; {OPTIMISTIC}"),
        ("loss", decimal(_last(log, "loss")), ""),
        ("uploads", decimal(uploads) if uploads < 1e4 else f"{uploads:,.0f}", ""),
        ("sent", size(1e6 * log["sent"][-1]), ""),
        ("time", duration(wall), _time_note(run, wall)),
    ]
    if log["clock"][-1] > 0:
        tiles.append(("simulated time", duration(log["clock"][-1]), ""))
    if (worst := _last(log, "client_worst")) is not None:
        tiles.append(("worst clients", percent(worst), "the worst tenth, on own samples"))
    if dropped := sum(d for d in log["dropped"] if d > 0):
        tiles.append(("dropped", f"{dropped:.0f}", ""))
    return tiles


def _time_note(run: RunSummary, wall: float) -> str:
    """Return how long a run will still take, or when it ended."""
    if run.state != "running":
        return when(run.changed)
    if not run.rounds or not math.isfinite(wall):
        return ""
    left = wall / max(run.round, 1) * max(run.rounds - run.round, 0)
    return f"about {duration(left)} left" if left >= 5 else "nearly done"


def _last(log: RoundLog, name: str) -> float | None:
    return next((value for value in reversed(log[name]) if math.isfinite(value)), None)


def _curve(run: RunSummary, log: RoundLog, over: str) -> Section:
    known = {key: axis for key, axis in AXES.items() if len(log[key]) and log[key][-1] > 0}
    over = over if over in known else "round"
    evaluate = part_table(run.table, "evaluate")
    metric, column, is_share = curve_metric(str(evaluate.get("metric") or "accuracy"), [log])
    at = _known_rounds(log, over, column)
    factor, label = unit_of_axis(over, log[over][-1])
    x, y = [factor * log[over][i] for i in at], [log[column][i] for i in at]
    best = [log["best_accuracy"][i] for i in at] if metric == "accuracy" else []
    lines = [Series(metric, x, y, best=best if all(map(math.isfinite, best)) else ())]
    target = evaluate.get("target") if metric == "accuracy" else None
    target = target if isinstance(target, float) else None
    draw = partial(_draw, lines, x_label=label, y_label=metric, fractions=is_share, target=target)
    body = ui_macros.tabs({key: axis[0] for key, axis in known.items()}, over) + macros.charts([draw])
    note = "on the common test samples" + (f"; thin line: the best round so far ({OPTIMISTIC})" if best else "")
    return Section("curve", metric.replace("_", " ").capitalize(), body, note)


def _draw(lines: Sequence[Series], width: float, **how: Any) -> Any:
    height = 400 if width == WIDE else 300 if width == HALF else 260
    return line_chart(lines, width=width, height=height, **how)


def curve_metric(metric: str, logs: Sequence[RoundLog]) -> tuple[str, str, bool]:
    """Return the metric of the curves, its column in the logs, and whether it is a share of 1."""
    column = metric if metric in ("accuracy", "loss") else "metric"
    known = all_metrics().get(metric)
    if known is None or not any(math.isfinite(value) for log in logs for value in log[column]):
        return "accuracy", "accuracy", True
    return metric, column, known.bounds == (0.0, 1.0)


def _columns(log: RoundLog, columns: dict[str, tuple[str, int]]) -> list[Series]:
    """Return columns of the log that have values as lines over rounds, each with its name and colour."""
    lines = []
    for column, (label, index) in columns.items():
        at = _known_rounds(log, "round", column)
        lines.append(Series(label, [log["round"][i] for i in at], [log[column][i] for i in at], index=index))
    return lines


def _losses(log: RoundLog) -> Section:
    lines = _columns(log, {"loss": ("test", 0), "train_loss": ("clients", 1)})
    draw = partial(_draw, lines, x_label="round", y_label="loss", fractions=False)
    note = "on the common test samples, and of clients while they train"
    return Section("loss", "Loss", macros.charts([draw], HALF, lines), note)


def _clients(catalogue: Catalogue, run: RunSummary, log: RoundLog) -> Section | None:
    """Return the accuracy on clients' own samples over rounds, and in the end that of every client."""
    lines = _columns(log, {"weighted_accuracy": ("mean", 2), "client_worst": ("worst tenth", 1)})
    lines = [line for line in lines if len(line.x)]
    if not lines:
        return None
    charts: list[Any] = [partial(_draw, lines, x_label="round")]
    file = run.folder / "clients.parquet"
    if values := catalogue.cached("clients", run.folder, [file], lambda: _accuracies(catalogue, file)):
        strip = [Series("", y=values, index=2)]
        charts.append(lambda width: strip_chart(strip, x_label="accuracy of each client", width=width))
    return Section("clients", "Clients", macros.charts(charts, HALF, lines), "each on its own test samples")


def _accuracies(catalogue: Catalogue, file: Path) -> list[float]:
    """Return the final accuracy of every client; nothing while the run is under way, or if the file cannot be read."""
    if not file.exists():
        return []
    import pyarrow.parquet as pq

    try:
        catalogue.files.check_size(file)
        with catalogue.files.open(file) as stream:
            column = pq.read_table(stream, columns=["accuracy"]).to_pydict()["accuracy"]
        return [float(value) for value in column if value is not None and math.isfinite(value)]
    except Exception:
        return []


def _known_rounds(log: RoundLog, *names: str) -> list[int]:
    """Return the rounds in which all of these are known; of very many, some that are equally far apart."""
    known = [i for i in range(len(log)) if all(math.isfinite(log[name][i]) for name in names)]
    if len(known) <= POINTS:
        return known
    return [known[(len(known) - 1) * k // (POINTS - 1)] for k in range(POINTS)]


def _experiment(catalogue: Catalogue, run: RunSummary) -> Section:
    try:
        with catalogue.files.open(run.folder / "experiment.toml") as stream:
            text = stream.read(TEXT).decode("utf-8", errors="replace")
    except (OSError, FedarenaError):
        text = ""
    path = catalogue.path(run.folder)
    verify = ("Run it again and compare bit by bit:", "verify")
    commands = {"interrupted": ("Resume it:", "run --resume"), "finished": verify, "diverged": verify}
    body = macros.code(text)
    if run.state in commands:
        what, command = commands[run.state]
        body = macros.paragraphs([what]) + macros.code(f"fedarena {command} {shlex.quote(path)}") + body
    return Section("experiment", "Experiment", body, path)
