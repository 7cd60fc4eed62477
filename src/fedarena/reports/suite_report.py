"""The report of a suite: the answer, a forest plot for each pair, settings that vary, mean ranks, and the federations."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from markupsafe import Markup

from fedarena.config.errors import BadValue
from fedarena.reports import commands as commands_module
from fedarena.reports.charts.forest import Estimate, ForestRow, Unit, forest_chart, setting_chart
from fedarena.reports.page_elements import Cell, Row, Table
from fedarena.reports.report_data import in_words
from fedarena.reports.sections import render_repeat
from fedarena.reports.templating import macros, render_page
from fedarena.results.json_files import write_text
from fedarena.results.suite import SuiteComparison
from fedarena.results.suite_pairs import PairEstimate, SuitePair
from fedarena.results.suite_trends import VaryingSetting
from fedarena.results.suite_verdict import describe

MOST_CHARTS = 12  # forest plots that are visible at once; further pairs are folded away
MOST_SETTINGS = 4  # settings that are drawn
ANSWERS = {"left": "worse", "rope": "equal", "right": "better"}
FOREST_NOTE = (
    "Thick: the federation's difference, shrunk towards the others. Thin, below it: from its own splits alone. Diamonds: "
    "the mean over all federations like these, and the next one. Lines are 90% intervals; the numbers are the "
    "probabilities of better, practically equal and worse."
)
SETTING_NOTE = (
    "Each bar is a federation's shrunk 90% interval at its value of the setting; the line is a straight line fitted to the "
    "differences, with its 90% band. A dashed line marks where the most probable answer changes. With few federations the "
    "band is wide, and other settings may differ along with this one."
)


def write_suite_report(result: SuiteComparison, path: str | Path) -> Path:
    """Write the report of a suite to this file."""
    if not result.labels:
        raise BadValue("no algorithm has results, there is nothing to report", remedy="; ".join(result.words))
    path = Path(path)
    write_text(path, render_suite(result))
    return path


def render_suite(result: SuiteComparison) -> str:
    """Return the whole page; a section without content is left out."""
    counts = f"{in_words(len(result.labels))} algorithms · {len(result.federations)} federations"
    subtitle = f"{counts} · {result.scoring.labelled}"
    return render_page("Which algorithm for federations like these?", subtitle, SECTIONS, result)


def _verdict(result: SuiteComparison) -> Markup:
    first, *rest = result.words
    failures = [text for text in rest if " has no result" in text]
    sentences = [text for text in rest if text not in failures]
    method = f"{result.about} {result.test[0].upper()}{result.test[1:]}."
    texts = {"lead": [first], "": sentences, "warning": failures, "how": [method]}
    return Markup().join(macros.paragraphs(each, kind) for kind, each in texts.items())


# Charts


def _unit(result: SuiteComparison) -> Unit:
    limit = _in_unit(result, -result.limit), _in_unit(result, result.limit)
    label = f"{result.scoring.metric}, change in percent" if result.is_ratio else result.scoring.unit
    return Unit(label, result.margin, limit)


def _in_unit(result: SuiteComparison, value: float) -> float:
    """Return a difference in the unit of the charts."""
    return 100 * math.expm1(value) if result.is_ratio else result.scoring.scale * value


def _estimate(result: SuiteComparison, found: PairEstimate) -> Estimate | None:
    if not found.is_known:
        return None
    low, high = found.interval
    return _in_unit(result, low), _in_unit(result, found.mean), _in_unit(result, high)


def _rows(result: SuiteComparison, pair: SuitePair) -> list[ForestRow]:
    def row(name: str, found: PairEstimate, own: PairEstimate | None, kind: str = "") -> ForestRow:
        probabilities = (found.p_better, found.p_equal, found.p_worse)
        alone = None if own is None else _estimate(result, own)
        return ForestRow(name, _estimate(result, found), alone, probabilities, found.verdict, kind)

    rows = [row(e.federation, e.shrunk, e.own) for e in pair.by_federation]
    if pair.average.is_known:
        rows += [row("average", pair.average, None, "average"), row("next federation", pair.next, None, "next")]
    return rows


def _forests(result: SuiteComparison) -> Markup:
    if len(result.labels) < 2:
        return Markup()
    pairs = [p for p in result.pairs if not (result.is_reference(p.row) and result.is_reference(p.column))]
    figures = [_forest(result, pair) for pair in pairs]
    shown, more = figures[:MOST_CHARTS], figures[MOST_CHARTS:]
    shown += [macros.folded(f"{len(more)} more pairs", Markup().join(more))] if more else []
    return macros.paragraphs([FOREST_NOTE], "how") + Markup().join(shown)


def _forest(result: SuiteComparison, pair: SuitePair) -> Markup:
    rows, unit = _rows(result, pair), _unit(result)
    sentences = [f"Next federation: {describe(result, pair, pair.next)}"]
    if pair.average.is_known:
        test = pair.signed_rank
        sentences.append(
            f"Standard deviation between federations: about {result.difference(pair.tau, sign=False)}. Signed-rank test: "
            f"{test.p_better:.2f} better, {test.p_equal:.2f} equal, {test.p_worse:.2f} worse ({test.verdict})."
        )
    draw = lambda width: forest_chart(rows, unit, width=width)
    return macros.figure([draw], " ".join(sentences), heading=f"{pair.row} minus {pair.column}")


def _settings(result: SuiteComparison) -> Markup:
    first = [p for p in result.pairs if p.row == (result.pairs[0].row if result.pairs else "")]
    figures = [
        figure
        for setting in result.varying[:MOST_SETTINGS]
        for pair in first
        if not result.is_reference(pair.column) and (figure := _setting(result, pair, setting))
    ]
    hidden = len(result.varying) - MOST_SETTINGS
    more = [f"{hidden} more settings vary; --json has them."] if hidden > 0 else []
    notes = macros.paragraphs([SETTING_NOTE], "how"), macros.paragraphs(more, "how")
    return Markup().join(figures).join(notes) if figures else Markup()


def _setting(result: SuiteComparison, pair: SuitePair, setting: VaryingSetting) -> Markup:
    found = result.trend(pair, setting)
    if found is None:
        return Markup()
    unit = _unit(result)
    points = []
    for estimate in pair.by_federation:
        interval = _estimate(result, estimate.shrunk) or _estimate(result, estimate.own)
        if estimate.federation in setting.values and interval is not None:
            points.append((estimate.federation, setting.values[estimate.federation], interval))
    in_unit = functools.partial(_in_unit, result)
    band = [(at, in_unit(mean), in_unit(low), in_unit(high)) for at, mean, low, high in result.line(found)]
    answers = [(c.at, ANSWERS[c.before], ANSWERS[c.after]) for c in found.changes]
    changes = [(at, f"{before} | {after}, about {at:.2g}") for at, before, after in answers]
    sentences = [f"Most probably {before} below about {at:.3g}, {after} above." for at, before, after in answers]
    caption = " ".join(sentences) or "The most probable answer is the same over the whole range."

    def draw(width: float) -> Markup:
        return setting_chart(points, band, changes, unit, key=setting.key, logarithmic=found.logarithmic, width=width)

    return macros.figure([draw], caption, heading=f"{pair.row} minus {pair.column}, against {setting.key}")


# Tables


def _ranks(result: SuiteComparison) -> Markup:
    names = list(result.judged)
    rows = []
    for label in result.ranked:
        scores = [_mean_score(result, name, label) for name in names]
        rank = Cell(f"{result.mean_ranks[label]:.2f}", best=True)
        rows.append(Row(label, [rank, *scores], is_reference=result.is_reference(label)))
    table = Table("Mean ranks", ["mean rank", *names], rows, "rows metrics", is_shaded=True)
    note = (
        f"Mean rank over {len(names)} federations (1 is the best); then the mean of every federation: "
        f"{result.scoring.name}. An algorithm without a score on a federation ranks last there."
    )
    return macros.table(table) + macros.paragraphs([note], "how")


def _mean_score(result: SuiteComparison, name: str, label: str) -> str:
    one = result.federations[name]
    return "–" if label not in one.runs else result.scoring.shown(float(np.mean(one.scores()[label])))


def _federations(result: SuiteComparison) -> Markup:
    facts = []
    for name, one in result.federations.items():
        parts = " · ".join(str(one.plan.experiment[key]["name"]) for key in ("data", "partition", "model"))
        facts.append((Markup("{}<br><small>{}</small>").format(name, parts), " ".join(one.words[:2])))
    if result.dir is None:
        return macros.facts(facts)
    note = "Each is a comparison of its own, in federations/NAME of the folder:"
    command = macros.code(f"fedarena report {next(iter(result.federations.values())).dir}")
    return macros.facts(facts) + macros.paragraphs([note], "how") + command


def _repeat(result: SuiteComparison) -> Markup:
    """Return the command and the suite file, complete; nothing where parts of it came from Python."""
    first = next(iter(result.federations.values()))
    if any(one.plan.own or not one.runs for one in result.federations.values()):
        return Markup()
    commands = commands_module.commands(first)[0]
    commands = re.sub(r"(--rope |rope=)[^\s,]+", rf"\g<1>{result.rope}", commands)
    commands = commands.replace("experiment.toml", "suite.toml")
    plan, is_typed = first.plan, commands.startswith("fedarena")
    if is_typed:
        commands += f" \\\n    --score {plan.score} --evaluate-on {plan.evaluate_on}" * ("--score" not in commands)
    elif "score=" not in commands:
        how = f"    score={plan.score!r}, evaluate_on={plan.evaluate_on!r},"
        commands = commands.removesuffix(")") + f"{how}\n)"
    about = f"Save the federations below as suite.toml and {'type' if is_typed else 'call'}:"
    file = macros.folded("suite.toml, complete", macros.code(suite_toml(result)))
    return render_repeat(first, about, [commands], [file])


def suite_toml(result: SuiteComparison) -> str:
    """Return a suite file that gives the same federations, with the seeds that were given."""
    blocks = []
    for name, one in result.federations.items():
        text = commands_module.toml(one)
        seed = result.seeds.get(name, 0)
        text = re.sub(r"^seed = .*$", f"seed = {seed}", text, flags=re.MULTILINE)
        blocks.append(f"[[federation]]\nname = {json.dumps(name, ensure_ascii=False)}\n{text}\n")
    return "\n".join(blocks)


SECTIONS: dict[str, tuple[str, Callable[[SuiteComparison], Markup]]] = {
    "verdict": ("The verdict", _verdict),
    "federations-forest": ("Federation by federation", _forests),
    "settings": ("Where the answer depends on a setting", _settings),
    "ranks": ("Mean ranks", _ranks),
    "federations": ("The federations", _federations),
    "notes": ("Notes", lambda result: macros.bullets(result.notes) if result.notes else Markup()),
    "repeat": ("Repeat it", _repeat),
}
