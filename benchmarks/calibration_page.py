"""Write the tables and the figure of docs/trust.md from the committed result of the calibration study.

python benchmarks/calibration_page.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.statistics.bayes import posterior, verdict

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "trust.md"
FIGURE = ROOT / "docs" / "images" / "trust-seeds.png"
SCHEMES = ("1x5 folds", "3x5 folds", "10 seeds")
COLOURS = {"+": "#0072b2", "-": "#d55e00", "=": "#009e73", "?": "#999999"}  # Okabe and Ito 2008
NAMES = {"+": "fednova better", "-": "fedavg better", "=": "practically equal", "?": "undecided"}


def percent(share: float) -> str:
    """Return a share as it is shown in a table.

    >>> percent(0.0449)
    '4.5 %'
    """
    return f"{100 * share:.1f} %"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" if line[0] != "---" else f"|{'|'.join(line)}|" for line in lines)


def verdict_table(found: dict[str, Any]) -> str:
    """Return one row per setting and number of splits: coverage, wrong verdicts and power, over all pairs and the null."""
    rows = []
    for setting in found["settings"].values():
        for scheme in SCHEMES:
            pairs = setting[scheme]["pairs"]
            null, real = pairs["null"], [pair for name, pair in pairs.items() if name != "null"]
            coverage = [pair["coverage"] for pair in pairs.values()]
            decided, wrong = sum(p["decided"] for p in real), sum(p["wrong"] for p in real)
            rows.append(
                [
                    setting["title"],
                    scheme,
                    f"{min(coverage):.2f} to {max(coverage):.2f}",
                    f"{null['wrong']} of {null['comparisons']}",
                    f"{wrong} of {decided}",
                    percent(decided / sum(p["comparisons"] for p in real)),
                    percent(setting[scheme]["leaders"]["within_rope"]),
                ]
            )
    head = ["setting", "splits", "coverage of 90 % intervals", "null: wrong verdicts", "wrong of decided verdicts"]
    return table([*head, "decided", "best choice within 1 point of the best"], rows)


def stopping_table(found: dict[str, Any]) -> str:
    """Return one row per setting: how comparisons end that add repeats until they are decided."""
    rows = []
    for setting in found["settings"].values():
        ends = setting["until decided"]
        null, real = ends["null"], [end for name, end in ends.items() if name != "null"]
        decided, wrong = sum(e["decided"] for e in real), sum(e["wrong"] for e in real)
        rows.append(
            [
                setting["title"],
                f"{null['wrong']} of {null['comparisons']}",
                f"{wrong} of {decided}",
                percent(decided / sum(e["comparisons"] for e in real)),
                f"{np.mean([e['splits'] for e in real]):.0f}",
            ]
        )
    return table(["setting", "null: wrong ends", "wrong of decided ends", "decided", "mean number of splits"], rows)


def suite_table(found: dict[str, Any]) -> str:
    """Return one row per kind of simulated suite: coverage of the 90 % intervals of the hierarchical model."""
    rows = [
        [
            str(suite["size"]),
            f"{100 * suite['tau']:g} points",
            *(f"{suite[key]:.3f}" for key in ("next", "average", "federations", "unshrunk")),
        ]
        for suite in found["suites"]
    ]
    head = [
        "federations",
        "true differences vary by",
        "next federation",
        "average",
        "each one, shrunk",
        "each one alone",
    ]
    return table(head, rows)


def draw(scores: dict[str, Any]) -> None:
    """Draw the 90 % intervals and verdicts of 40 seeds, as version 0.2 split and as comparisons are split now."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    truth = np.concatenate([*scores["digits-dirichlet/truth-folds"]])
    true = 100 * float(np.mean(truth[:, 1] - truth[:, 0]))
    panels = {
        "folds share partition, start and schedule (0.2)": "shared",
        "every split repeats everything (now)": "folds",
    }
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.6), sharex=True, sharey=True, layout="constrained")
    for axis, (title, kind) in zip(axes, panels.items(), strict=True):
        for seed, x in enumerate(scores[f"digits-dirichlet/{kind}"][:40, :5]):
            known = posterior(x[:, 0], x[:, 1], 0.2)
            left, equal, right = known.regions(0.01)
            colour = COLOURS[verdict(right, equal, left)]
            low, high = known.interval(0.9)
            axis.plot([100 * low, 100 * high], [seed, seed], color=colour, linewidth=2)
            axis.plot(100 * known.mean, seed, "o", color=colour, markersize=3.5)
        axis.axvspan(-1, 1, color="#eeeeee", zorder=0)
        axis.axvline(true, color="black", linewidth=1, linestyle="--")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("fednova - fedavg, points of accuracy")
    axes[0].set_ylabel("comparison, each with another seed")
    handles = [plt.Line2D([], [], color=COLOURS[s], marker="o", label=NAMES[s]) for s in COLOURS]
    handles.append(plt.Line2D([], [], color="black", linestyle="--", label="true difference"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    figure.savefig(FIGURE, dpi=110)
    plt.close(figure)


def filled(page: str, tables: dict[str, str]) -> str:
    """Return a page with each table between its two marks.

    >>> filled("<!-- begin x -->\\nold\\n<!-- end x -->", {"x": "new"})
    '<!-- begin x -->\\nnew\\n<!-- end x -->'
    """
    for name, text in tables.items():
        marks = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(f"{re.escape(marks[0])}.*?{re.escape(marks[1])}", re.DOTALL)
        page = pattern.sub(lambda _, m=marks, t=text: f"{m[0]}\n{t}\n{m[1]}", page)  # type: ignore[misc]
    return page


def tables_of(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the page by the names of their marks."""
    return {
        "verdicts": verdict_table(found),
        "stopping": stopping_table(found),
        "suites": suite_table(found),
    }


def main() -> None:
    """Write the page and its figure again."""
    found = json.loads((RESULTS / "calibration.json").read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables_of(found)), encoding="utf-8")
    with np.load(RESULTS / "calibration.npz") as scores:
        draw(dict(scores))


if __name__ == "__main__":
    main()
