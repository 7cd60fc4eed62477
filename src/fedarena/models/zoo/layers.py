"""Parts that the models share: blocks, norms, the classifier on top, the LSTM layer, and the check of a row's shape."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from fedarena.config.errors import BadValue, ModelMismatch

Shape = tuple[int, ...]
NormName = Literal["plain", "bn", "gn"]
Positive = Annotated[int, Ge(1), Le(4096)]


def image(model: str, shape: Shape, least: int = 1) -> tuple[int, int, int]:
    """Return channels, height and width of a row; raise an error if rows are no images, or too small."""
    size = " x ".join(map(str, shape))
    if len(shape) != 3:
        raise ModelMismatch(
            f"{model} needs images (channels x height x width), these rows have the shape {size}",
            remedy="use logreg or mlp_2nn for tables, char_lstm or word_lstm for texts",
            where="model.name",
        )
    channels, height, width = shape
    if min(height, width) < least:
        small = min(height, width) < 4  # too small for cnn_mcmahan as well
        raise ModelMismatch(
            f"{model} needs images of at least {least} x {least}, these are {size}",
            remedy="use mlp_2nn or logreg" if small else "use mlp_2nn, logreg or cnn_mcmahan",
            where="model.name",
        )
    return channels, height, width


@dataclass(frozen=True)
class Norm:
    """The normalization between a convolution and its activation: none, batch norm or group norm."""

    kind: NormName = "plain"
    groups: int | None = None
    group_size: int | None = None

    def __post_init__(self) -> None:
        if self.kind != "gn" and (self.groups or self.group_size):
            raise BadValue(
                f"groups and group_size belong to group norm, the norm is '{self.kind}'",
                remedy='set norm = "gn", or leave them out',
                where="model.norm",
            )
        if self.groups and self.group_size:
            raise BadValue(
                f"groups = {self.groups} and group_size = {self.group_size} are two answers to one question",
                remedy="give one of them",
                where="model.groups",
            )

    def __call__(self, channels: int) -> list[nn.Module]:
        """Return the layers (none or one) after a convolution with this many channels."""
        match self.kind:
            case "plain":
                return []
            case "bn":
                return [nn.BatchNorm2d(channels, eps=1e-5, momentum=0.1)]
            case "gn":
                return [nn.GroupNorm(self._groups(channels), channels)]

    def _groups(self, channels: int) -> int:
        """Return the groups as set, or the largest divisor of the channels up to 32 and up to half of them."""
        part = self.groups or self.group_size
        if part is None:
            return max(g for g in range(1, 33) if channels % g == 0 and (g == 1 or 2 * g <= channels))
        if channels % part:
            key = "groups" if self.groups else "group_size"
            raise BadValue(
                f"{key} = {part} does not divide the {channels} channels of a convolution",
                remedy=f"choose a divisor of {channels}, or leave it out",
                where=f"model.{key}",
            )
        return part if self.groups else channels // part


PLAIN = Norm()


def block(
    inside: int,
    outside: int,
    kernel: int,
    *,
    padding: int = 0,
    norm: Norm = PLAIN,
    pool: nn.Module | None = None,
    act: Callable[[], nn.Module] = nn.ReLU,
) -> list[nn.Module]:
    """Return convolution, norm, max-pool (2 x 2 unless given) and activation.

    The papers print the activation before the pool. ReLU and ELU never decrease, so the largest number of a window
    stays the largest: both orders give the same values and gradients, and this one activates a quarter as many.
    """
    return [nn.Conv2d(inside, outside, kernel, padding=padding), *norm(outside), pool or nn.MaxPool2d(2), act()]


def dense(widths: Sequence[int], *, act: Callable[[], nn.Module] = nn.ReLU, dropout: float = 0.0) -> list[nn.Module]:
    """Return fully connected layers of these widths, input and output included, with dropout before each."""
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(widths):
        layers += [*([nn.Dropout(dropout)] if dropout else []), nn.Linear(inside, outside), act()]
    return layers[:-1]  # no activation of the logits


def classifier(
    body: Sequence[nn.Module],
    shape: Shape,
    widths: Sequence[int],
    *,
    act: Callable[[], nn.Module] = nn.ReLU,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return the body, flattened, with fully connected layers of these widths on top."""
    top = dense([flat_size(body, shape), *widths], act=act, dropout=dropout)
    return nn.Sequential(*body, nn.Flatten(), *top)


def flat_size(body: Sequence[nn.Module], shape: Shape) -> int:
    """Return the number of outputs of the body for one row, computed on a copy: batch norms have state."""
    with torch.no_grad():
        out: Tensor = copy.deepcopy(nn.Sequential(*body)).eval()(torch.zeros(1, *shape))
    return out.numel()


def same_max_pool(height: int, width: int) -> nn.MaxPool2d:
    """Pool 3 x 3, stride 2, with TensorFlow's SAME padding: right and below for even sizes, all around for odd ones."""
    return nn.MaxPool2d(3, stride=2, padding=(height % 2, width % 2), ceil_mode=True)


def local_response_norm() -> nn.LocalResponseNorm:
    """Return TensorFlow's LRN: depth radius 4, bias 1, alpha 0.001 / 9, beta 0.75; torch itself divides alpha by 9."""
    return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)


class LSTM(nn.Module):
    """One LSTM layer from a zero state, batch x time x inputs -> batch x time x hidden.

    It has one bias a gate, as the papers count; `nn.LSTM` has two. Peepholes (Gers & Schmidhuber 2000) let the
    gates see the cell: input and forget gate the old one, the output gate the new one.
    """

    def __init__(self, inputs: int, hidden: int, *, peephole: bool = False) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, inputs))  # gates in torch's order: i, f, g, o
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden))
        self.peephole = nn.Parameter(torch.empty(3, hidden)) if peephole else None  # of i, f, o
        for weight in self.parameters():
            nn.init.uniform_(weight, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden state after every step."""
        zero = x.new_zeros(len(x), self.weight_hh.shape[1])
        if self.peephole is not None:
            return self._scan(x, zero, self.peephole)
        weights = [self.weight_ih, self.weight_hh, self.bias_ih, torch.zeros_like(self.bias_ih)]
        return torch.lstm(x, (zero[None], zero[None]), weights, True, 1, 0.0, self.training, False, True)[0]

    def _scan(self, x: Tensor, zero: Tensor, peephole: Tensor) -> Tensor:
        p_i, p_f, p_o = peephole
        h = c = zero
        outputs = []
        for drive in nn.functional.linear(x, self.weight_ih, self.bias_ih).unbind(1):
            i, f, g, o = nn.functional.linear(h, self.weight_hh).add(drive).chunk(4, dim=1)
            c = torch.sigmoid(f + p_f * c) * c + torch.sigmoid(i + p_i * c) * torch.tanh(g)
            h = torch.sigmoid(o + p_o * c) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs, dim=1)

    def extra_repr(self) -> str:
        """Return inputs, hidden units and peepholes as text."""
        hidden = self.weight_hh.shape[1]
        return f"{self.weight_ih.shape[1]}, {hidden}" + (", peephole=True" if self.peephole is not None else "")
