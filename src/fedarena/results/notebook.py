"""Runs as text, and runs and comparisons as notebooks show them: small HTML tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

from fedarena.common.formatting import format_duration, format_size
from fedarena.results.privacy_guarantees import guarantees
from fedarena.statistics.metric_registry import OPTIMISTIC

if TYPE_CHECKING:
    from fedarena.results.comparison import Comparison
    from fedarena.results.run import Run
    from fedarena.results.suite import SuiteComparison


def run_text(run: Run) -> str:
    """Return the main numbers of a run in a few lines."""
    s = run.summary()
    lines = [
        f"{s['algorithm']} on {run.experiment.data.title} ({s['partition']}), {s['model']}, seed {s['seed']}: "
        f"{s['rounds']} round{'s' * (s['rounds'] > 1)}",
        f"  {s['metric']} {s['final_metric']:.4f}{_interval(run.metric_bounds.get(s['metric']))}, "
        f"best {s['best_metric']:.4f} in round {s['best_round']} ({OPTIMISTIC})",
        f"  loss {s['final_loss']:.4f}   {s['uploads']} uploads, {format_size(s['bytes_up'])} up, "
        f"{format_size(s['bytes_down'])} down   {s['wall_seconds']:.1f} s",
    ]
    shown = [
        f"{name} {_short(value)}{_interval(run.metric_bounds.get(name))}"
        for name, value in s["metrics"].items()
        if name not in (s["metric"], "loss")
    ]
    if shown:
        lines.append(f"  {', '.join(shown)}")
    if run.chosen is not None:
        lines.append(
            f"  validated: {s['metric']} {s['validated_metric']:.4f} in round {s['validated_round']}, "
            f"{_short(run.chosen.value)} on the validation samples"
        )
    of_clients = [f"{name} {_short(value)}" for name, value in s["own_metrics"].items() if name not in s["metrics"]]
    if of_clients:
        lines.append(f"  mean over clients of their own values: {', '.join(of_clients)}")
    if run.unseen is not None:
        before, after = (values.get(s["metric"], math.nan) for values in (run.unseen.before, run.unseen.after))
        count, steps = len(run.unseen.clients), run.unseen.steps
        lines.append(
            f"  {count} client{'s' * (count != 1)} never trained: {s['metric']} {_short(before)} at once, "
            f"{_short(after)} after {steps} step{'s' * (steps != 1)} on their own samples"
        )
    lines += [f"  {line}" for line in guarantees(run)]
    return "\n".join(lines + ([f"  {run.dir}"] if run.dir else []))


def _short(value: float) -> str:
    """Return a value for a line of many, `?` where it is undefined."""
    return "?" if math.isnan(value) else f"{value:.3g}"


def _interval(bounds: tuple[float, float] | None) -> str:
    """Return the interval of a value that comes from score histograms, in brackets."""
    return "" if bounds is None else f" ({_short(bounds[0])} to {_short(bounds[1])})"


def run_html(run: Run, curve: str) -> str:
    """Return the numbers of a run beside its accuracy curve, which is given as SVG."""
    s = run.summary()
    shown = {
        f"final {s['metric']}": f"{s['final_metric']:.4f}",
        f"best {s['metric']}": f"{s['best_metric']:.4f} (round {s['best_round']}; {OPTIMISTIC})",
        "final loss": f"{s['final_loss']:.4f}",
        "rounds": s["rounds"],
        "uploads": s["uploads"],
        "sent": f"{format_size(s['bytes_up'])} up, {format_size(s['bytes_down'])} down",
        "time": f"{s['wall_seconds']:.1f} s",
    }
    if run.chosen is not None:
        shown[f"validated {s['metric']}"] = f"{s['validated_metric']:.4f} (round {s['validated_round']})"
    if private := guarantees(run):
        shown["privacy"] = "; ".join(private)
    cells = "".join(f"<tr><th style='text-align:left'>{k}</th><td>{v}</td></tr>" for k, v in shown.items())
    data = escape(run.experiment.data.title)
    title = f"{s['algorithm']} · {data} · {s['partition']} · {s['model']} · seed {s['seed']}"
    return (
        f"<div><b>{title}</b><div style='display:flex;gap:2em;align-items:center'>"
        f"<table>{cells}</table>{curve}</div></div>"
    )


def comparison_html(result: Comparison) -> str:
    """Return the verdict in sentences, the table of scores and costs, and the table of all pairs."""
    duels = {(duel.row, duel.column): duel for duel in result.duels()}

    def cell(row: str, column: str) -> str:
        if row == column:
            return "<td></td>"
        duel = duels[row, column]
        return _sign_cell(duel.verdict, f"{duel.p_better:.2f} / {duel.p_equal:.2f} / {duel.p_worse:.2f}")

    names = result.ranked
    rows = {escape(row): "".join(cell(row, column) for column in names) for row in names}
    test = result.plan.test
    about = f"{result.plan.about} {test[0].upper()}{test[1:]}."
    return _verdict_html(result.words, map(escape, names), rows, about, _score_table(result))


def _score_table(result: Comparison) -> str:
    """Return one row per algorithm: its score over splits, its probability to be the best, and what its runs cost."""
    scoring, key = result.scoring(), result.plan.score
    order = [*result.ranked, result.plan.reference]
    rows = {
        escape(row["algorithm"]): (
            f"{scoring.shown(row[key])} ± {scoring.shown(row[f'{key}_sd']).rstrip('%')}",
            "-" if row["p_best"] is None else f"{row['p_best']:.2f}",
            format_size(row["bytes"]) if row["bytes"] else "-",
            format_duration(row["clock"]) if row["clock"] else "-",
        )
        for row in sorted(result.rows(), key=lambda row: order.index(row["algorithm"]))
    }
    head = (f"{scoring.score} {scoring.metric}", "P(best)", "sent", "simulated time")
    texts = {name: "".join(f"<td style='text-align:right'>{c}</td>" for c in cells) for name, cells in rows.items()}
    return _table_html(head, texts)


def suite_html(result: SuiteComparison) -> str:
    """Return the verdict in sentences and a row for every pair."""
    rows = {
        f"{escape(pair.row)} against {escape(pair.column)}": "".join(
            _sign_cell(found.verdict, " / ".join(map(format_chance, (found.p_better, found.p_equal, found.p_worse))))
            for found in (pair.next, pair.average, pair.signed_rank)
        )
        for pair in result.pairs
    }
    return _verdict_html(result.words, ("next federation", "average", "signed-rank"), rows, result.about)


def format_chance(p: float) -> str:
    """Return a probability as it is read in a sentence; 1.00 and 0.00 are for what is certain."""
    if math.isnan(p):
        return "-"
    return "over 0.99" if 0.995 < p < 1 else "below 0.01" if 0 < p < 0.005 else f"{p:.2f}"


def _sign_cell(sign: str, chances: str) -> str:
    return f"<td style='text-align:center' title='{chances}'><b>{sign}</b><br><small>{chances}</small></td>"


def _verdict_html(
    words: Iterable[str], head: Iterable[str], rows: Mapping[str, str], about: str, before: str = ""
) -> str:
    sentences = "".join(f"<p>{escape(line)}</p>" for line in words)
    return f"<div>{sentences}{before}{_table_html(head, rows)}<small>{escape(about)}</small></div>"


def _table_html(head: Iterable[str], rows: Mapping[str, str]) -> str:
    names = "".join(f"<th>{name}</th>" for name in ("", *head))
    body = "".join(f"<tr><th style='text-align:left'>{name}</th>{cells}</tr>" for name, cells in rows.items())
    return f"<table><tr>{names}</tr>{body}</table>"
