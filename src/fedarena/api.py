"""The public functions: run, rounds, compare, search, reproduce, report, load, predict, verify, finetune, serve and join."""

from __future__ import annotations

from fedarena.experiments.compare import compare
from fedarena.experiments.finetune import FineTuned, finetune
from fedarena.experiments.loading import load
from fedarena.experiments.predict import predict
from fedarena.experiments.run import Verdict, rounds, run, verify
from fedarena.experiments.search import Found, search
from fedarena.federation.api import join, serve
from fedarena.reports.page import report
from fedarena.reproduction.reproduce import reproduce, reproduce_all

__all__ = [
    "FineTuned",
    "Found",
    "Verdict",
    "compare",
    "finetune",
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
