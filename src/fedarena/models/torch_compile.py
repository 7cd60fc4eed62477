"""`torch.compile` of forward and loss, for models that the kernels do not know.

Only those two: a traced graph of gradient and update together was seen to give a wrong update without a word. And only for
batches of one size: each new size would be compiled again, and one graph for all sizes would be another graph, with
other bits, depending on which size came first.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from fedarena.config.errors import BadValue

Loss = Callable[[Tensor, Tensor], Tensor]


def check(batch: float, device: torch.device) -> None:
    """Refuse, before any work, what cannot be compiled here."""
    if batch == float("inf"):
        raise BadValue(
            "compile = true needs batches of one size, and with batch = inf every client has its own",
            remedy="give local.batch a number, or leave compile out",
            where="compile",
        )
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise BadValue(
            f"compile = true needs a C++ compiler, and there is no '{compiler}'",
            remedy="install one or name it in CXX, or leave compile out",
            where="compile",
        )


def compiled(loss: Loss, batch: float, device: torch.device) -> Loss:
    """The same loss, compiled at its first full batch; others go through as they are."""
    check(batch, device)
    from torch._inductor import config

    config.compile_threads = 1  # worker processes may have no children of their own
    try:
        # Random numbers as eager code draws them: dropout must not depend on how a model is run.
        fast: Loss = torch.compile(loss, dynamic=False, options={"fallback_random": True})
    except RuntimeError as error:  # a Python or a system that torch.compile does not know
        raise BadValue(f"compile = true cannot be used: {error}", remedy="leave compile out", where="compile") from None
    return lambda x, y: (fast if len(x) == batch else loss)(x, y)
