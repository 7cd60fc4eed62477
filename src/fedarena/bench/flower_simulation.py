"""A workload in Flower's simulation, where `flwr[simulation]` is installed: FedAvg on two Ray actors, whose clients train
with the plain DataLoader loop."""

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

from fedarena.bench.reference_loops import PLAIN, ReferenceLoop, Round
from fedarena.bench.workloads import Workload

ACTORS = 2
LOOPS: dict[str, ReferenceLoop] = {}  # of this process


def is_installed() -> bool:
    """Return whether Flower is installed with its simulation."""
    return all(importlib.util.find_spec(name) is not None for name in ("flwr", "ray"))


@contextlib.contextmanager
def simulation(workload: Workload) -> Iterator[Round]:
    """Run Flower's own loop in a thread, in which it waits after each round for the next request."""
    # No telemetry, and no output into our table.
    os.environ |= {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    go: queue.Queue[None] = queue.Queue()
    done: queue.Queue[BaseException | None] = queue.Queue()

    def run_flower() -> None:
        try:
            _run(workload, go, done)
        except BaseException as error:  # Flower raises SystemExit
            done.put(error)

    threading.Thread(target=run_flower, daemon=True).start()

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


def _run(workload: Workload, go: queue.Queue[None], done: queue.Queue[BaseException | None]) -> None:
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    server, clients = ServerApp(), ClientApp()
    clients.train()(functools.partial(_train, workload))

    def wait_for_request(number: int, _: Any) -> None:
        if number:
            done.put(None)
        go.get()

    def main(grid: Any, context: Any) -> None:
        strategy = FedAvg(
            fraction_train=workload.cohort / workload.clients, fraction_evaluate=0.0,
            min_train_nodes=workload.cohort, min_available_nodes=workload.clients,
        )  # fmt: skip
        arrays = ArrayRecord(_loop(workload).model.state_dict())
        strategy.start(grid, arrays, num_rounds=10**6, timeout=10**6, evaluate_fn=wait_for_request)

    server.main()(main)
    run_simulation(
        server, clients, num_supernodes=workload.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            "init_args": {
                "address": "local", "num_cpus": ACTORS, "include_dashboard": False,  # not a cluster that happens to run
                "log_to_driver": False, "logging_level": "error",
            },
        },
    )  # fmt: skip


def _loop(workload: Workload) -> ReferenceLoop:
    """Return the model and samples, which each actor creates once."""
    if workload.name not in LOOPS:
        LOOPS[workload.name] = ReferenceLoop(workload, PLAIN)
    return LOOPS[workload.name]


def _train(workload: Workload, message: Any, context: Any) -> Any:
    """Train as a client of Flower: load the model, train, send the result."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    loop = _loop(workload)
    loop.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    state = loop.train(int(context.node_config["partition-id"]))
    content = RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": workload.rows})})
    return Message(content=content, reply_to=message)
