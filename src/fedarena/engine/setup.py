"""Setup: from an Experiment to a context that is ready to train. Every mistake in it is reported here, before the start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedarena.algorithms.base import Asynchronous, Setting
from fedarena.algorithms.tree_algorithm import TreeAlgorithm
from fedarena.config.errors import BadValue, PartitionImpossible, quoted
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import stream
from fedarena.config.settings_tables import Uplink
from fedarena.data.client_tests import client_tests, hold_out
from fedarena.data.dataset import Dataset, Partition
from fedarena.data.exclusion import without_clients
from fedarena.data.folds import has_own_folds, hold_out_fold, hold_out_share, split_in_folds, split_pooled
from fedarena.data.split_encoding import encode_split
from fedarena.data.unseen_clients import hold_out_clients, unseen_names
from fedarena.data.validation_samples import hold_out_validation
from fedarena.engine.attackers import check_attack, poisoned
from fedarena.engine.context import ExperimentContext
from fedarena.engine.devices import build_fleet
from fedarena.engine.own_loss import check_own_loss
from fedarena.engine.private_steps import check_private
from fedarena.engine.selection import check_selection, samples_uniformly
from fedarena.engine.stopping import participants
from fedarena.engine.task_metrics import check_metric
from fedarena.engine.tree_context import TreeContext
from fedarena.engine.unseen_clients import check_unseen
from fedarena.models.linear_features import input_features
from fedarena.models.representation import representation_width
from fedarena.privacy.accountant import need_accountant
from fedarena.statistics.metric_registry import CLASSES


def partition_data(experiment: Experiment) -> tuple[Dataset, Partition]:
    """Return the data and its partition, with each client's own test rows."""
    data: Dataset = experiment.data.made.load(experiment.seed_for("split"))
    pools = experiment.folds is not None or experiment.fold_seed is not None
    if pools and data.n_test is not None:
        raise BadValue(
            f"'{data.name}' has the same test samples twice, standardised in two ways, and cannot be divided again",
            remedy="keep its published division: `compare --fixed test`, or no folds and no fold_seed",
            where="data.name",
        )
    rows = len(data.x) if pools else data.n_train
    if experiment.clients and experiment.clients > rows:
        raise PartitionImpossible(
            f"{experiment.clients} clients cannot share {rows} training rows",
            remedy=f"use at most {rows} clients",
            where="clients",
        )
    partition = _partitioned(experiment, data)
    _check_rows(data, partition)
    partition = replace(partition, notes=(*data.notes, *partition.notes))
    if experiment.validate_share is not None:
        partition, held = hold_out(partition, experiment.validate_share, experiment.seed_for("valid"), data)
        if not any(map(len, held)):
            raise PartitionImpossible(
                f"no client has rows enough to hold {experiment.validate_share:g} of them out",
                remedy="raise validate_share, or use fewer clients",
                where="validate_share",
            )
        partition = replace(partition, test=np.sort(np.concatenate(held)), client_tests=held)
    have_own_tests = bool(partition.client_tests)
    if not have_own_tests:
        rng = stream(experiment.seed_for("client_test"), "client_test")
        tests, notes = client_tests(data, partition, rng, how=experiment.evaluate.client_test)
        partition = replace(partition, client_tests=tests, notes=(*partition.notes, *notes))
    wanted, unseen = experiment.evaluate.unseen, list[str]()
    if wanted is not None:
        unseen = unseen_names(partition, wanted, experiment.seed_for("unseen"))
    if experiment.exclude:  # late, so that no random draw for the other clients depends on it
        partition = without_clients(partition, experiment.exclude, own_tests=have_own_tests)
    if unseen:
        unseen = [name for name in unseen if name not in (experiment.exclude or ())]
        partition = hold_out_clients(partition, unseen, own_tests=have_own_tests)
    population = len(partition.population)
    if experiment.per_round and experiment.per_round > population:
        raise BadValue(
            f"per_round = {experiment.per_round}, but only {population} clients have rows",
            remedy=f"give at most {population}",
            where="per_round",
        )
    if experiment.evaluate.validation:  # last: test samples are the same as without it
        seed = experiment.seed_for("validation")
        partition = hold_out_validation(data, partition, experiment.evaluate.validation, seed)
    data, notes = encode_split(data, partition, own_tests=have_own_tests)
    return data, replace(partition, notes=(*partition.notes, *notes)) if notes else partition


def _partitioned(experiment: Experiment, data: Dataset) -> Partition:
    """Partition the data, and hold out the test samples of a fold or of a random division where one is requested."""
    clients, partitioner = experiment.clients or 0, experiment.partition.made
    folds, fold, seed = experiment.folds, experiment.fold, experiment.seed_for("folds")
    own_folds = has_own_folds(partitioner) and experiment.partition_seed is None  # which then follow the fold seed
    rng = stream(seed if own_folds else experiment.seed_for("partition"), "partition")
    pooled = experiment.fold_seed is not None or data.group is not None or data.time is not None
    partition: Partition
    if folds is not None and fold is not None:
        if has_own_folds(partitioner) or not pooled:
            partition = split_in_folds(partitioner, data, clients, folds, fold, rng)
        else:
            held = hold_out_fold(data, partitioner, seed, folds, fold)
            partition = split_pooled(partitioner, data, clients, held, rng)
    elif experiment.fold_seed is None or has_own_folds(partitioner):
        partition = partitioner.split(data, clients, rng)
    else:
        partition = split_pooled(partitioner, data, clients, hold_out_share(data, partitioner, seed), rng)
    return partition


def _check_rows(data: Dataset, partition: Partition) -> None:
    """Check that rows exist, have one owner each and do not overlap the test rows, also for users' partitions."""
    problem = ""
    if not len(data.x) == len(data.y) > data.n_train > 0 or not len(partition.test):
        problem = "the data set needs training rows and test rows, with a label each"
    elif data.task in CLASSES and int(data.y.max()) >= data.classes:
        problem = f"the data set has a label {int(data.y.max())}, and only {data.classes} classes"
    elif not partition.population:
        problem = "the partition gives rows to no client"
    else:
        used = np.concatenate([partition.train_rows, partition.test])
        if used.dtype.kind not in "iu" or used.min() < 0 or used.max() >= len(data.x):
            problem = "the partition assigns rows that do not exist"
        elif np.bincount(used).max() > 1:
            problem = "the partition assigns a row twice, or assigns a test row"
    if problem:
        raise PartitionImpossible(problem, remedy="fix it; `fedarena check NAME` says more", where="partition")


def open_context(experiment: Experiment) -> ExperimentContext:
    """Load and partition the data and build the model; any mistake in the experiment is reported here."""
    check_device(experiment.device)
    data, owners = partition_data(experiment)
    context = make_context(experiment, data, owners)
    if isinstance(context, TreeContext):
        return build_model_and_algorithm(context)
    check_attack(context)
    context.data = poisoned(context)
    return build_model_and_algorithm(context)


def make_context(experiment: Experiment, data: Dataset, owners: Partition) -> ExperimentContext:
    """Return the context of these rows: one that grows a forest where the algorithm does, else one of a network."""
    if not isinstance(experiment.algorithm.made, TreeAlgorithm):
        return ExperimentContext(experiment, data, owners)
    name, model = experiment.algorithm.name, experiment.model.name
    note = f"{name} grows trees on the raw columns: the model '{model}' is not used"
    return TreeContext(experiment, data, replace(owners, notes=(*owners.notes, note)))


def build_model_and_algorithm(context: ExperimentContext, clients: int | None = None) -> ExperimentContext:
    """Build the model and settle the algorithm; `clients` counts those with rows where not all of them are known here."""
    experiment, local = context.experiment, context.experiment.local
    owners = len(context.owners.population) if clients is None else clients
    setting = Setting(
        local.lr,
        local.momentum,
        local.reset_momentum,
        clients=owners,
        participants=participants(experiment, owners),
        has_batchnorm=context.task.has_batchnorm,
        has_dropout=context.task.has_dropout,
        has_classes=context.task_name == "classification",
        has_accuracy=context.task_name not in ("regression", "survival"),
        features=input_features(context.task),
        steps=local.steps,
        optimizer=local.optimizer,
        is_private=local.privacy is not None,
        grows_trees=isinstance(context, TreeContext),
        representation=representation_width(context.task.module),
    )
    context.algorithm = context.algorithm.settled(setting)
    context.algorithm.check(setting)
    if (
        isinstance(context.algorithm, Asynchronous)
        and context.buffer_policy == "recompute"
        and context.task.has_batchnorm
    ):
        raise BadValue(
            f"{experiment.algorithm.name} has no rounds after which statistics could be recomputed",
            remedy='set bn_buffers = "average", "local" or "server"',
            where="bn_buffers",
        )
    if context.parts is not None and context.task.has_batchnorm and context.buffer_policy == "recompute":
        raise BadValue(
            f"{experiment.algorithm.name} has layers of each client's own, without which statistics cannot be recomputed",
            remedy='set bn_buffers = "average", "local" or "server"',
            where="bn_buffers",
        )
    if experiment.uplink != "plain" and context.algorithm.needs != "mean":
        raise BadValue(
            f"{experiment.algorithm.name} must see {context.algorithm.needs} by itself, "
            "and the uplink lets only means through",
            remedy='set uplink = "plain", or choose an algorithm that needs only the mean, such as fedavg',
            where="uplink",
        )
    _check_uplink(context, owners)
    check_private(context)
    check_own_loss(context)
    check_selection(context)
    check_unseen(context)
    build_fleet(experiment, len(context.owners.clients))
    _ = context.availability
    _ = context.initial
    check_metric(context)
    return context


def _check_uplink(context: ExperimentContext, clients: int) -> None:
    """Refuse uplink settings that would not have the effect they promise."""
    exp, uplink = context.experiment, context.experiment.uplink
    if not isinstance(uplink, Uplink) or not context.algorithm.communicates:
        return
    if isinstance(context.algorithm, Asynchronous):
        raise BadValue(
            f"{exp.algorithm.name} merges updates as they arrive, and the steps of uplink need rounds",
            remedy='set uplink = "plain" or "mean_only", or choose an algorithm with rounds, such as fedavg',
            where="uplink",
        )
    if exp.on_nan == "keep":
        raise BadValue(
            'on_nan = "keep": non-finite updates cannot be clipped, rounded or masked',
            remedy='set on_nan = "drop" or "raise"',
            where="on_nan",
        )
    private = uplink.clip is not None or uplink.secure
    if private and context.task.has_buffers and context.buffer_policy in ("average", "recompute"):
        raise BadValue(
            "BatchNorm statistics are sent unprotected, beside what uplink.clip and uplink.secure protect",
            remedy='set bn_buffers = "local" or "server", or use a model without BatchNorm',
            where="bn_buffers",
        )
    if (uplink.noise or uplink.sampling == "poisson") and not samples_uniformly(context.algorithm):
        raise BadValue(
            f"{exp.algorithm.name} does not sample clients uniformly, and epsilon holds for uniform sampling only",
            remedy="leave out fedvc, or uplink.noise and uplink.sampling",
            where="uplink.noise",
        )
    if (uplink.noise or uplink.sampling == "poisson") and (
        exp.devices.available != "always" or exp.devices.overselect > 1
    ):
        raise BadValue(
            "not all clients are equally likely to take part, and epsilon holds for uniform sampling only",
            remedy="leave out devices.available and devices.overselect, or uplink.noise and uplink.sampling",
            where="uplink.noise",
        )
    if uplink.secure and (clients if context.algorithm.everyone else participants(exp, clients)) < 2:
        raise BadValue(
            "secure aggregation needs at least two clients in a round",
            remedy="select two or more: per_round = 2",
            where="uplink.secure",
        )
    if uplink.noise:
        need_accountant("uplink.noise")


def check_device(name: str) -> None:
    """Refuse a device that torch cannot use on this machine."""
    try:
        torch.zeros(1, device=name).item()  # "meta" has no numbers
    except (RuntimeError, AssertionError, ValueError, OverflowError) as error:
        raise BadValue(
            f"device = '{quoted(name)}' cannot be used: {quoted(str(error).splitlines()[0])}",
            remedy='use "cpu", or "cuda" where torch finds a GPU',
            where="device",
        ) from None
