"""The report of a suite: the answer, a forest plot for each pair, settings that vary, mean ranks, and the federations."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedarena.config.errors import BadValue
from fedarena.reports import commands as commands_module
from fedarena.reports.charts import breakable, escape
from fedarena.reports.charts.forest import ForestRow, Interval, Mark, SettingPoint, Unit, forest_chart, setting_chart
from fedarena.reports.page import whole_page
from fedarena.reports.report_data import counted
from fedarena.reports.sections import both, figure, paragraphs
from fedarena.results.json_files import write_text
from fedarena.results.suite import SuiteComparison, optimistic
from fedarena.results.suite_pairs import PairEstimate, SuitePair
from fedarena.results.suite_trends import Setting

MOST_CHARTS = 12  # forest plots that stand open; further pairs are folded away
MOST_SETTINGS = 4  # settings that are drawn
ANSWERS = {"left": "worse", "rope": "equal", "right": "better"}


def write_suite_report(result: SuiteComparison, path: str | Path) -> Path:
    """Write the report of a suite to this file."""
    if not result.labels:
        raise BadValue("no algorithm has results, there is nothing to report", remedy="; ".join(result.words))
    path = Path(path)
    write_text(path, render_suite(result))
    return path


def render_suite(result: SuiteComparison) -> str:
    """Return the whole page; a section without content is left out."""
    sections: dict[str, tuple[str, Callable[[SuiteComparison], str]]] = {
        "verdict": ("The verdict", _verdict),
        "federations-forest": ("Federation by federation", _forests),
        "settings": ("Where the answer depends on a setting", _settings),
        "ranks": ("Mean ranks", _ranks),
        "federations": ("The federations", _federations),
        "notes": ("Notes", _notes),
        "repeat": ("Repeat it", _repeat),
    }
    told = {key: (name, body) for key, (name, make) in sections.items() if (body := make(result))}
    n = len(result.federations)
    subtitle = f"{counted(len(result.labels))} algorithms · {n} federations · {result.scoring.name}{optimistic(result)}"
    return whole_page("Which algorithm for federations like these?", subtitle, told)


def _verdict(result: SuiteComparison) -> str:
    first, *rest = result.words
    failed = [text for text in rest if " has no result" in text]
    plain = [text for text in rest if text not in failed]
    how = f"{result.about} {result.test[0].upper()}{result.test[1:]}."
    return paragraphs([first], "lead") + paragraphs(plain) + paragraphs(failed, "warning") + paragraphs([how], "how")


# Charts


def _unit(result: SuiteComparison) -> Unit:
    limit = _shown(result, -result.limit), _shown(result, result.limit)
    if result.is_ratio:
        label = f"{result.scoring.metric}, change in percent"
    elif result.scoring.is_share:
        label = "percentage points"
    else:
        label = f"{result.scoring.metric}"
    return Unit(label, result.margin, limit)


def _shown(result: SuiteComparison, value: float) -> float:
    """Return a difference in the unit of the charts."""
    if result.is_ratio:
        return 100 * math.expm1(value)
    return 100 * value if result.scoring.is_share else value


def _interval(result: SuiteComparison, found: PairEstimate) -> Interval | None:
    if not found.is_known:
        return None
    low, high = found.interval
    return _shown(result, low), _shown(result, found.mean), _shown(result, high)


def _rows(result: SuiteComparison, pair: SuitePair) -> list[ForestRow]:
    def row(name: str, found: PairEstimate, own: PairEstimate | None, kind: str = "") -> ForestRow:
        chances = (found.p_better, found.p_equal, found.p_worse)
        alone = None if own is None else _interval(result, own)
        return ForestRow(name, _interval(result, found), alone, chances, found.verdict, kind)

    rows = [row(e.federation, e.shrunk, e.own) for e in pair.by_federation]
    if pair.average.is_known:
        rows += [row("average", pair.average, None, "average"), row("next federation", pair.next, None, "next")]
    return rows


def _forests(result: SuiteComparison) -> str:
    if len(result.labels) < 2:
        return ""
    pairs = [p for p in result.pairs if not (result.is_reference(p.row) and result.is_reference(p.column))]
    drawn = [_forest(result, pair) for pair in pairs]
    note = (
        '<p class="how">Thick: the federation\'s difference, shrunk towards the others. Thin, below it: from its own splits '
        "alone. Diamonds: the mean over all federations like these, and the next one. Lines are 90% intervals; the numbers "
        "are the probabilities of better, practically equal and worse.</p>"
    )
    more = ""
    if len(drawn) > MOST_CHARTS:
        rest = "".join(drawn[MOST_CHARTS:])
        more = f"<details><summary>{len(drawn) - MOST_CHARTS} more pairs</summary>{rest}</details>"
    return note + "".join(drawn[:MOST_CHARTS]) + more


def _forest(result: SuiteComparison, pair: SuitePair) -> str:
    head = f"<h3>{escape(pair.row)} minus {escape(pair.column)}</h3>"
    rows, unit = _rows(result, pair), _unit(result)
    told = [f"Next federation: {result.describe(pair, pair.next)}"]
    if pair.average.is_known:
        test = pair.signed_rank
        told.append(
            f"Standard deviation between federations: about {_size(result, pair.tau)}. Signed-rank test: "
            f"{test.p_better:.2f} better, {test.p_equal:.2f} equal, {test.p_worse:.2f} worse ({test.verdict})."
        )
    return head + figure(both(lambda width: forest_chart(rows, unit, width=width)), escape(" ".join(told)))


def _size(result: SuiteComparison, tau: float) -> str:
    return result.difference(tau, sign=False)


def _settings(result: SuiteComparison) -> str:
    first = [p for p in result.pairs if p.row == (result.pairs[0].row if result.pairs else "")]
    drawn = [
        text
        for setting in result.varying[:MOST_SETTINGS]
        for pair in first
        if not result.is_reference(pair.column) and (text := _setting(result, pair, setting))
    ]
    if not drawn:
        return ""
    note = (
        '<p class="how">Each bar is a federation\'s shrunk 90% interval at its value of the setting; the line is a straight '
        "line fitted to the differences, with its 90% band. A dashed line marks where the most probable answer changes. With "
        "few federations the band is wide, and other settings may differ along with this one.</p>"
    )
    hidden = len(result.varying) - MOST_SETTINGS
    more = f'<p class="how">{hidden} more settings vary; --json has them.</p>' if hidden > 0 else ""
    return note + "".join(drawn) + more


def _setting(result: SuiteComparison, pair: SuitePair, setting: Setting) -> str:
    found = result.trend(pair, setting)
    if found is None:
        return ""
    unit = _unit(result)
    points = []
    for estimate in pair.by_federation:
        interval = _interval(result, estimate.shrunk) or _interval(result, estimate.own)
        if estimate.federation in setting.values and interval is not None:
            points.append(SettingPoint(estimate.federation, setting.values[estimate.federation], interval))
    shown = functools.partial(_shown, result)
    band = [(at, shown(mean), shown(low), shown(high)) for at, mean, low, high in result.line(found)]
    marks = [Mark(c.at, f"{ANSWERS[c.before]} | {ANSWERS[c.after]}, about {c.at:.2g}") for c in found.changes]
    changes = [
        f"Most probably {ANSWERS[c.before]} below about {c.at:.3g}, {ANSWERS[c.after]} above." for c in found.changes
    ]
    caption = " ".join(changes) or "The most probable answer is the same over the whole range."

    def draw(width: float) -> str:
        return setting_chart(points, band, marks, unit, key=setting.key, logarithmic=found.logarithmic, width=width)

    head = f"<h3>{escape(pair.row)} minus {escape(pair.column)}, against {escape(setting.key)}</h3>"
    return head + figure(both(draw), escape(caption))


# Tables


def _ranks(result: SuiteComparison) -> str:
    names = list(result.judged)
    head = "".join(f'<th scope="col">{breakable(name)}</th>' for name in names)
    rows = ""
    for label in result.ranked:
        cells = "".join(f"<td>{_mean_score(result, name, label)}</td>" for name in names)
        kind = ' class="aside"' if result.is_reference(label) else ""
        rank = f"{result.mean_ranks[label]:.2f}"
        rows += f'<tr{kind}><th scope="row">{breakable(label)}</th><td><b>{rank}</b></td>{cells}</tr>'
    table = (
        f'<table class="rows metrics"><thead><tr><td></td><th scope="col">mean rank</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )
    note = (
        f'<p class="how">Mean rank over {len(names)} federations (1 is the best); then the mean of every federation: '
        f"{escape(result.scoring.name)}. An algorithm without a score on a federation ranks last there.</p>"
    )
    return f'<div class="scroll shaded" tabindex="0" role="region" aria-label="Mean ranks">{table}</div>{note}'


def _mean_score(result: SuiteComparison, name: str, label: str) -> str:
    one = result.federations[name]
    if label not in one.runs:
        return "–"
    return escape(result.scoring.shown(float(np.mean(one.scores()[label]))))


def _federations(result: SuiteComparison) -> str:
    rows = ""
    for name, one in result.federations.items():
        table = one.plan.experiment
        parts = " · ".join(str(table[key]["name"]) for key in ("data", "partition", "model"))
        words = one.words
        told = " ".join(words[:2])
        rows += f"<div><dt>{escape(name)}<br><small>{escape(parts)}</small></dt><dd>{escape(told)}</dd></div>"
    where = "" if result.dir is None else " Each is a comparison of its own, in federations/NAME of the folder:"
    command = ""
    if result.dir is not None:
        first = next(iter(result.federations.values())).dir
        command = f"<pre><code>fedarena report {escape(first)}</code></pre>"
    return f"<dl>{rows}</dl>" + (f'<p class="how">{where.strip()}</p>{command}' if where else "")


def _notes(result: SuiteComparison) -> str:
    return f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in result.notes)}</ul>" if result.notes else ""


def _repeat(result: SuiteComparison) -> str:
    """Return the command and the suite file, complete; nothing where parts of it came from Python."""
    first = next(iter(result.federations.values()))
    if any(one.plan.own or not one.runs for one in result.federations.values()):
        return ""
    commands = commands_module.commands(first)[0]
    commands = re.sub(r"(--rope |rope=)[^\s,]+", rf"\g<1>{result.rope}", commands)
    commands = commands.replace("experiment.toml", "suite.toml")
    plan = first.plan
    if commands.startswith("fedarena"):
        commands += f" \\\n    --score {plan.score} --evaluate-on {plan.evaluate_on}" * ("--score" not in commands)
    elif "score=" not in commands:
        how = f"    score={plan.score!r}, evaluate_on={plan.evaluate_on!r},"
        commands = commands.removesuffix(")") + f"{how}\n)"
    made = " · ".join(f"{name} {version}" for name, version in commands_module.versions(first).items())
    return (
        f"<p>Save the federations below as suite.toml and {'type' if commands.startswith('fedarena') else 'call'}:</p>"
        f"<pre><code>{escape(commands)}</code></pre>"
        f"<details><summary>suite.toml, complete</summary><pre><code>{escape(suite_toml(result))}</code></pre></details>"
        f'<p class="how">Made with {escape(made)}.</p>'
    )


def suite_toml(result: SuiteComparison) -> str:
    """Return a suite file that gives the same federations, with the seeds that were given."""
    blocks = []
    for name, one in result.federations.items():
        text = commands_module.toml(one)
        seed = result.seeds.get(name, 0)
        text = re.sub(r"^seed = .*$", f"seed = {seed}", text, flags=re.MULTILINE)
        blocks.append(f"[[federation]]\nname = {json.dumps(name, ensure_ascii=False)}\n{text}\n")
    return "\n".join(blocks)
