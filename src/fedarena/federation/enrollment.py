"""Enrollment of clients: they join, describe their tables, agree, and build the same model."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial

from fedarena.config.experiment import Experiment
from fedarena.federation import messages
from fedarena.federation.agreement import check_counted, first_agreement, with_counts, with_statistics
from fedarena.federation.client_data import statistics_layout, task_of_table
from fedarena.federation.coordinator import Coordinator
from fedarena.federation.masked_totals import masked_total
from fedarena.federation.requests import ResponseRule, TooFewAnswers
from fedarena.federation.roster import Roster
from fedarena.federation.statistics_release import Totals
from fedarena.federation.wire_format import Message, expect

LOGGER = logging.getLogger(__name__)

STATISTICS_DEADLINE = 300.0  # seconds for sums over a table


def wait_for_clients(coordinator: Coordinator, roster: Roster, seconds: float) -> None:
    """Wait until the wanted number of clients has joined with tables that can be combined."""
    until = time.monotonic() + seconds
    LOGGER.info(f"waiting for {roster.wanted} clients")
    while True:
        here = [name for name in coordinator.clients_at("known", "ready") if name in roster.described]
        if len(here) >= roster.wanted:
            return
        for name in [name for name in roster.described if name not in here]:
            del roster.described[name]  # it has disconnected: another client may take its place
        if time.monotonic() > until:
            response = ", ".join(f"'{name}'" for name in here) or "none"
            raise TooFewAnswers(
                f"{len(here)} of {roster.wanted} clients came within {seconds:g} s: {response}",
                remedy="start the others with `fedarena join`, and wait longer with --wait",
            )
        coordinator.turn(1.0)


def agree_with_clients(coordinator: Coordinator, roster: Roster, experiment: Experiment) -> None:
    """Agree with all clients on columns, classes and places; then on statistics, where the experiment needs any."""
    source = experiment.data.made
    known = {"classification": None, "multilabel": source.label_names}.get(task_of_table(source), ())
    agreed = first_agreement(roster.described, roster.shares_models, known)

    def counts(name: str, message: Message) -> messages.SampleCounts:
        response = expect(message, messages.SampleCounts)
        check_counted(response, roster.described[name])
        return response

    asked = {name: messages.AgreementRequest(agreement=one, tell="counts") for name, one in agreed.items()}
    rule = ResponseRule(STATISTICS_DEADLINE, minimum=0)
    ask = partial(coordinator.ask, rule=rule, what="agreeing", stages=("known", "ready"))
    counted, missing = ask(asked, counts)
    _require_all(missing)
    agreed = with_counts(agreed, counted, experiment)
    layout = statistics_layout(experiment, next(iter(agreed.values())))
    if layout.size:
        numbers = {name: one.client for name, one in agreed.items()}
        request = lambda name, keys: messages.StatisticsRequest(agreement=agreed[name], keys=keys)
        total, missing = masked_total(ask, numbers, request, messages.StatisticsResponse, layout.size)
        _require_all(missing)
        agreed = with_statistics(agreed, counted, Totals.of(total, layout), experiment.validate_share)
    roster.counted, roster.agreed = counted, agreed


def _require_all(missing: Mapping[str, str]) -> None:
    """Stop where a client is missing: without it the others would train on other means."""
    if missing:
        why = "; ".join(f"'{name}': {reason}" for name, reason in missing.items())
        raise TooFewAnswers(f"agreeing: {why}", remedy="fix it, and start the server again")


def wait_until_ready(coordinator: Coordinator, roster: Roster, rule: ResponseRule, seconds: float) -> None:
    """Wait until all clients are ready; after `seconds`, continue with as many as a round needs."""
    until = time.monotonic() + seconds
    coordinator.send_agreement_to_all()
    while True:
        ready = [name for name in coordinator.clients_at("ready") if name in roster.agreed]
        missing = [name for name in roster.names if name not in ready]
        if not missing:
            break
        if time.monotonic() > until:
            response = ", ".join(f"'{name}'" for name in missing)
            if len(ready) < rule.needed(len(roster.agreed)):
                raise TooFewAnswers(
                    f"{len(ready)} of {len(roster.agreed)} clients are ready after {seconds:g} s; missing: {response}",
                    remedy="start them with `fedarena join`, then continue with --resume; no round is lost",
                )
            for name in missing:
                coordinator.give_up(name)
            LOGGER.info(f"continuing without {response}")
            break
        coordinator.turn(1.0)
    LOGGER.info(f"{len(ready)} of {len(roster.agreed)} clients are ready: {', '.join(ready)}")
