"""A real Ray cluster on this machine: a head and two nodes, each with processes and an object store of its own."""

from __future__ import annotations

import functools
import logging
import time
from typing import Any

PATIENCE = 120.0  # seconds, after which something is wrong
SIZE = {"num_cpus": 1, "object_store_memory": 80 << 20}
SOON = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_timeout_ms": 3000}  # a lost
# node is known as such after five failures: in seconds, not in a quarter of a minute


@functools.cache
def head() -> Any:
    """Start the head node once for the tests of a module, since starting takes longer than most of them."""
    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    arguments = {**SIZE, "include_dashboard": False, "_system_config": SOON}
    try:
        return Cluster(initialize_head=True, head_node_args=arguments)
    except Exception as error:  # Ray raises no class of its own
        if "timed out during startup" not in str(error):
            raise
        return Cluster(initialize_head=True, head_node_args=arguments)  # seldom, its node process does not come up


def stop() -> None:
    """End the cluster if there is one: its programs use a twentieth of a processor for as long as they run."""
    if head.cache_info().currsize:
        head().shutdown()
        head.cache_clear()


def cluster() -> Any:
    """Return the cluster with two nodes beside the head, replacing those that were killed."""
    while len(head().worker_nodes) < 2:
        head().add_node(**SIZE)
    return head()


def wait_for_workers(pool: Any, count: int) -> None:
    """Wait until a pool has this number of workers."""
    deadline = time.monotonic() + PATIENCE
    while len(pool._ready) < count:
        assert time.monotonic() < deadline, "workers do not start"
        pool.wait(1.0)


def others() -> dict[str, Any]:
    """Return the nodes that a test may kill, by id: not the head, and not that of this process."""
    import ray

    ids = {node["RayletSocketName"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    found = {ids[node.raylet_socket_name]: node for node in head().worker_nodes}
    found.pop(ray.get_runtime_context().get_node_id(), None)
    return found


def stop_node(id: str) -> None:
    """Kill all processes of a node at once."""
    head().remove_node(others()[id], allow_graceful=False)
