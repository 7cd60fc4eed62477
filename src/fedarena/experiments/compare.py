"""`compare` and its dry run, for one federation or for several."""

from __future__ import annotations

import functools
from typing import Any, overload

from fedarena.experiments import dry_run as one_federation
from fedarena.experiments import run_comparison
from fedarena.experiments.federations import is_suite
from fedarena.experiments.run_suite import compare_suite
from fedarena.experiments.suite_dry_run import SuiteDryRun, dry_run_suite
from fedarena.results.comparison import Comparison
from fedarena.results.suite import SuiteComparison


@overload
def compare(source: list[Any], algorithms: Any = ..., **options: Any) -> SuiteComparison: ...
@overload
def compare(source: Any = ..., algorithms: Any = ..., **options: Any) -> Comparison: ...
@functools.wraps(run_comparison.compare)
def compare(source: Any = None, algorithms: Any = (), **options: Any) -> Comparison | SuiteComparison:
    """Compare algorithms on one federation, or on each of several and over all of them."""
    if is_suite(source, options.get("resume")):
        return compare_suite(source, algorithms, **options)
    return run_comparison.compare(source, algorithms, **options)


def dry_run(source: Any = None, algorithms: Any = (), **options: Any) -> one_federation.DryRun | SuiteDryRun:
    """Plan a comparison on one federation or on several, check all of it, and run nothing."""
    if is_suite(source, options.get("resume")):
        return dry_run_suite(source, algorithms, **options)
    return one_federation.dry_run(source, algorithms, **options)
