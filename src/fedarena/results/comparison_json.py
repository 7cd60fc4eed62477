"""A comparison as plain values, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedarena.results import comparison_verdict, tradeoff_points

if TYPE_CHECKING:
    from fedarena.results.comparison import Comparison


def as_dict(result: Comparison) -> dict[str, Any]:
    """Return what `fedarena compare --json` prints."""
    standings, plan = result.ranking.standings if result.ranking else {}, result.plan
    return {
        "algorithms": result.labels,
        **{key: getattr(plan, key) for key in ("score", "metric", "evaluate_on")},
        "scores": result.scores(),
        "final_scores": result.scores("final"),
        "best_scores": result.scores("best"),
        "validated_scores": result.scores("validated") if result.is_validated else None,
        "validation_share": result.validation_share,
        "table": [asdict(duel) for duel in result.duels()],
        "final_table": [asdict(duel) for duel in result.duels("final")],
        **{
            key: {label: getattr(standing, key) for label, standing in standings.items()}
            for key in ("p_best", "p_near_best", "expected_loss")
        },
        "best_set": list(result.ranking.best_set) if result.ranking else [],
        "rows": result.rows(),
        "target": result.target,
        **{key: getattr(plan, key) for key in ("rope", "threshold", "test", "about", "protocol")},
        "fixed": list(plan.fixed),
        "per_repeat": list(plan.per_repeat),
        "correlation": plan.rho,
        "at_most": plan.at_most,
        "looks": [asdict(record) for record in plan.looks],
        "stopped": comparison_verdict.stopped_table(plan),
        "verdict": result.words,
        "failures": result.failures,
        "sweep": tradeoff_points.as_dict(result),
        "client_gains": None if (gains := result.client_gains()) is None else asdict(gains),
        "leave_one_out": None if (left := result.leave_one_out()) is None else asdict(left),
        "unseen": None if (unseen := result.unseen_scores()) is None else asdict(unseen),
        "notes": result.notes,
        "dir": None if result.dir is None else str(result.dir),
    }
