"""Run one experiment, with or without a folder, resume it, and verify that it can be repeated bit by bit."""

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
from fedarena.engine.attackers import attack_notes
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
from fedarena.results import run_files, run_folder
from fedarena.results.built_model import contradictions
from fedarena.results.json_files import write_table
from fedarena.results.model_file import MODEL_FACTS, ModelFacts
from fedarena.results.run import Run, set_runner
from fedarena.results.run_integrity import altered_files
from fedarena.results.run_loading import load_with_changes
from fedarena.results.samples_elsewhere import has_samples_elsewhere, unchecked_parts
from fedarena.runtimes.cleanup import temporary_folder
from fedarena.runtimes.client_runtime import ProcessRuntime, RayRuntime
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.serial import SerialRuntime
from fedarena.runtimes.single_thread import one_thread
from fedarena.statistics.metric_registry import DISCRETE, default_metric

Out = str | Path | Literal[False] | None
OnRound = Callable[[RoundRecord], bool | None]  # sees every round, and may return True to stop


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
    on_round: OnRound | None = None,
    track: str | Path | None = None,
    **settings: Any,
) -> Run:
    """Run an experiment to its end and return the result.

    `source` is a data set's name, a TOML file, an Experiment, a table, or rows and labels `(x, y)`; keywords are the keys
    of an experiment. The run is saved in a folder: `out`, or the next free name under `runs/`; `out=False` saves none.
    `resume` continues the run in a folder; if files of its newest round are missing or damaged that is an error, unless
    `from_intact` says to continue from the last round of which every file is intact.
    `on_round` sees every round and may return True to stop. `runtime="ray"` runs clients on the Ray cluster at `address`,
    or on one that is started on this machine for the purpose. `track` is the MLflow store that records the run: a server's
    address or a folder.

    >>> import fedarena as fa
    >>> run = fa.run("digits", rounds=2, clients=5, partition="iid", out=False, runtime="serial")
    >>> run.final.round, run.final.accuracy > 0.5
    (2, True)
    """
    options = RuntimeOptions(runtime, workers, address)
    if track is not None and "://" not in str(track):
        check_path(track, "--track")
    context = _open(source, out, resume, from_intact, options, overrides, settings)
    store = None if track is None else MlflowStore.open(track)
    with (
        opened_run(context, out, resume, from_intact, options) as (loop, folder),
        tracked(store, context.experiment) as tracker,
        _watched(loop, progress) as watcher,
    ):
        records: list[RoundRecord] = []
        for record in loop.rounds():
            records.append(record)
            watcher.update(record)
            tracker.see(record)
            if on_round is not None and on_round(record):
                break
        result = finish_run(loop, records, folder)
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
    """Run an experiment round by round and yield every record; nothing is saved unless `out` names a folder.

    >>> import fedarena as fa
    >>> for record in fa.rounds("digits", rounds=50, partition="iid", clients=5, runtime="serial"):
    ...     if record.accuracy > 0.8:
    ...         break
    """
    folder: Out = False if out is None else out
    options = RuntimeOptions(runtime, workers, address)
    context = _open(source, folder, resume, from_intact, options, overrides, settings)  # now, not at the first `next`
    return _rounds(context, folder, resume, from_intact, options)


def _rounds(
    context: ExperimentContext, out: Out, resume: str | Path | None, from_intact: bool, options: RuntimeOptions
) -> Iterator[RoundRecord]:
    with opened_run(context, out, resume, from_intact, options) as (loop, folder):
        records = []
        for record in loop.rounds():
            records.append(record)
            yield record
        finish_run(loop, records, folder)


@dataclass(frozen=True)
class Verdict:
    """Whether a second run gave the same bits; `differences` lists what did not, the earliest first.

    A run of a real federation cannot be run again: its files are checked, `again` is None, and `unchecked` lists the rest.

    >>> verify(run("digits", rounds=1, out="first").dir).differences
    []
    """

    same: bool
    differences: list[str]
    run: Run
    again: Run | None = None
    unchecked: tuple[str, ...] = ()


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

    Every file of the folder is checked against the hash that the run recorded of it. Of a real federation's run only the
    files are checked, because the samples are not here.

    >>> verify(run("digits", rounds=1, out="mine").dir).same
    True
    """
    first, _ = load_with_changes(check_path(path, "the run folder"), **own)
    if has_samples_elsewhere(first.dir, first.experiment):
        found = contradictions(first)
        return Verdict(not found, found, first, unchecked=unchecked_parts(first))
    done = first.records[-1].round
    stop = lambda record: record.round >= done
    where: dict[str, Any] = {"runtime": runtime, "workers": workers, "address": address}
    again = run(first.experiment, out=False, progress=progress, on_round=stop, **where)
    differences = []
    facts = run_folder.read_facts(Path(path))
    context = open_context(first.experiment)
    for key, now in run_folder.fingerprints(context).items():
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
    differences += altered_files(Path(path), context, first.records, first.state, first.weights_sha256)
    return Verdict(not differences, differences, first, again)


def _metric_differences(before: FinalMetrics, after: FinalMetrics) -> list[str]:
    """Return the metrics that both runs have and that differ; a user's metric may not be registered now."""
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
    if before.unseen is not None and after.unseen is not None:
        for key in ("client_before", "client_after"):
            old_each, new_each = getattr(before.unseen, key), getattr(after.unseen, key)
            for name in old_each.keys() & new_each.keys():
                if not np.array_equal(old_each[name], new_each[name], equal_nan=True):
                    found.append(f"unseen clients, {key.removeprefix('client_')}: their {name} differs")
    if before.confusion is not None and not np.array_equal(before.confusion, after.confusion):  # type: ignore[arg-type]
        found.append("the confusion matrices differ")
    return sorted(found)


def _open(
    source: Any,
    out: Any,
    resume: str | Path | None,
    from_intact: bool,
    options: RuntimeOptions,
    overrides: Sequence[str],
    settings: dict[str, Any],
) -> ExperimentContext:
    """Check all options and open the experiment, before anything is written."""
    options.check()
    check_folders("run", out, resume)
    if from_intact and resume is None:
        raise BadValue("there is no run to continue", remedy="name it: --resume RUN", where="--from-intact")
    experiment = _experiment(source, resume, overrides, settings)
    with one_thread():  # before workers are forked, nothing here may start threads of its own
        return open_context(experiment)


def check_folders(kind: str, out: Any, resume: Any, report: Any = None) -> None:
    """Raise if the options that name folders and files contradict each other or cannot be used."""
    if out is True:
        raise BadValue("out = True", remedy="give a folder, or False to save nothing", where="--out")
    if out and resume is not None:
        raise BadValue(f"a resumed {kind} stays in its folder", remedy="leave out --out", where="--out")
    check_paths(("--out", out), ("--resume", resume), ("--report", report))
    if report is not None and not Path(report).absolute().parent.is_dir():
        raise CannotWrite(f"there is no folder for {report}", remedy="make it, or choose another", where="--report")


def _experiment(
    source: Any, resume: str | Path | None, overrides: Sequence[str], settings: dict[str, Any]
) -> Experiment:
    if resume is None:
        return Experiment.make(source, overrides, **settings)
    if (Path(resume) / run_folder.FEDERATION).is_file():
        raise BadValue(
            f"{resume} is a run between organisations, whose samples are not here",
            remedy=f"resume it at its server: fedarena serve --resume {resume}",
            where="--resume",
        )
    if source is None:
        source = run_folder.read_experiment(Path(resume), **settings)
    experiment = run_folder.in_recorded_form(Path(resume), Experiment.make(source, overrides, **settings))
    run_folder.check_same_experiment(Path(resume), experiment)
    return experiment


@contextlib.contextmanager
def opened_run(
    context: ExperimentContext, out: Out, resume: str | Path | None, from_intact: bool, options: RuntimeOptions
) -> Iterator[tuple[TrainingLoop, Path | None]]:
    """Yield the loop of a run with its workers, and its folder, locked and written; None for a temporary folder."""
    useful = _useful_workers(context)
    options = options.with_useful_workers(useful, f"a round has work for {useful}")
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(options.ready(context.experiment.device))  # first: the cluster may be unreachable
        if resume is not None:
            path = Path(resume)
        elif out is False:
            path = stack.enter_context(temporary_folder())
        else:
            path = run_folder.new_folder(context.experiment, out)
        folder = None if out is False and resume is None else path
        stack.enter_context(interruptible("run", folder))
        store = CheckpointStore(path / "checkpoint", context.algorithm, folder is not None, from_intact)
        stack.callback(store.close)
        if resume is not None:
            run_folder.check_same_start(path, context)
            store.load()  # raises if it is damaged, before anything is changed
            run_folder.reopen(path, context)
        elif folder is not None:
            _begin(path, context)
        run_folder.need_room(path, run_folder.room_for(context), "this run")
        pool = _pool(context, options, nodes)
        stack.callback(pool.close)
        yield open_loop(context, pool, store), folder


def _useful_workers(context: ExperimentContext) -> int:
    """Return how many jobs of a run can be ready at once: the clients of a round, or the parts of an evaluation."""
    experiment, owners = context.experiment, context.owners
    clients_with_samples = len(owners.population)
    any_number = context.steps is not None and context.steps.settings.sampling == "poisson"
    if any_number or context.algorithm.everyone or context.has_personal_models or owners.noise is not None:
        clients = clients_with_samples
    else:
        clients = min(
            math.ceil(participants(experiment, clients_with_samples) * experiment.devices.overselect),
            clients_with_samples,
        )
    own_rows = owners.clients if experiment.evaluate.on == "train" else owners.client_tests
    rows = len(owners.test) + sum(map(len, own_rows))
    return max(clients, math.ceil(rows / EVALUATION_ROWS))


def _begin(path: Path, context: ExperimentContext) -> None:
    """Write the files that are known before the first round; if that fails, remove the folder."""
    try:
        run_folder.write_start(path, context)
    except CannotWrite:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _pool(
    context: ExperimentContext, options: RuntimeOptions, nodes: ClusterNodes | None
) -> SerialRuntime | ProcessRuntime | RayRuntime:
    if nodes is not None:
        return RayRuntime(context, nodes, options.workers)
    return SerialRuntime(context) if options.runtime == "serial" else ProcessRuntime(context, options.workers)


@contextlib.contextmanager
def _watched(loop: TrainingLoop, progress: bool) -> Iterator[RunProgress]:
    """Yield the progress reporter, started for this loop."""
    watcher = RunProgress(progress)
    population, asked = len(loop.context.owners.population), loop.clients.clients_per_round
    context = loop.context
    metric = default_metric(context.task_name) if context.task_name in DISCRETE else context.metric
    watcher.start(loop.experiment, population, asked, loop.rule.nominal_rounds, metric)
    try:
        yield watcher
    finally:
        watcher.stop()


def finish_run(loop: TrainingLoop, records: list[RoundRecord], path: Path | None) -> Run:
    """Return the result of a loop that has ended, written to its folder if it has one."""
    context = loop.context
    if records[-1].accuracy is None:  # stopped between two evaluations
        loop.evaluate_last_round(records)
    measured = loop.evaluation.final_metrics(loop.model)
    chosen = loop.evaluation.validated_round(records, measured)
    context.load_server_model(loop.state.w, loop.buffers)
    sha = sha256(*loop.result_vectors())
    guarantees = loop.privacy.notes(records[-1].epsilon, records[-1].record_epsilon)
    notes = (*context.owners.notes, *attack_notes(context), *loop.notes(records), *guarantees)
    sizes, state = context.owners.sizes, context.task.state()
    used = component_settings(context.algorithm)
    own = loop.evaluation.client_accuracy
    spent = loop.privacy.records.epsilons
    if spent is not None and context.algorithm.pooled:  # one training on the records of all clients
        spent = np.where(sizes > 0, spent[0], np.nan)
    result = Run(
        context.experiment, records, sha, own, sizes, path, state, notes, used, loop.ages, measured, chosen, spent
    )
    if path is not None:
        if not has_samples_elsewhere(path, context.experiment):  # there each client stores its own
            run_files.write_personal_models(path, loop.personal_models())
        write_result(result, context, path)
        loop.store.sync_results(*(path / name for name in (*run_files.hashed_files(path), "result.json")))
    return result


def write_result(result: Run, context: ExperimentContext, path: Path) -> None:
    """Write the files of a finished run that hold its result; result.json is last, and a folder that has it is finished."""
    columns = run_files.client_columns(result.measured, result.chosen, result.record_epsilons)
    run_files.write_rounds(path, result.records)
    run_files.write_clients(path, context, np.asarray(result.client_accuracy), columns)
    run_files.write_model(path, result.state)
    write_table(path / MODEL_FACTS, ModelFacts.of(context).to_json())
    traits = run_files.algorithm_traits(context.experiment.algorithm)
    table = run_files.result_table(path, result.summary(), result.measured, result.chosen, traits)
    write_table(path / "result.json", table)


set_runner(run)
