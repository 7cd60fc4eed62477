"""Limits on the requests that a client answers: every request is counted in a file that outlives the process.

The same request gets the same answer, with the same noise, and reveals nothing more. Another request under the same round
is another question about the same samples: a few are answered, because a server that was restarted may have lost answers
of others; none is answered where noise or masks protect the update, because two sums under one draw of noise give the
difference without it.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from pathlib import Path

from fedarena.federation import messages
from fedarena.federation.client_context import ClientContext, round_budget
from fedarena.federation.evaluation_sums import followed_from
from fedarena.federation.redaction import ShareableError
from fedarena.federation.release_log import append_line, read_lines
from fedarena.federation.wire_format import payload_parts

FILE = "requests.jsonl"
REPEATS = 3  # other requests that are answered for a round, or beyond the agreed evaluations


class RequestLimits:
    """The requests of one run that were answered."""

    def __init__(self, folder: Path, context: ClientContext, shares_models: bool) -> None:
        self._path, self._context, self._shares_models = folder / FILE, context, shares_models
        self._seen: dict[str, Counter[str]] = {}
        for key, digest in read_lines(self._path):
            self._seen.setdefault(str(key), Counter())[str(digest)] += 1

    def check(self, asked: messages.MessageBody, round: int, content: bytes) -> None:
        """Count a request; refuse one that asks for more than the agreed experiment needs."""
        key, most = self._place(asked, round)
        if not key:
            return
        digest, seen = request_digest(asked, content), self._seen.setdefault(key, Counter())
        if digest not in seen and len(seen) >= most:
            raise ShareableError(
                f"asked {most + 1} different questions as '{key}', and the agreed experiment needs {most} at most",
                remedy="the server must send the request that it sent before",
            )
        seen[digest] += 1
        append_line(self._path, [key, digest])

    def _place(self, asked: messages.MessageBody, round: int) -> tuple[str, int]:
        """Return what a request counts as, and how many different ones are answered."""
        if isinstance(asked, messages.RoundRequest):
            if self._context.algorithm.in_turn:  # one exchange of a round is with this client
                return f"round {round + 1}", 1 + REPEATS
            most = self._context.algorithm.most_exchanges
            if asked.exchange >= most:
                raise ShareableError(
                    f"asked for exchange {asked.exchange + 1} of a round", remedy=f"at most {most} are answered"
                )
            return f"round {round + 1}, exchange {asked.exchange + 1}", 1 if self._is_protected else 1 + REPEATS
        if isinstance(asked, messages.BatchNormRequest):
            return f"round {round + 1}, statistics", 1 + REPEATS
        if isinstance(asked, messages.LossRequest):
            return f"round {round + 1}, loss", 1 + REPEATS
        if isinstance(asked, messages.AsyncTrainRequest):
            most = self._rounds * self._context.agreed.clients + REPEATS
            if self._is_private:  # one draw of noise for each number
                return f"training {min(asked.number, most) + 1}", 1
            return "training", most
        if isinstance(asked, messages.EvaluateRequest):
            return "evaluation", self._evaluations + REPEATS
        if isinstance(asked, messages.EvaluationSumsRequest):
            what = "histograms" if asked.histograms else "sums"
            is_followed = followed_from(self._context.metric.name) == what  # else it is asked for at the end alone
            times = self._evaluations if is_followed else 1
            return f"evaluation {what}", times + REPEATS
        if isinstance(asked, messages.OwnMetricsRequest):
            return "metrics of this client", 1 + REPEATS
        return "", 0

    @property
    def _is_protected(self) -> bool:
        steps = self._context.steps
        is_masked = steps is not None and bool(steps.settings.secure or steps.settings.noise)
        return is_masked or self._is_private

    @property
    def _is_private(self) -> bool:
        return self._context.experiment.local.privacy is not None

    @property
    def _rounds(self) -> int:
        """Return how many rounds the experiment may take: each has an upload at least."""
        return round_budget(self._context.experiment) or 1

    @property
    def _evaluations(self) -> int:
        """Return how many models are evaluated: one at each evaluation, and one more where the server stops early.

        Where clients have models of their own beside a shared one, both are evaluated.
        """
        context = self._context
        times = math.ceil(self._rounds / context.experiment.evaluate.every) + 1
        if context.has_personal_models and context.common_score == "shared":
            return 2 * times
        return times * (1 + context.agreed.clients if self._shares_models else 1)


def request_digest(asked: messages.MessageBody, content: bytes) -> str:
    """Hash what the answer to a request depends on: not the keys and shares of masks, which are drawn again every time."""
    digest = hashlib.sha256(asked.model_dump_json(exclude={"shares", "keys", "keep_from"}).encode())
    for part in payload_parts(content):
        digest.update(part)
    return digest.hexdigest()
