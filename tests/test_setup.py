"""Which kernels are built, by what the processor can run."""

from __future__ import annotations

import runpy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
AVX512 = {"avx512f", "avx512dq", "avx512vl", "avx512bw", "avx2", "fma"}
PORTABLE = ["fedarena.trees._native", "fedarena.vertical.crypto._paillier_portable"]
AVX2 = "fedarena.models._native_avx2"


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return the names of the kernels that setup.py chooses for a processor with these flags."""
    import setuptools

    monkeypatch.setattr(setuptools, "setup", lambda **settings: None)
    script: dict[str, Any] = runpy.run_path(str(ROOT / "setup.py"))

    def chosen(choice: str, flags: set[str] | None) -> list[str]:
        monkeypatch.setenv("FEDARENA_KERNEL_BUILDS", choice)
        monkeypatch.setitem(script["chosen_builds"].__globals__, "processor_flags", lambda: flags)
        return sorted(script["chosen_builds"]())

    return chosen


def test_every_kernel_of_pyproject_has_its_requirements(choose: Callable[..., list[str]]) -> None:
    modules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    assert choose("all", set()) == sorted(module["name"] for module in modules)


def test_only_what_the_processor_runs_is_built(choose: Callable[..., list[str]]) -> None:
    assert choose("native", set()) == PORTABLE
    assert choose("native", {"avx2", "fma"}) == [AVX2, *PORTABLE]
    assert choose("native", AVX512) == [AVX2, "fedarena.models._native_avx512", *PORTABLE]
    assert choose("best", AVX512) == ["fedarena.models._native_avx512", *PORTABLE]
    assert choose("best", {"avx512f", "avx512ifma"}) == [
        "fedarena.trees._native",
        "fedarena.vertical.crypto._paillier_ifma",
    ]


def test_a_system_that_does_not_list_its_instructions_builds_all(choose: Callable[..., list[str]]) -> None:
    assert choose("native", None) == choose("all", set())


def test_another_choice_is_refused(choose: Callable[..., list[str]]) -> None:
    with pytest.raises(SystemExit, match="use one of best, native, all"):
        choose("fastest", set())
