"""An algorithm is a frozen dataclass that answers five questions; only `client` and `server` have no default answer.

Vectors are flat numpy arrays: all trainable parameters of the model, one after the other. Buffers of BatchNorm are not
in them: the engine sends and averages those by the experiment's policy. Delta always means old minus new, a descent
direction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fedarena.errors import BadValue, Deadlock
from fedarena.seeds import Purpose

Vector = NDArray[Any]  # of floats; float32 unless the experiment says float64


@dataclass(frozen=True)
class Model:
    """What a server believes, at least: the weights. Also what clients hear by default."""

    w: Vector


@dataclass(frozen=True)
class Step:
    """What most clients send: how far they went, Delta = w_t - w_k."""

    delta: Vector


@dataclass(frozen=True)
class Reply:
    """A client's answer: `send` goes up and is averaged by `weight`; `keep` stays on the client for its next round."""

    send: Any
    keep: Any = None
    weight: float = 1.0


@dataclass(frozen=True)
class Pull:
    """A correction of every step's gradient, g + mu (y - centre) + b, described as data so that it can be fused."""

    mu: float = 0.0
    centre: Vector | None = None
    b: Vector | None = None
    outside: bool = False  # b corrects the step itself, beside the momentum, not the gradient that enters it


@dataclass(frozen=True)
class Anchor:
    """Variance reduction: every step's gradient minus that of the same batch at `w`, plus the full `gradient` there."""

    w: Vector
    gradient: Vector
    scale: Vector | None = None  # multiplies the difference of the two, weight by weight


Adjust = Pull | Anchor | Callable[[Vector, Vector], Vector] | None


@dataclass(frozen=True)
class Outcome:
    """What the local solver did: measured, not derived."""

    w: Vector
    steps: int  # tau_k: optimizer steps actually made
    lr_sum: float  # sum of the learning rates of those steps
    unit_displacement: float  # how far the same solver goes under a unit gradient: lr_sum without momentum
    effective_steps: float  # ||a_k||_1: the same, over the first rate
    losses: tuple[float, ...]  # mean training loss of each epoch


class Work(Protocol):
    """What a client can do: train and differentiate on its own rows."""

    client: int
    round: int
    rows: int  # n_k

    @property
    def lr(self) -> float:
        """Learning rate at the first step of this round."""
        ...

    @property
    def epochs(self) -> int:
        """E, as the experiment says."""
        ...

    def stream(self, purpose: Purpose) -> np.random.Generator:
        """This client's own random numbers of this round."""
        ...

    @property
    def own_class_counts(self) -> NDArray[np.int64]:
        """This client's rows of each class."""
        ...

    @property
    def class_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of each class: this client's, and those of all clients together; see `counts_classes`."""
        ...

    def weigh_classes(self, weights: NDArray[np.float64], normalise: bool) -> None:
        """Let each class count so much in the loss, for the rest of this client's round."""
        ...

    @property
    def feature_counts(self) -> NDArray[np.int64]:
        """Rows of this client in which each input feature is not 0, as the model sees them."""
        ...

    def spread(self, numbers: Vector) -> Vector:
        """One number for each input feature, over the weights of a linear model that multiply it; 1 for the others."""
        ...

    def draw(self, count: int, split: bool = False) -> None:
        """Work on so many of one's rows for the rest of the round: a fresh draw, or one of the blocks one is split into."""
        ...

    def train(
        self,
        w: Vector,
        *,
        adjust: Adjust = None,
        epochs: float | None = None,
        lr: float | None = None,
        batch: float | None = None,
        pace: Callable[[int, float], float] | None = None,
    ) -> Outcome:
        """Local SGD from `w` (algorithms 0.1), each step's gradient changed by `adjust`.

        Epochs, rate and batch are the experiment's unless given; a broken epoch is a share of its batches. `pace` scales
        the rate by (epoch, share of all steps done).
        """
        ...

    def gradient(self, w: Vector, rows: NDArray[np.int64] | None = None) -> Vector:
        """Exact gradient of the mean loss over all local rows (or these of them) at `w`, weight decay included."""
        ...

    def batches(self, count: int) -> list[NDArray[np.int64]]:
        """So many batches of local rows, from as many shuffled epochs as it takes."""
        ...

    def evaluate(self, w: Vector) -> tuple[float, float]:
        """Accuracy and mean loss of `w` on all local training rows, in evaluation mode."""
        ...


@dataclass(frozen=True)
class Setting:
    """What an algorithm may look at before the start, to refuse what cannot work."""

    lr: float
    momentum: float
    reset_momentum: bool
    clients: int  # with rows
    participants: int  # asked each round
    has_batchnorm: bool
    has_dropout: bool
    has_classes: bool  # rows have one class each: neither texts nor a loss of one's own
    features: int | None = None  # inputs of a model that is linear in them


@dataclass(frozen=True)
class Cohort:
    """Who was asked and who answered."""

    selected: tuple[int, ...]
    answered: tuple[int, ...]
    population: int  # N: clients with rows
    rows: int  # sum of n_k over those who answered
    total_rows: int  # n
    lr: float  # the experiment's local.lr

    @property
    def share(self) -> float:
        """|R_t| / N."""
        return len(self.answered) / self.population


class Ask(Protocol):
    """One exchange with clients; the mean of their answers, or None where nobody answered."""

    @property
    def cohort(self) -> Cohort:
        """Who took part in the latest exchange."""
        ...

    @property
    def share(self) -> float:
        """Share of the population that is selected each round."""
        ...

    def coin(self) -> float:
        """A number from 0 to 1, the round's own."""
        ...

    def __call__(self, message: Any, do: str = "client", everyone: bool = False) -> Any:
        """Send `message`, let each selected client (or everyone) run the method `do`, return the mean of what they send."""
        ...


@dataclass(frozen=True)
class Algorithm:
    """The contract. A subclass is one paper in one file: its settings are fields, both halves are methods."""

    everyone: ClassVar[bool] = False  # takes part every round, whatever the experiment's share
    communicates: ClassVar[bool] = True  # counts bytes and uploads
    personal: ClassVar[bool] = False  # judged by each client's own kept model, not by the server's
    pooled: ClassVar[bool] = False  # all rows in one place
    steps_a_round: ClassVar[int | None] = None  # for the decay of rates; None: as many as local training makes
    keeps_momentum: ClassVar[bool] = False  # rounds do not interrupt the optimizer
    needs: ClassVar[Literal["mean", "each update"]] = "mean"  # what the server must see of the answers
    counts_classes: ClassVar[bool] = False  # clients must know how many rows of each class all of them have together

    def settled(self, setting: Setting) -> Self:
        """The same, with what was left open decided for this federation."""
        return self

    def check(self, setting: Setting) -> None:
        """Can it work in this setting? Raises an error with a remedy if not, before anything starts."""

    def init(self, w: Vector) -> Any:
        """What does the server believe at first? A dataclass with at least `w`."""
        return Model(w)

    def remember(self, w: Vector) -> Any:
        """What does a client remember before its first round?"""
        return None

    def broadcast(self, state: Any) -> Any:
        """What do clients hear?"""
        return Model(state.w)

    def client(self, got: Any, kept: Any, work: Work) -> Reply:
        """What does a client do?"""
        raise NotImplementedError(f"{type(self).__name__} does not say what a client does")

    def act(self, do: str, got: Any, kept: Any, work: Work) -> Reply:
        """What a client does in one exchange: the method of that name, `client` unless a round has several."""
        reply: Reply = getattr(self, do)(got, kept, work)
        return reply

    def server(self, state: Any, mean: Any, cohort: Cohort) -> Any:
        """What does the server make of the answers? A new state."""
        raise NotImplementedError(f"{type(self).__name__} does not say what the server does")

    def round(self, state: Any, ask: Ask) -> Any:
        """One round: a single exchange, unless an algorithm needs more. Without answers nothing changes."""
        mean = ask(self.broadcast(state))
        return state if mean is None else self.server(state, mean, ask.cohort)

    def select(self, sizes: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Which of the population (given by its sizes) take part? Uniformly, without replacement."""
        return rng.choice(len(sizes), size=count, replace=False)


@dataclass(frozen=True)
class Aged:
    """What the server of an asynchronous algorithm believes, at least: its model, and how many came before it."""

    w: Vector
    age: int

    def mixed(self, w: Vector, alpha: float) -> Aged:
        """(1 - alpha) of this and alpha of `w`, one model on; with alpha = 1 it is `w` to the bit."""
        mixed = w if alpha == 1 else ((1 - alpha) * self.w + alpha * w).astype(self.w.dtype, copy=False)
        return Aged(mixed, self.age + 1)


Poll = Literal["merge", "outdated", "overactive"]


@dataclass(frozen=True)
class Asynchronous(Algorithm):
    """The contract without rounds: clients work at their own pace, and the server takes each answer as it comes.

    A client fetches the server's model, trains, and asks whether its answer is wanted; `d` is how many models the server
    has made since the fetch. `everyone` has all clients at work all the time, else as many as a round has participants:
    who has answered makes room for one that rests. The engine keeps the virtual clock (engine/events.py).
    """

    needs: ClassVar[Literal["mean", "each update"]] = "each update"
    asks: ClassVar[bool] = False  # clients ask whether an answer is wanted before they send it

    def init(self, w: Vector) -> Any:
        """A dataclass with at least `w` and `age`; clients begin with age 0."""
        return Aged(w, 0)

    def poll(self, state: Any, d: int) -> Poll:
        """What becomes of an answer d models old: merged; thrown away (the client fetches); or the client trains on."""
        return "merge"

    def share(self, d: int) -> float:
        """Weight of such an answer in the server's new model; BatchNorm's statistics are mixed by it."""
        raise NotImplementedError(f"{type(self).__name__} does not say what an answer weighs")

    def merge(self, state: Any, sent: Any, d: int) -> Any:
        """What does the server make of one answer? A new state."""
        raise NotImplementedError(f"{type(self).__name__} does not say how the server merges")

    def deadlock(self, merges: int) -> None:
        """What if every client waits for the others? It is over; an error, unless that was the point."""
        raise Deadlock(
            f"after {merges} merges every client is overactive and waits for the others",
            remedy="loosen the filter that makes them wait",
            where="algorithm",
        )


def refuse_stiff_spring(name: str, lr: float, mu: float, setting: str) -> None:
    """A spring's own gradient step diverges from eta mu = 2 on."""
    if lr * mu >= 2:
        raise BadValue(
            f"{name} diverges: local.lr x {setting} = {lr * mu:g}, and must stay below 2",
            remedy=f"use {setting} below {2 / lr:g}, or a smaller local.lr",
            where=f"algorithm.{setting}",
        )


def collected() -> Any:
    """Marks a field of what clients send as needed one by one: the server gets a list, in the order of clients."""
    return field(metadata={"collect": True})


def refuse_kept_momentum(name: str, setting: Setting) -> None:
    """For algorithms that measure what a round's local steps amount to, from rest."""
    if setting.momentum and not setting.reset_momentum:
        raise BadValue(
            f"{name} measures each round's work from rest, and momentum is kept between rounds",
            remedy="set local.reset_momentum = true",
            where="local.reset_momentum",
        )


def known() -> Any:
    """Marks a field of a message as something clients have from an exchange before: it is not sent, nor counted."""
    return field(metadata={"known": True})


def summed() -> Any:
    """Marks a field of what clients send as added up over clients, not averaged by weight."""
    return field(metadata={"sum": True})
