"""The doors: run, rounds, compare, search, reproduce, serve, join, report, load, verify.

Everything behind them can be used by itself.
"""

from __future__ import annotations

from fedarena.arena.compare import compare
from fedarena.arena.reproduce import reproduce, reproduce_all
from fedarena.arena.search import Found, search
from fedarena.arena.single import Verdict, rounds, run, verify
from fedarena.federation.doors import join, serve
from fedarena.results.loading import load
from fedarena.results.report.page import report

__all__ = [
    "Found",
    "Verdict",
    "compare",
    "join",
    "load",
    "report",
    "reproduce",
    "reproduce_all",
    "rounds",
    "run",
    "search",
    "serve",
    "verify",
]
