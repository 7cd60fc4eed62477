"""The contract of an algorithm: a frozen dataclass with five methods, of which only `client` and `server` must be written.

Vectors are flat numpy arrays: all trainable parameters of the model, one after the other. BatchNorm buffers are not in
them: the engine sends and averages those by the experiment's policy. Delta always means old minus new, a descent
direction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.field_marks import collected as collected
from fedarena.algorithms.field_marks import known as known
from fedarena.algorithms.field_marks import summed as summed
from fedarena.algorithms.setting import Setting as Setting
from fedarena.algorithms.work import Adjust as Adjust
from fedarena.algorithms.work import Anchor as Anchor
from fedarena.algorithms.work import Outcome as Outcome
from fedarena.algorithms.work import Pull as Pull
from fedarena.algorithms.work import Vector as Vector
from fedarena.algorithms.work import Work as Work
from fedarena.config.errors import Deadlock
from fedarena.config.variant_selection import SelectsVariant


@dataclass(frozen=True)
class Model:
    """The weights: the least state of a server, and the message that it broadcasts by default.

    >>> import numpy as np
    >>> import fedarena as fa
    >>> fa.Model(np.zeros(3)).w.tolist()
    [0.0, 0.0, 0.0]
    """

    w: Vector


@dataclass(frozen=True)
class Step:
    """The update that most clients send: Delta = w_t - w_k.

    >>> import numpy as np
    >>> import fedarena as fa
    >>> before, after = np.array([1.0, 2.0]), np.array([0.5, 2.5])
    >>> fa.Step(before - after).delta.tolist()
    [0.5, -0.5]
    """

    delta: Vector


@dataclass(frozen=True)
class Reply:
    """A client's response: `send` is aggregated by `weight` on the server, `keep` is the client state of its next round.

    >>> import numpy as np
    >>> import fedarena as fa
    >>> fa.Reply(fa.Step(np.zeros(3)), weight=20).weight
    20
    """

    send: Any
    keep: Any = None
    weight: float = 1.0


@dataclass(frozen=True)
class Cohort:
    """The clients of one exchange: those that were selected and those that answered.

    >>> import fedarena as fa
    >>> fa.Cohort(selected=(0, 3), answered=(3,), population=4, rows=50, total_rows=200, lr=0.1).share
    0.25
    """

    selected: tuple[int, ...]
    answered: tuple[int, ...]
    population: int  # N: clients with rows
    rows: int  # sum of n_k over the clients that answered
    total_rows: int  # n
    lr: float  # the experiment's local.lr

    @property
    def share(self) -> float:
        """Return |R_t| / N, the share of the population that answered."""
        return len(self.answered) / self.population


class RequestSender(Protocol):
    """One exchange with clients: a request, and the aggregate of their responses, or None without any response."""

    @property
    def cohort(self) -> Cohort:
        """Return the clients of the latest exchange."""
        ...

    @property
    def share(self) -> float:
        """Return the share of the population that is selected each round."""
        ...

    def coin(self) -> float:
        """Return the random number of this round, from 0 to 1."""
        ...

    def clients_in_turn(self, shuffle: bool = True) -> list[int]:
        """Return the selected clients in a random order of this round, or in the order of their numbers."""
        ...

    def __call__(self, message: Any, do: str = "client", everyone: bool = False, only: int | None = None) -> Any:
        """Send `message` to the selected clients, all or `only` one; run the method `do` there, return the mean response."""
        ...


@dataclass(frozen=True)
class Algorithm(SelectsVariant):
    """The contract. A subclass is one paper in one file: its settings are fields, both halves are methods.

    >>> from dataclasses import dataclass
    >>> import fedarena as fa
    >>> @dataclass(frozen=True)
    ... class HalfStep(fa.Algorithm):
    ...     def client(self, message, client_state, work):
    ...         return fa.Reply(fa.Step(message.w - work.train(message.w).w), weight=work.rows)
    ...     def server(self, state, mean, cohort):
    ...         return fa.Model(state.w - mean.delta / 2)
    >>> fa.run("digits", algorithm=HalfStep(), rounds=2, out=False).final.round
    2
    """

    everyone: ClassVar[bool] = False  # all clients take part every round, regardless of the experiment's share
    communicates: ClassVar[bool] = True  # counts bytes and uploads
    personal: ClassVar[bool] = False  # each client predicts with a model of its own: see `personal_model`
    # Where `personal`: the score on the common test samples is that of the server's model, the mean over clients' own
    # models, or none, because the server has no complete model.
    common_score: ClassVar[Literal["shared", "mean", "none"]] = "mean"
    pooled: ClassVar[bool] = False  # all rows in one place
    steps_a_round: ClassVar[int | None] = None  # for the decay of rates; None: as many as local training makes
    keeps_momentum: ClassVar[bool] = False  # rounds do not interrupt the optimizer
    needs: ClassVar[Literal["mean", "each update"]] = "mean"  # what the server must see of the updates
    in_turn: ClassVar[bool] = False  # each exchange of a round is with one client
    counts_classes: ClassVar[bool] = False  # clients must know how many rows of each class all of them have together
    beyond_steps: ClassVar[str] = ""  # what clients compute from samples besides SGD steps: local.privacy refuses it
    # The fastest path that can make the steps of clients: kernels, known layers by hand, or PyTorch's own (docs/models.md).
    fastest_path: ClassVar[Literal["compiled", "tape", "autograd"]] = "compiled"
    proximal_setting: ClassVar[str] = ""  # the setting that weighs a proximal term in the steps of clients

    unseen_own: ClassVar[Literal["initial", "mean"]] = "initial"  # own layers of a client that never trained

    @property
    def own_layers(self) -> tuple[str | Callable[[str], bool], ...] | None:
        """Return the layers of the model that belong to each client and never leave it; None where it shares all.

        The server's `w`, its messages and the updates then have the other entries alone: the engine joins both parts
        while a client trains. `engine/own_parts.py` has the forms of a layer; one is a predicate on parameter names.
        """
        return None

    @property
    def own_rounds(self) -> int | None:
        """Return the number of rounds that a setting of the algorithm asks for; None: as many as the experiment says."""
        return None

    @property
    def most_exchanges(self) -> int:
        """Return how many exchanges a round may have: a client of a real federation answers no more."""
        return 8

    @property
    def straggler_settings(self) -> tuple[float, int]:
        """Return the share of clients that the device model lets stop early, and the fewest epochs of one."""
        return 0.0, 1

    def settled(self, setting: Setting) -> Self:
        """Return the algorithm with settings that were left open decided for this federation."""
        return self

    def check(self, setting: Setting) -> None:
        """Raise an error with a remedy if the algorithm cannot work in this setting, before anything starts."""

    def init(self, w: Vector) -> Any:
        """Return the first state of the server: a dataclass with at least `w`."""
        return Model(w)

    def remember(self, w: Vector) -> Any:
        """Return the client state before a client's first round."""
        return None

    def broadcast(self, state: Any) -> Any:
        """Return the message that the server sends to the selected clients."""
        return Model(state.w)

    def measured(self, state: Any) -> Any:
        """Return the message to clients whose loss is measured before a round, for rules that select them by it."""
        return Model(state.w)

    def starts(self, message: Any, client_state: Any) -> tuple[Vector, ...]:
        """Return the models with which a client may begin; its loss, where a rule selects by it, is the least of theirs.

        A message without a model is none to begin with: nothing is measured then.
        """
        w: Vector | None = getattr(message, "w", None)
        return () if w is None else (w,)

    def client(self, message: Any, client_state: Any, work: Work) -> Reply:
        """Run one client: train on the message, return an update and the new client state."""
        raise NotImplementedError(f"{type(self).__name__} does not say what a client does")

    def act(self, do: str, message: Any, client_state: Any, work: Work) -> Reply:
        """Run one client in one exchange: the method named `do`, which is `client` unless a round has several."""
        reply: Reply = getattr(self, do)(message, client_state, work)
        return reply

    def server(self, state: Any, mean: Any, cohort: Cohort) -> Any:
        """Return the new state of the server from the aggregated updates."""
        raise NotImplementedError(f"{type(self).__name__} does not say what the server does")

    @property
    def learns_own_models(self) -> bool:
        """Return whether client states hold models that were learned; not where they follow from the server's."""
        return self.personal

    def personal_model(self, message: Any, client_state: Any, work: Work) -> Vector:
        """Return the weights with which a client predicts, where the algorithm is `personal`.

        `message` is what the server would send now. `work` may train: it has random streams of its own, starts with a
        fresh optimizer and the first learning rate, and leaves no trace in the run. The model has the BatchNorm statistics
        that `work` holds at the end: those of the client where they are local, else the server's, changed by any training.
        """
        own_w: Vector = client_state
        return own_w

    def unseen_model(self, message: Any, client_state: Any, work: Work, steps: int) -> Vector:
        """Return the weights of a client that never trained, after so many steps on its own samples: w_t, and SGD from it.

        `message`, `work` and what it leaves in the run are as for `personal_model`; `client_state` is that before a
        client's first round. Without steps the client has done nothing but receive the message.
        """
        w: Vector = message.w
        return work.train(w, steps=steps).w if steps else w

    def predictor(self, message: Any, client_state: Any) -> Callable[[Any, Any], Any] | None:
        """Return a function of (module, x) with the outputs for a batch, where they are not those of the module.

        The module is the personal model in evaluation mode; a class with the largest output is predicted.
        """
        return None

    def round(self, state: Any, request: RequestSender) -> Any:
        """Run one round: a single exchange unless an algorithm needs more. Without responses the state stays."""
        mean = request(self.broadcast(state))
        return state if mean is None else self.server(state, mean, request.cohort)

    def select(self, sizes: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Select `count` clients of the population, given by its sizes: uniformly, without replacement."""
        return rng.choice(len(sizes), size=count, replace=False)


@dataclass(frozen=True)
class AsyncState:
    """The least state of an asynchronous server: its model, and the number of models before it."""

    w: Vector
    age: int

    def mixed(self, w: Vector, alpha: float) -> AsyncState:
        """Return (1 - alpha) of this model and alpha of `w`, one model later; with alpha = 1 it is `w` to the bit."""
        mixed = w if alpha == 1 else ((1 - alpha) * self.w + alpha * w).astype(self.w.dtype, copy=False)
        return AsyncState(mixed, self.age + 1)


PollResult = Literal["merge", "outdated", "overactive"]


@dataclass(frozen=True)
class Asynchronous(Algorithm):
    """The contract without rounds: clients train at their own pace, and the server merges each update as it arrives.

    A client fetches the server's model, trains, and asks whether its update is wanted; the staleness `d` is the number of
    models the server has made since the fetch. With `everyone` all clients train all the time, otherwise as many as a
    round has participants: a client that has answered makes room for an idle one. The engine keeps the virtual clock
    (engine/async_loop.py).

    >>> import fedarena as fa
    >>> issubclass(fa.FedAsync, fa.Asynchronous), issubclass(fa.FedAvg, fa.Asynchronous)
    (True, False)
    """

    needs: ClassVar[Literal["mean", "each update"]] = "each update"
    asks: ClassVar[bool] = False  # clients ask whether an update is wanted before they send it

    def init(self, w: Vector) -> Any:
        """Return the first state of the server: a dataclass with at least `w` and `age`. Clients begin with age 0."""
        return AsyncState(w, 0)

    def poll(self, state: Any, d: int) -> PollResult:
        """Decide about an update of staleness d: merge it, discard it (the client fetches), or let the client train on."""
        return "merge"

    def share(self, d: int) -> float:
        """Return the weight of an update of staleness d in the server's new model and BatchNorm statistics."""
        raise NotImplementedError(f"{type(self).__name__} does not say what an answer weighs")

    def merge(self, state: Any, sent: Any, d: int) -> Any:
        """Return the new state of the server after one update of staleness d."""
        raise NotImplementedError(f"{type(self).__name__} does not say how the server merges")

    def deadlock(self, merges: int) -> None:
        """End a run in which every client waits for the others: an error, unless the experiment asks for it."""
        raise Deadlock(
            f"after {merges} merges every client is overactive and waits for the others",
            remedy="loosen the filter that makes them wait",
            where="algorithm",
        )
