"""Private gradients of any torch module: gradients of single samples, clipped, summed, and hidden by noise.

The gradient of each sample comes from torch.func, or one sample at a time from autograd where torch cannot map a layer
over samples. A stack of linear layers needs neither: the gradient of a sample in such a layer is the outer product of the
layer's input and the gradient of its output, so that its norm is a product, and the clipped sum one product of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor, nn

from fedarena.config.settings_tables import LocalPrivacy
from fedarena.models.task import Task, as_tensor, torch_untouched

PIECE = 1 << 24  # numbers in the gradients of the samples that are differentiated together (64 MB)
MARGIN = 1e-6  # added to a norm before the division, as Opacus does
BETWEEN = (nn.ReLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Dropout, nn.Identity, nn.Flatten, nn.ZeroPad1d)


class PrivateTask(Task):
    """A task whose gradient of a batch is the noisy sum of clipped gradients of its samples, over their expected number."""

    def __init__(self, task: Task, privacy: LocalPrivacy) -> None:
        vars(self).update(vars(task))  # the same module and the same weights
        self.privacy = privacy
        self._linear = None if task.has_own_loss else _linear_layers(self.module)
        self._batch_loss = _BatchLoss(self.module, self._loss)
        self._can_map: bool | None = None  # whether torch can map the model over samples; None: not known yet
        self._noise, self._expected = np.random.default_rng(0), 1.0

    def begin(self, noise: np.random.Generator, expected: float) -> None:
        """Start a training with a stream of noise and the expected number of samples in a batch."""
        self._noise, self._expected = noise, expected

    @property
    def path(self) -> str:
        """Return which code trains."""
        return "gradients of single samples"

    def accumulate(self, x: Tensor, y: Tensor, into: list[Tensor], scale: float) -> float:
        """Add `scale` times the private gradient to the views `into`; the loss of the samples is not revealed."""
        total = self.clipped_sum(x, y)
        if self.privacy.noise:
            draws = self._noise.standard_normal(self.size, dtype=self.vector_dtype)
            total.add_(as_tensor(draws).to(total), alpha=self.privacy.noise * self.privacy.clip)
        with torch.no_grad():
            torch._foreach_add_(into, self.views(total), alpha=scale / self._expected)
        return math.nan

    def clipped_sum(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum of the clipped gradients of these samples, as a flat vector."""
        total = torch.zeros_like(self.flat)
        views = self.views(total)
        if len(y) and self._linear is not None and (x.dim() == 2 or isinstance(self._linear[0], nn.Flatten)):
            self._add_of_linear_layers(x, y, views)
            return total
        if self._can_map is None and len(y):
            self._can_map = self._try_to_map(x[:1], y[:1])
        piece = max(PIECE // self.size, 1) if self._can_map else 1
        for start in range(0, len(y), piece):
            part = slice(start, start + piece)
            self._add_clipped(self._gradients(x[part], y[part]), views)
        return total

    # Any model

    def _gradients(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Return the gradient of each sample's loss: for each parameter, the samples in the first dimension."""
        if not self._can_map:
            loss = self._loss(x, y)
            return [g.unsqueeze(0) for g in torch.autograd.grad(loss, self._parameters, materialize_grads=True)]
        weights = {f"module.{name}": view for name, view in zip(self.names, self.weights, strict=True)}
        each = torch.func.vmap(torch.func.grad(self._sample_loss), (None, 0, 0), randomness="different")
        found: dict[str, Tensor] = each(weights, x, y)
        return list(found.values())

    def _sample_loss(self, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = torch.func.functional_call(self._batch_loss, weights, (x.unsqueeze(0), y.unsqueeze(0)))
        return loss

    def _try_to_map(self, x: Tensor, y: Tensor) -> bool:
        """Return whether torch can map this model over samples; it cannot for recurrent layers, for example."""
        self._can_map = True
        try:
            with torch_untouched():
                self._gradients(x, y)
        except Exception:  # of any type: some layers have no rule, others run Python code that depends on values
            return False
        return True

    @torch.no_grad()
    def _add_clipped(self, gradients: list[Tensor], into: list[Tensor]) -> None:
        """Add the gradients of samples, each scaled to a norm of at most `clip`."""
        each = [torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1, dtype=torch.float64) for g in gradients]
        factors = self._factors(torch.linalg.vector_norm(torch.stack(each), dim=0))
        for gradient, view in zip(gradients, into, strict=True):
            view.add_(torch.tensordot(factors.to(gradient), _without_non_finite(gradient, factors), dims=1))

    def _factors(self, norms: Tensor) -> Tensor:
        """Return the factor of each sample; one whose gradient is not finite counts as zero, or it would be revealed."""
        return torch.where(norms.isfinite(), (self.privacy.clip / (norms + MARGIN)).clamp(max=1.0), 0.0)

    # Linear layers

    def _add_of_linear_layers(self, x: Tensor, y: Tensor, into: list[Tensor]) -> None:
        """Add the clipped gradients of a stack of linear layers, by one pass over the whole batch."""
        assert self._linear is not None
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []

        def save(layer: nn.Module, given: tuple[Tensor], result: Tensor) -> None:
            inputs.append(given[0].detach())
            outputs.append(result)

        layers = [layer for layer in self._linear if isinstance(layer, nn.Linear)]
        with ExitStack() as stack:
            for layer in layers:
                stack.callback(layer.register_forward_hook(save).remove)
            loss = self._loss(x, y) * len(y)  # a mean over samples: times their number it is the sum of their losses
        slopes = torch.autograd.grad(loss, outputs)
        with torch.no_grad():
            squares = torch.zeros(len(y), dtype=torch.float64, device=x.device)
            for layer, a, d in zip(layers, inputs, slopes, strict=True):
                has_bias = layer.bias is not None
                squares += d.double().square().sum(1) * (a.double().square().sum(1) + has_bias)
            factors = self._factors(squares.sqrt())
            views = iter(into)
            for layer, a, d in zip(layers, inputs, slopes, strict=True):
                scaled = factors.to(d).unsqueeze(1) * _without_non_finite(d, factors)
                next(views).add_(scaled.T @ _without_non_finite(a, factors))
                if layer.bias is not None:
                    next(views).add_(scaled.sum(0))


def _without_non_finite(values: Tensor, factors: Tensor) -> Tensor:
    """Return values in which those that are not finite are zero, where a sample was left out for them."""
    return values if bool(factors.all()) else values.nan_to_num(0.0, 0.0, 0.0)


def _linear_layers(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a stack of linear layers with others between them that mix no samples; None for other models."""
    layers = list(module) if type(module) is nn.Sequential else [module]
    for layer in layers:
        is_linear = type(layer) is nn.Linear and all(p.requires_grad for p in layer.parameters(recurse=False))
        if not is_linear and type(layer) not in BETWEEN:
            return None
        if layer._forward_hooks or layer._forward_pre_hooks or (type(layer) is nn.Flatten and layer.start_dim != 1):
            return None
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    names = [["weight"] if layer.bias is None else ["weight", "bias"] for layer in linear]
    plain = [[name for name, _ in layer.named_parameters()] for layer in linear]  # not re-parametrised
    return layers if linear and names == plain and len({*map(id, linear)}) == len(linear) else None


class _BatchLoss(nn.Module):
    """The loss of a batch as a module, whose parameters torch.func can replace."""

    def __init__(self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self._loss = module, loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of the batch."""
        return self._loss(x, y)
