"""Workers on the nodes of a Ray cluster: one actor a CPU, one thing at a time. Nodes may come and go.

What all of them need lies in the object store, once on each node, and is looked at there without a copy. Objects travel as
their structure and their large buffers apart, by the rules of runtimes/shared_memory.py: a class that no node can
import travels by value, and what comes back is of the class it was.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedarena.config.errors import ClientFailed
from fedarena.engine.tasks import FailedTask
from fedarena.models.compiled import SWITCH, library, processor
from fedarena.runtimes.processes import keep_freed_memory
from fedarena.runtimes.ray_nodes import LOOK, ClusterNode, ClusterNodes
from fedarena.runtimes.shared_memory import as_structure

ALONE = 120.0  # seconds without a single worker, after which nobody will come
STARTS = 3  # workers that may fail to start on a node before it is left aside
OCCUPIED = 5.0  # seconds after which a CPU that is not ours yet is somebody else's
QUICK = 0.05  # seconds: what takes longer does not wait behind another thing, but for whoever is free first

Key = tuple[int, int]  # what somebody was given: in which turn, and its position there


class StoredObject(NamedTuple):
    """An object on its way: its structure, and its large buffers as arrays, which Ray hands over without a copy."""

    structure: bytes
    buffers: list[NDArray[np.uint8]]

    @classmethod
    def of(cls, thing: Any, by_reference: bool = False) -> StoredObject:
        """Ready to travel."""
        buffers: list[pickle.PickleBuffer] = []
        structure = as_structure(thing, buffers, by_reference)
        return cls(structure, [np.asarray(buffer.raw()) for buffer in buffers])

    def view(self) -> Any:
        """The object; its arrays look straight into the store, read-only."""
        return pickle.loads(self.structure, buffers=self.buffers)

    def copy(self) -> Any:
        """The object with arrays of its own, so that the store may forget it."""
        return pickle.loads(self.structure, buffers=[bytearray(buffer) for buffer in self.buffers])


class RayActor:
    """The far end: an actor that holds what it works with."""

    def __init__(self, work: StoredObject, kernels: str, argv: list[str]) -> None:
        os.environ[SWITCH], sys.argv = kernels, argv  # as in the process that asks
        torch.set_num_threads(1)
        keep_freed_memory()
        try:
            self._work: Callable[..., Any] | FailedTask = work.view()
        except Exception as error:  # something of the user's that this node cannot import
            self._work = FailedTask(f"a worker could not start: {type(error).__name__}: {error}")
        gc.freeze()  # what is here stays to the end: no need to look through it again and again

    def hello(self) -> tuple[int, str]:
        """It is there: its process, and how it computes."""
        return os.getpid(), arithmetic()

    def do(self, *given: StoredObject) -> StoredObject:
        """One thing."""
        try:
            result = (
                self._work if isinstance(self._work, FailedTask) else self._work(*(parcel.view() for parcel in given))
            )
            return StoredObject.of(result, by_reference=True)
        except Exception as error:  # something in the question or the answer that no process can hand over
            return StoredObject.of(FailedTask.by(error))


def arithmetic() -> str:
    """What decides the last bits, beside the versions."""
    kernels = library()
    return f"{processor()}, kernels {kernels[0] if kernels else 'none'}"


@dataclass(eq=False)
class RayWorker:
    """The near end of a worker."""

    node: ClusterNode
    actor: Any
    hired: float
    pid: int = 0
    load: int = 0  # things that it has to do
    begun: float = 0.0  # the oldest of them
    took: float = 1.0  # seconds for the last one


@dataclass(frozen=True)
class LostWorker:
    """In place of a result: the worker is gone, and the thing must be done again."""

    why: str
    blamed: bool  # the worker may have died of it


class RayWorkers:
    """Workers that all hold the same `work`, a callable. With a queue a quick one has its next thing at the door."""

    def __init__(self, nodes: ClusterNodes, work: Any, most: int | None = None, queue: bool = False) -> None:
        self._ray, self._nodes, self._most, self._queue = nodes.ray, nodes, most, queue
        self._work = self.put(work)
        self._far = self._ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(RayActor)
        self._coming: dict[Any, RayWorker] = {}  # hello on its way -> whose
        self._here: list[RayWorker] = []
        self._busy: dict[Any, tuple[RayWorker, Key]] = {}  # answer on its way -> from whom, to what; the oldest first
        self._stillborn: dict[ClusterNode, int] = {}
        self._told: set[str] = set()
        self._last_seen = time.monotonic()
        self._hire()

    def __len__(self) -> int:
        """Those at hand, or at least one that will be."""
        return max(len(self._here), 1)

    def put(self, thing: Any) -> Any:
        """Into the object store; it stays there as long as what is returned."""
        return self._ray.put(StoredObject.of(thing))

    # Hiring

    def _hire(self) -> None:
        """One worker for every CPU, the emptiest node first, as long as there may be more."""
        self._nodes.look()
        young = [hand for hand in self._coming.values() if time.monotonic() - hand.hired < OCCUPIED]
        most = self._nodes.cpus if self._most is None else self._most
        for _ in range(most - len(self._here) - len(young)):
            everyone = [hand.node for hand in (*self._here, *self._coming.values())]
            free = {node: node.cpus - everyone.count(node) for node in self._usable}
            node = max(free, key=lambda node: free[node], default=None)
            if node is None or free[node] < 1:
                return
            where = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
            actor = self._far.options(scheduling_strategy=where).remote(
                self._work, os.environ.get(SWITCH, ""), sys.argv
            )
            hand = RayWorker(node, actor, time.monotonic())
            self._coming[hand.actor.hello.remote()] = hand

    @property
    def _usable(self) -> list[ClusterNode]:
        return [node for node in self._nodes.fit.values() if self._stillborn.get(node, 0) < STARTS]

    def _accept_worker(self, hello: Any) -> None:
        hand = self._coming.pop(hello)
        try:
            hand.pid, theirs = self._ray.get(hello)
        except self._ray.exceptions.RayError as error:
            if self._nodes.alive(hand.node):
                self._stillborn[hand.node] = self._stillborn.get(hand.node, 0) + 1
                self._warn(f"a worker could not start on node {hand.node.name}: {_first_line(error)}")
            return
        if theirs != arithmetic():
            self._warn(
                f"node {hand.node.name} computes with another processor ({theirs}) than this machine ({arithmetic()}): "
                "the last bits of the result may depend on who computes what"
            )
        self._here.append(hand)
        if self._most is not None and len(self._here) >= self._most:
            for late in self._coming.values():
                self._ray.kill(late.actor)
            self._coming.clear()

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, stacklevel=2)

    # Working

    def free(self) -> RayWorker | None:
        """Somebody who may be given something: one with nothing to do, else a quick one, where things may queue."""
        willing = (hand for hand in self._here if hand.load < (2 if self._queue and hand.took < QUICK else 1))
        return min(willing, key=lambda hand: hand.load, default=None)

    def begin(self, hand: RayWorker, key: Key, *given: Any) -> None:
        """Hand something over: what was put into the store, or parcels."""
        if hand.load == 0:
            hand.begun = time.monotonic()
        hand.load += 1
        self._busy[hand.actor.do.remote(*given)] = hand, key

    def ended(self, timeout: float) -> list[tuple[Key, Any]]:
        """(key, result or Gone) of what has ended; nothing if that takes longer than `timeout` seconds."""
        self._hire()
        waited_for = [*self._busy, *self._coming]
        if not waited_for:
            time.sleep(min(timeout, LOOK))
        ready = self._ray.wait(waited_for, timeout=min(timeout, LOOK))[0] if waited_for else []
        found: list[tuple[Key, Any]] = []
        for ref in ready:
            if ref in self._coming:
                self._accept_worker(ref)
            else:
                found += self._take(ref)
        self._check_workers()
        return found

    def _take(self, ref: Any) -> list[tuple[Key, Any]]:
        hand, key = self._busy.pop(ref)
        try:
            result = self._ray.get(ref).copy()
        except self._ray.exceptions.RayError as error:
            return [
                (key, LostWorker(_first_line(error), self._caused_death(error, hand.node))),
                *self._remove_worker(hand),
            ]
        now = time.monotonic()
        hand.took, hand.begun, hand.load = now - hand.begun, now, hand.load - 1
        return [(key, result)]

    def _caused_death(self, error: Exception, node: ClusterNode) -> bool:
        """Did the worker die of what it did? Not if its node went, or nobody could reach it, or only the answer is lost."""
        excused = ("ActorUnavailableError", "NodeDiedError", "ObjectLostError")
        known = tuple(filter(None, (getattr(self._ray.exceptions, name, None) for name in excused)))
        return not isinstance(error, known) and self._nodes.alive(node)

    def _remove_worker(self, hand: RayWorker) -> list[tuple[Key, Any]]:
        """A worker that is gone, or out of reach: what still waited at its door is done by others."""
        self._here.remove(hand)
        self._ray.kill(hand.actor)
        waiting = [(ref, key) for ref, (whose, key) in self._busy.items() if whose is hand]
        for ref, _ in waiting:
            del self._busy[ref]
        return [(key, LostWorker("", False)) for _, key in waiting]

    def _check_workers(self) -> None:
        """Somebody is there, or will be."""
        if self._here:
            self._last_seen = time.monotonic()
        elif self._nodes.fit and not self._usable:
            raise ClientFailed(
                f"no worker starts on any node: {', '.join(self._told)}", remedy="mend that; the logs of Ray say more"
            )
        elif time.monotonic() - self._last_seen > ALONE:
            raise ClientFailed(
                f"the cluster had no CPU for us in {ALONE:.0f} seconds",
                remedy="is one free? `ray status` tells; what was kept goes on with --resume",
            )

    def close(self) -> None:
        """Let them go, whatever they are doing."""
        for hand in (*self._here, *self._coming.values()):
            self._ray.kill(hand.actor)
        self._here.clear()
        self._coming.clear()
        self._busy.clear()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
