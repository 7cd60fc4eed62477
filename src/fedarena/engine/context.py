"""Everything a process needs to run clients: the rows, their owners, the model, the algorithm, the settings.

A runtime holds one ExperimentContext in each of its processes and runs tasks (engine/tasks.py) on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedarena.algorithms.base import Algorithm, Vector
from fedarena.attacks.backdoor import Backdoor
from fedarena.attacks.base import Attack
from fedarena.config.components import Component
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import stream, torch_seed
from fedarena.config.settings_tables import Uplink
from fedarena.data.dataset import Dataset, Partition, RowLists, Rows
from fedarena.data.exclusion import client_names
from fedarena.data.preprocessing import test_batch, training_batch
from fedarena.engine.availability import Availability, build_availability
from fedarena.engine.devices import Fleet, Stragglers, build_fleet
from fedarena.engine.feature_noise import FeatureNoise
from fedarena.engine.own_parts import OwnParts, find_own_parts
from fedarena.engine.solver import can_be_compiled
from fedarena.engine.stopping import participants
from fedarena.models.building import build
from fedarena.models.compiled import KernelRows
from fedarena.models.losses import find_loss
from fedarena.models.private_task import PrivateTask
from fedarena.models.task import Buffers, Cut, Keep, Scores, Task, as_tensor
from fedarena.privacy.secure_aggregation import MaskProvider
from fedarena.privacy.uplink import UplinkSteps
from fedarena.selection_rules.base import SelectionRule
from fedarena.statistics.metric_registry import CLASSES, Metric, TaskName, find_metric
from fedarena.trees.boosted_rows import BoostedRows

EVALUATION_ROWS = 500  # rows in a batch of an evaluation; fixed, so that sums do not depend on the worker


class ExperimentContext:
    """The rows and the model of an experiment, in this process."""

    # A real federation draws its noise from a secret, because all clients know the experiment's seed, and has real masks.
    noise_seed: int | None = None
    masks: MaskProvider | None = None

    def __init__(self, experiment: Experiment, data: Dataset, owners: Partition) -> None:
        self.experiment, self.data, self.owners = experiment, data, owners
        self.algorithm: Algorithm = experiment.algorithm.made
        self.partition = owners.pooled() if self.algorithm.pooled else owners

    def __getstate__(self) -> dict[str, Any]:  # each process makes its own tensors over the same shared arrays
        return {key: getattr(self, key) for key in ("experiment", "data", "owners", "algorithm", "partition")}

    @cached_property
    def task(self) -> Task:
        """Return the model, with the initial weights that the seed gives."""
        return self._build()

    @cached_property
    def anchor(self) -> Task:
        """Return a second copy of the model, for gradients at a fixed point beside the weights in training."""
        return self._build()

    @cached_property
    def private_task(self) -> PrivateTask:
        """Return the model with the gradients of single samples, for training with `local.privacy`."""
        assert self.experiment.local.privacy is not None
        return PrivateTask(self.task, self.experiment.local.privacy)

    def _build(self) -> Task:
        exp = self.experiment
        seed, loss = exp.seed_for("init"), exp.loss if isinstance(exp.loss, str) else None
        return build(
            exp.model.made,
            self.data.shape,
            self.data.classes,
            seed if exp.init == "manual_seed" else torch_seed(seed, "init"),
            init=exp.init,
            is_text=self.is_text,
            loss=find_loss(self.data.task, loss),
            dtype=exp.dtype,
            device=exp.device,
            freeze=exp.freeze,
            fast=exp.fast and self.own_loss is None,
            compile_batch=exp.local.batch if exp.compile else None,
        )

    @property
    def own_loss(self) -> Callable[..., Tensor] | None:
        """Return the function that clients minimise, where the experiment's loss came from Python."""
        loss = self.experiment.loss
        return loss.made if isinstance(loss, Component) else None

    @property
    def selection_rule(self) -> SelectionRule | None:
        """Return the rule that selects the clients of a round; None where the algorithm does, as a rule uniformly."""
        return None if self.experiment.select is None else self.experiment.select.made

    @property
    def attack(self) -> Attack | None:
        """Return the attack on this simulation; None without one."""
        return None if self.experiment.attack is None else self.experiment.attack.made

    @cached_property
    def attackers(self) -> tuple[int, ...]:
        """Return the clients that attack, in ascending order."""
        if self.attack is None:
            return ()
        rng = stream(self.experiment.seed_for("attackers"), "attackers")
        return self.attack.attackers(self.owners.population, client_names(self.owners), rng)

    @cached_property
    def judged_clients(self) -> list[int]:
        """Return the clients whose models and test samples count: those with samples that do not attack."""
        return [k for k in self.owners.population if k not in self.attackers]

    @cached_property
    def fleet(self) -> Fleet:
        """Return the devices with which clients compute and send."""
        fleet = build_fleet(self.experiment, len(self.owners.clients))
        return fleet.fastest() if self.algorithm.pooled else fleet

    @cached_property
    def stragglers(self) -> Stragglers:
        """Return the device model of clients that stop early, as the algorithm's settings ask for it."""
        return Stragglers(*self.algorithm.straggler_settings)

    @cached_property
    def availability(self) -> Availability | None:
        """Return when clients are available; None where that is always, or the algorithm does not communicate."""
        if not self.algorithm.communicates:
            return None
        return build_availability(self.experiment, len(self.owners.clients), self.owners.population)

    @cached_property
    def steps(self) -> UplinkSteps | None:
        """Return the privacy and compression steps of the uplink; None where there are none."""
        exp, settings = self.experiment, self.experiment.uplink
        if not isinstance(settings, Uplink) or not self.algorithm.communicates:
            return None
        asked, seed = participants(exp, len(self.owners.population)), exp.seed_for("uplink")
        return UplinkSteps(settings, exp.algorithm.name, seed, self.heaviest, asked, self.noise_seed, self.masks)

    @property
    def heaviest(self) -> float:
        """Return the largest number of training rows of a client."""
        return float(self.partition.sizes.max())

    @cached_property
    def parts(self) -> OwnParts | None:
        """Return the own and the shared part of the model; None where clients share all of it."""
        layers = self.algorithm.own_layers
        return None if layers is None else find_own_parts(self.task, layers, self.experiment.bn_buffers == "local")

    @cached_property
    def initial(self) -> Vector:
        """Return w_0, the initial weights of the server."""
        return self.task.initial if self.parts is None else self.parts.shared(self.task.initial)

    @property
    def initial_buffers(self) -> Buffers:
        """Return the initial buffers of the server, as the model has them now."""
        buffers = self.task.buffers()
        return buffers if self.parts is None else self.parts.shared_buffers(buffers)

    def load_server_model(self, w: Vector, buffers: Buffers) -> None:
        """Load the server's weights and buffers, beside the initial ones of layers that are clients' own."""
        parts = self.parts
        self.task.load(w if parts is None else parts.join(w, parts.initial))
        self.task.load_buffers(buffers if parts is None else parts.join_buffers(buffers, None))

    @property
    def is_personal(self) -> bool:
        """Return whether the algorithm gives clients models of their own, also after its layers are known."""
        return self.algorithm.personal and (self.algorithm.own_layers is None or self.parts is not None)

    @property
    def upload_bytes(self) -> int:
        """Return the bytes that count as one upload: those of the model."""
        return self.initial.nbytes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one row as the model receives it."""
        return tuple(self.data.shape)

    @property
    def boosted_rows(self) -> dict[int, BoostedRows]:
        """Return the rows of clients that grow trees; only trees have them."""
        raise BadValue(
            f"{self.experiment.algorithm.name} trains a network, and boosted_rows are for trees",
            remedy="derive the algorithm from fedarena.algorithms.tree_algorithm.TreeAlgorithm",
        )

    @property
    def buffer_policy(self) -> str:
        """Return the policy for BatchNorm statistics: one set for pooled rows, else by setting.

        They are local for personal models, unless the server has a complete model, or a part of one, beside these.
        """
        if self.algorithm.pooled:
            return "average"
        alone = self.is_personal and self.common_score != "shared" and self.parts is None
        return "local" if alone else self.experiment.bn_buffers

    @property
    def common_score(self) -> Literal["shared", "mean", "none"]:
        """Return what the score on common test samples is of where clients have models of their own (see Algorithm)."""
        return self.algorithm.common_score if self.is_personal else "mean"

    @property
    def has_personal_models(self) -> bool:
        """Return whether clients have models of their own, in weights or in BatchNorm statistics."""
        return self.is_personal or (self.buffer_policy == "local" and len(self.task.buffers().values) > 0)

    @property
    def is_augmented(self) -> bool:
        """Return whether random augmentation changes a row every time it is trained on."""
        return self.data.prepare in ("mcmahan", "niid")

    @cached_property
    def rows_of_clients(self) -> tuple[Rows, Rows] | None:
        """Return the rows of all clients in one array and the bounds of each client; None if they are not stored so."""
        clients = self.partition.clients
        return (clients.flat, clients.bounds) if isinstance(clients, RowLists) else None

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Return the number of rows of each client."""
        return self.partition.sizes

    @property
    def last_batch(self) -> str:
        """Return the rule for a short last batch: keep, drop or merge_one."""
        rule = self.experiment.local.last_batch
        return rule if rule != "auto" else "merge_one" if self.task.has_batchnorm else "keep"

    @property
    def counts_client_steps(self) -> bool:
        """Return whether a client's next round depends on the number of steps it has made."""
        local = self.experiment.local
        counts = local.decay_counter == "per_client" or local.steps is not None
        return counts or (local.optimizer == "adam" and self.keeps_momentum)

    @property
    def keeps_momentum(self) -> bool:
        """Return whether clients keep the state of their optimizer between rounds, where it has one."""
        local = self.experiment.local
        return local.has_momentum and (self.algorithm.keeps_momentum or not local.reset_momentum)

    @property
    def training_path(self) -> str:
        """Return which code trains: the kernels, or the next path where they do not know the optimizer or algorithm."""
        if self.experiment.local.privacy is not None:
            return self.private_task.path
        path, fastest = self.task.path, self.algorithm.fastest_path
        if fastest == "autograd":
            return fastest
        is_compiled = fastest == "compiled" and can_be_compiled(self.task, self.experiment.local)
        return "tape" if path.startswith("compiled") and not is_compiled else path

    def class_counts(self, rows: Rows) -> NDArray[np.int64]:
        """Return how many of these rows have each class."""
        return np.bincount(self.data.strata[rows], minlength=self.data.stratum_count)

    @cached_property
    def all_class_counts(self) -> NDArray[np.int64]:
        """Return how many rows of all clients together have each class."""
        return self.class_counts(self.partition.train_rows)

    @cached_property
    def task_name(self) -> TaskName:
        """Return the kind of task, which decides which metrics exist."""
        return "custom" if self.task.has_own_loss else self.data.task

    @cached_property
    def label_scale(self) -> tuple[float, float]:
        """Return mean and deviation of a regression's training labels, by which they are standardised; else 0 and 1."""
        if self.data.task != "regression":
            return 0.0, 1.0
        labels = self.data.y[self.owners.train_rows].astype(np.float64)
        return float(labels.mean()), float(labels.std()) or 1.0

    @cached_property
    def labels(self) -> NDArray[Any]:
        """Return the labels as the loss takes them: classes, or numbers in the precision of the model."""
        if self.data.task in CLASSES:
            return self.data.y
        mean, deviation = self.label_scale
        return ((self.data.y.astype(np.float64) - mean) / deviation).astype(self.experiment.dtype)

    @cached_property
    def metric(self) -> Metric:
        """Return the metric that is followed round by round."""
        return find_metric(self.experiment.evaluate.metric, self.task_name)

    @cached_property
    def positive(self) -> int | None:
        """Return the positive class of two; None with more classes, or where rows have no class."""
        name, names = self.experiment.evaluate.positive, self.data.class_names or ("0", "1")
        if self.data.classes != 2 or not self.data.has_classes:
            return None
        return 1 if name is None else names.index(str(name))

    @property
    def cut(self) -> Cut | None:
        """Return the logit difference from which the positive class is predicted; None: the more likely class."""
        threshold = self.experiment.evaluate.threshold
        if threshold is None or self.positive is None:
            return None
        return self.positive, math.log(threshold / (1 - threshold))

    @property
    def is_text(self) -> bool:
        """Return whether rows are sequences of symbols."""
        return self.data.task == "next_symbol"

    @cached_property
    def source(self) -> KernelRows | None:
        """Return the data set's own rows for the kernels; None where noise, text or augmentation changes them."""
        x, how = np.asarray(self.data.x), self.data.prepare
        if self.owners.noise is not None or self.is_text or not x.flags.c_contiguous:
            return None
        y = np.ascontiguousarray(self.labels)
        if x.dtype == np.float32 and how == "none":
            return KernelRows(x, y, weights=self.data.weight)
        if x.dtype != np.uint8 or x.ndim != 4 or how not in ("scale", "standardise"):
            return None
        every = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(256, x.shape[1], 1, 1)
        numbers = test_batch(every, how, self.data.pixel_stats, torch.float32).view(256, -1)
        return KernelRows(x, y, np.ascontiguousarray(numbers.T.numpy()), self.data.weight)

    @cached_property
    def _x(self) -> Tensor:
        return as_tensor(np.asarray(self.data.x))

    @cached_property
    def _y(self) -> Tensor:
        return as_tensor(self.labels)

    def training_rows(
        self, rows: Rows, noise: NDArray[np.float32] | None, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return these rows as a model sees them in training."""
        at = torch.from_numpy(rows)
        x = self._noisy(self._x[at], noise)
        x = training_batch(x, self.data.prepare, self.data.pixel_stats, rng, self.task.dtype)
        return self.task.batch_layout(x.to(self.task.device)), self._y[at].to(self.task.device)

    def test_rows(
        self, rows: Rows, noise: NDArray[np.float32] | None = None, triggered: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return these rows as a model sees them in evaluation, on request with the trigger of a backdoor."""
        at = as_tensor(rows)
        x = self._x[at]
        if triggered:
            assert isinstance(self.attack, Backdoor)
            x = torch.from_numpy(self.attack.triggered(x.numpy(), self.data))
        x = test_batch(self._noisy(x, noise), self.data.prepare, self.data.pixel_stats, self.task.dtype)
        return self.task.batch_layout(x.to(self.task.device)), self._y[at].to(self.task.device)

    def _noisy(self, x: Tensor, noise: NDArray[np.float32] | None) -> Tensor:
        if noise is None:
            return x
        pixels = 255.0 if self.data.x.dtype == np.uint8 else 1.0  # noise is in units of the pixel range [0, 1]
        return x.float() + pixels * torch.from_numpy(noise)

    @cached_property
    def feature_noise(self) -> FeatureNoise:
        """Return the noise that the partition adds to the features of clients."""
        seed, shape = self.experiment.seed_for("noise"), tuple(self.data.x.shape[1:])
        return FeatureNoise(self.owners, shape, seed, self.algorithm.pooled)

    def evaluate(
        self,
        rows: Rows,
        noise: NDArray[np.float32] | None = None,
        keep: Keep = "",
        cut: Cut | None = None,
        triggered: bool = False,
    ) -> Scores:
        """Return the scores of the loaded model on these rows."""
        parts = [Scores.of_nothing()]
        for start in range(0, len(rows), EVALUATION_ROWS):
            piece = slice(start, start + EVALUATION_ROWS)
            batch = self.test_rows(rows[piece], None if noise is None else noise[piece], triggered)
            parts.append(self.task.predict(*batch, keep, cut))
        return Scores.joined(parts)
