"""The sections of a report: each computes its values and fills a template; one without content is empty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from markupsafe import Markup

from fedarena.common.grouping import group_by_key
from fedarena.config.comparison_plan import Score
from fedarena.config.errors import FedarenaError, join_words
from fedarena.data.partition_statistics import statistics
from fedarena.reports import commands
from fedarena.reports.charts.distributions import bar_chart, dot_plot, heat_map, strip_chart
from fedarena.reports.charts.lines import Series, line_chart
from fedarena.reports.charts.posteriors import posterior_chart, posterior_rows, shown_range
from fedarena.reports.charts.svg import WIDE
from fedarena.reports.charts.tradeoff import TradeoffChart
from fedarena.reports.collect import split_names
from fedarena.reports.curves import cut
from fedarena.reports.page_elements import Row, Table
from fedarena.reports.report_data import ReportData, describe, in_words
from fedarena.reports.templating import macros, render
from fedarena.results.comparison import Comparison
from fedarena.results.tradeoff_points import axis_name, by_algorithm, is_of_attack, levels, points
from fedarena.statistics.metric_registry import OPTIMISTIC

MANY_SPLITS = 20  # from which a row for each split would make the picture too long
MANY_CLIENTS = 100  # rows of a heat map


# The question and the answer


def question(data: ReportData) -> Markup:
    """Return what was compared, and how."""
    result, exp = data.result, data.experiment
    facts = {
        "Data": _data(data),
        "Partition": describe(exp.partition),
        "Model": _model(data),
        "Budget": f"{data.budget}, {_participation(data)}",
        **({"Local training": _local_training(data)} if len(data.forests) < len(result.labels) else {}),
        "Algorithms": ", ".join(result.labels),
    }
    if steps := uplink_steps(data):
        facts["On the way up"] = steps
    if result.plan.reference in result.runs:
        facts["Reference"] = f"{result.plan.reference}: shown for comparison, never a candidate"
    if data.no_verdict_reason is None:
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
    return macros.paragraphs([_question(data)]) + macros.facts(facts.items())


def _model(data: ReportData) -> str:
    """Return the model of the experiment, which algorithms that grow trees do not use."""
    model, forests = describe(data.experiment.model), data.forests
    if len(forests) == len(data.result.labels):
        return "boosted trees"
    return f"{model}; boosted trees for {join_words(forests)}" if forests else model


def _question(data: ReportData) -> str:
    n, swept = len(data.result.labels), data.result.plan.sweep.get("key")
    if data.no_verdict_reason is not None:
        return "What did the runs achieve, what did they cost, and on which samples?"
    return (
        f"Which of {in_words(n)} algorithms works best for these clients, by how much, and at what cost? Within a split all "
        "of them have the same training and test samples, the same clients in the same rounds and the same initial "
        f"weights. Only the algorithm {f'and {swept} differ' if swept else 'differs'}."
    )


def _data(data: ReportData) -> str:
    name = describe(data.experiment.data)
    if isinstance(data.partitioned_data, FedarenaError):
        return name
    dataset, partition = data.partitioned_data
    held = f"{int(partition.sizes.sum()):,} training samples and {len(partition.test):,} test samples in a split"
    what = {
        "regression": "a number to predict",
        "survival": "times to an event",
        "multilabel": f"{dataset.classes} labels",
    }
    labels = what.get(dataset.task, f"{dataset.classes} classes" if dataset.classes else "")
    return f"{name}: {labels}{', ' * bool(labels)}{held}"


def uplink_steps(data: ReportData) -> str:
    """Return the steps that updates pass on their way to the server; a key that is swept is shown with its values."""
    uplink = data.experiment.uplink
    if isinstance(uplink, str):
        return "" if uplink == "plain" else "the server sees nothing but means"
    swept = data.result.plan.sweep.get("key", "").removeprefix("uplink.")
    settings = {k: v for k, v in uplink.model_dump().items() if v not in (None, False) and k != "sampling"}
    steps = [key if value is True else f"{key} {value:g}" for key, value in settings.items() if key != swept]
    if uplink.noise or swept == "noise":
        steps.append(f"{uplink.sampling} sampling")
    return ", ".join(steps)


def _participation(data: ReportData) -> str:
    exp, clients = data.experiment, len(data.first.client_sizes)
    if exp.per_round:
        return f"{exp.per_round} of {clients} clients a round"
    return f"{'all' if exp.share in (None, 1.0) else f'{exp.share:.0%} of'} {clients} clients a round"


def _local_training(data: ReportData) -> str:
    plan = data.result.plan
    if any(key.startswith("local.") for space in plan.tuning.get("spaces", {}).values() for key in space):
        where = "" if data.result.dir is None else " (tuning.json)"
        return f"tuned, {plan.tuning['trials']} trials each{where}"
    tables = [data.result.runs[label][0].experiment.local for label in data.result.labels]
    if any(local != tables[0] for local in tables):
        return "differs between algorithms: see the command under Repeat it"
    local = tables[0]
    batch = "all samples in one batch" if local.batch == float("inf") else f"batches of {local.batch:g}"
    amount, unit = (local.epochs, "epoch") if local.steps is None else (local.steps, "step")
    shown = f"{amount} {unit}{'s' * (amount != 1)}, {batch}, learning rate {local.lr:g}"
    if local.privacy is not None:
        shown += f"; gradients of single samples clipped to {local.privacy.clip:g}, noise {local.privacy.noise:g}"
    loss = data.experiment.loss
    return shown if loss is None else f"{shown}; loss {loss if isinstance(loss, str) else loss.name}"


def verdict(data: ReportData) -> Markup:
    """Return the verdict in words and as a table of + = - ?; or why there is none."""
    result = data.result
    if data.no_verdict_reason is not None:
        failures = [f"{label} has no result: {why}" for label, why in result.failures.items()]
        lead = f"There is no verdict. {data.no_verdict_reason}"
        return macros.paragraphs([lead], "lead") + macros.paragraphs(failures, "warning")
    first, *rest = result.words
    other: Score = "best" if result.plan.score == "final" else "final"
    other_score = result.scoring(other).explained

    def matrix(which: Score, caption: str) -> Markup:
        table = macros.verdicts(caption, data.ranked, data.pairs(which), result.plan.rope)
        return macros.paragraphs([caption], "caption") + table

    shown = [
        macros.paragraphs([first], "lead"),
        macros.paragraphs([*rest, result.plan.about]),
        _looks(data),
        matrix(result.plan.score, f"Row against column, by {result.scoring().name}"),
    ]
    if min(map(len, result.scores(other).values())) > 1:  # an algorithm without a common model has no best round
        shown.append(macros.folded(f"By {other_score}", matrix(other, f"The same, by {other_score}")))
    return Markup().join(shown)


def _looks(data: ReportData) -> Markup:
    """Return the looks at a comparison that adds repeats until it is decided."""
    head = ("needed", "may be the best", "P(all of these within one rope)", "decided")
    rows = [
        Row(
            str(look.splits),
            (
                f"{look.level:.4g}",
                ", ".join(look.best_set) or "–",
                f"{look.p_equal:.3f}" if len(look.best_set) > 1 else "–",
                "yes" if look.decided else "no",
            ),
        )
        for look in data.result.plan.looks
    ]
    table = Table("Every look, and what it found", head, rows, has_caption=True, row_head="splits")
    return macros.table(table) if rows else Markup()


def posteriors(data: ReportData) -> Markup:
    """Return the posteriors of the leader against all others, and those of the other pairs folded away."""
    if data.no_verdict_reason is not None:
        return Markup()
    plan, scoring, (leader, *others) = data.result.plan, data.result.scoring(), data.ranked
    others = [other for other in others if math.isfinite(data.result.duel(leader, other).mean)]
    if not others:
        return Markup()
    pairs = [data.pair(leader, other) for other in others]
    ends = shown_range(pairs, plan.rope)
    is_far = any(pair.far_side(*ends) for pair in pairs)
    arrows = " An arrow stands for a difference beyond the axis, with its 90% interval." if is_far else ""
    figure = macros.figure(
        [lambda width: posterior_rows(pairs, plan.rope, width=width)],
        f"Posterior of the mean difference between {leader} and each other algorithm: {scoring.name}"
        f"{', in percentage points' * scoring.is_share}. The blue area is the probability that {leader} is "
        "better, the grey one that both are practically equal, the orange one that it is worse. The bar is the interval "
        f"that holds 90% of the probability, the ring the mean.{arrows}",
    )
    rest = [posterior_chart(data.pair(a, b), plan.rope) for a, b in combinations(others, 2)]
    more = macros.folded(f"All other pairs ({len(rest)})", macros.box("multiples", Markup().join(rest)))
    return figure + more if rest else figure


# Curves and distributions


def tradeoff(data: ReportData) -> Markup:
    """Return accuracy against epsilon and bytes, of a sweep."""
    found = points(data.result)
    if not found or is_of_attack(data.result):
        return Markup()
    lines, references = by_algorithm(found), levels(data.result)
    keys = [Series(label, index=k) for k, label in enumerate(lines)]
    keys += [Series(label, aside=True) for label in references]
    is_private = any(point.epsilon is not None for point in found)
    size = TradeoffChart(lines, references, "megabytes sent up", lambda p: p.bytes_up / 1e6, has_values=not is_private)
    epsilon = TradeoffChart(lines, references, "epsilon, to the left more private", lambda p: p.epsilon, is_log=True)
    caption = (
        f"Final accuracy, the mean over splits, at every value of {data.result.plan.sweep['key']}, which stands beside its "
        "mark. Thin bars are one standard deviation over splits."
    )
    if is_private:
        caption += (
            f" Epsilon bounds what {_bounded(data)}; the scale is logarithmic, and what has no noise has no bound."
        )
    return macros.figure([epsilon, size] if is_private else [size], caption, keys)


def attackers(data: ReportData) -> Markup:
    """Return accuracy, and the success of a backdoor, against the swept setting of an attack."""
    found = points(data.result)
    if not found or not is_of_attack(data.result):
        return Markup()
    lines, references = by_algorithm(found), levels(data.result)
    keys = [Series(label, index=k) for k, label in enumerate(lines)]
    keys += [Series(label, aside=True) for label in references]
    x_label = axis_name(data.result)
    charts = [TradeoffChart(lines, references, x_label, lambda p: p.value, has_values=False)]
    caption = f"Final accuracy on the common test samples, the mean over splits, over the {x_label}."
    if any(point.attack_success is not None for point in found):
        success = {label: [point.success for point in line] for label, line in lines.items()}
        charts.append(
            TradeoffChart(success, {}, x_label, lambda p: p.value, has_values=False, y_label="attack success")
        )
        caption += (
            " Attack success is the share of triggered test samples that are taken for the class of the attackers."
        )
    return macros.figure(charts, caption + " Thin bars are one standard deviation over splits.", keys)


def _bounded(data: ReportData) -> str:
    """Return what the epsilon of a sweep is about."""
    if any(row["epsilon"] is not None for row in data.rows):
        return "the released means can tell about whether a client took part at all"
    return "all that a client releases can tell about one of its training samples"


def curves(data: ReportData) -> Markup:
    """Return the metric over rounds and over every cost that was counted."""
    scoring, result = data.curve_scoring, data.result
    rising = scoring.sign > 0
    edge = cut([data.curve(label, data.axes[0]) for label in data.all_labels], rising)
    same = scoring.metric == result.plan.metric
    target = None if not same else result.target if len(result.labels) > 1 else result.given_target
    panels = []
    for axis in data.axes:
        chart = partial(
            line_chart,
            data.series(axis),
            x_label=axis.label,
            y_label=scoring.metric,
            label=f"{scoring.metric} over {axis.label}, a line for each of {', '.join(data.all_labels)}",
            target=target,
            y_from=edge if rising else None,
            y_to=None if rising else edge,
            fractions=scoring.is_share,
        )
        draw = lambda width, chart=chart: chart(width=width, height=400 if width == WIDE else 300)
        panels.append((axis.name.replace(" ", "-"), axis.name, draw))
    keys = [data.key(label) for label in data.all_labels]
    return render("curves.html", panels=panels, keys=keys, caption=_curves_caption(data, edge))


def _curves_caption(data: ReportData, edge: float | None) -> str:
    over = ": the mean over splits, with the range from the worst to the best split." if data.has_splits else "."
    sentences = [f"The {data.curve_scoring.metric} on the common test samples{over}"]
    sentences.append(f"The thin line is the best round so far ({OPTIMISTIC}).")
    if len(data.axes) > 1:
        sentences.append("Over a cost, every round is drawn at its mean cost.")
    if any(series.is_level for axis in data.axes for series in data.series(axis)):
        sentences.append("An algorithm that costs nothing is a horizontal line.")
    if edge is not None:
        sentences.append("The axis is cut: the first rounds lie outside it.")
    return " ".join(sentences)


def splits(data: ReportData) -> Markup:
    """Return the score of every run, where there are several."""
    runs, scoring = data.result.runs, data.result.scoring()
    if len(runs[data.all_labels[0]]) < 2:
        return Markup()
    strips = [data.key(label, [scoring.value(run) for run in runs[label]]) for label in data.all_labels]
    shown: dict[str, Any] = {"x_label": f"{scoring.score} {scoring.metric}", "fractions": scoring.is_share}
    score = f"Every run's {scoring.labelled}"
    names = split_names(runs[data.all_labels[0]])
    paired = all(split_names(runs[label]) == names for label in data.all_labels)
    if not paired or len(names) > MANY_SPLITS:
        return macros.figure([lambda width: strip_chart(strips, width=width, **shown)], f"{score}.")
    caption = (
        f"{score}. The runs on one line were trained and tested on the same samples. The comparison uses the differences "
        "within a line, so an easy split favours no algorithm."
    )
    return macros.figure([lambda width: dot_plot(names, strips, width=width, **shown)], caption, strips)


def clients(data: ReportData) -> Markup:
    """Return how evenly the final models serve the clients."""
    strips = []
    for label in data.all_labels:
        own = np.concatenate(
            [run.client_accuracy for run in data.result.runs[label] if run.has_classes] or [np.empty(0)]
        )
        strips.append(data.key(label, own[~np.isnan(own)].tolist()))
    strips = [strip for strip in strips if strip.y]
    if not strips:
        return Markup()
    several = " in one split" if len(data.result.runs[data.all_labels[0]]) > 1 else ""
    caption = (
        f"Every dot is one client{several}: the accuracy of the final model on the client's own test samples. The box is "
        "the middle half, the line in it the median, the mark the mean. A long tail to the left shows clients for which "
        "the model works badly."
    )
    label = "accuracy on a client's own test samples"
    return macros.figure([lambda width: strip_chart(strips, x_label=label, width=width)], caption)


def partition(data: ReportData) -> Markup:
    """Return the samples of every client and class, of the first split."""
    if isinstance(data.partitioned_data, FedarenaError):
        return Markup("<p>{}</p>").format(f"The samples cannot be shown: {data.partitioned_data.what}.")
    dataset, owners = data.partitioned_data
    facts = statistics(dataset, owners)
    low, high = facts.rows_min, facts.rows_max
    sizes = f"{low} samples each" if low == high else f"{low} to {high} samples"
    caption = f"Training samples of the first split: {facts.clients} clients with {sizes}"
    if facts.counts is None:
        labels = {"x_label": "clients, largest first", "y_label": "samples"}
        sizes_down = np.sort(owners.sizes)[::-1].tolist()
        return macros.figure([lambda width: bar_chart(sizes_down, **labels, width=width)], f"{caption}.")
    caption += (
        f"; the mean L1 distance between a client's class distribution and that of all samples is {facts.l1:.2f} (0: "
        "the same distribution, 2: no class in common)."
    )
    if len(facts.counts) > MANY_CLIENTS:
        caption += f" {MANY_CLIENTS} of {len(facts.counts)} clients are shown, evenly chosen."
    chosen = np.unique(np.linspace(0, len(facts.counts) - 1, MANY_CLIENTS).astype(int))
    names = owners.names or tuple(str(k) for k in range(len(facts.counts)))
    classes = [str(name) for name in dataset.class_names or range(dataset.classes)]
    rows, counts = [str(names[k])[:20] for k in chosen], facts.counts[chosen]
    return macros.figure([lambda width: heat_map(counts, rows, classes, unit="samples", width=width)], caption)


# Notes and commands


def notes(data: ReportData) -> Markup:
    """Return all notes of the comparison and its runs, each once."""
    result = data.result
    found = [f"{label} has no result: {why}" for label, why in result.failures.items()]
    found += [
        f"{label} diverged in {result.diverged(label)} of {len(result.runs[label])} runs; they keep the accuracy they had."
        for label in data.all_labels
        if result.diverged(label)
    ]
    found += result.plan.notes
    labels_of = group_by_key(
        (note, label)
        for label in data.all_labels
        for note in dict.fromkeys(note for run in result.runs[label] for note in run.notes)
    )
    everyone = len(data.all_labels)
    found += [n if len(labels) == everyone else f"{', '.join(labels)}: {n}" for n, labels in labels_of.items()]
    return macros.bullets(found) if found else Markup()


def repeat(data: ReportData) -> Markup:
    """Return the commands, the experiment and the versions that repeat the comparison."""
    files = {"experiment.toml, complete": commands.toml(data.result)}
    if spaces := commands.spaces(data.result):
        files["spaces.toml, what was searched"] = spaces
    shown = [macros.paragraphs([f"{heading}:"]) + macros.code(text) for heading, text in files.items()]
    return render_repeat(data.result, commands.about(data.result), commands.commands(data.result), shown)


def render_repeat(result: Comparison, about: str, lines: Sequence[str], files: Sequence[Markup]) -> Markup:
    """Return commands with what they do, the files that they need, and the versions that the comparison was made with."""
    versions = macros.paragraphs([f"Made with {commands.versions_text(result)}."], "how")
    return Markup().join([macros.paragraphs([about]), macros.code("\n".join(lines)), *files, versions])
