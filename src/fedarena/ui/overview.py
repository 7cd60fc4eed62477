"""The first page: all suites, comparisons and runs under the folder."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedarena.reports.charts.svg import series_class
from fedarena.reports.report_data import colour_index
from fedarena.statistics.metric_registry import OPTIMISTIC
from fedarena.ui.catalogue import Catalogue
from fedarena.ui.partial_scores import by_mean, format_score, score_name, scoring_of
from fedarena.ui.rendering import format_settings, render_page
from fedarena.ui.safe_files import reason
from fedarena.ui.summaries import STATES, ComparisonSummary, RunSummary, part_name

SHOWN = 8  # contestants of a card


def page(catalogue: Catalogue) -> str:
    """Return the list of comparisons, and the list of runs."""
    listing = catalogue.scan()
    cells = (run for comparison in listing.comparisons for run in comparison.all_runs)
    running = sum(run.state == "running" for run in (*listing.runs, *cells))
    counts = Counter(run.state for run in listing.runs)
    return render_page(
        "overview.html",
        f"({running}) fedarena" if running else "fedarena",
        running=running,
        folder=catalogue.name,
        suites=listing.suites,
        cards=[_safe_card(comparison) for comparison in listing.comparisons],
        rows=[_safe_row(run) for run in listing.runs],
        partial=listing.partial,
        counts=", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]),
        optimistic=OPTIMISTIC,
    )


def _safe_row(run: RunSummary) -> dict[str, Any]:
    """Return the row of a run; if its contents cannot be shown, a row that says why, so that the others are shown."""
    try:
        return _row(run)
    except Exception as error:
        return _row(RunSummary(run.id, run.folder, run.name, "damaged", {}, why=reason(error)))


def _row(run: RunSummary) -> dict[str, Any]:
    parts = {key: run.part(key) for key in ("algorithm", "data", "partition", "model")}
    search = " ".join([run.name, run.state, *parts.values()]).lower()
    return {"run": run, "search": search, "settings": format_settings(run.settings("algorithm")), **parts}


def _safe_card(comparison: ComparisonSummary) -> dict[str, Any]:
    """Return the card of a comparison, or one that says why it cannot be shown."""
    try:
        return _card(comparison)
    except Exception as error:
        return {"id": comparison.id, "name": comparison.name, "why": reason(error)}


def _card(comparison: ComparisonSummary) -> dict[str, Any]:
    card: dict[str, Any] = {"id": comparison.id, "name": comparison.name, "why": comparison.why or "it has no plan"}
    if comparison.plan is None:
        return card
    lines, table = by_mean(comparison), comparison.plan.experiment
    return card | {
        "why": "",
        "state": comparison.state,
        "parts": " · ".join(part_name(table.get(key)) for key in ("data", "partition", "model")),
        "score": score_name(comparison.plan),
        "lines": [_contestant(comparison, label, mean) for label, mean in lines[:SHOWN]],
        "more": max(len(lines) - SHOWN, 0),
        "done": comparison.ended,
        "cells": max(len(comparison.all_runs), 1),
        "changed": comparison.changed,
    }


def _contestant(comparison: ComparisonSummary, label: str, mean: float | None) -> dict[str, Any]:
    """Return an algorithm with its colour, its mean score, and that as a share of 1 where it is one."""
    plan = comparison.known_plan
    scoring = scoring_of(plan)
    look = "aside" if label == plan.reference else series_class(colour_index(plan, label)).split()[0]
    score = format_score(scoring, mean)
    if any(run.state == "failed" for run in comparison.cells[label]):
        score = "failed"
    share = (mean or 0.0) if scoring is None or scoring.is_share else None
    return {"label": label, "look": look, "score": score, "share": share}
