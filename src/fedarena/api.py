"""The doors: run, rounds, load, verify. Everything behind them can be used by itself."""

from __future__ import annotations

from fedarena.arena.single import Verdict, rounds, run, verify
from fedarena.results.run import load

__all__ = ["Verdict", "load", "rounds", "run", "verify"]
