"""The same work in Flower's simulation, where `flwr[simulation]` is installed: two Ray actors, FedAvg, and the plain
DataLoader loop as its client."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import queue
import threading
from collections.abc import Iterator
from typing import Any

from fedarena.bench.baselines import PLAIN, ReferenceLoop, Round
from fedarena.bench.workloads import Workload

ACTORS = 2
LOOPS: dict[str, ReferenceLoop] = {}  # of this process


def is_installed() -> bool:
    """Flower with its simulation."""
    return all(importlib.util.find_spec(name) is not None for name in ("flwr", "ray"))


@contextlib.contextmanager
def simulation(work: Workload) -> Iterator[Round]:
    """Flower keeps the loop, so it waits in its own thread, at the end of each round, for the word to go on."""
    # Neither it nor Ray shall call home, or write into our table.
    os.environ |= {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    go: queue.Queue[None] = queue.Queue()
    done: queue.Queue[BaseException | None] = queue.Queue()

    def keep_going() -> None:
        try:
            _run(work, go, done)
        except BaseException as error:  # Flower leaves by way of SystemExit
            done.put(error)

    threading.Thread(target=keep_going, daemon=True).start()

    def do_round(_: float) -> float:
        go.put(None)
        problem = done.get()
        if problem is not None:
            raise problem
        return 1.0

    try:
        yield do_round
    finally:
        import ray

        ray.shutdown()


def _run(work: Workload, go: queue.Queue[None], done: queue.Queue[BaseException | None]) -> None:
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    server, clients = ServerApp(), ClientApp()
    clients.train()(functools.partial(_train, work))

    def turn(number: int, _: Any) -> None:
        if number:
            done.put(None)
        go.get()

    def main(grid: Any, context: Any) -> None:
        strategy = FedAvg(
            fraction_train=work.cohort / work.clients, fraction_evaluate=0.0,
            min_train_nodes=work.cohort, min_available_nodes=work.clients,
        )  # fmt: skip
        arrays = ArrayRecord(_loop(work).model.state_dict())
        strategy.start(grid, arrays, num_rounds=10**6, timeout=10**6, evaluate_fn=turn)

    server.main()(main)
    run_simulation(
        server, clients, num_supernodes=work.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            "init_args": {
                "address": "local", "num_cpus": ACTORS, "include_dashboard": False,  # not a cluster that happens to run
                "log_to_driver": False, "logging_level": "error",
            },
        },
    )  # fmt: skip


def _loop(work: Workload) -> ReferenceLoop:
    """Model and rows, once in every actor."""
    if work.name not in LOOPS:
        LOOPS[work.name] = ReferenceLoop(work, PLAIN)
    return LOOPS[work.name]


def _train(work: Workload, message: Any, context: Any) -> Any:
    """Flower's client: load, train, send."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    loop = _loop(work)
    loop.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    state = loop.train(int(context.node_config["partition-id"]))
    content = RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": work.rows})})
    return Message(content=content, reply_to=message)
