"""The tables of a comparison as text: LaTeX (booktabs) for a paper, Markdown for a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from fedarena.reports.charts.posteriors import format_probability
from fedarena.reports.client_gains_section import gain_table
from fedarena.reports.cost_table import tables
from fedarena.reports.report_data import ReportData
from fedarena.reports.unseen_section import unseen_table
from fedarena.results.comparison import Comparison
from fedarena.results.scoring import VIEW_NAMES
from fedarena.statistics.metric_registry import OPTIMISTIC

Format = Literal["latex", "markdown"]
Cells = Sequence[Sequence[str]]

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "–": "--",
}  # fmt: skip


def text_tables(result: Comparison, form: Format) -> str:
    """Return scores and costs, and the pairwise verdicts where there are any, as tables in LaTeX or Markdown."""
    data = ReportData(result)
    write: Callable[[str, Cells], str] = latex if form == "latex" else markdown
    written = []
    for columns, about in zip(tables(data), _abouts(data), strict=True):
        head = ["algorithm", *(column.name for column in columns)]
        body = [[row["algorithm"], *(column.text(row) for column in columns)] for row in data.rows]
        written.append(write(about, [head, *body]))
    if data.no_verdict_reason is None:
        written.append(write(_about(result), _duels(data)))
        if (gains := gain_table(result)) is not None:
            written.append(write(*gains))
        if (unseen := unseen_table(result)) is not None:
            written.append(write(*unseen))
    return "\n".join(written)


def _abouts(data: ReportData) -> tuple[str, str]:
    runs = max(row["runs"] for row in data.rows)
    over = f", mean and standard deviation over {runs} splits; medians to the target" if runs > 1 else ""
    missing = "" if data.no_verdict_reason is None else f"; no verdict: {data.no_verdict_reason}"
    scoring = data.result.scoring("final")
    return (
        f"final: {scoring.metric} {VIEW_NAMES[scoring.evaluate_on]}{over}; * best round on the common test samples, "
        f"{OPTIMISTIC}{missing}",
        "accuracy of the final model on clients' own test samples; costs of the whole run",
    )


def _about(result: Comparison) -> str:
    scoring = result.scoring()
    return (
        f"row against column, by {scoring.labelled}: probabilities that it is better, practically equal (within "
        f"{scoring.difference(result.plan.rope)}), worse; a sign needs more than {result.plan.threshold:.0%}; "
        f"{result.plan.test}"
    )


def _duels(data: ReportData) -> Cells:
    duels = {(d.row, d.column): d for d in data.result.duels()}
    lines = [["", *data.ranked]]
    for row in data.ranked:
        cells = [duels.get((row, column)) for column in data.ranked]
        texts = [
            ""
            if d is None
            else f"{d.verdict} ({', '.join(map(format_probability, (d.p_better, d.p_equal, d.p_worse)))})"
            for d in cells
        ]
        lines.append([row, *texts])
    return lines


def latex(about: str, cells: Cells) -> str:
    r"""Return a tabular; the comment says what it shows and what it needs.

    >>> print(latex("all of it", [["", "a_b"], ["x", "50%"]]))
    % all of it; needs \usepackage{booktabs}
    \begin{tabular}{lr}
    \toprule
     & a\_b \\
    \midrule
    x & 50\% \\
    \bottomrule
    \end{tabular}
    <BLANKLINE>
    """
    head, *body = [" & ".join(map(_escaped, row)) + r" \\" for row in cells]
    columns = "l" + "r" * (len(cells[0]) - 1)
    rules = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join([rf"% {about}; needs \usepackage{{booktabs}}", *rules, ""])


def _escaped(text: str) -> str:
    sign, rest = (text[0], text[1:]) if text[:2] in ("- ", "+ ", "= ") else ("", text)
    return (f"${sign}$" if sign else "") + "".join(SPECIAL.get(letter, letter) for letter in rest)


def markdown(about: str, cells: Cells) -> str:
    """Return a table with aligned columns; what it shows stands below.

    >>> print(markdown("all of it", [["", "b"], ["x", "50%"]]))
    |     |   b |
    |:----|----:|
    | x   | 50% |
    <BLANKLINE>
    all of it
    <BLANKLINE>
    """
    shown = [[cell.replace("|", r"\|") for cell in row] for row in cells]
    widths = [max(3, *(len(row[k]) for row in shown)) for k in range(len(shown[0]))]
    lines = [
        "| "
        + " | ".join(cell.rjust(w) if k else cell.ljust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True)))
        + " |"
        for row in shown
    ]
    rule = "|" + "|".join("-" * (w + 1) + ":" if k else ":" + "-" * (w + 1) for k, w in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:], "", about, ""])
