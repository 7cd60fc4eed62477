"""Adam as a local optimizer: Kingma & Ba, "Adam: A Method for Stochastic Optimization", 2015, arXiv:1412.6980."""

from __future__ import annotations

import torch
from torch import Tensor

from fedarena.config.settings_tables import Local

BETAS, EPS = (0.9, 0.999), 1e-8  # those of torch.optim.Adam


class Adam:
    """The steps of torch.optim.Adam, in the same order of operations, on one flat vector of weights.

    `moments` has two rows, the running means of the gradient and of its square, after `made` steps.
    """

    def __init__(self, w: Tensor, moments: Tensor, local: Local, made: int) -> None:
        self.w, (self.mean, self.square), self.made = w, moments, made
        self.beta1, self.beta2 = local.betas or BETAS
        self.eps = EPS if local.eps is None else local.eps

    def step(self, g: Tensor, lr: float) -> None:
        """m <- beta1 m + (1 - beta1) g, v <- beta2 v + (1 - beta2) g^2, w <- w - lr m^ / (sqrt(v^) + eps)."""
        self.made += 1
        self.mean.lerp_(g, 1 - self.beta1)
        self.square.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        root = self.square.sqrt().div_((1 - self.beta2**self.made) ** 0.5).add_(self.eps)
        self.w.addcdiv_(self.mean, root, value=-lr / (1 - self.beta1**self.made))

    @staticmethod
    def zero_moments(w: Tensor) -> Tensor:
        """Return the moments before the first step."""
        return torch.zeros((2, *w.shape), dtype=w.dtype, device=w.device)
