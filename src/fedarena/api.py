"""The public functions: run, rounds, compare, search, reproduce, report, load, predict, verify, serve and join."""

from __future__ import annotations

from fedarena.experiments.compare import compare
from fedarena.experiments.loading import load
from fedarena.experiments.predict import predict
from fedarena.experiments.run import Verdict, rounds, run, verify
from fedarena.experiments.search import Found, search
from fedarena.federation.api import join, serve
from fedarena.reports.page import report
from fedarena.reproduction.reproduce import reproduce, reproduce_all

__all__ = [
    "Found",
    "Verdict",
    "compare",
    "join",
    "load",
    "predict",
    "report",
    "reproduce",
    "reproduce_all",
    "rounds",
    "run",
    "search",
    "serve",
    "verify",
]
