"""The server of an experiment: from the enrollment of clients to the result, in an ordinary run folder."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedarena.algorithms.base import Asynchronous
from fedarena.common.folder_lock import interruptible
from fedarena.config.experiment import Experiment
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.context import ExperimentContext
from fedarena.engine.loop import TrainingLoop
from fedarena.engine.record import RoundRecord
from fedarena.engine.setup import build_model_and_algorithm, check_device, make_context
from fedarena.experiments.run import finish_run
from fedarena.federation import messages
from fedarena.federation.agreement import without_rows
from fedarena.federation.async_server import AsyncServerLoop
from fedarena.federation.consent import experiment_as_text
from fedarena.federation.coordinator import Coordinator
from fedarena.federation.enrollment import agree_with_clients, wait_for_clients, wait_until_ready
from fedarena.federation.evaluation import FederatedEvaluator
from fedarena.federation.final_model import finished_run, hand_out, send_final_model
from fedarena.federation.remote_runtime import RemoteRuntime
from fedarena.federation.requests import ResponseRule
from fedarena.federation.roster import Roster
from fedarena.models.pytree import types_near
from fedarena.models.task import Buffers, sha256
from fedarena.privacy.uplink import MaskedVector
from fedarena.results import run_folder
from fedarena.results.run import Run
from fedarena.runtimes.single_thread import one_thread
from fedarena.statistics.metric_registry import DISCRETE
from fedarena.transport.flower_link import Link

LOGGER = logging.getLogger(__name__)

OpenLink = Callable[[Path], Link]  # given the run folder
OnRound = Callable[[RoundRecord], bool | None]  # returns whether the run stops
WAIT = 600.0  # seconds for clients to join


@dataclass(frozen=True)
class ServerOptions:
    """Options of the server; none of them changes the result, as long as all clients answer."""

    participants: int
    rule: ResponseRule = ResponseRule()
    wait: float = WAIT
    shares_models: bool = False
    secret: int | None = None  # seed of the noise; drawn for every run unless given


def serve(
    experiment: Experiment,
    open_link: OpenLink,
    terms: ServerOptions,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    on_round: OnRound | None = None,
) -> Run:
    """Wait for the clients, train with them, and write a run folder like any other."""
    check_device(experiment.device)
    with contextlib.ExitStack() as stack:
        if resume is None:
            path = run_folder.new_folder(experiment, out)
            stack.callback(_remove_unused_folder, path)
            roster = Roster(wanted=terms.participants, shares_models=terms.shares_models)
        else:
            path = Path(resume)
            roster = Roster.load(path)
        if terms.secret is not None:
            roster.secret = terms.secret
        link = open_link(path)
        stack.callback(link.close)
        hello = messages.Invitation(
            experiment=experiment_as_text(experiment), clients=roster.wanted, shares_models=roster.shares_models
        )
        types = types_near(experiment.algorithm.made, Buffers, MaskedVector)
        coordinator = Coordinator(link, roster, hello, types)
        if not roster.agreed:
            wait_for_clients(coordinator, roster, terms.wait)
            agree_with_clients(coordinator, roster, experiment)
        context = open_remote_context(experiment, roster)
        finished = None if resume is None else finished_run(path, experiment)
        if finished is not None:  # then clients that were away at the end get its model
            run_folder.check_same_start(path, context)
            stack.enter_context(interruptible("serve", path))
            hand_out(RemoteRuntime(context, coordinator, replace(terms.rule, deadline=terms.wait)), finished)
            coordinator.dismiss_all()
            return finished
        # Clients keep no earlier states, so a damaged round cannot be replaced by an earlier one.
        store = CheckpointStore(path / "checkpoint", context.algorithm, from_intact=None)
        stack.callback(store.close)
        if resume is not None:
            store.load()  # a damaged one is reported before anything is changed
            run_folder.check_same_start(path, context)
            run_folder.reopen(path, context)
        else:
            roster.save(path)
            run_folder.write_start(path, context)
        stack.enter_context(interruptible("serve", path))
        wait_until_ready(coordinator, roster, terms.rule, terms.wait)
        result = _run(RemoteRuntime(context, coordinator, terms.rule), store, on_round)
        roster.forget_secret(path)
        coordinator.dismiss_all()
        return result


def _remove_unused_folder(path: Path) -> None:
    """Remove a new folder in which no run has started."""
    if not (path / "experiment.toml").exists():
        shutil.rmtree(path, ignore_errors=True)


def open_remote_context(experiment: Experiment, roster: Roster) -> ExperimentContext:
    """Return the context of the server, with its model and algorithm built."""
    with one_thread():
        context = make_context(experiment, *without_rows(experiment, roster.agreed, roster.counted))
        context.noise_seed = roster.secret
        context.label_scale = roster.agreed[roster.names[0]].label_scale or (0.0, 1.0)
        build_model_and_algorithm(context)
    roster.initial = sha256(context.initial)
    return context


def _run(runtime: RemoteRuntime, store: CheckpointStore, on_round: OnRound | None) -> Run:
    context = runtime.context
    runtime.looks = FederatedEvaluator(runtime, store.client_state, runtime.coordinator.roster.shares_models)
    is_asynchronous = isinstance(context.algorithm, Asynchronous)
    loop = (AsyncServerLoop if is_asynchronous else TrainingLoop)(context, runtime, store)
    shown = "accuracy" if context.task_name in DISCRETE else context.metric.name
    records: list[RoundRecord] = []
    with loop.listening() if isinstance(loop, AsyncServerLoop) else contextlib.nullcontext():
        for record in loop.rounds():
            records.append(record)
            untested = [runtime.names[k] for k in runtime.looks.missing]
            LOGGER.info(round_line(record, loop.rule.nominal_rounds, untested, shown))
            if on_round is not None and on_round(record):
                break
    result = finish_run(loop, records, store.folder.parent)
    send_final_model(runtime, loop.model.common, store.client_state, result)
    return result


def _metric_text(record: RoundRecord, metric: str) -> str:
    """Return the value of the metric that is shown, and the loss."""
    value = record.accuracy if metric == "accuracy" else record.value_of(metric)
    shown = "" if metric == "loss" else f"  {metric} {math.nan if value is None else value:.4f}"
    return f"{shown}  loss {record.loss:.4f}"


def round_line(record: RoundRecord, rounds: int, untested: Sequence[str], metric: str = "accuracy") -> str:
    """Return a line about a round; `untested` are the clients whose samples the evaluation is without."""
    seen = "" if record.accuracy is None else _metric_text(record, metric)
    if seen and untested:
        seen += f" (without {', '.join(untested)})"
    answered = f"{record.answered} of {record.selected} answered"
    return f"round {record.round:>{len(str(rounds))}}/{rounds}{seen}  {answered}  {record.bytes_up / 1e6:.1f} MB up"
