"""Attacks on updates: attackers see the updates of an exchange that they know, then send others in place of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.attacks.base import Attack, SeenUpdates
from fedarena.config.seeds import stream
from fedarena.engine.context import ExperimentContext
from fedarena.engine.tasks import BatchResult, ClientReport, FailedTask
from fedarena.models.pytree import WeightedMean, is_finite, leaves, replace_leaves

Result = BatchResult | FailedTask


class UpdateAttack:
    """Replaces the updates of attackers once all clients of an exchange have answered.

    An update is all vectors of floats that a client sends, one after the other, as old minus new. Integers, single numbers
    and BatchNorm statistics stay as they are.
    """

    def __init__(self, context: ExperimentContext, attack: Attack) -> None:
        self.context, self.attack, self.attackers = context, attack, set(context.attackers)

    def replaced(
        self, clients: Sequence[int], results: Iterable[Result], message: Any, key: tuple[int, int]
    ) -> Iterator[Result]:
        """Yield the result of each client, those of attackers with other updates; `key` is the round and the exchange."""
        held = list(results)
        usable = [i for i, result in enumerate(held) if self._has_update(result)]
        ours = [i for i in usable if clients[i] in self.attackers]
        rows = {i: flat_update(held[i].mean.first, message) for i in usable}  # type: ignore[union-attr]
        if ours and rows[ours[0]].size:
            known = ours if self.attack.knows == "own" else usable
            seen = SeenUpdates(np.stack([rows[i] for i in ours]), np.stack([rows[i] for i in known]), len(usable))
            rng = stream(self.context.experiment.seed_for("attack"), "attack", *key)
            for i, update in zip(ours, self.attack.updates(seen, rng), strict=True):
                held[i] = self._with_update(held[i], update, message)
        yield from held

    def _has_update(self, result: Result) -> bool:
        return isinstance(result, BatchResult) and result.mean.first is not None

    def _with_update(self, result: Result, update: NDArray[np.float64], message: Any) -> Result:
        """Return the result with this update; one that is not finite is dropped as any other would be."""
        assert isinstance(result, BatchResult)
        (report,) = result.reports
        assert isinstance(report, ClientReport)
        sent = with_update(result.mean.first, update, message)
        mean, finite = WeightedMean(), is_finite(sent)
        if finite or self.context.experiment.on_nan == "keep":
            mean.add(sent, result.mean.weight)
        return dataclasses.replace(result, reports=[report._replace(finite=finite)], mean=mean)


def open_update_attack(context: ExperimentContext) -> UpdateAttack | None:
    """Return the attack on updates of an experiment; None where no client attacks, or only by its samples."""
    attack = context.attack
    return (
        UpdateAttack(context, attack) if attack is not None and attack.changes_updates and context.attackers else None
    )


def flat_update(sent: Any, message: Any) -> NDArray[np.float64]:
    """Return all vectors of floats of a reply as one; weights (`w`) count as the weights that were sent minus them."""
    parts = [as_update(vector, start) for vector, start in _vectors(sent, message)]
    return np.concatenate([np.empty(0), *parts])


def with_update(sent: Any, update: NDArray[np.float64], message: Any) -> Any:
    """Return a reply with its vectors taken from one update, in their own types."""
    vectors = list(_vectors(sent, message))
    cuts = np.cumsum([vector.size for vector, _ in vectors])[:-1]
    parts = zip(np.split(update, cuts), vectors, strict=True)
    with np.errstate(over="ignore"):  # beyond float32: dropped as not finite
        new = iter([as_update(part, start).reshape(old.shape).astype(old.dtype) for part, (old, start) in parts])
    values = [next(new) if _is_vector(leaf) else leaf for leaf in leaves(sent)]
    return replace_leaves(sent, iter(values))


def as_update(vector: NDArray[Any], start: NDArray[Any] | None) -> NDArray[np.float64]:
    """Return a vector as an update, or an update as the vector: start - vector for weights, else itself."""
    flat = vector.astype(np.float64).reshape(-1)
    return flat if start is None else start.astype(np.float64) - flat


def _is_vector(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f"


def _vectors(sent: Any, message: Any) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
    """Yield the vectors of floats of a reply, each with the weights that it starts from if it holds weights."""
    own, start = getattr(sent, "w", None), getattr(message, "w", None)
    for leaf in leaves(sent):
        if _is_vector(leaf):
            assert isinstance(leaf, np.ndarray)
            is_weights = leaf is own and start is not None and start.shape == leaf.shape
            yield leaf, start if is_weights else None
