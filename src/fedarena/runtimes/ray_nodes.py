"""The nodes of a cluster: which are there, and whether they have the software that gives the same bits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedarena.config.errors import BadValue

PATIENCE = 60.0  # seconds for a node to say what it has
LOOK = 1.0  # seconds between two looks at which nodes are there
SAME = ("fedarena", "torch", "numpy")  # other versions of these may give other bits


@dataclass(frozen=True)
class ClusterNode:
    """A machine of the cluster, or a part of one."""

    id: str
    name: str
    cpus: int


class ClusterNodes:
    """Those that may be used. At first all must be fit; one that joins later and is not is left aside."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.fit: dict[str, ClusterNode] = {}
        self._asked: dict[Any, ClusterNode] = {}  # versions on their way -> of whom
        self._known: set[str] = set()
        self._next_look = 0.0
        self._ours = _versions_here()(SAME)

    @property
    def cpus(self) -> int:
        """Of all that may be used."""
        return sum(node.cpus for node in self.fit.values())

    def check(self) -> None:
        """Ask all nodes that are there; refuse a cluster where one is not fit, or where there is none."""
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
                raise BadValue(f"node {node.name} does not answer", remedy="end it, or mend it", where="--runtime ray")
        if not self.fit:
            raise BadValue(
                "the cluster has no CPU", remedy="add a node: ray start --address=HEAD:6379", where="--runtime ray"
            )

    def look(self) -> None:
        """Who has come, who has gone? Asked at most once a second."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK
        self._ask()
        answered, _ = (
            self.ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0) if self._asked else ([], [])
        )
        for answer in answered:
            node, problem = self._answer(answer)
            if problem:
                warnings.warn(f"node {node.name} {problem}: it is not used", stacklevel=2)

    def alive(self, node: ClusterNode) -> bool:
        """Is it still there?"""
        self._next_look = 0.0
        self.look()
        return node.id in self.fit

    def _ask(self) -> None:
        """Forget those that are gone, ask those that are new; a node without CPUs has nothing to do."""
        alive = {n["NodeID"]: n for n in self.ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) >= 1}
        self.fit = {id: node for id, node in self.fit.items() if id in alive}
        for id, told in alive.items():
            if id not in self._known:
                self._known.add(id)
                name = f"{told['NodeManagerHostname']} ({told['NodeManagerAddress']})"
                node = ClusterNode(id, name, int(told["Resources"]["CPU"]))
                where = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(id, soft=False)
                ask = self.ray.remote(_versions_here()).options(num_cpus=0, max_retries=0, scheduling_strategy=where)
                self._asked[ask.remote(SAME)] = node

    def _answer(self, answer: Any) -> tuple[ClusterNode, str]:
        """A node, and what is wrong with it; nothing if it is fit, or gone."""
        node = self._asked.pop(answer)
        try:
            theirs = self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:
            return node, f"cannot be used: {str(error).strip().splitlines()[-1]}"
        except self.ray.exceptions.RayError:  # it has gone meanwhile
            self._known.discard(node.id)
            return node, ""
        for name, ours in self._ours.items():
            if theirs[name] != ours:
                has = f"has {name} {theirs[name]}" if theirs[name] else f"has no {name}"
                return node, f"{has}, here is {ours}"
        self.fit[node.id] = node
        return node, ""


def _versions_here() -> Callable[[tuple[str, ...]], dict[str, str | None]]:
    """A function that needs nothing of ours: it must also run where fedarena is missing, or another."""

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
