"""Partitions by Dirichlet samples: of classes within a client (family A), of clients within a class (B), and of sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from fedarena.config.registry import register
from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.data.partitions.assignment import (
    assign_in_turns,
    class_rows,
    count_with_several,
    finished,
    group_by_client,
    impossible,
    need_rows,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CERTAIN = 1e6  # alpha from which the Dirichlet sample is replaced by its mean
BLOCK = 16_384  # draws at a time: large enough for numpy, small enough that drawing the rest again costs little


@register("partition", "client_dirichlet", paper="Hsu et al. 2019, arXiv 1909.06335")
@dataclass(frozen=True)
class ClientDirichlet:
    """Family A: every client has its own class distribution q_k ~ Dirichlet, and all have the same number of rows.

    Convention `hsu`: concentration alpha p(y), sum alpha. `symmetric`: alpha for each of J classes, sum J alpha.
    Rows are drawn one by one: client after client in random order or, `interleaved`, one for each client in turn, so
    that not only the last clients get the remaining classes. At alpha = 0 it is client after client: each has one class,
    and others where that is exhausted. With alpha0 = `exact` each has one class, and the sizes differ.
    """

    alpha: Annotated[float, Ge(0)] = 0.5
    alpha_convention: Literal["hsu", "symmetric"] = "hsu"
    order: Literal["interleaved", "client"] = "interleaved"
    # alpha = 0: any class, all equally often, or exactly one with its rows divided among the clients that have it
    alpha0: Literal["random", "balanced", "exact"] = "random"

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        need_rows(data.n_train, clients)
        pools = list(class_rows(data, rng).values())
        stock = np.array([len(pool) for pool in pools])
        if self.alpha == 0 and self.alpha0 == "exact":
            return self._one_class_each(data, pools, clients, rng)
        q = self.mixtures(stock / data.n_train, clients, rng)
        turns = np.arange(data.n_train) % clients
        # At alpha = 0, turns would exhaust a class for all its clients at once, and most clients would get a second one.
        if self.order == "client" or self.alpha == 0:
            turns = rng.permutation(clients)[np.sort(turns)]
        drawn = _classes_in_turn(q, stock, turns, rng)
        rows = np.empty(data.n_train, dtype=np.int64)
        rows[np.argsort(drawn, kind="stable")] = np.concatenate(pools)
        law = "alpha p(y), sum alpha" if self.alpha_convention == "hsu" else "alpha per class"
        note = f"alpha = {self.alpha:g} in convention '{self.alpha_convention}' (concentration {law}); equal sizes"
        parts = group_by_client(rows, turns, clients)
        notes: tuple[str, ...] = (note,)
        several = count_with_several(data.strata, parts, 1) if self.alpha == 0 else 0
        if several:
            found = f"{several} of {clients} clients hold several classes, because their own was exhausted"
            notes = (note, f'{found}; alpha0 = "exact" gives every client one')
        return finished(data, parts, notes=notes)

    def _one_class_each(self, data: Dataset, pools: list[Rows], clients: int, rng: np.random.Generator) -> Partition:
        """Give each class to a number of clients in proportion to its rows, and each of them an equal part of these."""
        quota = np.array([len(pool) for pool in pools]) / data.n_train * clients
        holders = np.floor(quota).astype(np.int64)
        holders[np.argsort(holders - quota, kind="stable")[: clients - holders.sum()]] += 1
        while clients >= len(pools) and (holders == 0).any():  # every class has a client if there are enough
            holders[np.argmax(np.where(holders > 1, holders - quota, -np.inf))] -= 1
            holders[np.argmin(holders)] += 1
        order = np.split(rng.permutation(clients), np.cumsum(holders)[:-1])
        parts = assign_in_turns(pools, [np.sort(own) for own in order], clients)
        return finished(data, parts, notes=("alpha = 0: exactly one class for each client; unequal sizes",))

    def mixtures(self, p: Floats, clients: int, rng: np.random.Generator) -> Floats:
        """Return q_k, the class probabilities of each client, clients x classes."""
        classes = len(p)
        mean, total = (p, 1) if self.alpha_convention == "hsu" else (np.full(classes, 1 / classes), classes)
        if self.alpha >= CERTAIN:
            return np.broadcast_to(mean, (clients, classes))
        if self.alpha > 0:
            return rng.dirichlet(self.alpha * total * mean, clients)
        if self.alpha0 == "balanced":
            only = rng.permutation(rng.permutation(classes)[np.arange(clients) % classes])
        else:
            only = rng.choice(classes, clients, p=mean)
        one_hot: Floats = np.eye(classes)[only]
        return one_hot


def _classes_in_turn(q: Floats, stock: Ints, turns: Ints, rng: np.random.Generator) -> Ints:
    """Return the class of every draw, in order: client turns[i] draws from its q among the classes that have rows left.

    Until a class is exhausted the draws are independent, so they are made in blocks; a block is cut at the draw that
    exhausts a class, and the rest is drawn again. That happens once per class, and does not change the distribution.
    """
    q, stock = q.copy(), stock.copy()
    drawn = np.empty(len(turns), dtype=np.int64)
    at = 0
    while at < len(turns):
        upto = np.cumsum(q, axis=1)
        upto /= upto[:, -1:]
        who = turns[at : at + BLOCK]
        pick = (rng.random((len(who), 1)) >= upto[who, :-1]).sum(axis=1)
        spent = np.flatnonzero((stock > 0) & (np.bincount(pick, minlength=len(stock)) >= stock))
        pick = pick[: min((np.flatnonzero(pick == y)[stock[y] - 1] + 1 for y in spent), default=None)]
        drawn[at : at + len(pick)] = pick
        at += len(pick)
        stock -= np.bincount(pick, minlength=len(stock))
        if len(spent):
            q[:, stock == 0] = 0
            q[q.sum(axis=1) == 0] = stock  # a client with none of its classes left
    return drawn


@register("partition", "label_dirichlet", paper="Li et al. 2022, arXiv 2102.02079")
@dataclass(frozen=True)
class LabelDirichlet:
    """Family B: the rows of each class are divided among clients by a sample of Dirichlet(beta); sizes differ.

    Clients that have n/K rows get no more, so the result depends on the order of the classes, which is ascending.
    """

    beta: Annotated[float, Gt(0)] = 0.5
    min_size: Annotated[int, Ge(1)] = 10
    retries: Annotated[int, Ge(1), Le(100_000)] = 1000

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        need_rows(data.n_train, clients, self.min_size)
        pools = list(class_rows(data, rng).values())  # shuffled once: the counts do not depend on the order
        for _ in range(self.retries):
            counts = self._counts([len(pool) for pool in pools], clients, rng)
            if counts.sum(axis=0).min() >= self.min_size:
                owner = np.concatenate([np.repeat(np.arange(clients), row) for row in counts])
                return finished(
                    data,
                    group_by_client(np.concatenate(pools), owner, clients),
                    notes=(f"beta = {self.beta:g} over the clients of each class; unequal sizes",),
                )
        raise impossible(
            f"beta = {self.beta:g} left a client with fewer than {self.min_size} rows in {self.retries} draws",
            f"raise beta, lower min_size, or use fewer than {clients} clients",
            "beta",
        )

    def _counts(self, class_sizes: list[int], clients: int, rng: np.random.Generator) -> Ints:
        """Return the number of rows of each class and client."""
        counts = np.zeros((len(class_sizes), clients), dtype=np.int64)
        for row, size in zip(counts, class_sizes, strict=True):
            pi = rng.dirichlet(np.full(clients, self.beta))
            capped = np.where(counts.sum(axis=0) < sum(class_sizes) / clients, pi, 0)
            row[:] = _cut(capped if capped.sum() > 0 else pi, size)
        return counts


@register("partition", "quantity_dirichlet", paper="Li et al. 2022, arXiv 2102.02079")
@dataclass(frozen=True)
class QuantityDirichlet:
    """Quantity skew: sizes ~ Dirichlet(beta), given that every client has min_size rows; labels are iid."""

    beta: Annotated[float, Gt(0)] = 0.5
    min_size: Annotated[int, Ge(1)] = 10
    max_draws: Annotated[int, Ge(1), Le(1_000_000)] = 100_000
    fallback: bool = True  # after max_draws: an unconditional sample; the largest client gives a row to each empty one

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        need_rows(data.n_train, clients, self.min_size)
        rows = rng.permutation(data.n_train)
        q = self.shares(data.n_train, clients, rng)
        if q is not None:
            sizes, note = _cut(q, data.n_train), "unequal sizes"
        elif self.fallback:
            sizes = _none_empty(_cut(rng.dirichlet(np.full(clients, self.beta)), data.n_train))
            note = f"unequal sizes; no draw of {self.max_draws} gave all clients {self.min_size} rows: 1 is required"
        else:
            raise impossible(
                f"beta = {self.beta:g} left a client with less than {self.min_size} rows in {self.max_draws} draws",
                f"raise beta, lower min_size, set fallback = true, or use fewer than {clients} clients",
                "beta",
            )
        return finished(data, np.split(rows, np.cumsum(sizes)[:-1]), notes=(note,))

    def shares(self, rows: int, clients: int, rng: np.random.Generator) -> Floats | None:
        """Return q ~ Dirichlet(beta), given min(q) rows >= min_size, or None after max_draws draws.

        Without a trick, one vector in 200,000 passes for 100 clients and 50,000 rows. But q = g / S, g ~ Gamma(beta), is
        independent of the sum S, so S >= K beta may be required as well. A vector that passes both has all
        g >= min_size / rows * K beta: smaller gammas are discarded first, and every third vector of the rest passes.
        """
        least, mean = self.min_size / rows, clients * self.beta
        vectors = min(self.max_draws, 1000)
        for _ in range(0, self.max_draws, vectors):
            g = rng.standard_gamma(self.beta, vectors * clients)
            g = g[g >= least * mean]
            g = g[: len(g) // clients * clients].reshape(-1, clients)
            total = g.sum(axis=1)
            passed = np.flatnonzero((total >= mean) & (g.min(axis=1) >= least * total))
            if len(passed):
                q: Floats = g[passed[0]] / total[passed[0]]
                return q
        return None


def _cut(share: Floats, size: int) -> Ints:
    """Cut `size` rows at floor(cumsum(share) size), and return the length of each piece."""
    upto = np.cumsum(share)
    pieces: Ints = np.diff(np.floor(upto / upto[-1] * size).astype(np.int64), prepend=0)
    return pieces


def _none_empty(sizes: Ints) -> Ints:
    for k in np.flatnonzero(sizes == 0):
        sizes[np.argmax(sizes)] -= 1
        sizes[k] = 1
    return sizes
