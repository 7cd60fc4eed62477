"""The costs of a run: bytes, uploads, steps and samples so far, and the simulated seconds of a client's part."""

from __future__ import annotations

from collections.abc import Sequence

from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.tasks import NUMBER, ClientReport, bytes_up
from fedarena.engine.training_loss import FORWARD_SHARE
from fedarena.models.pytree import nbytes
from fedarena.privacy.secure_aggregation import MaskedExchange

TOTALS = ("uploads", "bytes_up", "bytes_down", "steps", "samples", "outdated", "overactive")


class RunCosts:
    """Counts what a run costs. Algorithms that do not communicate pay for steps and samples alone."""

    def __init__(self, context: ExperimentContext) -> None:
        self.context, self.fleet = context, context.fleet
        self.communicates = context.algorithm.communicates
        self.totals: dict[str, int] = dict.fromkeys(TOTALS, 0)
        self._model_bytes = context.upload_bytes

    def count_broadcast(self, clients: int, common: Broadcast, exchange: MaskedExchange | None = None) -> int:
        """Count the bytes sent to the clients (message, buffers where they travel, keys) and return those to each."""
        if not self.communicates:
            return 0
        travel = self.context.buffer_policy in ("average", "recompute")
        sent = nbytes(common.message) + (nbytes(common.buffers) if travel else 0)
        if self.context.steps is not None and exchange is not None:
            sent += self.context.steps.bytes_down(exchange)
        self.totals["bytes_down"] += clients * sent
        return sent

    def count_response(self, report: ClientReport) -> int:
        """Count the bytes, uploads, steps and samples of one response and return its bytes."""
        totals = self.totals
        totals["steps"] += report.steps
        totals["samples"] += report.samples
        if not self.communicates:
            return 0
        sent = bytes_up(report, self.context)
        totals["bytes_up"] += sent
        totals["uploads"] += max(round(report.sent / max(self._model_bytes, 1)), 1)
        return sent

    def count_measurement(self, asked: int, answered: Sequence[int], common: Broadcast) -> float:
        """Count the bytes of a model sent to clients and of one number from each; return the seconds of the slowest."""
        down = self.count_broadcast(asked, common)
        self.totals["bytes_up"] += NUMBER * len(answered)
        seconds = [self.fleet.usual_seconds(k, FORWARD_SHARE * float(self.context.sizes[k])) for k in answered]
        slowest = [self.fleet.exchange_seconds(k, down, s, NUMBER) for k, s in zip(answered, seconds, strict=True)]
        return max(slowest, default=0.0)

    def simulated_seconds(self, report: ClientReport, down: int, up: int) -> float:
        """Return the simulated seconds in which a client fetches, trains and sends."""
        if not self.communicates:
            return report.device_seconds
        return self.fleet.exchange_seconds(report.client, down, report.device_seconds, up)
