"""No more workers are started than have tasks or than the cores can serve; a warning says so, and no bit depends on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support import forked_processes

import fedarena as fa
from fedarena.experiments.runtime_options import RuntimeOptions
from fedarena.runtimes import process_pool, worker_count
from fedarena.runtimes.worker_count import PER_CORE, usable_cores

QUICK: dict[str, Any] = {"model": "logreg", "partition": "iid", "rounds": 2, "out": False}
CORES = PER_CORE * usable_cores()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an entry for each worker process that is started."""
    seen: list[int] = []

    begin = process_pool.ProcessWorker.__init__

    def init(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        seen.append(self.pid)

    monkeypatch.setattr(process_pool.ProcessWorker, "__init__", init)
    return seen


def test_a_run_starts_no_more_workers_than_a_round_has_clients(started: list[int]) -> None:
    alone = fa.run("digits", clients=6, per_round=2, runtime="serial", **QUICK)
    with pytest.warns(UserWarning, match="^2 workers instead of 7: a round has work for 2$"):
        run = fa.run("digits", clients=6, per_round=2, workers=7, **QUICK)
    assert len(started) == 2
    assert run.weights_sha256 == alone.weights_sha256
    assert run.notes == alone.notes  # what a run keeps does not depend on the machine


def test_all_clients_may_work_where_the_algorithm_wants_everyone(started: list[int]) -> None:
    with pytest.warns(UserWarning, match="^3 workers instead of 4"):
        fa.run("digits", clients=3, per_round=1, algorithm="local", workers=4, **QUICK)
    assert len(started) == 3


@pytest.mark.slow
def test_an_evaluation_in_many_parts_is_work_too(started: list[int]) -> None:
    """All 1797 rows are looked at, in parts of 500."""
    fa.run("digits", clients=2, evaluate={"on": "train"}, workers=4, **QUICK)
    assert len(started) == 4


@pytest.mark.slow
def test_without_a_number_there_are_no_idle_workers(started: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedarena.experiments.runtime_options.usable_cores", lambda: 8)
    fa.run("digits", clients=3, **QUICK)
    assert len(started) == 3


def test_cores_limit_the_workers_of_everything() -> None:
    for runtime in ("processes", "ray"):
        place = RuntimeOptions(runtime, 10**6)  # type: ignore[arg-type]
        if runtime == "ray":  # a cluster has cores of its own: only the work is counted
            with pytest.warns(UserWarning, match="^12345 workers instead of 1000000: it has 12345 runs$"):
                assert place.with_useful_workers(12345, "it has 12345 runs").workers == 12345
        else:
            with pytest.warns(UserWarning, match=f"^{CORES} workers instead of 1000000: {PER_CORE} for each of "):
                assert place.with_useful_workers(10**9, "").workers == CORES


@pytest.mark.slow
def test_a_comparison_starts_no_more_workers_than_cores_can_serve(
    started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_count, "PER_CORE", 1)
    few = usable_cores()
    with pytest.warns(UserWarning, match=f"^{few} worker.* instead of 50: 1 for each of "):
        fa.compare("digits", ["fedavg", "fedsgd"], seeds=few + 1, workers=50, baseline=False, **QUICK)
    assert len(started) == few


@pytest.mark.slow
def test_a_comparison_of_few_runs(started: list[int]) -> None:
    with pytest.warns(UserWarning, match="^4 workers instead of 50: it has 4 runs$"):
        fa.compare("digits", ["fedavg", "fedsgd"], seeds=2, workers=50, baseline=False, **QUICK)
    assert len(started) == 4


@pytest.mark.slow
def test_a_search_starts_as_many_as_may_be_under_way(started: list[int]) -> None:
    space = {"local.lr": {"choices": [0.01, 0.1, 0.2]}}
    how: dict[str, Any] = {"space": space, "method": "grid", "ahead": 2, "clients": 3, **QUICK}
    with pytest.warns(UserWarning, match="^2 workers instead of 50: 2 trials may be under way at once$"):
        many = fa.search("digits", workers=50, **how)
    assert len(started) == 2
    one = fa.search("digits", workers=1, **how)
    assert [trial.score for trial in many.trials] == [trial.score for trial in one.trials]


@pytest.mark.slow
def test_the_command_line_says_so_in_one_line(tmp_path: Path) -> None:
    command = ["run", "digits", "--set", "rounds=1", "--set", "clients=3", "--workers", "999", "--json", "-q"]
    done = forked_processes.run([sys.executable, "-m", "fedarena", *command], cwd=tmp_path, check=True)
    assert done.stderr == "warning: 3 workers instead of 999: a round has work for 3\n"
