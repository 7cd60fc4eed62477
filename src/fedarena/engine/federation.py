"""From an Experiment to a site ready to train: every mistake in it shows here, before any work is done."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedarena.data.client_tests import client_tests
from fedarena.data.dataset import Dataset, Partition
from fedarena.engine.site import Site
from fedarena.errors import BadValue, PartitionImpossible
from fedarena.seeds import stream
from fedarena.spec import Experiment


def deal(experiment: Experiment) -> tuple[Dataset, Partition]:
    """The data, and who owns which rows of it, each client's own test rows included."""
    data: Dataset = experiment.data.made.load(experiment.seed)
    if experiment.clients and experiment.clients > data.n_train:
        raise PartitionImpossible(
            f"{experiment.clients} clients cannot share {data.n_train} training rows",
            remedy=f"use at most {data.n_train} clients",
            where="clients",
        )
    rng = stream(experiment.seed, "partition")
    partition: Partition = experiment.partition.made.split(data, experiment.clients or 0, rng)
    population = len(partition.population)
    if experiment.per_round and experiment.per_round > population:
        raise BadValue(
            f"per_round = {experiment.per_round}, but only {population} clients have rows",
            remedy=f"give at most {population}",
            where="per_round",
        )
    if not partition.client_tests:
        tests, notes = client_tests(
            data, partition, stream(experiment.seed, "client_test"), how=experiment.evaluate.client_test
        )
        partition = replace(partition, client_tests=tests, notes=(*partition.notes, *notes))
    return data, partition


def open_site(experiment: Experiment) -> Site:
    """Load, deal, build the model: afterwards nothing in the experiment can be wrong."""
    _check_device(experiment.device)
    site = Site(experiment, *deal(experiment))
    _ = site.initial
    return site


def _check_device(name: str) -> None:
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise BadValue(
            f"device = '{name}' cannot be used: {str(error).splitlines()[0]}",
            remedy='use "cpu", or "cuda" where torch finds a GPU',
            where="device",
        ) from None
