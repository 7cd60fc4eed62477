"""The page of a run: where it is, its curves, its clients, its text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedarena.common.formatting import unit_of
from fedarena.config.errors import FedarenaError
from fedarena.reports.charts import WIDE, Series, Strip, escape, legend, line_chart, strip_chart
from fedarena.statistics.metric_registry import OPTIMISTIC, all_metrics
from fedarena.ui.catalogue import Catalogue, RunSummary
from fedarena.ui.html import (
    HALF,
    badge,
    bar,
    both,
    decimal,
    duration,
    frame,
    percent,
    progress,
    section,
    settings,
    size,
    tabs,
    tiles,
    unreadable,
    when,
)
from fedarena.ui.metric_sections import metric_sections
from fedarena.ui.round_log import RoundLog

AXES = {
    "round": ("rounds", "round"),
    "uploads": ("uploads", "uploads"),
    "sent": ("bytes sent", "sent, up and down"),
    "clock": ("simulated time", "simulated seconds"),
}
TEXT = 100_000  # characters of an experiment that are shown
POINTS = 2_000  # of a curve: more cannot be told apart


def unit_of_axis(key: str, largest: float) -> tuple[float, str]:
    """Return the factor by which a column of the log is drawn, and the label of its axis."""
    if key != "sent" or not math.isfinite(largest):
        return 1.0, AXES[key][1]
    unit, name = unit_of(1e6 * largest)
    return 1e6 / unit, f"{name} {AXES[key][1]}"


def page(catalogue: Catalogue, id: str, query: dict[str, str]) -> str | None:
    """All that its folder tells; None if there is no such run."""
    sight = catalogue.run(id)
    if sight is None:
        return None
    title = f"{sight.part('algorithm')} · {sight.name}"
    try:
        body = list(_body(catalogue, sight, query))
    except Exception as error:  # the folder holds something that no page expects
        body = [unreadable(sight.name, error)]
    return frame(title, body, running=int(sight.state == "running"), folder=catalogue.name)


def _body(catalogue: Catalogue, sight: RunSummary, query: dict[str, str]) -> Iterator[str]:
    log = catalogue.log(sight)
    yield _head(catalogue, sight)
    if sight.why:
        yield f'<p class="why">{escape(sight.why)}</p>'
    if log.is_cut:
        yield f'<p class="note">The log of this run is very long: only its last {len(log):,} rounds are shown.</p>'
    if len(log):
        curves = _curves(sight, log, query.get("over", "round"))
        yield f'<div class="main-and-side">{curves}{tiles(*_facts(sight, log))}</div>'
        yield f'<div class="halves">{_losses(log)}{_clients(catalogue, sight, log)}</div>'
        yield from metric_sections(catalogue, sight)
    elif sight.state == "running":
        yield '<p class="note">The first round is under way.</p>'
    yield _text(catalogue, sight)


def _head(catalogue: Catalogue, sight: RunSummary) -> str:
    home = catalogue.home(sight)
    above = f'<a href="/comparison/{home.id}">{escape(home.name)}</a> / ' if home else ""
    link = f'<a class="button" href="/report/{sight.id}">Report</a>' if sight.state == "finished" else ""
    own = settings(sight.settings("algorithm"))
    what = [sight.part("partition"), sight.part("model"), f"{sight.table.get('clients', 'natural')} clients"]
    fold = [f"fold {sight.table['fold']} of {sight.table.get('folds')}"] if "fold" in sight.table else []
    facts = " · ".join(map(str, [*what, f"seed {sight.table.get('seed', '?')}", *fold]))
    return (
        f'<nav class="path"><a href="/">All runs</a> / {above}<span>{escape(sight.name)}</span></nav>'
        f'<div class="head"><h1>{escape(sight.part("algorithm"))} <span>on {escape(sight.part("data"))}</span></h1>'
        f"{badge(sight.state)}{link}</div>"
        f'<p class="facts">{escape(facts)}{f"<br>{escape(own)}" if own else ""}</p>'
        f'<div class="rounds long">{bar(sight.share, sight.state, "rounds")}<span>round {progress(sight)}</span></div>'
    )


def _facts(sight: RunSummary, log: RoundLog) -> tuple[dict[str, str], dict[str, str]]:
    best = sight.best
    best_round = next((int(r) for r, a in zip(log["round"], log["accuracy"], strict=True) if a == best), None)
    wall = log["wall_seconds"][-1]
    facts = {
        "accuracy": percent(sight.accuracy),
        "best": percent(best),
        "loss": decimal(_last(log, "loss")),
        "uploads": decimal(log["uploads"][-1]) if log["uploads"][-1] < 1e4 else f"{log['uploads'][-1]:,.0f}",
        "sent": size(1e6 * log["sent"][-1]),
        "time": duration(wall),
    }
    notes = {"best": f"round {best_round}; {OPTIMISTIC}"} if best_round is not None else {}
    if log["clock"][-1] > 0:
        facts["simulated time"] = duration(log["clock"][-1])
    if (worst := _last(log, "client_worst")) is not None:
        facts["worst clients"], notes["worst clients"] = percent(worst), "the worst tenth, on own samples"
    if dropped := sum(d for d in log["dropped"] if d > 0):
        facts["dropped"] = f"{dropped:.0f}"
    if sight.state == "running" and sight.rounds and math.isfinite(wall):
        left = wall / max(sight.round, 1) * max(sight.rounds - sight.round, 0)
        notes["time"] = f"about {duration(left)} left" if left >= 5 else "nearly done"
    elif sight.state != "running":
        notes["time"] = when(sight.changed)
    return facts, notes


def _last(log: RoundLog, name: str) -> float | None:
    return next((value for value in reversed(log[name]) if math.isfinite(value)), None)


def _curves(sight: RunSummary, log: RoundLog, over: str) -> str:
    known = {key: axis for key, axis in AXES.items() if len(log[key]) and log[key][-1] > 0}
    over = over if over in known else "round"
    evaluate = sight.table.get("evaluate")
    evaluate = evaluate if isinstance(evaluate, dict) else {}
    metric, column, is_share = followed(str(evaluate.get("metric") or "accuracy"), [log])
    at = _seen(log, over, column)
    times, label = unit_of_axis(over, log[over][-1])
    x, y = [times * log[over][i] for i in at], [log[column][i] for i in at]
    best = [log["best_accuracy"][i] for i in at] if metric == "accuracy" else []
    lines = [Series(metric, x, y, best=best if all(map(math.isfinite, best)) else ())]
    wish = evaluate.get("target") if metric == "accuracy" else None
    shown: dict[str, Any] = {
        "x_label": label, "y_label": metric, "fractions": is_share, "target": wish if isinstance(wish, float) else None,
    }  # fmt: skip
    drawn = both(lambda width: line_chart(lines, width=width, height=_height(width), **shown), WIDE)
    choice = tabs({key: axis[0] for key, axis in known.items()}, over, "over") if len(known) > 1 else ""
    note = "on the common test samples" + (f"; thin line: the best round so far ({OPTIMISTIC})" if best else "")
    return section("curve", metric.replace("_", " ").capitalize(), choice, drawn, note=note)


def followed(metric: str, logs: Sequence[RoundLog]) -> tuple[str, str, bool]:
    """Return the metric of the curves, its column in the logs, and whether it is a share of 1."""
    column = metric if metric in ("accuracy", "loss") else "metric"
    known = all_metrics().get(metric)
    if known is None or not any(math.isfinite(value) for log in logs for value in log[column]):
        return "accuracy", "accuracy", True
    return metric, column, known.bounds == (0.0, 1.0)


def _losses(log: RoundLog) -> str:
    lines = []
    for index, (name, label) in enumerate((("loss", "test"), ("train_loss", "clients"))):
        at = _seen(log, "round", name)
        lines.append(Series(label, [log["round"][i] for i in at], [log[name][i] for i in at], index=index))
    drawn = both(
        lambda width: line_chart(
            lines, x_label="round", y_label="loss", width=width, height=_height(width), fractions=False
        ),
        HALF,
    )
    note = "on the common test samples, and of clients while they train"
    return section("loss", "Loss", legend(lines), drawn, note=note)


def _clients(catalogue: Catalogue, sight: RunSummary, log: RoundLog) -> str:
    """Who suffers: as it grows, and in the end client by client."""
    lines = []
    for index, (name, label) in enumerate((("weighted_accuracy", "mean"), ("client_worst", "worst tenth"))):
        at = _seen(log, "round", name)
        if len(at):
            lines.append(Series(label, [log["round"][i] for i in at], [log[name][i] for i in at], index=(2, 1)[index]))
    if not lines:
        return ""
    grown = both(lambda width: line_chart(lines, x_label="round", width=width, height=_height(width)), HALF)
    file = sight.folder / "clients.parquet"
    values = catalogue.remembered("clients", sight.folder, [file], lambda: _accuracies(catalogue, file))
    strip = [Strip("", values, index=2)]
    spread = (
        both(lambda width: strip_chart(strip, x_label="accuracy of each client", width=width), HALF) if values else ""
    )
    return section("clients", "Clients", legend(lines), grown, spread, note="each on its own test samples")


def _accuracies(catalogue: Catalogue, file: Path) -> list[float]:
    """Of every client at the end; nothing while it runs, or if the file is damaged or too large."""
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


def _seen(log: RoundLog, *names: str) -> list[int]:
    """Rounds in which all of these are known; some of them, equally far apart, where there are very many."""
    known = [i for i in range(len(log)) if all(math.isfinite(log[name][i]) for name in names)]
    if len(known) <= POINTS:
        return known
    return [known[(len(known) - 1) * k // (POINTS - 1)] for k in range(POINTS)]


def _height(width: float) -> float:
    return 400 if width == WIDE else 300 if width == HALF else 260


def _text(catalogue: Catalogue, sight: RunSummary) -> str:
    try:
        with catalogue.files.open(sight.folder / "experiment.toml") as stream:
            text = stream.read(TEXT).decode("utf-8", errors="replace")
    except (OSError, FedarenaError):
        text = ""
    folder = shlex.quote(catalogue.path(sight.folder))
    command = {
        "interrupted": f"fedarena run --resume {folder}",
        "finished": f"fedarena verify {folder}",
        "diverged": f"fedarena verify {folder}",
    }.get(sight.state, "")
    hint = {"interrupted": "Resume it:", "finished": "Run it again and compare bit by bit:"}
    told = f"<p>{hint.get(sight.state, hint['finished'])}</p><pre>{escape(command)}</pre>" if command else ""
    return section("experiment", "Experiment", told, f"<pre>{escape(text)}</pre>", note=catalogue.path(sight.folder))
