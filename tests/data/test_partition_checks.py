"""Every registered partition keeps the contract, and the contract catches those that do not."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedarena.config.errors import ContractBroken
from fedarena.config.registry import components
from fedarena.data.partitions.checks import check_partition
from fedarena.data.partitions.iid import Iid


@pytest.mark.parametrize("name", sorted(components("partition")))
def test_every_partition_keeps_the_contract(name):
    statements = check_partition(components("partition")[name].build({}))
    assert "no row is assigned twice" in statements
    assert len(statements) == 8


@dataclass(frozen=True)
class Broken:
    """An iid partition with something done to it."""

    how: str

    def split(self, data, clients, rng):
        if self.how == "generous":
            clients = min(clients, data.n_train)
        if self.how == "unseeded":
            rng = np.random.default_rng()
        if self.how == "deaf":
            rng = np.random.default_rng(7)
        good = Iid().split(data, clients, rng)
        first, second, *rest = good.clients
        if self.how == "vandal":
            data.y[0] += 1
        return {
            "twice": lambda: replace(good, clients=[first, np.append(second, first[0]), *rest]),
            "lost": lambda: replace(good, clients=[first[1:], second, *rest]),
            "ghost": lambda: replace(good, clients=[np.append(first, len(data.x)), second, *rest]),
            "empty": lambda: replace(good, clients=[first[:0], second, *rest], unused=len(first)),
            "peeking": lambda: replace(good, test=np.append(good.test, first[0])[1:]),
            "small": lambda: replace(good, clients=[first.astype(np.int32), second, *rest]),
            "fewer": lambda: replace(good, clients=[second, *rest], unused=len(first)),
            "noisy": lambda: replace(good, noise=np.array([-1.0])),
            "tested": lambda: replace(good, client_tests=[good.test]),
        }.get(self.how, lambda: good)()


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("twice", "assigned 2 times"),
        ("lost", "1 training rows have no client"),
        ("unseeded", "the same seed gave another split"),
        ("deaf", "another seed gave the same split"),
        ("ghost", "do not exist"),
        ("empty", "has no rows"),
        ("peeking", "for training and for testing"),
        ("small", "int64"),
        ("fewer", "returned 9 clients instead of 10"),
        ("noisy", "standard deviation"),
        ("tested", "one entry per client"),
        ("vandal", "changed the data"),
        ("generous", "not refused"),
    ],
)
def test_the_contract_catches_a_broken_partition(how, problem):
    with pytest.raises(ContractBroken, match=problem):
        check_partition(Broken(how))
