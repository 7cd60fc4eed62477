"""Only means go up: what needs each update by itself says so, and is refused where the uplink hides it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import on_blobs, weights

from fedarena.algorithms import FedAvg, Reply
from fedarena.algorithms.base import collected
from fedarena.config.errors import BadValue
from fedarena.config.registry import components

NEED_EACH = {
    "median",
    "fedproto",
    "ifca",
    "trimmed_mean",
    "krum",
    "multikrum",
    "bulyan",
    "geometric_median",
    "norm_bound",
    "centered_clip",
    "fedfa",
    "afl",
    "loadaboost",
    "coop",
    "cyclic",
    "fedasync",
    "treebag",
    "treecyclic",
}


@pytest.mark.parametrize(
    "name", [n for n, e in components("algorithm").items() if e.make.__module__.startswith("fedarena")]
)
def test_algorithms_that_need_each_update_are_refused_by_name(name: str) -> None:
    """Those that are not refused run, and give what they give without it: they never looked at a single update."""
    if name in NEED_EACH:
        with pytest.raises(BadValue, match=f"{name} must see each update by itself"):
            on_blobs(name, uplink="mean_only")
    else:
        assert np.array_equal(weights(on_blobs(name, uplink="mean_only")), weights(on_blobs(name)))


def test_a_companion_needs_what_the_one_inside_needs() -> None:
    with pytest.raises(BadValue, match="must see each update"):
        on_blobs({"name": "median", "with": ["fedir"]}, uplink="mean_only")


@dataclass(frozen=True)
class Peeking:
    step: Any = collected()


class Sly(FedAvg):
    """Says nothing of what it collects."""

    def client(self, got: Any, kept: Any, work: Any) -> Reply:
        return Reply(Peeking(super().client(got, kept, work).send.delta))


def test_what_an_algorithm_does_not_declare_is_noticed() -> None:
    with pytest.raises(BadValue, match="collects what each client sends"):
        on_blobs(Sly(), uplink="mean_only")
