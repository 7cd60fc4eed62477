"""`compare` and its dry run, for one federation or for several."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, overload

import fedarena.reports  # noqa: F401 - lets a comparison show itself
from fedarena.experiments.dry_run import DryRun, SuiteDryRun, estimate_plan, estimate_suite
from fedarena.experiments.federations import is_suite
from fedarena.experiments.plan import PlanOptions, check_cells, make_plan
from fedarena.experiments.run import Out, check_folders
from fedarena.experiments.run_comparison import ComparisonJob, compare_federation
from fedarena.experiments.run_suite import compare_suite, plan_suite
from fedarena.experiments.runtime_options import RuntimeOptions, SideBySide
from fedarena.experiments.until_decided import at_limit
from fedarena.results.comparison import Comparison
from fedarena.results.suite import SuiteComparison


@overload
def compare(source: list[Any], algorithms: Any = ..., **options: Any) -> SuiteComparison: ...
@overload
def compare(source: Any = ..., algorithms: Any = ..., **options: Any) -> Comparison: ...
def compare(
    source: Any = None,
    algorithms: Any = (),
    *,
    out: Out = None,
    resume: str | Path | None = None,
    runtime: SideBySide = "processes",
    workers: int | None = None,
    address: str | None = None,
    report: str | Path | None = None,
    progress: bool = False,
    **options: Any,
) -> Comparison | SuiteComparison:
    """Compare algorithms on the same splits by a Bayesian test.

    `algorithms` are texts such as "fedprox:mu=0.1", tables with a name, or objects; a mapping gives them labels. Every
    split repeats all that is random: test samples, partition, initial weights, client schedule and batch order, which all
    algorithms share within it. Scores come from cross-validation (`folds` 5, `repeats` 1), or from `seeds` random
    divisions of the samples. `fixed` names what is the same in all splits ("partition", "start", "schedule", or with
    `seeds` "test"), `per_repeat` what the folds of a repeat share. `until_decided` adds whole repeats, or seeds five at a
    time, until the best algorithm is known or those that may be the best are practically equal, with `at_most` splits (50);
    `repeats` or `seeds` is then the number before the first look.
    The `score` of a run is that of its last round ("final"), of the "validated" one, chosen on samples held out of clients'
    training samples (`evaluate.validation`, 0.1 of them), or of its "best" one on test samples, which is optimistic;
    `metric` is any of `fedarena list metrics`; `evaluate_on` the "common" test samples, or each client's "own" (the default
    as soon as local training or a personalised algorithm takes part; "own:uniform" weighs clients alike).
    Two are practically equal within `rope` (that of the metric: 0.01 for accuracy); a verdict needs more than `threshold`
    (0.95) probability. The folder is `out`, or the next free name under `runs/`; `out=False` saves none. `baseline` also
    trains on all samples in one place and shows the result beside the others. `tune` gives every algorithm this many trials
    of its own search space, or of `spaces`, on samples held out of the training samples. `runtime="ray"` makes the runs on
    the Ray cluster at `address`, or on one that is started here for the purpose. `sweep` runs every algorithm at each value
    of a key of uplink or local.privacy ("uplink.noise=0,0.5,1"), and draws what that costs. `leave_one_out` repeats the
    comparison without each client in turn, or without each client that it names, and reports what the others lose; the
    clients must be the same in all splits.
    A list of at least three sources, or a file with `[[federation]]` blocks or a `[grid]`, is a suite: each federation is
    compared by itself, and the result is a `SuiteComparison` about the next federation like them.

    >>> import fedarena as fa
    >>> duel = fa.compare("digits", ["fedavg", fa.FedProx(mu=0.1)], seeds=2, rounds=2, model="logreg", out=False)
    >>> [len(scores) for scores in duel.scores().values()]
    [2, 2]
    """
    place = RuntimeOptions(runtime, workers, address)
    place.check(SideBySide)
    check_folders("comparison", out, resume, report)
    job = ComparisonJob(place, out, resume, report, progress)
    return (compare_suite if is_suite(source, resume) else compare_federation)(source, algorithms, job, **options)


def _signature() -> inspect.Signature:
    """Return all parameters of `compare`: its own, and the options of a plan."""
    first, second, *own, settings = inspect.signature(compare).parameters.values()
    return inspect.Signature([first, second, *inspect.signature(PlanOptions).parameters.values(), *own, settings])


compare.__signature__ = _signature()  # type: ignore[attr-defined]  # shown by `help`


def dry_run(
    source: Any = None,
    algorithms: Any = (),
    *,
    workers: int | None = None,
    resume: str | Path | None = None,
    **options: Any,
) -> DryRun | SuiteDryRun:
    """Plan a comparison and check all of it as `compare` does, but run nothing; the arguments are those of `compare`."""
    if is_suite(source, resume):
        return estimate_suite(plan_suite(source, algorithms, resume=resume, **options), resume, workers)
    plan = make_plan(source, algorithms, resume=resume, **options)
    check_cells(at_limit(plan))
    return estimate_plan(plan, resume, workers)
