"""The nodes of a Ray cluster: which are alive, and whether they have the versions that give the same bits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedarena.config.errors import BadValue

PATIENCE = 60.0  # seconds for a node to report its versions
CHECK_INTERVAL = 1.0  # seconds between two checks of which nodes are alive
SAME = ("fedarena", "torch", "numpy")  # other versions of these may give other bits


@dataclass(frozen=True)
class ClusterNode:
    """A machine of the cluster, or a part of one."""

    id: str
    name: str
    cpus: int


class ClusterNodes:
    """The nodes that may be used. At first all must be usable; an unusable one that joins later is ignored."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.usable: dict[str, ClusterNode] = {}
        self._asked: dict[Any, ClusterNode] = {}  # by the pending reply
        self._known: set[str] = set()
        self._next_check = 0.0
        self._ours = _versions_here()(SAME)

    @property
    def cpus(self) -> int:
        """The number of CPUs of all usable nodes."""
        return sum(node.cpus for node in self.usable.values())

    def check(self) -> None:
        """Check all nodes that are alive; raise if one is not usable, or if there is none."""
        self._ask()
        while self._asked:
            answered, _ = self.ray.wait(list(self._asked), timeout=PATIENCE)
            for answer in answered:
                node, problem = self._answer(answer)
                if problem:
                    here = " ".join(f"{name}=={version}" for name, version in self._ours.items())
                    raise BadValue(
                        f"node {node.name} {problem}",
                        remedy=f"install the same on every node: {here}",
                        where="--runtime ray",
                    )
            if not answered:
                node = next(iter(self._asked.values()))
                raise BadValue(
                    f"node {node.name} does not answer", remedy="remove or repair the node", where="--runtime ray"
                )
        if not self.usable:
            raise BadValue(
                "the cluster has no CPU", remedy="add a node: ray start --address=HEAD:6379", where="--runtime ray"
            )

    def refresh(self) -> None:
        """Add nodes that have joined and drop those that have left; checked at most once a second."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_INTERVAL
        self._ask()
        asked = list(self._asked)
        for answer in self.ray.wait(asked, num_returns=len(asked), timeout=0)[0] if asked else ():
            node, problem = self._answer(answer)
            if problem:
                warnings.warn(f"node {node.name} {problem}: it is not used", stacklevel=2)

    def is_alive(self, node: ClusterNode) -> bool:
        """Return whether a node is still there."""
        self._next_check = 0.0
        self.refresh()
        return node.id in self.usable

    def _ask(self) -> None:
        """Drop the nodes that have left, and ask new ones for their versions; nodes without CPUs are ignored."""
        alive = {n["NodeID"]: n for n in self.ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) >= 1}
        self.usable = {id: node for id, node in self.usable.items() if id in alive}
        for id, facts in alive.items():
            if id not in self._known:
                self._known.add(id)
                name = f"{facts['NodeManagerHostname']} ({facts['NodeManagerAddress']})"
                node = ClusterNode(id, name, int(facts["Resources"]["CPU"]))
                where = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(id, soft=False)
                ask = self.ray.remote(_versions_here()).options(num_cpus=0, max_retries=0, scheduling_strategy=where)
                self._asked[ask.remote(SAME)] = node

    def _answer(self, answer: Any) -> tuple[ClusterNode, str]:
        """Return a node, and what is wrong with it: an empty text if it is usable, or gone."""
        node = self._asked.pop(answer)
        try:
            theirs = self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:
            return node, f"cannot be used: {str(error).strip().splitlines()[-1]}"
        except self.ray.exceptions.RayError:  # the node has left meanwhile
            self._known.discard(node.id)
            return node, ""
        for name, ours in self._ours.items():
            if theirs[name] != ours:
                has = f"has {name} {theirs[name]}" if theirs[name] else f"has no {name}"
                return node, f"{has}, here is {ours}"
        self.usable[node.id] = node
        return node, ""


def _versions_here() -> Callable[[tuple[str, ...]], dict[str, str | None]]:
    """Return a function that needs nothing of this package: nodes may have no fedarena, or another version."""

    def versions(names: tuple[str, ...]) -> dict[str, str | None]:
        import importlib.metadata

        found: dict[str, str | None] = dict.fromkeys(names)
        for name in names:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        try:
            import fedarena

            found["fedarena"] = fedarena.__version__
        except ImportError:
            found["fedarena"] = None
        return found

    return versions
