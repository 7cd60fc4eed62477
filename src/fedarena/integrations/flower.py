"""fedarena's algorithms inside a Flower app of your own: `Strategy` for its ServerApp, `train` for its ClientApp.

Any synchronous algorithm, both halves of it, two exchanges a round where it has them. What a client remembers (SCAFFOLD's
c_k, say) stays in its Flower context and never travels. The model, the rows and the evaluation are the app's own.
`fedarena serve` and `fedarena join` need no app at all: see docs/federation.md.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray
from torch import nn

from fedarena.algorithms.base import Asynchronous, Cohort
from fedarena.config.errors import BadValue, ClientFailed
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import stream
from fedarena.data.dataset import Dataset, Partition
from fedarena.data.sources import arrays
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.context import ExperimentContext
from fedarena.engine.setup import build_model_and_algorithm
from fedarena.engine.stopping import participants
from fedarena.engine.tasks import BufferMean, ClientTask, FailedTask, SkippedClient, run_task
from fedarena.models.pytree import UnknownType, WeightedMean, from_plain, is_finite, leaves, to_plain, types_near
from fedarena.models.task import Buffers
from fedarena.runtimes.run_task import one_thread

OURS = "fedarena"  # the record of a message that is ours; the arrays beside it are those it names
ARRAYS = "arrays"
HONOURED = {"local", "share", "per_round", "seed"}  # keys of an experiment that mean the same here; others are refused
log = logging.getLogger("flwr")


class FlowerClientContext(ExperimentContext):
    """A client's own rows; of the others only what they have told is known."""

    told: tuple[int, ...] | None = None

    @cached_property
    def all_class_counts(self) -> NDArray[np.int64]:
        """As all have told, if they were asked."""
        if self.told is None:
            raise BadValue(
                f"{self.experiment.algorithm.name} asks how many rows of each class all have, and nobody was asked",
                remedy="set counts_classes = True in the algorithm",
            )
        return np.array(self.told, np.int64)


@dataclass(frozen=True)
class FederationSettings:
    """What all must agree on: the experiment as text, and what the nodes told of themselves."""

    settings: dict[str, Any]  # algorithm, local, seed, share
    classes: int
    sizes: tuple[int, ...]  # rows of each client
    class_counts: tuple[int, ...] | None  # of all clients together; None where the algorithm need not know

    def site(self, model: nn.Module, client: int, x: NDArray[Any], y: NDArray[np.int64]) -> ExperimentContext:
        """The model and a client's own rows, as the engine wants them."""
        clients = len(self.sizes)
        experiment = Experiment.make(arrays(x, y), model=model, clients=clients, partition="iid", **self.settings)
        data = Dataset("rows", x, y, len(x), self.classes, prepare="scale" if x.dtype == np.uint8 else "none")
        nobody = np.empty(0, np.int64)
        rows = [np.arange(len(x)) if k == client else nobody for k in range(clients)]
        site = FlowerClientContext(experiment, data, Partition(rows, nobody))
        site.told = self.class_counts
        build_model_and_algorithm(site, clients)
        if isinstance(site.algorithm, Asynchronous) or site.algorithm.pooled:
            raise BadValue(
                f"{experiment.algorithm.name} has no rounds in which clients are asked",
                remedy="choose another for a Strategy; `fedarena serve` runs asynchronous ones",
                where="algorithm",
            )
        return site


class Strategy:
    """A Flower strategy: `start` as Flower's own ones, with any synchronous algorithm of fedarena.

    Keywords are keys of an experiment: `local=dict(lr=0.1, epochs=1, batch=32)`, `share=0.1`, `seed=0`.
    """

    def __init__(
        self, model: nn.Module, algorithm: Any = "fedavg", *, min_nodes: int = 2, evaluate: bool = True, **settings: Any
    ) -> None:
        self.model, self.min_nodes, self.evaluate = model, min_nodes, evaluate
        for key in settings.keys() - HONOURED:
            raise BadValue(
                f"a Strategy does not know '{key}'",
                remedy=f"it takes {', '.join(sorted(HONOURED))}; `fedarena serve` runs any experiment",
                where=key,
            )
        everyone = {} if "per_round" in settings else {"share": 1.0}
        self.settings = {**everyone, **settings, "algorithm": algorithm}
        nothing = arrays(np.zeros((2, 1)), np.arange(2))
        chosen = Experiment.make(nothing, model=model, **self.settings).algorithm  # mistakes show now
        self.counts_classes: bool = chosen.made.counts_classes

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run so many rounds; the result is Flower's own."""
        if initial_arrays is not None:
            self.model.load_state_dict(initial_arrays.to_torch_state_dict())
        server = FlowerServer(self, grid, timeout)
        result = Result()
        for round in range(num_rounds):
            loss = server.round(round)
            result.arrays = server.arrays()
            result.train_metrics_clientapp[round + 1] = MetricRecord({"train_loss": loss})
            if self.evaluate:
                seen = server.evaluated(round, result.arrays)
                result.evaluate_metrics_clientapp[round + 1] = seen
                log.info("round %s: train loss %.4f, %s", round + 1, loss, dict(seen))
            own = None if evaluate_fn is None else evaluate_fn(round + 1, result.arrays)
            if own is not None:
                result.evaluate_metrics_serverapp[round + 1] = own
        return result


class FlowerServer:
    """A strategy under way: who takes part, and what the server believes."""

    def __init__(self, strategy: Strategy, grid: Grid, timeout: float) -> None:
        self.grid, self.timeout = grid, timeout
        self.nodes, told = self._introductions(strategy)
        sizes = tuple(one["rows"] for one in told)
        counts = tuple(map(sum, zip(*(one["class_counts"] for one in told), strict=True)))
        classes = max(one["classes"] for one in told)
        self.federation = FederationSettings(
            strategy.settings, classes, sizes, counts if strategy.counts_classes else None
        )
        nothing = np.zeros((0, *told[0]["shape"]), told[0]["dtype"])
        self.site = self.federation.site(strategy.model, -1, nothing, np.empty(0, np.int64))
        self.algorithm, self.buffers = self.site.algorithm, self.site.task.buffers()
        self.state = self.algorithm.init(self.site.initial)
        self.remembered = [""] * len(sizes)  # the exchange whose memory each client is to go on from

    def _introductions(self, strategy: Strategy) -> tuple[list[int], list[dict[str, Any]]]:
        """Every node says how many rows it has; they are numbered by the name they give, the same in every run."""
        min_nodes = strategy.min_nodes
        nodes = wait_for_nodes(self.grid, min_nodes, self.timeout)
        question = {"do": "introduce", "count_classes": strategy.counts_classes}
        replies = self._exchange(dict.fromkeys(nodes, question), 0)
        told = {node: facts(reply) for node, reply in replies.items()}
        if len(told) < min_nodes:
            raise ClientFailed(
                f"{len(told)} of {len(nodes)} nodes introduced themselves", remedy="see the log of the others"
            )
        order = sorted(told, key=lambda node: (len(told[node]["name"]), told[node]["name"], node))
        return order, [told[node] for node in order]

    def round(self, round: int) -> float:
        """One round of the algorithm. Returns the mean loss in training."""
        ask = FlowerExchange(self, round)
        self.state = self.algorithm.round(self.state, ask)
        self.buffers = ask.buffers.result() or self.buffers
        return float(np.mean(ask.losses)) if ask.losses else float("nan")

    def send(self, round: int, exchange: int, clients: list[int], do: str, common: Broadcast) -> dict[int, Message]:
        """Ask these clients; their answers by client, those that came in time."""
        same = {"do": do, "round": round, "exchange": exchange, "federation": asdict(self.federation)}
        questions = {self.nodes[k]: {**same, "client": k, "memory": self.remembered[k]} for k in clients}
        replies = self._exchange(questions, round, common)
        number = {node: k for k, node in enumerate(self.nodes)}
        return {number[node]: replies[node] for node in sorted(replies, key=number.__getitem__)}

    def _exchange(
        self, questions: dict[int, dict[str, Any]], round: int, common: Broadcast | None = None
    ) -> dict[int, Message]:
        def message(node: int, question: dict[str, Any]) -> Message:
            content = written(question, common)
            return Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=str(round + 1))

        messages = [message(node, question) for node, question in questions.items()]
        replies = list(self.grid.send_and_receive(messages, timeout=self.timeout))
        for reply in replies:
            if reply.has_error():
                log.warning("node %s: %s", reply.metadata.src_node_id, reply.error.reason)
        return {reply.metadata.src_node_id: reply for reply in replies if not reply.has_error()}

    def arrays(self) -> ArrayRecord:
        """The model of now, by the names of its parameters."""
        self.site.task.load(self.state.w)
        self.site.task.load_buffers(self.buffers)
        return ArrayRecord(self.site.task.state())

    def evaluated(self, round: int, model: ArrayRecord) -> MetricRecord:
        """What the app's own `evaluate` finds, averaged by `num-examples` as Flower's strategies do."""
        content = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": round + 1})})
        asked = [Message(content, node, MessageType.EVALUATE, group_id=str(round + 1)) for node in self.nodes]
        replies = self.grid.send_and_receive(asked, timeout=self.timeout)
        seen = [next(iter(reply.content.metric_records.values())) for reply in replies if not reply.has_error()]
        weights = np.array([float(one["num-examples"]) for one in seen])  # type: ignore[arg-type]
        names = [name for name in (seen[0] if seen else ()) if name != "num-examples"]
        return MetricRecord({n: float(np.average([one[n] for one in seen], weights=weights)) for n in names})


class FlowerExchange:
    """`ask`: one exchange of a round with the selected clients (algorithms.base.RequestSender)."""

    def __init__(self, server: FlowerServer, round: int) -> None:
        self.server, self.round_number = server, round
        sizes = np.array(server.federation.sizes)
        self.wanted = participants(server.site.experiment, len(sizes))
        rng = stream(server.site.experiment.seed_for("select"), "select", round)
        chosen = (
            np.arange(len(sizes)) if server.algorithm.everyone else server.algorithm.select(sizes, self.wanted, rng)
        )
        self.selected = sorted(map(int, chosen))
        self.cohort = self._cohort([])
        self.buffers = BufferMean()
        self.losses: list[float] = []
        self.exchanges = 0

    @property
    def share(self) -> float:
        """Share of the population that is selected each round."""
        return self.wanted / len(self.server.federation.sizes)

    def coin(self) -> float:
        """A number from 0 to 1, the round's own."""
        return float(stream(self.server.site.experiment.seed_for("algorithm"), "algorithm", self.round_number).random())

    def __call__(self, message: Any, do: str = "client", everyone: bool = False) -> Any:
        """Send, let them work, average what comes back in the order of clients."""
        server, mean, answered = self.server, WeightedMean(), []
        if everyone:
            self.selected = list(range(len(server.nodes)))
        self.buffers = BufferMean()
        first: Any = None
        common = Broadcast(message, server.buffers)
        replies = server.send(self.round_number, self.exchanges, self.selected, do, common)
        self.exchanges += 1
        for client, reply in replies.items():
            try:
                told = facts(reply)
                sent, buffers = tree(reply.content, server.algorithm)
                if not (told["finite"] and is_finite(sent) and np.isfinite(told["weight"])):
                    raise ValueError("numbers that are not finite")
                first = sent if first is None else first
                if shapes(sent) != shapes(first) or shapes(buffers) != shapes(server.buffers):
                    raise ValueError("arrays of another shape")
            except (KeyError, TypeError, ValueError, UnknownType) as error:
                log.warning("client %s is left out, its answer is of no use: %s", client, error)
                continue
            mean.add(sent, told["weight"])
            self.buffers.add(buffers, float(server.federation.sizes[client]))
            self.losses.append(told["loss"])
            server.remembered[client] = told["memory"]
            answered.append(client)
        self.cohort = self._cohort(answered)
        return mean.result()

    def _cohort(self, answered: list[int]) -> Cohort:
        sizes = self.server.federation.sizes
        rows, lr = sum(sizes[k] for k in answered), self.server.site.experiment.local.lr
        return Cohort(tuple(self.selected), tuple(answered), len(sizes), rows, sum(sizes), lr)


def train(message: Message, context: Context, model: nn.Module, x: Any, y: Any) -> Message:
    """A client's half, for the app's `@app.train()`: any torch module, and its own rows `x` with labels `y` from 0 up."""
    asked = facts(message)
    rows, labels = (np.ascontiguousarray(v.numpy() if isinstance(v, torch.Tensor) else v) for v in (x, y))
    labels = labels.astype(np.int64)
    name = str(context.node_config.get("partition-id", context.node_id))
    if asked["do"] == "introduce":
        classes = _outputs(model, rows)
        counts = np.bincount(labels, minlength=classes).tolist() if asked["count_classes"] else []
        told = {"rows": len(rows), "shape": rows.shape[1:], "dtype": str(rows.dtype), "name": name}
        return Message(written({**told, "classes": classes, "class_counts": counts}), reply_to=message)
    federation, client, round = FederationSettings(**asked["federation"]), asked["client"], asked["round"]
    site = federation.site(model, client, rows, labels)
    memory = _recalled(context, asked["memory"], site)
    with one_thread():
        answer = run_task(site, ClientTask(round, client, asked["do"], memory), tree(message.content, site.algorithm))
    if isinstance(answer, FailedTask):
        log.error("%s (%s)", answer.error, answer.place)  # here: a text may quote rows, and what is raised is sent
        raise RuntimeError(answer.error.partition(":")[0])
    if isinstance(answer, SkippedClient):
        raise RuntimeError(answer.reason)
    report = answer.report
    kept = asked["memory"]
    if report.state is not None:
        kept = _kept(context, f"{round}.{asked['exchange']}", report.state, kept)
    told = {"weight": answer.reply.weight, "loss": report.loss, "finite": report.finite, "memory": kept, "name": name}
    content = written(told, (answer.reply.send, answer.buffers))
    content["metrics"] = MetricRecord({"train_loss": report.loss, "num-examples": len(rows)})
    return Message(content, reply_to=message)


def shapes(about: Any) -> list[tuple[int, ...]]:
    """Of all arrays in a tree."""
    return [np.shape(leaf) for leaf in leaves(about)]


def wait_for_nodes(grid: Grid, count: int, timeout: float) -> list[int]:
    """Until so many are connected."""
    until = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > until:
            raise ClientFailed(f"{len(nodes)} of {count} nodes are connected", remedy="start more SuperNodes")
        time.sleep(0.2)
    return nodes


# Facts and trees of arrays in Flower's records: the arrays by name in one, the rest as text in ours


def written(told: dict[str, Any], about: Any = None) -> RecordDict:
    """Facts, and a tree, as records."""
    parts: dict[str, NDArray[Any]] = {}
    plain = json.dumps(to_plain(about, parts))
    ours = ConfigRecord({"facts": json.dumps(told), "tree": plain})
    return RecordDict({ARRAYS: ArrayRecord({key: Array(part) for key, part in parts.items()}), OURS: ours})


def facts(message: Message) -> dict[str, Any]:
    """What a message of ours says beside its tree."""
    told: dict[str, Any] = json.loads(str(message.content.config_records[OURS]["facts"]))
    return told


def tree(content: RecordDict, algorithm: Any) -> Any:
    """The tree again; of classes only those that the algorithm and the engine use are made."""
    types = {**types_near(algorithm), **{t.__qualname__: t for t in (Buffers, ClientState, Broadcast)}}
    parts = {key: array.numpy() for key, array in content.array_records[ARRAYS].items()}
    return from_plain(json.loads(str(content.config_records[OURS]["tree"])), parts, types)


# What a client remembers: in its context, by round and exchange. An answer that was never taken is as if never given.


def _recalled(context: Context, ticket: str, site: ExperimentContext) -> ClientState | None:
    if not ticket:
        return None
    parts = RecordDict({part: context.state[_place(ticket, part)] for part in (ARRAYS, OURS)})
    memory: ClientState = tree(parts, site.algorithm)
    return memory


def _kept(context: Context, ticket: str, memory: ClientState, before: str) -> str:
    """Keep it, and forget all but it and the one that the server knows of."""
    for part, record in written({}, memory).items():
        context.state[_place(ticket, part)] = record
    for key in [key for key in context.state if key.startswith(f"{OURS}-")]:
        if key.split("-")[1] not in (ticket, before):
            del context.state[key]
    return ticket


def _place(ticket: str, part: str) -> str:
    return f"{OURS}-{ticket}-{part}"


def _outputs(model: nn.Module, rows: NDArray[Any]) -> int:
    with torch.no_grad():
        return int(model.eval()(torch.zeros(2, *rows.shape[1:])).shape[-1])


__all__ = ["Strategy", "train"]
