"""The state of a client in a run that it has joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedarena.config.experiment import Experiment
from fedarena.federation import messages
from fedarena.federation.client_data import AgreedSamples, ClientTable
from fedarena.federation.client_model import ModelFolder
from fedarena.federation.redaction import ShareableError
from fedarena.federation.statistics_release import MASKED_FROM, STALE_KEY, StatisticsMask, encoded
from fedarena.federation.wire_format import Payload

if TYPE_CHECKING:
    from fedarena.federation.client_worker import ClientWorker


@dataclass
class JoinedRun:
    """The state of a run that this client has joined."""

    run: str
    invitation: messages.Invitation
    experiment: Experiment
    table: ClientTable
    model: ModelFolder  # for the final model
    position: str = ""  # that was agreed
    mask: StatisticsMask | None = None  # the key of the release of statistics under way
    samples: AgreedSamples | None = None
    worker: ClientWorker | None = None  # once the model is built

    def masked(self, integers: Sequence[int], client: int, keys: Mapping[int, str]) -> Payload:
        """Mask integers with the keys of all clients, unless fewer than three take part."""
        clients = self.invitation.clients
        if clients < MASKED_FROM:
            return Payload.of(encoded(integers))
        if {*keys} != {*range(clients)} or self.mask is None:
            raise ShareableError(STALE_KEY, remedy="the server must ask for keys again")
        return Payload.of(self.mask.masked(integers, client, keys))
