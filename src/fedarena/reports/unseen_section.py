"""The section of the report and of `fedarena ui` about clients that never trained, and the same table as texts."""

from __future__ import annotations

from markupsafe import Markup

from fedarena.reports.charts.posteriors import format_probability, format_sign
from fedarena.reports.page_elements import Row, Table
from fedarena.reports.report_data import ReportData
from fedarena.reports.templating import macros
from fedarena.results.comparison import Comparison
from fedarena.results.unseen_scores import UnseenScore, UnseenScores

INTERVAL = "90% interval"


def unseen(data: ReportData) -> Markup:
    """Return the section of the report; nothing where all clients train."""
    return unseen_section(data.result, judged=data.no_verdict_reason is None)


def unseen_section(result: Comparison, *, judged: bool = True) -> Markup:
    """Return a row for each algorithm with the scores of unseen clients; `judged` compares it with the best one."""
    found = result.unseen_scores()
    if found is None:
        return Markup()
    rows = [
        Row(one.algorithm, _cells(result, found, one, judged), is_reference=one.algorithm == result.plan.reference)
        for one in found.scores
    ]
    table = Table("Clients that never trained", _head(found, judged), rows, "rows numbers")
    return macros.table(table) + macros.paragraphs([explanation(result, found, judged)], "how")


def explanation(result: Comparison, found: UnseenScores, judged: bool = True) -> str:
    """Return how the numbers were measured, and how they are read."""
    scoring = result.scoring()
    which = "every client alike" if result.plan.evaluate_on == "own:uniform" else "weighted by these samples"
    text = (
        f"In every split {found.clients:g} clients never train. The numbers are their mean {found.metric} on their own test "
        f"samples, {which}: with what the method gives them at once, and after {found.steps} "
        f"step{'s' * (found.steps != 1)} on their own training samples."
    )
    if judged and found.best is not None:
        text += (
            f" The last columns compare each method after the steps with {found.best}, the best of them: the probabilities "
            f"that it is better, practically equal (within {scoring.difference(found.rope)}) and worse."
        )
    dropped = max(one.undefined for one in found.scores)
    if dropped:
        text += f" {dropped} split{'s' * (dropped != 1)} on whose samples the metric is undefined do not count."
    return text


def unseen_table(result: Comparison, *, intervals: bool = True) -> tuple[str, list[list[str]]] | None:
    """Return the scores as a table of texts with what it shows, for the terminal, Markdown and LaTeX; None without any."""
    found = result.unseen_scores()
    if found is None:
        return None
    head, *body = [
        ["algorithm", *_head(found)],
        *([one.algorithm, *_cells(result, found, one)] for one in found.scores),
    ]
    kept = [i for i, name in enumerate(head) if intervals or name != INTERVAL]
    return explanation(result, found), [[line[i] for i in kept] for line in (head, *body)]


def _head(found: UnseenScores, judged: bool = True) -> list[str]:
    after = f"after {found.steps} step{'s' * (found.steps != 1)}"
    known = ["at once", after, "gain", INTERVAL]
    return [*known, "P(better)", "P(equal)", "P(worse)", ""] if judged else known


def _cells(result: Comparison, found: UnseenScores, one: UnseenScore, judged: bool = True) -> list[str]:
    scoring = result.scoring()

    def mean(value: float | None, deviation: float | None) -> str:
        return scoring.shown(value) if not deviation else f"{scoring.shown(value)} ±{scoring.shown(deviation)}"

    gain = "-" if one.gain is None else scoring.signed(one.gain)
    interval = "-" if one.interval is None else " to ".join(map(scoring.signed, one.interval))
    known = [mean(one.before, one.before_sd), mean(one.after, one.after_sd), gain, interval]
    if not judged:
        return known
    chances = ["-" if p is None else format_probability(p) for p in (one.p_better, one.p_equal, one.p_worse)]
    sign = "best" if one.algorithm == found.best else format_sign(one.verdict) if one.verdict else ""
    return [*known, *chances, sign]
