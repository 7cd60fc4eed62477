"""The fast path for plain stacks of known layers: forward and backward by hand, with gradients added in place.

Autograd builds a graph, allocates every gradient, and leaves the update to a second pass over all weights. A stack of
layers needs none of that. Here each layer says how to go forward and back, and adds its gradient, scaled, straight into
a given place: for plain SGD that place is the weight itself, so that a fully connected layer's gradient (an outer
product of ten rows) never exists as a matrix. 1.9 times as fast as autograd on a small MLP, and the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedarena.models.losses import Loss

aten: Any = torch.ops.aten
Views = list[Tensor]


class Layer:
    """A layer: `forward` stores what `backward` needs, which returns the input's gradient and adds its own to `into`."""

    takes = 0  # how many parameters it has

    def __init__(self, module: Any, weights: Views, in_place: bool) -> None:
        self.module, self.weights, self.in_place = module, weights, in_place

    def forward(self, h: Tensor) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def backward(self, d: Tensor, saved: Any, into: Views, scale: float, first: bool) -> Tensor | None:
        raise NotImplementedError


class Linear(Layer):
    def forward(self, h: Tensor) -> tuple[Tensor, Any]:
        if h.dim() > 2:  # rows of rows: a batch of all of them
            flat, saved = self.forward(h.flatten(0, -2))
            return flat.view(*h.shape[:-1], flat.shape[1]), saved
        weight = self.weights[0]
        return (torch.addmm(self.weights[1], h, weight.t()) if len(self.weights) == 2 else h @ weight.t()), h

    def backward(self, d: Tensor, saved: Any, into: Views, scale: float, first: bool) -> Tensor | None:
        if d.dim() > 2:
            flat = self.backward(d.flatten(0, -2), saved, into, scale, first)
            return None if flat is None else flat.view(*d.shape[:-1], flat.shape[1])
        back = None if first else d @ self.weights[0]  # before the weight may change
        into[0].addmm_(d.t(), saved, alpha=scale)
        if len(into) == 2:
            into[1].add_(d.sum(0), alpha=scale)
        return back


class Convolution(Layer):
    def forward(self, h: Tensor) -> tuple[Tensor, Any]:
        m = self.module
        bias = self.weights[1] if len(self.weights) == 2 else None
        return aten.convolution(h, self.weights[0], bias, m.stride, m.padding, m.dilation, False, [0, 0], m.groups), h

    def backward(self, d: Tensor, saved: Any, into: Views, scale: float, first: bool) -> Tensor | None:
        m = self.module
        back, *gradients = aten.convolution_backward(
            d, saved, self.weights[0], [m.out_channels], m.stride, m.padding, m.dilation, False, [0, 0], m.groups,
            [not first, True, len(into) == 2],
        )  # fmt: skip
        add(into, gradients[: len(into)], scale)
        return None if first else back


class BatchNorm(Layer):
    def forward(self, h: Tensor) -> tuple[Tensor, Any]:
        m = self.module
        if h.numel() == h.shape[1]:  # as torch's own layer does: there is no variance of one value
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(h.shape)}")
        m.num_batches_tracked.add_(1)
        out, mean, inverse = aten.native_batch_norm(
            h, *self.weights, m.running_mean, m.running_var, True, m.momentum, m.eps
        )
        return out, (h, mean, inverse)

    def backward(self, d: Tensor, saved: Any, into: Views, scale: float, first: bool) -> Tensor | None:
        m, (h, mean, inverse) = self.module, saved
        back, *gradients = aten.native_batch_norm_backward(
            d, h, self.weights[0], m.running_mean, m.running_var, mean, inverse, True, m.eps, [True] * 3
        )
        add(into, gradients, scale)
        return back  # type: ignore[no-any-return]


class GroupNorm(Layer):
    def forward(self, h: Tensor) -> tuple[Tensor, Any]:
        size = (h.shape[0], h.shape[1], h[0, 0].numel(), self.module.num_groups)
        out, mean, inverse = aten.native_group_norm(h, *self.weights, *size, self.module.eps)
        return out, (h, mean, inverse, size)

    def backward(self, d: Tensor, saved: Any, into: Views, scale: float, first: bool) -> Tensor | None:
        h, mean, inverse, size = saved
        back, *gradients = aten.native_group_norm_backward(
            d.contiguous(), h.contiguous(), mean, inverse, self.weights[0], *size, [True] * 3
        )
        add(into, gradients, scale)
        return back  # type: ignore[no-any-return]


class ReLU(Layer):
    def forward(self, h: Tensor) -> tuple[Tensor, Any]:
        h = h.relu_() if self.in_place else h.relu()
        return h, h

    def backward(self, d: Tensor, saved: Any, into: Views, scale: float, first: bool) -> Tensor | None:
        return aten.threshold_backward(d, saved, 0)  # type: ignore[no-any-return]


class ELU(Layer):
    def forward(self, h: Tensor) -> tuple[Tensor, Any]:
        alpha = self.module.alpha
        h = aten.elu_(h, alpha) if self.in_place else aten.elu(h, alpha)
        return h, h

    def backward(self, d: Tensor, saved: Any, into: Views, scale: float, first: bool) -> Tensor | None:
        return aten.elu_backward(d, self.module.alpha, 1.0, 1.0, True, saved)  # type: ignore[no-any-return]


class MaxPool(Layer):
    def __init__(self, module: Any, weights: Views, in_place: bool) -> None:
        super().__init__(module, weights, in_place)
        pairs = (module.kernel_size, module.stride, module.padding, module.dilation)
        self.window = [list(p) if isinstance(p, tuple) else [p, p] for p in pairs] + [module.ceil_mode]

    def forward(self, h: Tensor) -> tuple[Tensor, Any]:
        out, where = aten.max_pool2d_with_indices(h, *self.window)
        return out, (h, where)

    def backward(self, d: Tensor, saved: Any, into: Views, scale: float, first: bool) -> Tensor | None:
        h, where = saved
        return aten.max_pool2d_with_indices_backward(d, h, *self.window, where)  # type: ignore[no-any-return]


class GlobalMean(Layer):
    """The mean over all positions, as AdaptiveAvgPool2d(1)."""

    def forward(self, h: Tensor) -> tuple[Tensor, Any]:
        return h.mean((2, 3), keepdim=True), h.shape

    def backward(self, d: Tensor, saved: Any, into: Views, scale: float, first: bool) -> Tensor | None:
        return (d / (saved[2] * saved[3])).expand(saved)  # type: ignore[no-any-return]


class Flatten(Layer):
    def forward(self, h: Tensor) -> tuple[Tensor, Any]:
        return h.flatten(1), h

    def backward(self, d: Tensor, saved: Any, into: Views, scale: float, first: bool) -> Tensor | None:
        back = d.view(saved.shape)
        is_image = saved.dim() == 4 and saved.is_contiguous(memory_format=torch.channels_last)
        return back.contiguous(memory_format=torch.channels_last) if is_image else back


class Dropout(Layer):
    def forward(self, h: Tensor) -> tuple[Tensor, Any]:
        keep = 1.0 - self.module.p
        mask = torch.empty_like(h).bernoulli_(keep).div_(keep) if keep else torch.zeros_like(h)
        return h * mask, mask

    def backward(self, d: Tensor, saved: Any, into: Views, scale: float, first: bool) -> Tensor | None:
        return d * saved  # type: ignore[no-any-return]


def _has_hooks(module: nn.Module) -> bool:
    """Return whether hooks observe or change what the module does."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for kind in kinds) or "forward" in vars(module)


def add(into: Views, gradients: list[Tensor], scale: float) -> None:
    for place, gradient in zip(into, gradients, strict=True):
        place.add_(gradient, alpha=scale)


KNOWN: dict[type, type[Layer]] = {
    nn.Linear: Linear,
    nn.Conv2d: Convolution,
    nn.BatchNorm2d: BatchNorm,
    nn.GroupNorm: GroupNorm,
    nn.ReLU: ReLU,
    nn.ELU: ELU,
    nn.MaxPool2d: MaxPool,
    nn.AdaptiveAvgPool2d: GlobalMean,
    nn.Flatten: Flatten,
    nn.Dropout: Dropout,
}

# Settings outside of which the hand-written form would be wrong; such a module takes the general path.
ORDINARY: dict[type, Callable[[Any], bool]] = {
    nn.Conv2d: lambda m: m.padding_mode == "zeros" and not isinstance(m.padding, str),
    nn.BatchNorm2d: lambda m: m.affine and m.track_running_stats and m.momentum is not None,
    nn.GroupNorm: lambda m: m.affine,
    nn.ELU: lambda m: m.alpha >= 0,
    nn.MaxPool2d: lambda m: not m.return_indices,
    nn.AdaptiveAvgPool2d: lambda m: m.output_size in (1, (1, 1)),
    nn.Flatten: lambda m: m.start_dim == 1 and m.end_dim == -1,
}


class Tape:
    """A stack of layers with a loss on top."""

    def __init__(self, module: nn.Module, layers: list[Layer], loss: Loss) -> None:
        self.module, self.layers, self.loss = module, layers, loss

    @classmethod
    def of(cls, module: nn.Module, weights: Views, loss: Loss) -> Tape | None:
        """Return the tape of a module; None where a layer or the loss is unknown, or a layer is frozen, shared or unusual."""
        if type(module) is not nn.Sequential or _has_hooks(module) or loss.kernel is None:
            return None
        layers: list[Layer] = []
        start, overwritable = 0, False
        for child in module:
            if type(child) not in KNOWN or not ORDINARY.get(type(child), lambda m: True)(child) or _has_hooks(child):
                return None
            names = [name for name, _ in child.named_parameters(recurse=False)]
            if names not in ([], ["weight"], ["weight", "bias"]):  # re-parametrised: spectral norm and the like
                return None
            parameters = list(child.parameters(recurse=False))
            own = weights[start : start + len(parameters)]
            if any(p.data_ptr() != v.data_ptr() for p, v in zip(parameters, own, strict=False)) or len(own) < len(
                parameters
            ):
                return None
            layers.append(KNOWN[type(child)](child, own, overwritable))
            start += len(parameters)
            # An activation may overwrite only what no layer before it has kept.
            overwritable = type(child) in (nn.Linear, nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm, nn.MaxPool2d)
        return cls(module, layers, loss) if start == len(weights) and layers else None

    @torch.inference_mode()
    def accumulate(self, x: Tensor, y: Tensor, into: Views, scale: float, weights: Tensor | None = None) -> float:
        """Add `scale` times the gradient of the batch's mean loss into `into`; return the loss.

        `weights` are the parts of the rows in that mean, where they differ.
        """
        h, memory = x, []
        for layer in self.layers:
            h, saved = layer.forward(h)
            memory.append(saved)
        d: Any
        loss, d = self.loss.value_and_gradient(h, y, weights)
        end = len(into)
        for i in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[i]
            start = end - len(layer.weights)
            d = layer.backward(d, memory.pop(), into[start:end], scale, start == 0)
            if start == 0:  # nothing below has parameters
                break
            end = start
        return loss
