"""Check the structure of answers against that of a synthetic client with a few synthetic samples."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Model
from fedarena.algorithms.tree_algorithm import TreeAlgorithm
from fedarena.data.dataset import Dataset, Partition
from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.setup import build_model_and_algorithm, make_context
from fedarena.engine.tasks import ClientAnswer, ClientTask
from fedarena.federation.wire_format import WireRefused
from fedarena.models.pytree import leaves, reductions
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.privacy.uplink import CannotSend
from fedarena.runtimes.single_thread import one_thread
from fedarena.trees.forest import HEADER, nodes_of

ROWS = 4


class ReplyPatterns:
    """The answers of the synthetic client, one for each method of the algorithm."""

    def __init__(self, context: ExperimentContext) -> None:
        self._of = context
        self._context: ExperimentContext | None = None
        self._known: dict[str, Any] = {}

    def prepare(self, do: str, common: Broadcast, turn: MaskedExchange | None) -> None:
        """Run the method once; an update that cannot be sent is found before any client is asked.

        What clients send for trees has another size in every exchange: there it is run each time.
        """
        if do in self._known and not isinstance(self._of.algorithm, TreeAlgorithm):
            return
        try:
            self._known[do] = self._made_up(do, common, turn)
        except CannotSend:
            raise
        except Exception:  # some models fail on zeros: then the first answer that arrives is the pattern
            self._known[do] = None

    def check(self, sent: Any, do: str) -> None:
        """Refuse an answer with another structure."""
        if self._known[do] is None:
            self._known[do] = sent
        check_structure(sent, self._known[do], "answer")

    def _made_up(self, do: str, common: Broadcast, turn: MaskedExchange | None) -> Any:
        if self._context is None:
            self._context = self._stand_in()
        with one_thread():
            answer = ClientTask(0, 0, do, None).run(self._context, common)
        assert isinstance(answer, ClientAnswer)
        sent, steps = answer.reply.send, self._context.steps
        if turn is None or steps is None:
            return sent
        if steps.settings.secure:
            return steps.masked_pattern(sent)
        steps.check(leaves(sent), list(reductions(sent)))
        return sent

    def _stand_in(self) -> ExperimentContext:
        context, data = self._of, self._of.data
        rows = max(ROWS, data.classes)
        x = np.zeros((rows, *data.x.shape[1:]), np.float32)
        everyone = [np.arange(rows)] * len(context.owners.clients)
        y = _some_labels(data.task, rows, data.classes)
        made_up = Dataset("made up", x, y, rows, data.classes, task=data.task)
        return build_model_and_algorithm(
            make_context(context.experiment, made_up, Partition(everyone, np.empty(0, np.int64)))
        )


def _some_labels(task: str, rows: int, classes: int) -> NDArray[Any]:
    """Return labels that a model can be trained on, so that an answer has the form of a real one."""
    if task == "regression":
        return np.zeros(rows, np.float32)
    if task in ("multilabel", "survival"):
        return np.ones((rows, classes if task == "multilabel" else 2), np.float32)
    return np.arange(rows) % classes


def check_model(model: Any, context: ExperimentContext) -> None:
    """Refuse a message that is no model of the experiment: weights like the first ones, or a forest that began as agreed."""
    if not isinstance(context.algorithm, TreeAlgorithm):
        check_structure(model, Model(context.initial), "a model")
        return
    w = getattr(model, "w", None)
    if type(model) is not Model or not isinstance(w, np.ndarray) or (w.dtype, w.ndim) != (np.dtype(np.float32), 1):
        raise WireRefused("a message without a forest")
    trees = len(w) - HEADER
    if not np.array_equal(w[:HEADER], context.initial[:HEADER]) or trees % (4 * nodes_of(context.algorithm.depth)):
        raise WireRefused("a forest that is not one of the agreed experiment")


def check_structure(tree: Any, pattern: Any, where: str) -> None:
    """Refuse a tree that differs from a pattern in type or shape."""
    if problem := first_mismatch(tree, pattern, where):
        raise WireRefused(problem)


def first_mismatch(tree: Any, pattern: Any, where: str) -> str:
    """Describe the first place in which two trees differ in type or shape; return an empty text if they do not."""
    if isinstance(pattern, np.ndarray):
        if isinstance(tree, np.ndarray) and (tree.shape, tree.dtype) == (pattern.shape, pattern.dtype):
            return ""
        sent = f"{tree.dtype} {tree.shape}" if isinstance(tree, np.ndarray) else type(tree).__name__
        return f"an array {sent} as {where}, where {pattern.dtype} {pattern.shape} belongs"
    if isinstance(pattern, bool | int | float | np.generic):
        fits = isinstance(tree, bool | int | float)
    else:
        fits = type(tree) is type(pattern)
    if not fits:
        return f"a {type(tree).__name__} as {where}, where a {type(pattern).__name__} belongs"
    parts: list[tuple[str, Any, Any]] = []
    if dataclasses.is_dataclass(pattern):
        names = [field.name for field in dataclasses.fields(pattern)]
        parts = [(f"{where}.{name}", getattr(tree, name), getattr(pattern, name)) for name in names]
    elif isinstance(pattern, list | tuple):
        if len(tree) != len(pattern):
            return f"{len(tree)} parts as {where}, where {len(pattern)} belong"
        parts = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(tree, pattern, strict=True))]
    elif isinstance(pattern, dict):
        if tree.keys() != pattern.keys():
            return f"other keys in {where}"
        parts = [(f"{where}[{key!r}]", tree[key], pattern[key]) for key in pattern]
    problems = (first_mismatch(a, b, place) for place, a, b in parts)
    return next((problem for problem in problems if problem), "")
