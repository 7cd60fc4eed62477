"""torch.compile of forward and loss: the same training to rounding, a clear no where it cannot be."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from torch import nn

from fedarena.config.errors import BadValue
from fedarena.models.compiled import library
from fedarena.models.task import Task

BATCH = 8


class Odd(nn.Module):
    """Something the kernels do not know: a residual around a GELU, BatchNorm, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(4 * 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.conv(x))
        h = h + nn.functional.gelu(h)
        logits: torch.Tensor = self.out(self.drop(h.flatten(1)))
        return logits


def trained(compile_batch: float | None) -> Task:
    """Two full batches, a short one, two full ones again."""
    torch.manual_seed(0)
    task = Task(Odd(), compile_batch=compile_batch)
    task.module.train()
    rng = np.random.default_rng(0)
    torch.manual_seed(1)
    for rows in (BATCH, BATCH, 3, BATCH, BATCH):
        x = torch.from_numpy(rng.standard_normal((rows, 2, 4, 4), np.float32))
        task.accumulate(task.batch_layout(x), torch.from_numpy(rng.integers(0, 3, rows)), task.weights, -0.1)
    return task


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_five_compiled_steps_are_five_eager_steps(tmp_path, monkeypatch) -> None:
    """Weights and BatchNorm's statistics to 1e-5, dropout included: it draws the same numbers."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # no thread for progress bars
    compiled, eager = trained(BATCH), trained(None)
    assert (compiled.path, eager.path) == ("autograd with torch.compile", "autograd")
    np.testing.assert_allclose(compiled.vector(), eager.vector(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(compiled.buffers().values, eager.buffers().values, rtol=1e-4, atol=1e-5)
    assert compiled.buffers().counters.tolist() == [5]
    assert not np.allclose(eager.vector(), eager.initial, atol=1e-3)


def test_without_a_compiler_it_is_refused_before_work_starts(monkeypatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BadValue, match="needs a C\\+\\+ compiler, and there is no 'no-such-compiler'"):
        Task(Odd(), compile_batch=BATCH)


def test_batches_of_every_size_are_refused() -> None:
    with pytest.raises(BadValue, match="needs batches of one size"):
        Task(Odd(), compile_batch=float("inf"))


@pytest.mark.skipif(library() is None, reason="no kernels on this machine")
def test_kernels_go_first(monkeypatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")  # not even asked for
    stack = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    assert Task(stack, shape=(6,), compile_batch=BATCH).path.startswith("compiled avx")
