"""The end of a run at the server: every client receives the final model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.tasks import AbsentClient
from fedarena.federation import messages
from fedarena.federation.remote_runtime import RemoteRuntime, ticket_of
from fedarena.federation.wire_format import Payload, expect
from fedarena.models.task import sha256
from fedarena.results.run import Run

LOGGER = logging.getLogger(__name__)


def send_final_model(
    runtime: RemoteRuntime, model: Broadcast, state: Callable[[int], ClientState | None], result: Run
) -> list[str]:
    """Send the model to all clients and return the names of those that have not confirmed it.

    The server waits for a client that is away as long as for an answer in a round, unless it was given up before. A client
    with a model of its own gets the ticket of that model.
    """
    names, personal = runtime.names, runtime.context.has_personal_models
    digest = sha256(model.message.w, model.buffers.values)
    asked = {
        client: messages.FinalModelRequest(
            rounds=result.records[-1].round, sha256=digest, memory=ticket_of(state(client)) if personal else None
        )
        for client in range(len(names))
    }
    rule = replace(runtime.rule, minimum=0, attempts=1)
    read = lambda client, message: expect(message, messages.FinalModelResponse)
    found = runtime.ask(asked, 0, Payload.of(model), read, "the final model", rule)
    missing = [names[client] for client, answer in found.items() if isinstance(answer, AbsentClient)]
    for name in missing:
        LOGGER.info(
            f"'{name}' has not received the final model; it gets it when it joins again: fedarena serve --resume {result.dir}"
        )
    return missing
