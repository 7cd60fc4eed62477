"""Building a task from what users give as a model: a module, or a function that returns one."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import nn

from fedarena.config.errors import FedarenaError, ModelMismatch
from fedarena.models.initialization import glorot
from fedarena.models.task import Task, torch_seeded


def build(
    make: Any,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    *,
    init: str = "torch",
    is_text: bool = False,
    **options: Any,
) -> Task:
    """Build a task from a module, from a function of (shape, classes), or from a function without arguments.

    `options` are those of `Task`. Initial weights come from the seed alone. A ready module keeps the weights it has: it may
    be pretrained.
    """
    with torch_seeded(seed):
        # A copy either way: a function may hand out the same module every time.
        module = copy.deepcopy(make if isinstance(make, nn.Module) else _call(make, shape, classes))
        if init == "glorot" and not isinstance(make, nn.Module):
            glorot(module)
        _check_output(module, shape, classes, is_text)
    return Task(module, shape=shape, **options)


def _call(make: Any, shape: tuple[int, ...], classes: int) -> nn.Module:
    takes = inspect.signature(make).parameters
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in takes.values() if p.default is p.empty and p.kind in positional]
    if len(required) not in (0, 2):
        raise ModelMismatch(
            f"the model function needs {len(required)} arguments: {', '.join(p.name for p in required)}",
            remedy="make it a function of (shape, classes), or of nothing",
            where="model",
        )
    try:
        module = make(shape, classes) if required else make()
    except FedarenaError:
        raise
    except Exception as error:
        raise ModelMismatch(
            f"the model function fails for rows of shape {shape} and {classes} classes: {type(error).__name__}: {error}",
            remedy="fix it, or choose a model of `fedarena list models`",
            where="model",
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelMismatch(
            f"the model function returned {type(module).__name__}, not a torch.nn.Module",
            remedy="return the module itself",
            where="model",
        )
    return module


def _check_output(module: nn.Module, shape: tuple[int, ...], classes: int, is_text: bool) -> None:
    """Predict two rows of zeros, so that a mismatch is reported before training starts."""
    if callable(getattr(module, "loss", None)):
        return
    training = module.training
    module.eval()
    floating = next((p.dtype for p in module.parameters()), torch.float32)
    x = torch.zeros(2, *shape, dtype=torch.int64 if is_text else floating)
    try:
        with torch.no_grad():
            out = module(x)
    except Exception as error:
        raise ModelMismatch(
            f"the model cannot take rows of shape {shape}: {error}",
            remedy="choose a model for such rows (`fedarena list models`), or one made as a function of (shape, classes)",
            where="model",
        ) from None
    module.train(training)
    wanted = (2, shape[0], classes) if is_text else (2, classes)
    if tuple(out.shape) != wanted:
        raise ModelMismatch(
            f"the model's output for two rows is {tuple(out.shape)}; {classes} classes need {wanted}",
            remedy=f"let its last layer have {classes} outputs",
            where="model",
        )
