"""FedIR and FedVC: Hsu, Qi, Brown, "Federated Visual Classification with Real-World Data Distribution", 2020,
arXiv:2003.08082. Both combine with any averaging algorithm, and with each other: `with = ["fedir", "fedvc"]`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fedarena.algorithms.base import Algorithm, Asynchronous, Cohort, Reply, RequestSender, Setting, Vector, Work
from fedarena.algorithms.checks import check_counts_epochs
from fedarena.algorithms.fedavg import FedAvg
from fedarena.config.errors import BadValue
from fedarena.config.registry import register


@dataclass(frozen=True)
class Companion(Algorithm):
    """An algorithm around another: it changes the rows or the loss of a client, and delegates the rest."""

    base: Algorithm = field(default_factory=FedAvg)

    own_use: ClassVar[str] = ""  # what the companion itself takes from samples besides SGD steps

    def settled(self, setting: Setting) -> Self:
        """Settle the algorithm inside."""
        return replace(self, base=self.base.settled(setting))

    def check(self, setting: Setting) -> None:
        """Refuse algorithms that do not average the updates of selected clients."""
        inside = self.base
        if inside.everyone or inside.pooled or inside.personal or isinstance(inside, Asynchronous):
            raise BadValue(
                f"{type(self).__name__} does not go with {type(self.base).__name__}",
                remedy="put it around fedavg, fedavgm or another algorithm that averages selected clients",
                where="algorithm.with",
            )
        self.base.check(setting)

    @property
    def needs(self) -> Literal["mean", "each update"]:  # type: ignore[override]
        """Return what the algorithm inside needs."""
        return self.base.needs

    @property
    def counts_classes(self) -> bool:  # type: ignore[override]
        """Return whether the algorithm inside counts classes."""
        return self.base.counts_classes

    @property
    def in_turn(self) -> bool:  # type: ignore[override]
        """Return whether the algorithm inside asks one client after the other."""
        return self.base.in_turn

    @property
    def beyond_steps(self) -> str:  # type: ignore[override]
        """Return what the companion or the algorithm inside computes besides SGD steps."""
        return self.own_use or self.base.beyond_steps

    @property
    def fastest_path(self) -> Literal["compiled", "tape", "autograd"]:  # type: ignore[override]
        """Return the fastest path of the algorithm inside."""
        return self.base.fastest_path

    @property
    def steps_a_round(self) -> int | None:  # type: ignore[override]
        """Return the steps of the algorithm inside."""
        return self.base.steps_a_round

    @property
    def straggler_settings(self) -> tuple[float, int]:
        """Return the stragglers of the algorithm inside."""
        return self.base.straggler_settings

    def prepare(self, work: Work) -> None:
        """Change the rows or the loss of a client before it trains."""
        raise NotImplementedError

    def act(self, do: str, message: Any, client_state: Any, work: Work) -> Reply:
        """Prepare the client, then run the algorithm inside."""
        self.prepare(work)
        return self.base.act(do, message, client_state, work)

    def client(self, message: Any, client_state: Any, work: Work) -> Reply:
        """Run the exchange of the algorithm inside."""
        return self.act("client", message, client_state, work)

    def init(self, w: Vector) -> Any:
        """Return the first state of the algorithm inside."""
        return self.base.init(w)

    def remember(self, w: Vector) -> Any:
        """Return the first client state of the algorithm inside."""
        return self.base.remember(w)

    def broadcast(self, state: Any) -> Any:
        """Return the message of the algorithm inside."""
        return self.base.broadcast(state)

    def measured(self, state: Any) -> Any:
        """Return the message of the algorithm inside to clients whose loss is measured."""
        return self.base.measured(state)

    def starts(self, message: Any, client_state: Any) -> tuple[Vector, ...]:
        """Return the models with which a client of the algorithm inside may begin."""
        return self.base.starts(message, client_state)

    def server(self, state: Any, mean: Any, cohort: Cohort) -> Any:
        """Update the state as the algorithm inside does."""
        return self.base.server(state, mean, cohort)

    def round(self, state: Any, request: RequestSender) -> Any:
        """Run a round of the algorithm inside."""
        return self.base.round(state, request)

    def unseen_model(self, message: Any, client_state: Any, work: Work, steps: int) -> Vector:
        """Return the model of the algorithm inside, whose adaptation a companion of training does not change."""
        return self.base.unseen_model(message, client_state, work, steps)

    def select(self, sizes: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Select clients as the algorithm inside does."""
        return self.base.select(sizes, count, rng)

    @property
    def learns_own_models(self) -> bool:
        """Return whether the algorithm inside learns models of clients."""
        return self.base.learns_own_models


@register("algorithm", "fedir", paper="Hsu et al. 2020, arXiv:2003.08082")
@dataclass(frozen=True)
class FedIR(Companion):
    """Rows are weighted by p(y) / q_k(y), so that every client trains for the same distribution of classes.

    The server must know the label counts of all clients together (`target = "pooled"`), which is a privacy cost; with
    `target = "uniform"` the target is equal classes. `normalise = "none"` divides a batch's loss by its size, not by the sum
    of its weights.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedIR(base=fa.FedAvgM()), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    target: Literal["pooled", "uniform"] = "pooled"
    normalise: Literal["self", "none"] = "self"

    own_use = "the class counts of each client"

    @property
    def counts_classes(self) -> bool:  # type: ignore[override]
        """Return whether clients must know the class counts of all clients: for the pooled target they must."""
        return self.target == "pooled" or self.base.counts_classes

    def check(self, setting: Setting) -> None:
        """Refuse rows without a class, such as texts."""
        if not setting.has_classes:
            raise BadValue(
                "fedir weighs rows by their class, and these rows have none of their own",
                remedy="leave fedir out: it is for classification",
                where="algorithm.with",
            )
        super().check(setting)

    def prepare(self, work: Work) -> None:
        """w_k(y) = N_y n_k / (n N_ky), from integers: exactly 1 where the client is like the whole, 0 if y is absent."""
        own = work.own_class_counts
        whole = np.ones_like(own) if self.target == "uniform" else work.class_counts[1]
        weights = np.divide(whole * own.sum(), whole.sum() * own, out=np.zeros(len(own)), where=own > 0)
        work.weigh_classes(weights, self.normalise == "self")


@register("algorithm", "fedvc", paper="Hsu et al. 2020, arXiv:2003.08082")
@dataclass(frozen=True)
class FedVC(Companion):
    """Virtual clients of equal size: clients are selected by their rows, and each trains on a new sample of `n_vc` of them.

    With `with_split`, a client with rows for two or more is floor(n_k / n_vc) virtual clients, whose disjoint rows are
    drawn once and for all; fewer than `n_vc` of its rows are left over and never used. Smaller clients are one, and draw
    as before. Any virtual client is as likely as any other to be the first selected; but a client answers once, so that no
    two of the same client take part in a round, as they may in the paper.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedVC(n_vc=128), **federation)
    >>> run.final.accuracy > 0.6
    True
    """

    n_vc: Annotated[int, Ge(1), Le(10_000_000)] = 256
    with_split: bool = False

    own_use = "a share of each client's samples, drawn before its training"  # a sample may occur in it twice

    def check(self, setting: Setting) -> None:
        """Refuse steps in place of epochs."""
        check_counts_epochs("fedvc", setting, "trains on a new sample of rows in every round")
        super().check(setting)

    def select(self, sizes: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """m draws without replacement, with probability proportional to n_k (or to its virtual clients) among those left."""
        chances = np.maximum(sizes // self.n_vc, 1) if self.with_split else sizes
        return rng.choice(len(sizes), size=count, replace=False, p=chances / chances.sum())

    def prepare(self, work: Work) -> None:
        """Let the client train on N_VC of its rows."""
        work.draw(self.n_vc, self.with_split)

    def act(self, do: str, message: Any, client_state: Any, work: Work) -> Reply:
        """Give every virtual client the same weight."""
        return replace(super().act(do, message, client_state, work), weight=1.0)
