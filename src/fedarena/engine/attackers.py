"""The attackers of a simulation: which clients attack, the samples that they train on, and where an attack is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedarena.algorithms.base import Algorithm, Asynchronous
from fedarena.config.errors import BadValue
from fedarena.config.seeds import stream
from fedarena.config.settings_tables import Uplink
from fedarena.data.dataset import Dataset
from fedarena.data.exclusion import client_names
from fedarena.engine.context import ExperimentContext

MOST_NAMED = 20  # attackers that a note names; clients.parquet has all


def check_attack(context: ExperimentContext) -> None:
    """Refuse an attack on an algorithm without rounds or without clients that send, or on data that it does not fit."""
    exp, attack = context.experiment, context.attack
    if attack is None or exp.attack is None:
        return
    algorithm, name = context.algorithm, exp.attack.name
    reason, remedy, where = (
        "",
        "choose an algorithm with rounds, such as fedavg or median, or leave out attack",
        "attack",
    )
    if isinstance(algorithm, Asynchronous):
        reason = f"{exp.algorithm.name} merges updates as they arrive, and attackers act in rounds"
    elif not can_be_attacked(algorithm):
        reason = f"{exp.algorithm.name} has no clients that send updates, so that none can attack"
    elif attack.needs_classes and not context.data.has_classes:
        reason, remedy = f"{name} changes classes, and these samples have none", "choose an attack on updates"
    elif attack.changes_updates and isinstance(exp.uplink, Uplink):
        reason = f"{name} replaces what attackers send, and the steps of uplink change it on its way"
        remedy, where = 'set uplink = "plain" or "mean_only", or use label_flip, which changes samples alone', "uplink"
    if reason:
        raise BadValue(reason, remedy=remedy, where=where)
    attack.check(context.data)
    _ = context.attackers


def can_be_attacked(algorithm: Algorithm) -> bool:
    """Return whether clients send updates; baselines in which none does run without an attack beside the others."""
    return algorithm.communicates and not algorithm.pooled


def poisoned(context: ExperimentContext) -> Dataset:
    """Return the data with the training samples of attackers as these change them; all other samples stay as they are."""
    data, attack = context.data, context.attack
    if attack is None or not context.attackers:
        return data
    x, y = data.x, data.y
    for client in context.attackers:
        rows = context.owners.clients[client]
        rng = stream(context.experiment.seed_for("attack"), "attack", client)
        own_x, own_y = attack.samples(data.x[rows], data.y[rows], data, rng)
        if not np.array_equal(own_x, data.x[rows]):
            x = x.copy() if x is data.x else x
            x[rows] = own_x
        if not np.array_equal(own_y, data.y[rows]):
            y = y.copy() if y is data.y else y
            y[rows] = own_y
    if x is data.x and y is data.y:
        return data
    return replace(data, x=x, y=y, clean_sha256=data.fingerprint())


def attack_notes(context: ExperimentContext) -> list[str]:
    """Return which clients attacked a run, for its notes."""
    if context.experiment.attack is None:
        return []
    names = client_names(context.owners)
    listed = ", ".join(names[k] for k in context.attackers[:MOST_NAMED])
    more = ", ..." if len(context.attackers) > MOST_NAMED else ""
    count = f"{len(context.attackers)} of {len(context.owners.population)} clients attack"
    return [f"{count} ({context.experiment.attack.name})" + (f": {listed}{more}" if listed else "")]
