"""The end of a run at the server: every client receives the final model."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedarena.algorithms.base import Model
from fedarena.config.experiment import Experiment
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.tasks import AbsentClient
from fedarena.federation import messages
from fedarena.federation.remote_runtime import RemoteRuntime, ticket_of
from fedarena.federation.wire_format import Payload, expect
from fedarena.models.task import sha256
from fedarena.results.json_files import write_text
from fedarena.results.run import Run
from fedarena.results.run_loading import load_run

LOGGER = logging.getLogger(__name__)
DELIVERED = "delivered.json"  # the clients of a run folder that have confirmed the final model


def send_final_model(
    runtime: RemoteRuntime, model: Broadcast, state: Callable[[int], ClientState | None], result: Run
) -> None:
    """Send the model to all clients that have not confirmed it yet, and name those that do not answer.

    The server waits for a client that is away as long as for an answer in a round, unless it was given up before. A client
    with a model of its own gets the ticket of that model.
    """
    assert result.dir is not None
    names, personal = runtime.names, runtime.context.has_personal_models
    rounds, digest = result.records[-1].round, sha256(model.message.w, model.buffers.values)
    done = _delivered(result.dir, rounds, digest)
    asked = {
        client: messages.FinalModelRequest(
            rounds=rounds, sha256=digest, memory=ticket_of(state(client)) if personal else None
        )
        for client, name in enumerate(names)
        if name not in done
    }
    rule = replace(runtime.rule, minimum=0, attempts=1)
    read = lambda client, message: expect(message, messages.FinalModelResponse)
    found = runtime.ask(asked, 0, Payload.of(model), read, "the final model", rule)
    done += [names[client] for client, answer in found.items() if not isinstance(answer, AbsentClient)]
    write_text(result.dir / DELIVERED, json.dumps({"rounds": rounds, "sha256": digest, "clients": sorted(done)}))
    for name in [name for name in names if name not in done]:
        LOGGER.info(
            f"'{name}' has not received the final model; it gets it when it joins again: fedarena serve --resume {result.dir}"
        )


def _delivered(folder: Path, rounds: int, digest: str) -> list[str]:
    """Return the clients that have confirmed this model, to an earlier process of the server."""
    try:
        known = json.loads((folder / DELIVERED).read_text(encoding="utf-8"))
        is_same = (known["rounds"], known["sha256"]) == (rounds, digest)
        return [str(name) for name in known["clients"]] if is_same else []
    except (OSError, ValueError, LookupError, TypeError):
        return []


def finished_run(folder: Path, experiment: Experiment) -> Run | None:
    """Return the run of a folder whose budget is spent; None where rounds are left to do."""
    if not (folder / "result.json").exists():
        return None
    run = load_run(folder)
    last, rounds = run.records[-1], experiment.algorithm.made.own_rounds or experiment.rounds
    spent, budget = (last.uploads, experiment.uploads) if rounds is None else (last.round, rounds)
    return run if spent >= (budget or 0) else None


def hand_out(runtime: RemoteRuntime, result: Run) -> None:
    """Send the model of a finished run to the clients that do not have it yet."""
    assert result.dir is not None
    context, folder = runtime.context, result.dir / "checkpoint"
    context.task.module.load_state_dict(result.state)
    model = Broadcast(Model(context.task.vector()), context.task.buffers())
    state = lambda client: CheckpointStore.read_client_state(folder, context.algorithm, client)
    send_final_model(runtime, model, state, result)
