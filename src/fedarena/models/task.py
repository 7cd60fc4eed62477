"""Any torch module as loss and gradient of one flat vector.

The module's trainable parameters become views into one contiguous buffer, in the order of registration, so that a model
is an array, a message is an array, and SCAFFOLD is arithmetic. Weights of convolutions lie in channels-last order inside
that buffer: 1.2 to 1.5 times faster on a CPU, and invisible to code that only adds and averages.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedarena.config.errors import BadValue, quoted
from fedarena.data.dataset import PADDING
from fedarena.models.compiled import CompiledNetwork
from fedarena.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, find_loss
from fedarena.models.tape import Tape
from fedarena.models.torch_compile import compiled

Vector = NDArray[Any]
Keep = Literal["", "classes", "logits"]  # what an evaluation returns for every sample beside its scores
Cut = tuple[int, float]  # the positive class of two, and the difference of logits from which it is predicted
HAS_CUDA = torch.cuda.is_available()


@dataclass(frozen=True)
class Buffers:
    """The buffers of a module: BatchNorm's running statistics, and its counters of batches."""

    values: Vector
    counters: NDArray[np.int64]


@dataclass(frozen=True)
class Scores:
    """Scores of each row: correct predictions, labels (several for a sequence or with several labels), summed loss.

    `outputs` are the outputs of the model or the predicted classes of the rows, where they were asked for.
    """

    right: NDArray[np.int64]
    count: NDArray[np.int64]
    loss: NDArray[np.float64]
    outputs: NDArray[Any] | None = None

    @classmethod
    def of_nothing(cls) -> Scores:
        """Return the scores of no rows."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        """Return the scores of the rows of all parts, in their order."""
        right, count, loss = (np.concatenate([getattr(p, name) for p in parts]) for name in ("right", "count", "loss"))
        outputs = [p.outputs for p in parts if p.outputs is not None]
        return cls(right, count, loss, np.concatenate(outputs) if outputs else None)


class Task:
    """A module whose parameters are views of one flat vector.

    A module may define `loss(x, y)` itself (a mean over the batch); otherwise `loss` is that of its outputs, softmax
    cross-entropy by default, at every position for sequences.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        freeze: tuple[str, ...] = (),
        fast: bool = True,
        shape: tuple[int, ...] | None = None,
        compile_batch: float | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.loss = loss or find_loss("classification")
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.device = torch.device(device)
        self.module = module.to(self.device, self.dtype)
        freeze_parameters(self.module, freeze)
        self.names = [name for name, p in self.module.named_parameters() if p.requires_grad]
        self._parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.size = sum(p.numel() for p in self._parameters)
        self.flat = torch.empty(self.size, dtype=self.dtype, device=self.device)
        self.weights = self.views(self.flat)
        for parameter, view in zip(self._parameters, self.weights, strict=True):
            view.copy_(parameter.data)
            parameter.data = view
        self._float_buffers = [b for b in self.module.buffers() if b.is_floating_point()]
        self._counters = [b for b in self.module.buffers() if not b.is_floating_point()]
        self.has_buffers = bool(self._float_buffers or self._counters)
        self.has_batchnorm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules())
        self.has_dropout = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in self.module.modules())
        self.channels_last = any(isinstance(m, nn.Conv2d) for m in self.module.modules())
        self.class_weights: Tensor | None = None  # importance of each class in the loss, set for one client's work
        self.own_loss: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None  # of an algorithm, for one training
        self.predictor: Callable[[nn.Module, Tensor], Tensor] | None = None  # of an algorithm, for one evaluation
        self.normalise_weights = True  # divide by the sum of the weights in a batch, or by its size
        self.sample_weights: Tensor | None = None  # of the samples of the next batch, where they differ
        own_loss = getattr(self.module, "loss", None)
        self.has_own_loss = callable(own_loss)
        self._loss: Callable[[Tensor, Tensor], Tensor] = own_loss if callable(own_loss) else self._loss_of_outputs
        self.initial = self.vector()  # w_0, a copy
        self._tape = Tape.of(self.module, self.weights, self.loss) if fast and own_loss is None else None
        self.network = None if self._tape is None else CompiledNetwork.of(self._tape, shape)
        self._training_loss, self.is_compiled = self._loss, False
        if compile_batch is not None and self.network is None:  # kernels are faster still
            self._training_loss, self.is_compiled = compiled(self._loss, compile_batch, self.device), True
            self._tape = None

    @property
    def path(self) -> str:
        """Return which code trains: `compiled` kernels, the `tape` (known layers by hand) or `autograd` (any module)."""
        if self.network:
            return f"compiled {self.network.build}"
        return "tape" if self._tape else "autograd with torch.compile" if self.is_compiled else "autograd"

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat vector as the parameters, each in its own shape."""
        out, start = [], 0
        for parameter in self._parameters:
            piece = flat[start : start + parameter.numel()]
            start += parameter.numel()
            if parameter.dim() == 4:
                o, i, h, w = parameter.shape
                out.append(piece.view(o, h, w, i).permute(0, 3, 1, 2))
            else:
                out.append(piece.view(parameter.shape))
        return out

    def vector(self) -> Vector:
        """Return a copy of the parameters as a flat vector."""
        return self.flat.cpu().numpy().copy()

    def load(self, w: Vector) -> None:
        """Set the parameters to those of a flat vector."""
        self.flat.copy_(as_tensor(w))

    def buffers(self) -> Buffers:
        """Return a copy of the module's buffers."""
        values = [b.detach().reshape(-1).cpu().numpy() for b in self._float_buffers]
        counters = [b.detach().reshape(-1).cpu().numpy() for b in self._counters]
        return Buffers(
            np.concatenate(values) if values else np.empty(0, self.vector_dtype),
            np.concatenate(counters).astype(np.int64) if counters else np.empty(0, np.int64),
        )

    def load_buffers(self, buffers: Buffers) -> None:
        """Set the buffers, so that statistics of one client do not leak into the next."""
        for targets, source in ((self._float_buffers, buffers.values), (self._counters, buffers.counters)):
            start = 0
            for b in targets:
                b.copy_(as_tensor(source[start : start + b.numel()]).view(b.shape))
                start += b.numel()

    @property
    def vector_dtype(self) -> np.dtype[Any]:
        """Return the numpy type of a vector of this model."""
        return np.dtype(str(self.dtype).removeprefix("torch."))

    def batch_layout(self, x: Tensor) -> Tensor:
        """Return a batch in the memory layout that is fastest for the layers."""
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x

    def accumulate(self, x: Tensor, y: Tensor, into: list[Tensor], scale: float) -> float:
        """Add `scale` times the gradient of the batch's mean loss to the views `into`; return the loss.

        `into` may be the weights themselves: with scale = -eta that is a whole step of SGD.
        """
        if self._tape and self.own_loss is None:
            return self._tape.accumulate(x, y, into, scale, self._row_weights(y))
        loss = self._training_loss(x, y) if self.own_loss is None else self.own_loss(self.module, x, y)
        gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_add_(into, gradients, alpha=scale)
        return float(loss.detach())

    def predict(self, x: Tensor, y: Tensor, keep: Keep = "", cut: Cut | None = None) -> Scores:
        """Score each row in evaluation mode; ties go to the lowest class, and non-finite outputs count as wrong."""
        if self.has_own_loss:  # which knows no classes
            with torch.no_grad():
                self.module.eval()
                ones = np.ones(len(x), np.int64)
                return Scores(0 * ones, ones, np.full(len(x), float(self._loss(x, y))))
        return self.score(self.logits(x), y, keep, cut)

    def score(self, outputs: Tensor, y: Tensor, keep: Keep = "", cut: Cut | None = None) -> Scores:
        """Return the scores of rows from the outputs of the model."""
        with torch.no_grad():
            if not isinstance(self.loss, CrossEntropy):
                return self._scores(outputs, y, keep)
            logits, labels = flatten_positions(outputs, y)
            known = labels != PADDING
            predicted = predicted_classes(logits, cut)
            right = (predicted == labels) & known
            losses = F.cross_entropy(logits.double(), labels, reduction="none", ignore_index=PADDING)
        kept = None if not keep else logits if keep == "logits" else predicted.view(y.shape).int()
        found = None if kept is None else kept.cpu().numpy()
        right_of_row, count, loss = (_by_row(part, len(y)) for part in (right.long(), known.long(), losses))
        return Scores(right_of_row, count, loss, found)

    def _scores(self, outputs: Tensor, y: Tensor, keep: Keep) -> Scores:
        """Return the scores of outputs that are not classes; several labels are right or wrong one by one."""
        losses = self.loss.values(outputs.double(), y.double()).cpu().numpy()
        right, count = np.zeros(len(y), np.int64), np.ones(len(y), np.int64)
        if isinstance(self.loss, BinaryCrossEntropy):
            finite = torch.isfinite(outputs).all(dim=1, keepdim=True)
            right = (((outputs > 0) == (y > 0.5)) & finite).sum(dim=1).cpu().numpy()
            count, losses = count * y.shape[1], losses * y.shape[1]
        return Scores(right, count, losses, outputs.cpu().numpy() if keep else None)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return the logits in evaluation mode, by the kernels where they also train: the rounding of torch's libraries
        depends on the vendor of the processor."""
        self.module.eval()
        if self.predictor is not None:
            return self.predictor(self.module, x)
        if self.network is None:
            out: Tensor = self.module(x)
            return out
        return torch.from_numpy(self.network.logits(self.flat.numpy(), self.buffers().values, x.contiguous().numpy()))

    def _loss_of_outputs(self, x: Tensor, y: Tensor) -> Tensor:
        return self.mean_loss(self.module(x), y)

    def mean_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a batch from the outputs of the model."""
        if isinstance(self.loss, CrossEntropy):
            outputs, y = flatten_positions(outputs, y)
        return self.loss.mean(outputs, y, self._row_weights(y))

    def _row_weights(self, labels: Tensor) -> Tensor | None:
        """Return the weight of each row in the batch's loss; None where all are equal."""
        if self.class_weights is None and self.sample_weights is None:
            return None
        weights = torch.ones(len(labels), dtype=self.dtype, device=self.device)
        if self.class_weights is not None:
            weights = self.class_weights[labels.clamp(min=0)] * (labels != PADDING)
        if self.sample_weights is not None:
            weights = weights * self.sample_weights
        total = weights.sum() if self.normalise_weights else torch.tensor(float(len(labels)))
        return weights / (total if total > 0 else 1.0)  # all weights are 0: the batch teaches nothing

    def state(self) -> dict[str, Tensor]:
        """Return parameters and buffers by name, in torch's usual layout, for `module.load_state_dict`."""
        return {name: value.detach().cpu().contiguous().clone() for name, value in self.module.state_dict().items()}


@contextlib.contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Seed torch's random numbers inside the block and restore them afterwards.

    `torch.manual_seed` would take a millisecond, and queue itself up for accelerators that are not there.
    """
    with torch_untouched():
        seed_torch(seed)
        yield


@contextlib.contextmanager
def torch_untouched() -> Iterator[None]:
    """Restore torch's random numbers after the block."""
    before = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def seed_torch(seed: int) -> None:
    """Seed torch's global random numbers."""
    torch.default_generator.manual_seed(seed)
    if HAS_CUDA:
        torch.cuda.manual_seed_all(seed)


def freeze_parameters(module: nn.Module, patterns: tuple[str, ...]) -> None:
    """Freeze parameters whose name matches a pattern: they are not trained and not sent."""
    for pattern in patterns:
        fitting = [p for name, p in module.named_parameters() if fnmatch.fnmatch(name, pattern)]
        if not fitting:
            names = ", ".join(name for name, _ in module.named_parameters())
            raise BadValue(f"no parameter fits '{quoted(pattern)}'", remedy=f"they are: {names}", where="freeze")
        for p in fitting:
            p.requires_grad_(False)
    if not any(p.requires_grad for p in module.parameters()):
        raise BadValue("no parameter is left to train", remedy="freeze less", where="freeze")


def flatten_positions(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Reshape sequences (batch, T, classes) to a batch of positions."""
    return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)


def lowest_maximum(logits: Tensor) -> Tensor:
    """Return the index of the largest logit, the lowest of several equal ones (torch's argmax does not promise that)."""
    indices = torch.arange(logits.shape[1], device=logits.device)
    return torch.where(logits == logits.amax(dim=1, keepdim=True), indices, logits.shape[1]).amin(dim=1)


def predicted_classes(logits: Tensor, cut: Cut | None = None) -> Tensor:
    """Return the class with the largest logit, or the positive one from the cut on; -1 where a logit is not finite."""
    if cut is None:
        predicted = lowest_maximum(logits)
    else:
        positive, margin = cut
        apart = logits[:, positive].double() - logits[:, 1 - positive].double()
        predicted = torch.where(apart >= margin, positive, 1 - positive)
    return torch.where(torch.isfinite(logits).all(dim=1), predicted, -1)


def _by_row(positions: Tensor, rows: int) -> NDArray[Any]:
    return positions.view(rows, -1).sum(dim=1).cpu().numpy()


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor over the array's memory; read-only arrays (shared memory) must only be read."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def sha256(*arrays: NDArray[Any]) -> str:
    """Return the hash of weights and buffers: equal hashes mean equal bits."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
