"""Train every algorithm on the smallest data set of every task, with defaults, and write the table of docs/tasks.md.

    python benchmarks/tasks.py            # a few minutes on two cores; needs the data set tcga_brca (`fedarena data get`)

A score is that of the common test samples after the last round; of an algorithm whose clients have models of their own, the
mean over the clients' own test samples. The trivial predictor knows no features: the most frequent class, the mean of the
labels, or chance.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fedarena as fa
from fedarena.config.errors import FedarenaError
from fedarena.config.registry import components

PAGE = Path(__file__).parent.parent / "docs" / "tasks.md"
BEGIN, END = "<!-- begin algorithms -->\n", "<!-- end algorithms -->\n"


def several_labels() -> Any:
    """Return 400 samples with five labels of 0 and 1, made by scikit-learn."""
    from sklearn.datasets import make_multilabel_classification

    x, y = make_multilabel_classification(n_samples=400, n_features=20, n_classes=5, random_state=0)
    return fa.arrays((x - x.mean(0)) / x.std(0), y.astype(float), task="multilabel")


# column -> data set, metric, settings beside the defaults
TASKS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "classification: wine, accuracy": ("wine", "accuracy", {}),
    "regression: diabetes, R2": ("diabetes", "r2", {}),
    "several labels: made, AUC": (several_labels(), "auc", {"model": "logreg", "clients": 4, "local": {"lr": 0.5}}),
    "survival: tcga_brca, C-index": ("tcga_brca", "c_index", {}),
}
TRIVIAL = (0.4, 0.0, 0.5, 0.5)  # 71 of 178 wines are of the most frequent class
MODELS = {"moon": "mlp_2nn", "fedproto": "mlp_2nn"}  # these compare representations, which logistic regression has none of


def score(algorithm: str, source: Any, metric: str, settings: dict[str, Any]) -> float | str:
    """Return the score of an algorithm, or why it refuses the task."""
    settings = settings | ({"model": MODELS[algorithm]} if algorithm in MODELS else {})
    try:
        run = fa.run(source, algorithm=algorithm, out=False, runtime="serial", **settings)
    except FedarenaError as error:
        return error.what
    return float((run.own_metrics if run.experiment.algorithm.made.personal else run.metrics)[metric])


def table() -> tuple[list[str], list[str]]:
    """Return the lines of the table with the refusals, and the algorithms that are not better than the trivial predictor."""
    lines = [f"| algorithm | {' | '.join(TASKS)} |", "|---" * (len(TASKS) + 1) + "|"]
    lines.append(f"| *trivial predictor* | {' | '.join(f'{value:.2f}' for value in TRIVIAL)} |")
    failed, refusals = [], []
    for algorithm, entry in components("algorithm").items():
        scores = [score(algorithm, *task) for task in TASKS.values()]
        cells = [f"{value:.2f}" if isinstance(value, float) else "refused" for value in scores]
        marks = [f"`{MODELS.get(algorithm)}`"] * (algorithm in MODELS)
        marks += ["own samples"] * getattr(entry.make, "personal", False)
        mark = f" ({', '.join(marks)})" if marks else ""
        lines.append(f"| `{algorithm}`{mark} | {' | '.join(cells)} |")
        refusals += dict.fromkeys(f"- {reason}" for reason in scores if isinstance(reason, str))
        for name, value, least in zip(TASKS, scores, TRIVIAL, strict=True):
            if isinstance(value, float) and not value > least:
                failed.append(f"{algorithm}, {name}: {value:.3f}")
        print(lines[-1], flush=True)
    return [*lines, "", *refusals], failed


def main() -> None:
    """Write the table to the page; end with 1 if an algorithm is not better than the trivial predictor."""
    lines, failed = table()
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:start] + "\n".join(lines) + "\n" + text[end:], encoding="utf-8")
    for line in failed:
        print(f"not better than the trivial predictor: {line}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
