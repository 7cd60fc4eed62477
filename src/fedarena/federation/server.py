"""An experiment carried out by participants: from its text to its result, in an ordinary run folder."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedarena.algorithms.base import Asynchronous
from fedarena.common.folder_lock import interruptible
from fedarena.config.experiment import Experiment
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.loop import TrainingLoop
from fedarena.engine.record import RoundRecord
from fedarena.engine.setup import build_model_and_algorithm, check_device
from fedarena.experiments.run import finish_run
from fedarena.federation import messages
from fedarena.federation.agreement import without_rows
from fedarena.federation.async_server import AsyncServerLoop
from fedarena.federation.consent import experiment_as_text
from fedarena.federation.coordinator import Coordinator
from fedarena.federation.enrollment import agree_with_clients, wait_for_clients, wait_until_ready
from fedarena.federation.evaluation import FederatedEvaluator
from fedarena.federation.remote_runtime import RemoteContext, RemoteRuntime, answer_types
from fedarena.federation.requests import ResponseRule
from fedarena.federation.roster import Roster
from fedarena.models.task import sha256
from fedarena.results import run_folder
from fedarena.results.run import Run
from fedarena.runtimes.run_task import one_thread
from fedarena.transport.flower_link import Link

Speak = Callable[[str], None]
OpenLink = Callable[[Path], Link]  # in a folder of the run
WAIT = 600.0  # seconds for participants to come


@dataclass(frozen=True)
class ServerOptions:
    """How the organiser goes about it; none of it changes what is computed, as long as all answer."""

    participants: int
    rule: ResponseRule = ResponseRule()
    wait: float = WAIT
    shares_models: bool = False
    secret: int | None = None  # seeds noise; drawn anew for every run unless given


def serve(
    experiment: Experiment,
    open_link: OpenLink,
    terms: ServerOptions,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    speak: Speak = lambda text: None,
    on_round: Callable[[RoundRecord], bool | None] | None = None,
) -> Run:
    """Wait for the participants, train with them, and leave a run folder like any other."""
    check_device(experiment.device)
    with contextlib.ExitStack() as stack:
        if resume is None:
            path = run_folder.new_folder(experiment, out)
            stack.callback(_leave_nothing, path)
        else:
            path = Path(resume)
        roster = (
            Roster.load(path) if resume is not None else Roster(terms.participants, shares_models=terms.shares_models)
        )
        if terms.secret is not None:
            roster.secret = terms.secret
        roster.speak = speak
        link = open_link(path)
        stack.callback(link.close)
        hello = messages.Invitation(
            experiment=experiment_as_text(experiment), clients=roster.wanted, shares_models=roster.shares_models
        )
        board = Coordinator(link, roster.run, hello, roster, speak, answer_types(experiment.algorithm.made))
        if not roster.agreed:
            wait_for_clients(board, roster, terms.wait, speak)
            agree_with_clients(board, roster, experiment)
        site = open_remote_context(experiment, roster)
        keeper = CheckpointStore(
            path / "checkpoint", site.algorithm, from_intact=None
        )  # clients keep no earlier states
        stack.callback(keeper.close)
        if resume is not None:
            keeper.load()  # what is wrong with it shows before anything is changed
            run_folder.check_resume(path, site)
        else:
            roster.save(path)
            run_folder.write_start(path, site)
        stack.enter_context(interruptible("serve", path))
        wait_until_ready(board, roster, terms.rule, terms.wait, speak)
        result = _run(site, board, terms.rule, keeper, path, roster, speak, on_round)
        roster.forget_secret(path)
        board.dismiss_all("the run is finished")
        return result


def _leave_nothing(path: Path) -> None:
    """A new folder in which no run has begun is not left behind."""
    if not (path / "experiment.toml").exists():
        shutil.rmtree(path, ignore_errors=True)


def open_remote_context(experiment: Experiment, roster: Roster) -> RemoteContext:
    """The organiser's site."""
    with one_thread():
        site = RemoteContext(experiment, *without_rows(experiment, roster.agreed, roster.counted), roster.secret)
        build_model_and_algorithm(site)
    roster.initial = sha256(site.initial)
    return site


def _run(
    site: RemoteContext,
    board: Coordinator,
    rule: ResponseRule,
    keeper: CheckpointStore,
    path: Path,
    roster: Roster,
    speak: Speak,
    on_round: Callable[[RoundRecord], bool | None] | None,
) -> Run:
    runtime = RemoteRuntime(site, board, rule)
    runtime.looks = FederatedEvaluator(runtime, keeper.client_state, roster.shares_models)
    loop = (
        AsyncServerLoop(site, runtime, keeper)
        if isinstance(site.algorithm, Asynchronous)
        else TrainingLoop(site, runtime, keeper)
    )
    records: list[RoundRecord] = []
    with loop.listening() if isinstance(loop, AsyncServerLoop) else contextlib.nullcontext():
        for record in loop.rounds():
            records.append(record)
            speak(round_line(record, loop.rule.nominal_rounds, [runtime.names[k] for k in runtime.looks.missing]))
            if on_round is not None and on_round(record):
                break
    return finish_run(loop, records, path)


def round_line(record: RoundRecord, rounds: int, untested: Sequence[str]) -> str:
    """A round in a line; `untested` are those whose rows the accuracy is without."""
    seen = "" if record.accuracy is None else f"  accuracy {record.accuracy:.4f}  loss {record.loss:.4f}"
    if seen and untested:
        seen += f" (without {', '.join(untested)})"
    answered = f"{record.answered} of {record.selected} answered"
    return f"round {record.round:>{len(str(rounds))}}/{rounds}{seen}  {answered}  {record.bytes_up / 1e6:.1f} MB up"
