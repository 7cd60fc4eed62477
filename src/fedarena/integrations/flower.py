"""Algorithms of fedarena in a Flower app: `Strategy` for its ServerApp, `train` for its ClientApp.

All synchronous algorithms run, with two exchanges per round where they need them. The client state (for example SCAFFOLD's
c_k) stays in the Flower context of the client and is never sent. The model, the samples and the evaluation belong to the app.
`fedarena serve` and `fedarena join` need no app: see docs/federation.md.

All names of Flower that are used here are documented ones, from `flwr.app` and `flwr.serverapp`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray
from torch import nn

from fedarena.algorithms.base import Asynchronous
from fedarena.config.errors import BadValue, ClientFailed
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.data.sources import arrays
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.round import Aggregate, RoundExchange
from fedarena.engine.selection import ClientSelection
from fedarena.engine.separate_context import SeparateContext
from fedarena.engine.setup import build_model_and_algorithm
from fedarena.engine.tasks import ClientTask, FailedTask, SkippedClient, run_task
from fedarena.models.pytree import UnknownType, from_plain, is_finite, leaves, to_plain, types_near
from fedarena.models.task import Buffers
from fedarena.runtimes.single_thread import one_thread

OURS = "fedarena"  # name of the record of fedarena in a message; it refers to the arrays in the other record
ARRAYS = "arrays"
SUPPORTED = {"local", "share", "per_round", "seed"}  # keys of an experiment that have the same meaning here
log = logging.getLogger("flwr")


@dataclass(frozen=True)
class FederationSettings:
    """The settings that server and clients share: those of the experiment, and the sizes that the nodes reported."""

    settings: dict[str, Any]  # algorithm, local, seed, share
    classes: int
    sizes: tuple[int, ...]  # rows of each client
    class_counts: tuple[int, ...] | None  # of all clients together; None if the algorithm does not need them

    def context(self, model: nn.Module, x: NDArray[Any], y: NDArray[np.int64], rows: list[Rows]) -> SeparateContext:
        """Return the context of the engine, with the model and the samples of each client that are known here."""
        source = arrays(x[:0], y[:0])  # the engine gets its samples from the data set
        experiment = Experiment.make(source, model=model, clients=len(rows), partition="iid", **self.settings)
        data = Dataset("rows", x, y, len(x), self.classes, prepare="scale" if x.dtype == np.uint8 else "none")
        context = SeparateContext(experiment, data, Partition(rows, np.empty(0, np.int64)))
        context.reported_counts = self.class_counts
        build_model_and_algorithm(context, len(rows))
        if isinstance(context.algorithm, Asynchronous) or context.algorithm.pooled:
            raise BadValue(
                f"{experiment.algorithm.name} has no synchronous rounds",
                remedy="choose another algorithm for a Strategy; `fedarena serve` runs asynchronous ones",
                where="algorithm",
            )
        return context


class Strategy:
    """A Flower strategy for any synchronous algorithm of fedarena, with the method `start` of Flower's strategies.

    Keywords are keys of an experiment: `local=dict(lr=0.1, epochs=1, batch=32)`, `share=0.1`, `seed=0`.
    """

    def __init__(
        self, model: nn.Module, algorithm: Any = "fedavg", *, min_nodes: int = 2, evaluate: bool = True, **settings: Any
    ) -> None:
        self.model, self.min_nodes, self.evaluate = model, min_nodes, evaluate
        for key in settings.keys() - SUPPORTED:
            raise BadValue(
                f"a Strategy has no setting '{key}'",
                remedy=f"it takes {', '.join(sorted(SUPPORTED))}; `fedarena serve` runs any experiment",
                where=key,
            )
        default = {} if "per_round" in settings else {"share": 1.0}
        self.settings = {**default, **settings, "algorithm": algorithm}
        placeholder = arrays(np.zeros((2, 1)), np.arange(2))  # errors in settings are raised now, not in `start`
        chosen = Experiment.make(placeholder, model=model, **self.settings)
        self.counts_classes: bool = chosen.algorithm.made.counts_classes
        if chosen.local.privacy is not None:
            raise BadValue(
                "a Strategy draws noise from the seed, which the server knows, so that local.privacy would hide nothing",
                remedy="use `fedarena serve`, where every client draws its noise from a secret of its own",
                where="local.privacy",
            )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run `num_rounds` rounds and return the result as Flower's strategies do."""
        if initial_arrays is not None:
            self.model.load_state_dict(initial_arrays.to_torch_state_dict())
        server = FlowerServer(self, grid, timeout)
        result = Result()
        for round in range(num_rounds):
            loss = server.round(round)
            result.arrays = server.arrays()
            result.train_metrics_clientapp[round + 1] = MetricRecord({"train_loss": loss})
            if self.evaluate:
                metrics = server.evaluate(round, result.arrays)
                result.evaluate_metrics_clientapp[round + 1] = metrics
                log.info("round %s: train loss %.4f, %s", round + 1, loss, dict(metrics))
            own = None if evaluate_fn is None else evaluate_fn(round + 1, result.arrays)
            if own is not None:
                result.evaluate_metrics_serverapp[round + 1] = own
        return result


class FlowerServer:
    """The server of a running strategy: its nodes, and the state of the algorithm."""

    def __init__(self, strategy: Strategy, grid: Grid, timeout: float) -> None:
        self.grid, self.timeout = grid, timeout
        self.nodes, reports = self._introduce_nodes(strategy)
        sizes = tuple(one["rows"] for one in reports)
        counts = tuple(map(sum, zip(*(one["class_counts"] for one in reports), strict=True)))
        classes = max(one["classes"] for one in reports)
        self.federation = FederationSettings(
            strategy.settings, classes, sizes, counts if strategy.counts_classes else None
        )
        x = np.broadcast_to(np.zeros((), reports[0]["dtype"]), (sum(sizes), *reports[0]["shape"]))  # takes no memory
        rows = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
        self.context = self.federation.context(strategy.model, x, np.zeros(len(x), np.int64), rows)
        self.clients = ClientSelection(self.context)
        self.algorithm, self.buffers = self.context.algorithm, self.context.task.buffers()
        self.state = self.algorithm.init(self.context.initial)
        self.remembered = [""] * len(sizes)  # the exchange whose client state each client continues from

    def _introduce_nodes(self, strategy: Strategy) -> tuple[list[int], list[dict[str, Any]]]:
        """Ask every node for its number of samples; clients are numbered by the names of nodes, the same in every run."""
        min_nodes = strategy.min_nodes
        nodes = wait_for_nodes(self.grid, min_nodes, self.timeout)
        request = {"do": "introduce", "count_classes": strategy.counts_classes}
        replies = self._exchange(dict.fromkeys(nodes, request), 0)
        reports = {node: facts(reply) for node, reply in replies.items()}
        if len(reports) < min_nodes:
            raise ClientFailed(f"{len(reports)} of {len(nodes)} nodes answered", remedy="see the logs of the others")
        order = sorted(reports, key=lambda node: (len(reports[node]["name"]), reports[node]["name"], node))
        return order, [reports[node] for node in order]

    def round(self, round: int) -> float:
        """Run one round of the algorithm, and return the mean training loss."""
        exchange = RoundExchange(round, self.clients, self.exchange)
        self.state = self.algorithm.round(self.state, exchange)
        self.buffers = exchange.buffers or self.buffers
        return float(np.mean(exchange.facts.losses)) if exchange.facts.losses else float("nan")

    def exchange(self, round: RoundExchange, message: Any, do: str, everyone: bool, only: int | None) -> Any:
        """Send a message to the clients, and return the mean of their replies, aggregated in the order of clients."""
        aggregate, first = Aggregate(), None
        round.aggregate = aggregate
        if everyone:
            round.selected = list(self.clients.population)
        asked = round.selected if only is None else [only]
        replies = self.send(round.round, round.exchanges, asked, do, Broadcast(message, self.buffers))
        round.exchanges += 1
        for client, reply in replies.items():
            try:
                report = facts(reply)
                sent, buffers = tree(reply.content, self.algorithm)
                if not (report["finite"] and is_finite(sent) and np.isfinite(report["weight"])):
                    raise ValueError("it has numbers that are not finite")
                first = sent if first is None else first
                if shapes(sent) != shapes(first) or shapes(buffers) != shapes(self.buffers):
                    raise ValueError("it has arrays of another shape")
            except (KeyError, TypeError, ValueError, UnknownType) as error:
                log.warning("client %s is left out, its reply cannot be used: %s", client, error)
                continue
            aggregate.mean.add(sent, report["weight"])
            aggregate.buffers.add(buffers, float(self.clients.sizes[client]))
            aggregate.answered.append(client)
            round.facts.losses.append(report["loss"])
            self.remembered[client] = report["memory"]
        round.close(only)
        self.buffers = self.buffers if only is None else round.buffers or self.buffers  # they travel with the model
        return aggregate.mean.result()

    def send(self, round: int, exchange: int, clients: list[int], do: str, common: Broadcast) -> dict[int, Message]:
        """Send a request to these clients, and return the replies that came in time, by client."""
        same = {"do": do, "round": round, "exchange": exchange, "federation": asdict(self.federation)}
        requests = {self.nodes[k]: {**same, "client": k, "memory": self.remembered[k]} for k in clients}
        replies = self._exchange(requests, round, common)
        number = {node: k for k, node in enumerate(self.nodes)}
        return {number[node]: replies[node] for node in sorted(replies, key=number.__getitem__)}

    def _exchange(
        self, requests: dict[int, dict[str, Any]], round: int, common: Broadcast | None = None
    ) -> dict[int, Message]:
        def message(node: int, request: dict[str, Any]) -> Message:
            content = write_records(request, common)
            return Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=str(round + 1))

        messages = [message(node, request) for node, request in requests.items()]
        replies = list(self.grid.send_and_receive(messages, timeout=self.timeout))
        for reply in replies:
            if reply.has_error():
                log.warning("node %s: %s", reply.metadata.src_node_id, reply.error.reason)
        return {reply.metadata.src_node_id: reply for reply in replies if not reply.has_error()}

    def arrays(self) -> ArrayRecord:
        """Return the current model, by the names of its parameters."""
        self.context.task.load(self.state.w)
        self.context.task.load_buffers(self.buffers)
        return ArrayRecord(self.context.task.state())

    def evaluate(self, round: int, model: ArrayRecord) -> MetricRecord:
        """Return the metrics of the app's `evaluate`, averaged by `num-examples` as Flower's strategies do."""
        content = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": round + 1})})
        requests = [Message(content, node, MessageType.EVALUATE, group_id=str(round + 1)) for node in self.nodes]
        replies = self.grid.send_and_receive(requests, timeout=self.timeout)
        metrics = [next(iter(reply.content.metric_records.values())) for reply in replies if not reply.has_error()]
        weights = np.array([float(one["num-examples"]) for one in metrics])  # type: ignore[arg-type]
        names = [name for name in (metrics[0] if metrics else ()) if name != "num-examples"]
        return MetricRecord({n: float(np.average([one[n] for one in metrics], weights=weights)) for n in names})


def train(message: Message, context: Context, model: nn.Module, x: Any, y: Any) -> Message:
    """Train on a client, for `@app.train()` of the app: any torch module, samples `x` and their labels `y` from 0 up."""
    asked = facts(message)
    rows, labels = (np.ascontiguousarray(v.numpy() if isinstance(v, torch.Tensor) else v) for v in (x, y))
    labels = labels.astype(np.int64)
    name = str(context.node_config.get("partition-id", context.node_id))
    if asked["do"] == "introduce":
        classes = _outputs(model, rows)
        counts = np.bincount(labels, minlength=classes).tolist() if asked["count_classes"] else []
        report = {"rows": len(rows), "shape": rows.shape[1:], "dtype": str(rows.dtype), "name": name}
        return Message(write_records({**report, "classes": classes, "class_counts": counts}), reply_to=message)
    federation, client, round = FederationSettings(**asked["federation"]), asked["client"], asked["round"]
    own = [np.arange(len(rows) if k == client else 0) for k in range(len(federation.sizes))]
    site = federation.context(model, rows, labels, own)
    memory = _load_state(context, asked["memory"], site)
    with one_thread():
        answer = run_task(site, ClientTask(round, client, asked["do"], memory), tree(message.content, site.algorithm))
    if isinstance(answer, FailedTask):
        # The text is only logged here: it may quote samples, and errors that are raised are sent.
        log.error("%s (%s)", answer.error, answer.place)
        raise RuntimeError(answer.error.partition(":")[0])
    if isinstance(answer, SkippedClient):
        raise RuntimeError(answer.reason)
    report = answer.report
    kept = asked["memory"]
    if report.state is not None:
        kept = _save_state(context, f"{round}.{asked['exchange']}", report.state, kept)
    reported = {
        "weight": answer.reply.weight,
        "loss": report.loss,
        "finite": report.finite,
        "memory": kept,
        "name": name,
    }
    content = write_records(reported, (answer.reply.send, answer.buffers))
    content["metrics"] = MetricRecord({"train_loss": report.loss, "num-examples": len(rows)})
    return Message(content, reply_to=message)


def shapes(about: Any) -> list[tuple[int, ...]]:
    """Return the shapes of all arrays in a tree."""
    return [np.shape(leaf) for leaf in leaves(about)]


def wait_for_nodes(grid: Grid, count: int, timeout: float) -> list[int]:
    """Wait until this many nodes are connected, and return their ids."""
    until = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > until:
            raise ClientFailed(f"{len(nodes)} of {count} nodes are connected", remedy="start more SuperNodes")
        time.sleep(0.2)
    return nodes


# Facts and trees of arrays in Flower's records: the arrays by name in one record, the rest as text in another


def write_records(report: dict[str, Any], about: Any = None) -> RecordDict:
    """Return facts and a tree of arrays as records of Flower."""
    parts: dict[str, NDArray[Any]] = {}
    plain = json.dumps(to_plain(about, parts))
    ours = ConfigRecord({"facts": json.dumps(report), "tree": plain})
    return RecordDict({ARRAYS: ArrayRecord({key: Array(part) for key, part in parts.items()}), OURS: ours})


def facts(message: Message) -> dict[str, Any]:
    """Return the facts of a message, which are beside its tree of arrays."""
    found: dict[str, Any] = json.loads(str(message.content.config_records[OURS]["facts"]))
    return found


def tree(content: RecordDict, algorithm: Any) -> Any:
    """Return the tree of arrays of a message; only classes of the algorithm and the engine are created."""
    types = types_near(algorithm, Buffers, ClientState, Broadcast)
    parts = {key: array.numpy() for key, array in content.array_records[ARRAYS].items()}
    return from_plain(json.loads(str(content.config_records[OURS]["tree"])), parts, types)


# The client state lies in the context of the client, by round and exchange, so that a lost reply can be ignored.


def _load_state(context: Context, ticket: str, site: SeparateContext) -> ClientState | None:
    if not ticket:
        return None
    parts = RecordDict({part: context.state[_place(ticket, part)] for part in (ARRAYS, OURS)})
    memory: ClientState = tree(parts, site.algorithm)
    return memory


def _save_state(context: Context, ticket: str, memory: ClientState, before: str) -> str:
    """Save the client state, and remove all others except the one that the server refers to."""
    for part, record in write_records({}, memory).items():
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
