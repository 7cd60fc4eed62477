"""One experiment, from its text to its result: opened, run in a folder or without one, resumed, verified."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedarena.common.folder_lock import interruptible
from fedarena.config.components import component_settings
from fedarena.config.errors import BadValue, CannotWrite
from fedarena.config.experiment import Experiment
from fedarena.config.limits import check_path, check_paths
from fedarena.engine.async_loop import open_loop
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.context import EVALUATION_ROWS, ExperimentContext
from fedarena.engine.loop import TrainingLoop
from fedarena.engine.record import TIMES, RoundRecord
from fedarena.engine.setup import open_context
from fedarena.engine.stopping import participants
from fedarena.engine.task_metrics import FinalMetrics
from fedarena.experiments.run_progress import RunProgress
from fedarena.experiments.runtime_options import RuntimeName, RuntimeOptions
from fedarena.integrations.mlflow import MlflowStore, tracked
from fedarena.models.task import sha256
from fedarena.results import run_folder
from fedarena.results.run import Run, load_as_it_is
from fedarena.runtimes.cleanup import temporary_folder
from fedarena.runtimes.client_runtime import ProcessRuntime, RayRuntime
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.run_task import one_thread
from fedarena.runtimes.serial import SerialRuntime

Out = str | Path | Literal[False] | None


def run(
    source: Any = None,
    *,
    out: Out = None,
    resume: str | Path | None = None,
    from_intact: bool = False,
    runtime: RuntimeName = "processes",
    workers: int | None = None,
    address: str | None = None,
    overrides: Sequence[str] = (),
    progress: bool = False,
    on_round: Callable[[RoundRecord], bool | None] | None = None,
    track: str | Path | None = None,
    **settings: Any,
) -> Run:
    """Run an experiment to its end and return the result.

    `source` is a data set's name, a TOML file, an Experiment, a table, or rows and labels `(x, y)`; keywords are the keys
    of an experiment. The run is kept in a folder: `out`, or the next free name under `runs/`; `out=False` keeps none.
    `resume` continues the run in a folder; if files of its newest round are missing or damaged that is an error, unless
    `from_intact` says to continue from the last round of which every file is intact.
    `on_round` sees every round and may return True to stop. `runtime="ray"` runs clients on the Ray cluster at `address`,
    or on one that is started on this machine for the purpose. `track` is an MLflow store to tell of it: a server's address
    or a folder.

    >>> import fedarena as fa
    >>> run = fa.run("digits", rounds=2, clients=5, partition="iid", out=False, runtime="serial")
    >>> run.final.round, run.final.accuracy > 0.5
    (2, True)
    """
    place = RuntimeOptions(runtime, workers, address)
    if track is not None and "://" not in str(track):
        check_path(track, "--track")
    site = _open(source, out, resume, from_intact, place, overrides, settings)
    store = None if track is None else MlflowStore.open(track)
    with (
        _opened_run(site, out, resume, from_intact, place) as (loop, kept),
        tracked(store, site.experiment) as tracker,
        _watched(loop, progress) as watcher,
    ):
        records: list[RoundRecord] = []
        for record in loop.rounds():
            records.append(record)
            watcher.update(record)
            tracker.see(record)
            if on_round is not None and on_round(record):
                break
        result = finish_run(loop, records, kept)
        tracker.finish(result)
        return result


def rounds(
    source: Any = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    from_intact: bool = False,
    runtime: RuntimeName = "processes",
    workers: int | None = None,
    address: str | None = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Iterator[RoundRecord]:
    """The same, round by round: the loop is yours. Nothing is kept unless `out` names a folder.

    >>> import fedarena as fa
    >>> for record in fa.rounds("digits", rounds=50, partition="iid", clients=5, runtime="serial"):
    ...     if record.accuracy > 0.8:
    ...         break
    """
    kept: Out = False if out is None else out
    place = RuntimeOptions(runtime, workers, address)
    site = _open(source, kept, resume, from_intact, place, overrides, settings)  # now, not at the first `next`
    return _rounds(site, kept, resume, from_intact, place)


def _rounds(
    site: ExperimentContext, out: Out, resume: str | Path | None, from_intact: bool, place: RuntimeOptions
) -> Iterator[RoundRecord]:
    with _opened_run(site, out, resume, from_intact, place) as (loop, kept):
        records = []
        for record in loop.rounds():
            records.append(record)
            yield record
        finish_run(loop, records, kept)


@dataclass(frozen=True)
class Verdict:
    """Did a second run give the same bits? `differences` names what did not, the earliest first."""

    same: bool
    differences: list[str]
    run: Run
    again: Run


def verify(
    path: str | Path,
    *,
    runtime: RuntimeName = "processes",
    workers: int | None = None,
    address: str | None = None,
    progress: bool = False,
    **own: Any,
) -> Verdict:
    """Re-run a run folder's experiment from the start and compare bit by bit: partition, every round, final weights.

    Every file of the folder is checked against the hash that the run recorded of it.
    """
    first, _ = load_as_it_is(check_path(path, "the run folder"), **own)
    done = first.records[-1].round
    stop = lambda record: record.round >= done
    where: dict[str, Any] = {"runtime": runtime, "workers": workers, "address": address}
    again = run(first.experiment, out=False, progress=progress, on_round=stop, **where)
    differences = []
    facts = run_folder.read_facts(Path(path))
    site = open_context(first.experiment)
    for key, now in run_folder.fingerprints(site).items():
        if facts.get(key) != now:
            differences.append(f"{key}: {facts.get(key, '')[:16]} then, {now[:16]} now")
    for before, after in zip(first.records, again.records, strict=False):
        for name in RoundRecord.__dataclass_fields__:
            old, new = getattr(before, name), getattr(after, name)
            if name not in TIMES and old != new and not (old != old and new != new):
                differences.append(f"round {before.round}, {name}: {old} then, {new} now")
    if len(first.records) != len(again.records):
        differences.append(f"rounds: {len(first.records)} then, {len(again.records)} now")
    if not np.array_equal(first.client_accuracy, again.client_accuracy, equal_nan=True):
        differences.append("clients: their accuracies differ")
    differences += _metric_differences(first.measured, again.measured)
    if first.chosen is not None and again.chosen is not None:
        old, new = first.chosen.round, again.chosen.round
        differences += [] if old == new else [f"validated round: {old} then, {new} now"]
        found = _metric_differences(first.chosen.measured, again.chosen.measured)
        differences += [f"validated round, {difference}" for difference in found]
    if first.weights_sha256 != again.weights_sha256:
        differences.append(f"weights: sha256 {first.weights_sha256[:16]} then, {again.weights_sha256[:16]} now")
    differences += run_folder.altered_files(Path(path), site, first.records, first.state, first.weights_sha256)
    return Verdict(not differences, differences, first, again)


def _metric_differences(before: FinalMetrics, after: FinalMetrics) -> list[str]:
    """Metrics that are known of both runs and differ; a user's metric may not be registered now."""
    found = []
    for where, old, new in (("", before.common, after.common), ("own ", before.own, after.own)):
        for name in old.keys() & new.keys():
            if old[name] != new[name] and math.isfinite(old[name]) | math.isfinite(new[name]):
                found.append(f"{where}{name}: {old[name]} then, {new[name]} now")
    for name in before.clients.keys() & after.clients.keys():
        old_values, new_values = (
            np.where(np.isfinite(v), v, np.nan) for v in (before.clients[name], after.clients[name])
        )
        if not np.array_equal(old_values, new_values, equal_nan=True):
            found.append(f"clients: their {name} differs")
    if before.confusion is not None and not np.array_equal(before.confusion, after.confusion):  # type: ignore[arg-type]
        found.append("the confusion matrices differ")
    return sorted(found)


def _open(
    source: Any,
    out: Any,
    resume: str | Path | None,
    from_intact: bool,
    place: RuntimeOptions,
    overrides: Sequence[str],
    settings: dict[str, Any],
) -> ExperimentContext:
    """Everything that can be wrong is found here, before anything is made."""
    place.check()
    if out is True:
        raise BadValue("out = True", remedy="give a folder, or False to keep nothing", where="--out")
    if out and resume is not None:
        raise BadValue("a resumed run stays in its folder", remedy="leave out --out", where="--out")
    check_paths(("--out", out), ("--resume", resume))
    if from_intact and resume is None:
        raise BadValue("there is no run to continue", remedy="name it: --resume RUN", where="--from-intact")
    experiment = _experiment(source, resume, overrides, settings)
    with one_thread():  # before workers are forked, nothing here may start threads of its own
        return open_context(experiment)


def _experiment(
    source: Any, resume: str | Path | None, overrides: Sequence[str], settings: dict[str, Any]
) -> Experiment:
    if resume is None:
        return Experiment.make(source, overrides, **settings)
    if source is None:
        source = run_folder.read_experiment(Path(resume), **settings)
    experiment = Experiment.make(source, overrides, **settings)
    run_folder.check_same_experiment(Path(resume), experiment)
    return experiment


@contextlib.contextmanager
def _opened_run(
    site: ExperimentContext, out: Out, resume: str | Path | None, from_intact: bool, place: RuntimeOptions
) -> Iterator[tuple[TrainingLoop, Path | None]]:
    """A run with its folder, locked and begun, and its workers; and the folder's name, if it is to be kept."""
    useful = _useful_workers(site)
    place = place.with_useful_workers(useful, f"a round has work for {useful}")
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(place.ready(site.experiment.device))  # first: a cluster may be out of reach
        if resume is not None:
            path = Path(resume)
        elif out is False:
            path = stack.enter_context(temporary_folder())
        else:
            path = run_folder.new_folder(site.experiment, out)
        kept = None if out is False and resume is None else path
        stack.enter_context(interruptible("run", kept))
        keeper = CheckpointStore(path / "checkpoint", site.algorithm, kept is not None, from_intact)
        stack.callback(keeper.close)
        if resume is not None:
            run_folder.check_same_start(path, site)
            keeper.load()  # what is wrong with it shows before anything is changed
            run_folder.reopen(path, site)
        elif kept is not None:
            _begin(path, site)
        run_folder.check_room(path, site)
        pool = _pool(site, place, nodes)
        stack.callback(pool.close)
        yield open_loop(site, pool, keeper), kept


def _useful_workers(site: ExperimentContext) -> int:
    """Return how many jobs of a run can be ready at once: the clients of a round, or the parts of an evaluation."""
    experiment, owners = site.experiment, site.owners
    people = len(owners.population)
    any_number = site.steps is not None and site.steps.wish.sampling == "poisson"
    if any_number or site.algorithm.everyone or site.has_personal_models or owners.noise is not None:
        clients = people
    else:
        clients = min(math.ceil(participants(experiment, people) * experiment.devices.overselect), people)
    own_rows = owners.clients if experiment.evaluate.on == "train" else owners.client_tests
    rows = len(owners.test) + sum(map(len, own_rows))
    return max(clients, math.ceil(rows / EVALUATION_ROWS))


def _begin(path: Path, site: ExperimentContext) -> None:
    """Write what is known before the first round; if that fails, nothing is left that a second try would stumble on."""
    try:
        run_folder.write_start(path, site)
    except CannotWrite:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _pool(
    site: ExperimentContext, place: RuntimeOptions, nodes: ClusterNodes | None
) -> SerialRuntime | ProcessRuntime | RayRuntime:
    if nodes is not None:
        return RayRuntime(site, nodes, place.workers)
    return SerialRuntime(site) if place.runtime == "serial" else ProcessRuntime(site, place.workers)


@contextlib.contextmanager
def _watched(loop: TrainingLoop, progress: bool) -> Iterator[RunProgress]:
    """What a person sees meanwhile."""
    watcher = RunProgress(progress)
    watcher.start(loop.experiment, len(loop.site.owners.population), loop.asked, loop.rule.nominal_rounds)
    try:
        yield watcher
    finally:
        watcher.stop()


def finish_run(loop: TrainingLoop, records: list[RoundRecord], path: Path | None) -> Run:
    """The result of a loop that is over, written to its folder if it has one."""
    site = loop.site
    if records[-1].accuracy is None:  # stopped between two evaluations
        loop.evaluate_last_round(records)
    measured = loop.final_metrics()
    chosen = loop.validated_round(records, measured)
    site.task.load(loop.state.w)
    site.task.load_buffers(loop.buffers)
    sha = sha256(*loop.result_vectors())
    notes = (*site.owners.notes, *loop.notes)
    sizes, state = site.owners.sizes, site.task.state()
    used = component_settings(site.algorithm)
    own = loop.client_accuracy
    result = Run(site.experiment, records, sha, own, sizes, path, state, notes, used, loop.ages, measured, chosen)
    if path is not None:
        run_folder.write_rounds(path, records)
        run_folder.write_clients(path, site, np.asarray(own), run_folder.client_columns(measured, chosen))
        run_folder.write_model(path, result.state)
        run_folder.write_table(path / "result.json", run_folder.result_table(path, result.summary(), measured, chosen))
        loop.keeper.sync_results(*(path / name for name in (*run_folder.HASHED, "result.json")))
    return result
