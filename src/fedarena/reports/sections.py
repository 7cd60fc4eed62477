"""The sections of the page, each from the subject to HTML; nothing where there is nothing to show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedarena.config.comparison_plan import Score
from fedarena.config.errors import FedarenaError
from fedarena.data.dataset import Dataset, Partition
from fedarena.data.partition_statistics import statistics
from fedarena.reports import commands as commands_module
from fedarena.reports.charts import (
    NARROW,
    WIDE,
    Strip,
    bar_chart,
    breakable,
    dot_plot,
    escape,
    heat_map,
    legend,
    line_chart,
    posterior_chart,
    posterior_rows,
    strip_chart,
)
from fedarena.reports.charts.posteriors import chance, far_side, shown_range, typeset
from fedarena.reports.charts.tradeoff import tradeoff
from fedarena.reports.collect import split_names
from fedarena.reports.cost_table import rows_tables, scrolling
from fedarena.reports.curves import cut
from fedarena.reports.report_data import ReportData, budget, counted, described
from fedarena.results.comparison_verdict import SIGNS
from fedarena.results.scoring import Scoring
from fedarena.statistics.metric_registry import OPTIMISTIC

MANY_SPLITS = 20  # from which a row a split would be too long a picture
MANY_CLIENTS = 100  # rows of a heat map
MANY_NAMES = 5  # algorithms from which the matrix is wider than the text


def both(draw: Callable[[float], str]) -> str:
    """A chart for the desk and one for the telephone; the style sheet shows the one that fits."""
    return f'<div class="wide">{draw(WIDE)}</div><div class="narrow">{draw(NARROW)}</div>'


def figure(body: str, caption: str, kind: str = "") -> str:
    """A picture with what to see in it."""
    classes = f' class="{kind}"' if kind else ""
    return f"<figure{classes}>{body}<figcaption>{caption}</figcaption></figure>"


def paragraphs(texts: Iterable[str], kind: str = "") -> str:
    """One each."""
    return "".join(f'<p class="{kind}">{escape(t)}</p>' if kind else f"<p>{escape(t)}</p>" for t in texts)


# What was asked, and the answer


def question(subject: ReportData) -> str:
    """What was compared, and how."""
    result, exp = subject.result, subject.experiment
    facts = {
        "Data": _data(subject),
        "Partition": described(exp.partition),
        "Model": described(exp.model),
        "Budget": f"{budget(exp)}, {_participants(subject)}",
        "Local training": _local(subject),
        "Algorithms": ", ".join(result.labels),
    }
    if on_the_way := uplink(subject):
        facts["On the way up"] = on_the_way
    if result.plan.reference in result.runs:
        facts["Reference"] = f"{result.plan.reference}: shown for comparison, never a candidate"
    if subject.why_not is None:
        facts["Score"] = result.scoring().explained
        facts["Test"] = result.plan.test
        if result.plan.at_most is not None:
            facts["Repeated"] = (
                f"until it was decided, with at most {result.plan.at_most} splits; a decision needs more than a verdict, "
                "because several looks find more by chance than one"
            )
        facts["Practically equal"] = (
            f"a mean difference within {result.scoring().difference(result.plan.rope)}; a pair is decided above "
            f"{result.plan.threshold:.0%} probability"
        )
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in facts.items())
    return f"<p>{escape(_asked(subject))}</p><dl>{rows}</dl>"


def _asked(subject: ReportData) -> str:
    n, swept = len(subject.result.labels), subject.result.plan.sweep.get("key")
    if subject.why_not is not None:
        return "What did the runs achieve, what did they cost, and on which samples?"
    return (
        f"Which of {counted(n)} algorithms works best for these clients, by how much, and at what cost? Within a split all "
        "of them have the same training and test samples, the same clients in the same rounds and the same initial "
        f"weights. Only the algorithm {f'and {swept} differ' if swept else 'differs'}."
    )


def _data(subject: ReportData) -> str:
    name = described(subject.experiment.data)
    if isinstance(subject.dealt, FedarenaError):
        return name
    data, partition = subject.dealt
    held = f"{int(partition.sizes.sum()):,} training samples and {len(partition.test):,} test samples in a split"
    return f"{name}: {f'{data.classes} classes, ' if data.classes else ''}{held}"


def uplink(subject: ReportData) -> str:
    """What was done to answers, where anything was; what a sweep changes is told where it is drawn."""
    told = subject.experiment.uplink
    if isinstance(told, str):
        return "" if told == "plain" else "the server sees nothing but means"
    swept = subject.result.plan.sweep.get("key", "").removeprefix("uplink.")
    wishes = {k: v for k, v in told.model_dump().items() if v not in (None, False) and k != "sampling"}
    steps = [key if value is True else f"{key} {value:g}" for key, value in wishes.items() if key != swept]
    if told.noise or swept == "noise":
        steps.append(f"{told.sampling} sampling")
    return ", ".join(steps)


def _participants(subject: ReportData) -> str:
    exp, clients = subject.experiment, len(subject.first.client_sizes)
    if exp.per_round:
        return f"{exp.per_round} of {clients} clients a round"
    return (
        f"all {clients} clients a round"
        if exp.share in (None, 1.0)
        else f"{exp.share:.0%} of {clients} clients a round"
    )


def _local(subject: ReportData) -> str:
    plan = subject.result.plan
    if any(key.startswith("local.") for space in plan.tuning.get("spaces", {}).values() for key in space):
        where = "" if subject.result.dir is None else " (tuning.json)"
        return f"tuned, {plan.tuning['trials']} trials each{where}"
    tables = [subject.result.runs[label][0].experiment.local for label in subject.result.labels]
    if any(local != tables[0] for local in tables):
        return "differs between algorithms: see the command under Repeat it"
    local = tables[0]
    batch = "all samples in one batch" if local.batch == float("inf") else f"batches of {local.batch:g}"
    return f"{local.epochs} epoch{'s' * (local.epochs != 1)}, {batch}, learning rate {local.lr:g}"


def verdict(subject: ReportData) -> str:
    """In words, then the table of + = - ?; or why there is none."""
    if subject.why_not is not None:
        failed = [f"{label} has no result: {why}" for label, why in subject.result.failures.items()]
        return paragraphs([f"There is no verdict. {subject.why_not}"], "lead") + paragraphs(failed, "warning")
    first, *rest = subject.result.words
    plan, scoring = subject.result.plan, subject.result.scoring()
    other: Score = "best" if plan.score == "final" else "final"
    more = subject.result.scoring(other).explained
    return (
        paragraphs([first], "lead")
        + paragraphs([*rest, plan.about])
        + _looks(subject)
        + _duels(subject, plan.score, f"Row against column, by {scoring.name}")
        + f"<details><summary>By {escape(more)}</summary>{_duels(subject, other, f'The same, by {more}')}</details>"
    )


def _looks(subject: ReportData) -> str:
    """Return a table of the looks at a comparison that adds repeats until it is decided."""
    looks = subject.result.plan.looks
    if not looks:
        return ""
    names = ("splits", "needed", "may be the best", "P(all of these within one rope)", "decided")
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = ""
    for found in looks:
        cells = (
            f"{found.level:.4g}",
            ", ".join(found.best_set) or "–",
            f"{found.p_equal:.3f}" if len(found.best_set) > 1 else "–",
        )
        inner = "".join(f"<td>{escape(text)}</td>" for text in (*cells, "yes" if found.decided else "no"))
        body += f'<tr><th scope="row">{found.splits}</th>{inner}</tr>'
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="The looks"><table class="rows">'
        "<caption>Every look, and what it found</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _duels(subject: ReportData, which: Any, caption: str) -> str:
    duels = {(d.row, d.column): d for d in subject.result.duels(which)}
    names, scoring = subject.ranked, subject.result.scoring(which)
    head = "".join(f'<th scope="col">{breakable(name)}</th>' for name in names)
    body = ""
    for row in names:
        cells = "".join(_duel(duels.get((row, column)), scoring) for column in names)
        body += f'<tr><th scope="row">{breakable(row)}</th>{cells}</tr>'
    signs = ", ".join(f"<b>{typeset(sign)}</b> {word}" for sign, word in SIGNS.items())
    told = (
        f"Row against column: {signs}. Below each sign: the probabilities that the row is better, practically equal and "
        "worse."
    )
    above = f'<p class="caption">{escape(caption)}</p>'
    table = (
        f'<table class="duels"><caption class="hidden">{escape(caption)}</caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
    return f'{above}{scrolling(table, caption, "beyond" * (len(names) > MANY_NAMES))}<p class="how">{told}</p>'


def _duel(duel: Any, scoring: Scoring) -> str:
    if duel is None:
        return '<td class="self"></td>'
    chances = (duel.p_better, duel.p_equal, duel.p_worse)
    low, high = duel.interval
    tip = (
        f"{duel.row} against {duel.column}: {SIGNS[duel.verdict]}; mean difference "
        f"{scoring.signed(duel.mean, unit=True)}, 90% between {scoring.signed(low)} and {scoring.signed(high)}"
    )
    bar = "".join(
        f'<i class="{kind}" style="width:{100 * p:.1f}%"></i>'
        for kind, p in zip(("better", "equal", "worse"), chances, strict=True)
    )
    kind = {"+": "better", "=": "equal", "-": "worse", "?": "open"}[duel.verdict]
    told = " ".join(f"<span>{escape(chance(p).replace('0.', '.'))}</span>" for p in chances)
    return (
        f'<td class="{kind}" title="{escape(tip)}"><b>{typeset(duel.verdict)}</b>'
        f'<span class="chances">{told}</span><span class="meter" aria-hidden="true">{bar}</span></td>'
    )


def posteriors(subject: ReportData) -> str:
    """The leader against all others; every other pair on request."""
    if subject.why_not is not None:
        return ""
    plan, scoring, (leader, *others) = subject.result.plan, subject.result.scoring(), subject.ranked
    others = [other for other in others if math.isfinite(subject.result.duel(leader, other).mean)]
    if not others:
        return ""
    pairs = [subject.pair(leader, other) for other in others]
    ends = shown_range(pairs, plan.rope)
    is_far = any(far_side(pair, *ends) for pair in pairs)
    arrows = " An arrow stands for a difference beyond the axis, with its 90% interval." if is_far else ""
    drawn = figure(
        both(lambda width: posterior_rows(pairs, plan.rope, width=width)),
        f"Posterior of the mean difference between {escape(leader)} and each other algorithm: {escape(scoring.name)}"
        f"{', in percentage points' * scoring.is_share}. The blue area is the probability that {escape(leader)} is "
        "better, the grey one that both are practically equal, the orange one that it is worse. The bar is the interval "
        f"that holds 90% of the probability, the ring the mean.{arrows}",
    )
    rest = [subject.pair(a, b) for k, a in enumerate(others) for b in others[k + 1 :]]
    if not rest:
        return drawn
    small = "".join(posterior_chart(pair, plan.rope) for pair in rest)
    return f'{drawn}<details><summary>All other pairs ({len(rest)})</summary><div class="multiples">{small}</div></details>'


# How it went


def traded(subject: ReportData) -> str:
    """Accuracy against epsilon and bytes, of a sweep."""
    return tradeoff(subject.result)


def curves(subject: ReportData) -> str:
    """Accuracy over rounds and over every cost that was counted."""
    followed, result = subject.followed, subject.result
    rising = followed.sign > 0
    edge = cut([subject.curve(label, subject.axes[0]) for label in subject.everyone], rising)
    same = followed.metric == result.plan.metric
    target = None if not same else result.target if len(result.labels) > 1 else result.given_target
    switch = panels = ""
    for number, axis in enumerate(subject.axes):
        series, key = subject.series(axis), axis.name.replace(" ", "-")
        checked = " checked" if number == 0 else ""
        switch += f'<label><input type="radio" name="axis" value="{key}"{checked}>{escape(axis.name)}</label>'
        label = f"{followed.metric} over {axis.label}, a line for each of {', '.join(subject.everyone)}"
        draw = lambda width, axis=axis, series=series, label=label: line_chart(
            series,
            x_label=axis.label,
            y_label=followed.metric,
            width=width,
            height=400 if width == WIDE else 300,
            label=label,
            target=target,
            y_from=edge if rising else None,
            y_to=None if rising else edge,
            fractions=followed.is_share,
        )
        panels += f'<div class="panel {key}">{both(draw)}</div>'
    asked = f'<fieldset class="switch"><legend>over</legend>{switch}</fieldset>' if len(subject.axes) > 1 else ""
    keys = f'<div class="narrow">{legend(subject.series(subject.axes[0]))}</div>'
    return figure(asked + keys + panels, _about_curves(subject, edge), "curves")


def _about_curves(subject: ReportData, edge: float | None) -> str:
    several = max(len(runs) for runs in subject.result.runs.values()) > 1
    told = [
        f"The {subject.followed.metric} on the common test samples"
        + (": the mean over splits, with the range from the worst to the best split." if several else ".")
    ]
    told.append(f"The thin line is the best round so far ({OPTIMISTIC}).")
    if len(subject.axes) > 1:
        told.append("Over a cost, every round is drawn at its mean cost.")
    if any(series.is_level for axis in subject.axes for series in subject.series(axis)):
        told.append("An algorithm that costs nothing is a horizontal line.")
    if edge is not None:
        told.append("The axis is cut: the first rounds lie outside it.")
    return escape(" ".join(told))


def costs(subject: ReportData) -> str:
    """The table of rows."""
    return rows_tables(subject)


def splits(subject: ReportData) -> str:
    """Every score, where there are several."""
    runs, scoring = subject.result.runs, subject.result.scoring()
    if len(runs[subject.everyone[0]]) < 2:
        return ""
    strips = [
        Strip(label, [scoring.value(run) for run in runs[label]], subject.index(label), subject.is_aside(label))
        for label in subject.everyone
    ]
    named = f"{scoring.score} {scoring.metric}"
    shown: dict[str, Any] = {"x_label": named, "fractions": scoring.is_share}
    score = f"Every run's {scoring.name}" + (f" ({OPTIMISTIC})" if scoring.score == "best" else "")
    names = split_names(runs[subject.everyone[0]])
    paired = all(split_names(runs[label]) == names for label in subject.everyone)
    if not paired or len(names) > MANY_SPLITS:
        draw = lambda width: strip_chart(strips, width=width, **shown)
        return figure(both(draw), escape(f"{score}."))
    draw = lambda width: dot_plot(names, strips, width=width, **shown)
    caption = escape(
        f"{score}. The runs on one line were trained and tested on the same samples. The comparison uses the differences "
        "within a line, so an easy split favours no algorithm."
    )
    return figure(legend(subject.series(subject.axes[0])) + both(draw), caption)


def clients(subject: ReportData) -> str:
    """How evenly the final models serve the clients."""
    strips = []
    for label in subject.everyone:
        own = np.concatenate([run.client_accuracy for run in subject.result.runs[label]])
        strips.append(Strip(label, own[~np.isnan(own)].tolist(), subject.index(label), subject.is_aside(label)))
    strips = [s for s in strips if s.values]
    if not strips:
        return ""
    draw = lambda width: strip_chart(strips, x_label="accuracy on a client's own test samples", width=width)
    several = " in one split" if len(subject.result.runs[subject.everyone[0]]) > 1 else ""
    caption = (
        f"Every dot is one client{several}: the accuracy of the final model on the client's own test samples. The box is "
        "the middle half, the line in it the median, the mark the mean. A long tail to the left shows clients for which "
        "the model works badly."
    )
    return figure(both(draw), caption)


def partition(subject: ReportData) -> str:
    """Rows of every client and class, of the first split."""
    if isinstance(subject.dealt, FedarenaError):
        return paragraphs([f"The samples cannot be shown: {subject.dealt.what}."])
    data, owners = subject.dealt
    facts = statistics(data, owners)
    sizes = (
        f"{facts.rows_min} samples each"
        if facts.rows_min == facts.rows_max
        else f"{facts.rows_min} to {facts.rows_max} samples"
    )
    told = f"Training samples of the first split: {facts.clients} clients with {sizes}"
    if facts.counts is None:
        draw = lambda width: bar_chart(
            np.sort(owners.sizes)[::-1].tolist(), x_label="clients, largest first", y_label="samples", width=width
        )
        return figure(both(draw), f"{told}.")
    told += (
        f"; the mean L1 distance between a client's class distribution and that of all samples is {facts.l1:.2f} (0: "
        "the same distribution, 2: no class in common)."
    )
    return figure(_heat(data, owners, facts.counts), told + _thinned(len(facts.counts)))


def _heat(data: Dataset, owners: Partition, counts: Any) -> str:
    chosen = np.unique(np.linspace(0, len(counts) - 1, MANY_CLIENTS).astype(int))
    names = owners.names or tuple(str(k) for k in range(len(counts)))
    classes = [str(name) for name in data.class_names or range(data.classes)]
    rows = [str(names[k])[:20] for k in chosen]
    return both(lambda width: heat_map(counts[chosen], rows, classes, unit="samples", width=width))


def _thinned(clients: int) -> str:
    return f" {MANY_CLIENTS} of {clients} clients are shown, evenly chosen." if clients > MANY_CLIENTS else ""


# What else there is to know


def notes(subject: ReportData) -> str:
    """Everything that somebody noted, once."""
    result = subject.result
    told = [f"{label} has no result: {why}" for label, why in result.failures.items()]
    told += [
        f"{label} diverged in {result.diverged(label)} of {len(result.runs[label])} runs; they keep the accuracy they had."
        for label in subject.everyone
        if result.diverged(label)
    ]
    told += result.plan.notes
    noted: dict[str, list[str]] = {}
    for label in subject.everyone:
        for note in dict.fromkeys(note for run in result.runs[label] for note in run.notes):
            noted.setdefault(note, []).append(label)
    told += [n if len(who) == len(subject.everyone) else f"{', '.join(who)}: {n}" for n, who in noted.items()]
    return f"<ul>{''.join(f'<li>{escape(t)}</li>' for t in told)}</ul>" if told else ""


def repeat(subject: ReportData) -> str:
    """Commands, experiment and versions."""
    commands = "\n".join(commands_module.commands(subject.result))
    made = " · ".join(f"{name} {version}" for name, version in commands_module.versions(subject.result).items())
    return (
        f"<p>{escape(commands_module.about(subject.result))}</p><pre><code>{escape(commands)}</code></pre>"
        f"<p>experiment.toml, complete:</p><pre><code>{escape(commands_module.toml(subject.result))}</code></pre>"
        f"{_spaces(commands_module.spaces(subject.result))}"
        f'<p class="how">Made with {escape(made)}.</p>'
    )


def _spaces(toml: str) -> str:
    return f"<p>spaces.toml, what was searched:</p><pre><code>{escape(toml)}</code></pre>" if toml else ""
