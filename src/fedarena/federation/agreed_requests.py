"""Which requests the agreed experiment has: a client refuses all others, before anything is computed."""

from __future__ import annotations

from fedarena.algorithms.base import Algorithm, Asynchronous
from fedarena.federation import messages
from fedarena.federation.client_context import ClientContext, TreeClientContext, round_budget
from fedarena.federation.evaluation_sums import OWN, why_no_sums
from fedarena.federation.redaction import ShareableError
from fedarena.federation.statistics_release import MASKED_FROM
from fedarena.privacy.uplink import UplinkSteps


class AgreedRequests:
    """The requests that a client answers; sums over fewer than `least` rows are sent only if the server cannot read them."""

    def __init__(self, context: ClientContext, least: int) -> None:
        self.context, self.least = context, least
        self.client = context.agreed.client

    def check(self, request: messages.MessageBody, round: int) -> None:
        """Refuse what the agreed experiment does not ask for."""
        context = self.context
        budget = round_budget(context.experiment)
        # Without rounds, a client that finishes as the run ends starts once more before the server knows that it has ended.
        in_round = isinstance(request, messages.RoundRequest | messages.BatchNormRequest | messages.LossRequest)
        last = -1 if in_round else 0
        if round < 0 or (budget is not None and round > budget + last):
            raise ShareableError(f"asked for round {round + 1} of {budget}", remedy="the agreed experiment has ended")
        if isinstance(request, messages.AsyncTrainRequest | messages.SendResultRequest) and not isinstance(
            context.algorithm, Asynchronous
        ):
            raise ShareableError(f"{context.experiment.algorithm.name} has rounds, and was asked to train without them")
        if isinstance(request, messages.BatchNormRequest) and context.buffer_policy != "recompute":
            raise ShareableError("recomputing BatchNorm statistics was not agreed on")
        rule = context.selection_rule
        if isinstance(request, messages.LossRequest) and (rule is None or not rule.asks_losses):
            raise ShareableError("measuring the loss of a model to select clients was not agreed on")
        if isinstance(request, messages.RoundRequest):
            self._check_rows()
        if isinstance(request, messages.RoundRequest) and context.steps is not None:
            self._check_turn(request, context.steps)
        if isinstance(request, messages.EvaluationSumsRequest):
            self._check_sums(request)
        if isinstance(request, messages.OwnMetricsRequest):
            self._check_own_metrics()

    def _check_rows(self) -> None:
        """Refuse to grow trees on few training rows where the server could read what they add up to."""
        context, rows = self.context, int(self.context.sizes[self.client])
        is_masked = context.steps is not None and context.steps.settings.secure
        if (
            context.algorithm.communicates
            and isinstance(context, TreeClientContext)
            and not is_masked
            and rows < self.least
        ):
            raise ShareableError(
                f"sums over {rows} training rows that the server can read would reveal too much of each",
                remedy=f"have {self.least} rows or more, lower --least, or ask the server to set uplink.secure",
                where="--least",
            )

    def _check_sums(self, request: messages.EvaluationSumsRequest) -> None:
        """Refuse sums that the agreement does not have, and those of few samples that the server could read."""
        context, agreed = self.context, self.context.experiment.evaluate.histograms or 0
        if request.histograms not in (0, agreed):
            has = f"{agreed} bins" if agreed else "none"
            raise ShareableError(
                f"asked for score histograms of {request.histograms} bins, and the agreed experiment has {has}",
                remedy="the server must agree on evaluate.histograms with all clients",
                where="evaluate.histograms",
            )
        if why := why_no_sums(context):
            raise ShareableError(f"no evaluation sums: {why}")
        count = len(context.owners.client_tests[self.client])
        if context.agreed.clients < MASKED_FROM and count < self.least:
            raise ShareableError(
                f"sums over {count} test rows that the server can read would reveal too much of each",
                remedy=f"have {self.least} test rows or more, or lower --least",
                where="--least",
            )

    def _check_own_metrics(self) -> None:
        """Refuse values of this client alone where the agreement takes them from histograms, or there are none."""
        if self.context.experiment.evaluate.histograms is not None:
            raise ShareableError("the agreed experiment takes AUC and average precision from histograms")
        if self.context.task_name not in OWN:
            raise ShareableError(f"the task '{self.context.task_name}' has no metrics that clients send of their own")

    def _check_turn(self, request: messages.RoundRequest, steps: UplinkSteps) -> None:
        """Refuse a request whose list of clients does not fit the steps of the uplink."""
        turn = request.turn
        if turn is None or (steps.settings.secure and request.shares is None):
            raise ShareableError("an answer would go up without the steps of the experiment's uplink")
        clients = {*turn.asked}
        if len(clients) < len(turn.asked) or self.client not in clients or max(clients) >= self.context.agreed.clients:
            raise ShareableError("a list of clients that cannot be the selected ones")
        uses_both = steps.settings.secure and steps.settings.noise
        if uses_both and turn.number != request.exchange:  # noise is drawn by this number
            raise ShareableError("one draw of noise would hide two answers")


def check_method(algorithm: Algorithm, do: str) -> None:
    """Refuse a method that is not `client` or a public method which the algorithm adds to the contract."""
    own = do.isidentifier() and not do.startswith("_") and not hasattr(Algorithm, do)
    inside = algorithm
    while getattr(inside, "base", None) is not None:
        inside = inside.base  # type: ignore[attr-defined]
    if do != "client" and not (own and callable(getattr(type(inside), do, None))):
        raise ShareableError(f"{type(algorithm).__name__} has no method '{do[:40]}' for clients")
