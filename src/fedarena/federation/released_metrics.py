"""Metrics of a federation beyond accuracy and loss: from totals over all clients, or of each client by itself.

Totals are asked for at the end, and at every evaluation where the followed metric needs them. They need every client: a total
over some of the clients and a total over all of them would give those of the others by their difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedarena.engine.client import Broadcast
from fedarena.engine.evaluation import EvaluationResult
from fedarena.engine.task_metrics import stacked
from fedarena.engine.tasks import AbsentClient
from fedarena.federation import messages
from fedarena.federation.evaluation_sums import COUNTED, OWN, Sums, layout_of, read_sums, why_no_sums
from fedarena.federation.masked_totals import masked_total
from fedarena.federation.metric_sums import BY_CLASS, BY_ORDER, BY_SUM
from fedarena.federation.regression_sums import BY_ERROR
from fedarena.federation.remote_runtime import RemoteRuntime
from fedarena.federation.wire_format import Message, Payload, WireRefused, expect
from fedarena.statistics.metric_registry import DISCRETE, Metric, metrics_of


class ReleasedMetrics:
    """Asks clients for sums and for their own metrics, and adds the values to what an evaluation found."""

    def __init__(self, runtime: RemoteRuntime) -> None:
        self.runtime, self.context = runtime, runtime.context
        self._bins = self.context.experiment.evaluate.histograms or 0
        self._summed = not why_no_sums(self.context)
        known = {*COUNTED, "log_loss"}
        known |= {*BY_CLASS, *BY_SUM, *BY_ERROR} if self._summed else set()
        known |= {*BY_ORDER} if self._summed and self._bins else set()
        self.metrics = [one for name, one in metrics_of(self.context.task_name).items() if name in known]

    def with_sums(self, found: EvaluationResult, common: Broadcast, metrics: Sequence[Metric]) -> EvaluationResult:
        """Add the metrics that are asked for; those that need the sums of a missing client are left out, with a note."""
        names = [metric.name for metric in metrics]
        counted = {"accuracy": found.accuracy, "loss": found.loss, "log_loss": found.loss}
        values = {name: np.nan if value is None else float(value) for name, value in counted.items()}
        if not {*names} <= {*values}:
            total, problem = self._total(common, found, self._bins if {*names} & {*BY_ORDER} else 0)
            if total is None:
                found = replace(found, notes=(f"metrics of sums over all clients are missing: {problem}",))
            else:
                values |= total.values()
                bounds = {name: (one.low, one.high) for name, one in total.intervals().items()}
                found = replace(found, confusion=total.matrix, calibration=total.calibration, bounds=bounds)
        return replace(found, values={name: values[name] for name in names if name in values})

    def with_own(
        self, found: EvaluationResult, common: Broadcast, tickets: Mapping[int, str | None]
    ) -> EvaluationResult:
        """Add the accuracy of every client and, where no histograms were agreed on, what sums do not give (`OWN`)."""
        task = self.context.task_name
        if task not in OWN:
            return found
        values: dict[str, Any] = {"accuracy": found.own} if task in DISCRETE else {}
        if not self._bins:
            asked = {k: messages.OwnMetricsRequest(memory=ticket) for k, ticket in tickets.items()}
            rule = replace(self.runtime.rule, minimum=0)
            response = self.runtime.ask(asked, 0, Payload.of(common), self._own, "metrics of clients", rule)
            each = (response.get(k, {}) for k in range(len(self.context.owners.clients)))
            values |= stacked(({} if isinstance(one, AbsentClient) else one for one in each), OWN[task])
        return replace(found, client_values=values)

    def _total(self, common: Broadcast, found: EvaluationResult, bins: int) -> tuple[Sums | None, str]:
        """Return the total over all clients, or say why there is none."""
        names = self.runtime.names
        if found.missing:
            return None, f"'{names[found.missing[0]]}' gave no answer"
        rule, layout = replace(self.runtime.rule, minimum=0), layout_of(self.context, bins)
        integers, missing = masked_total(
            partial(self.runtime.coordinator.ask, rule=rule, what="metrics"),
            {name: k for k, name in enumerate(names)},
            lambda name, keys: messages.EvaluationSumsRequest(keys=keys, histograms=bins),
            messages.EvaluationSums,
            layout.size,
            Payload.of(common),
        )
        for name, why in missing.items():
            return None, f"'{name}': {why}"
        try:
            total = read_sums(integers, layout)
            problem = total.implausible(int(self.context.owners.test_sizes.sum()))
        except ValueError as error:
            problem = str(error)
        return (None, f"they cannot be right: {problem}") if problem else (total, "")

    def _own(self, client: int, message: Message) -> dict[str, float]:
        """Read the metrics of one client."""
        response = expect(message, messages.OwnMetrics)
        if {*response.values} != {*OWN[self.context.task_name]}:
            raise WireRefused(f"'{response.what}' where metrics of a client belong")
        return {name: np.nan if value is None else value for name, value in response.values.items()}
