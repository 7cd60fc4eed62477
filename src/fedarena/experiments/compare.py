"""`compare` and its dry run, for one federation or for several."""

from __future__ import annotations

import functools
from typing import Any, overload

from fedarena.experiments import dry_run as one_federation
from fedarena.experiments import run_comparison
from fedarena.experiments.suite import compare_suite, is_suite
from fedarena.experiments.suite_dry_run import SuiteDryRun, dry_run_suite
from fedarena.results.comparison import Comparison
from fedarena.results.suite import SuiteComparison


@overload
def compare(source: list[Any], algorithms: Any = ..., **asked: Any) -> SuiteComparison: ...
@overload
def compare(source: Any = ..., algorithms: Any = ..., **asked: Any) -> Comparison: ...
@functools.wraps(run_comparison.compare)
def compare(source: Any = None, algorithms: Any = (), **asked: Any) -> Comparison | SuiteComparison:
    """Compare algorithms on one federation, or on each of several and over all of them."""
    if is_suite(source, asked.get("resume")):
        return compare_suite(source, algorithms, **asked)
    return run_comparison.compare(source, algorithms, **asked)


def dry_run(source: Any = None, algorithms: Any = (), **asked: Any) -> one_federation.DryRun | SuiteDryRun:
    """Plan a comparison on one federation or on several, check all of it, and run nothing."""
    if is_suite(source, asked.get("resume")):
        return dry_run_suite(source, algorithms, **asked)
    return one_federation.dry_run(source, algorithms, **asked)
