"""A trained model in use: from the columns of a table to predictions, and to files for other programs."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedarena.common.files import writing
from fedarena.common.optional_imports import import_optional
from fedarena.config.errors import BadValue, quoted
from fedarena.data.raw_columns import encode_raw
from fedarena.data.table_encoding import TableEncoding
from fedarena.models.task import predicted_classes
from fedarena.models.tree_task import ForestModule
from fedarena.results.built_model import has_facts, known_facts, trained_task
from fedarena.results.model_file import ModelFacts
from fedarena.results.run_folder import PREPROCESSING
from fedarena.results.samples_elsewhere import has_samples_elsewhere, read_encoding

if TYPE_CHECKING:
    from fedarena.results.run import Run

PIECE = 4096  # rows that are predicted together
Columns = dict[str, NDArray[Any]]


USABLE = ("classification", "regression", "multilabel", "survival")  # tasks whose predictions have columns


def model_in_use(run: Run, client: int | None = None) -> nn.Module:
    """Return the model of a run, with its encoding and its units; a plain classifier is the module itself.

    The run folder is enough: the data is read only for a run without one, or of an earlier version.
    """
    if has_facts(run) or has_samples_elsewhere(run.dir, run.experiment):
        facts, module = known_facts(run), trained_task(run, client).module
        has_table = run.dir is not None and (run.dir / PREPROCESSING).exists()
        encoding = read_encoding(run.dir) if has_table else None
    else:
        context = run.context(client)
        module, facts, encoding = context.task.module, ModelFacts.of(context), context.data.encoding
    plain = encoding is None and facts.task not in ("regression", "multilabel", "survival")
    return module.eval() if plain else TrainedModel(module, facts, encoding)


def trained_model(run: Run, client: int | None = None) -> TrainedModel:
    """Return the model of a run for predictions, which not every task has."""
    model = model_in_use(run, client)
    if isinstance(model, TrainedModel):
        return model
    facts = known_facts(run) if has_facts(run) else ModelFacts.of(run.context(client))
    if facts.task not in USABLE:
        raise BadValue(
            f"there are no predictions of the task '{facts.task}'",
            remedy="use run.model(), which is the torch module itself",
        )
    return TrainedModel(model, facts)


class TrainedModel(nn.Module):
    """The module of a run with the encoding of its table and the meaning of its outputs.

    Called on an encoded matrix it returns probabilities of classes or labels, a number in the units of the label, or a
    risk. `predict` takes a table.
    """

    def __init__(self, module: nn.Module, facts: ModelFacts, encoding: TableEncoding | None = None) -> None:
        super().__init__()
        self.module, self.facts, self.encoding = module, facts, encoding
        self.notes: tuple[str, ...] = ()  # about the last table
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the predictions for rows as the module takes them."""
        outputs: Tensor = self.module(x)
        if self.facts.task == "classification":
            return outputs.softmax(dim=1)
        if self.facts.task == "multilabel":
            return outputs.sigmoid()
        mean, deviation = self.facts.label_scale
        return outputs if self.facts.task != "regression" else outputs * deviation + mean

    def encode(self, table: Any, client: str | Sequence[str | None] | None = None) -> NDArray[np.float32]:
        """Return the matrix of a table, encoded as in training; arrays of numbers are taken as they are."""
        if self.encoding is not None and not isinstance(table, np.ndarray):
            is_forest = isinstance(self.module, ForestModule)
            x, self.notes = encode_raw(self.encoding, table) if is_forest else self.encoding.encode(table, client)
            return x
        x = np.asarray(table, np.float32)
        if x.shape[1:] != self.facts.shape:
            raise BadValue(
                f"the model takes rows of shape {self.facts.shape}, not {x.shape[1:]}",
                remedy="give rows as in training",
                where="predict",
            )
        return x

    @torch.no_grad()
    def predict(self, table: Any, level: float = 0.9, client: str | Sequence[str | None] | None = None) -> Columns:
        """Return the columns of the predictions: `prediction`, and what the task adds to it.

        Classification adds the probability of each class (`p_NAME`), several labels that of each label. A regression adds
        `lower` and `upper`, between which the label of a new sample like the test samples lies with probability `level`.
        """
        if not 0 < level < 1:
            raise BadValue(f"level = {level}", remedy="give a probability between 0 and 1, such as 0.9", where="level")
        x = torch.from_numpy(self.encode(table, client))
        parameter = next(self.parameters())
        parts = [self.module(x[i : i + PIECE].to(parameter)).cpu() for i in range(0, len(x), PIECE)]
        outputs = torch.cat(parts) if parts else torch.empty(0, self.facts.outputs)
        return self._columns(outputs.double(), level)

    def _columns(self, outputs: Tensor, level: float) -> Columns:
        task = self.facts.task
        names = self.facts.class_names or tuple(str(k) for k in range(self.facts.outputs))
        if task == "classification":
            probabilities = outputs.softmax(dim=1).numpy()
            chosen = predicted_classes(outputs, self.facts.cut).numpy()
            labels = np.array([*names, ""], dtype=object)[chosen]  # no class where an output is not finite
            return {"prediction": labels, **{f"p_{name}": probabilities[:, k] for k, name in enumerate(names)}}
        if task == "multilabel":
            probabilities = outputs.sigmoid().numpy()
            found = {name: (probabilities[:, k] > 0.5).astype(np.int64) for k, name in enumerate(names)}
            return {**found, **{f"p_{name}": probabilities[:, k] for k, name in enumerate(names)}}
        if task == "survival":
            return {"risk": outputs[:, 0].numpy()}
        mean, deviation = self.facts.label_scale
        value, margin = outputs[:, 0].numpy() * deviation + mean, self.facts.margin(level)
        if not self.facts.errors:
            self.notes += ("there are no intervals: no test samples of a common model are known",)
            return {"prediction": value}
        return {"prediction": value, "lower": value - margin, "upper": value + margin}

    def export(self, path: str | Path) -> Path:
        """Write the model on the encoded matrix as ONNX (`.onnx`) or as a torch program (`.pt2`); return the path."""
        path = Path(path)
        if isinstance(self.module, ForestModule):
            raise BadValue(
                "a forest cannot be exported: ONNX and torch programs are written for networks",
                remedy="predict from the run folder: fedarena predict RUN FILE",
                where="export",
            )
        if path.suffix not in (".onnx", ".pt2"):
            raise BadValue(
                f"a model cannot be written as '{quoted(path.suffix)}'",
                remedy="give a file that ends in .onnx or .pt2",
                where="export",
            )
        model = copy.deepcopy(self)
        for parameter in model.parameters():  # of their own: here they are views of one vector
            parameter.data = parameter.data.clone()
        example = (torch.zeros(2, *self.facts.shape, dtype=next(self.parameters()).dtype),)
        rows = ({0: torch.export.Dim("rows")},)
        with writing(path), _quiet():
            if path.suffix == ".pt2":
                torch.export.save(torch.export.export(model, example, dynamic_shapes=rows), path)
                return path
            for package in ("onnx", "onnxscript"):
                import_optional(package, needed_by="export to ONNX", install="'fedarena[export]'")
            names: dict[str, Any] = {"input_names": ["x"], "output_names": ["prediction"]}
            program = torch.onnx.export(model, example, dynamic_shapes=rows, dynamo=True, verbose=False, **names)
            assert program is not None
            program.save(str(path))
        return path


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch's exporters say about packages that are not installed and about themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    with contextlib.suppress(ImportError):
        from tqdm import tqdm  # type: ignore[import-untyped]

        tqdm.monitor_interval = 0  # its thread would stay, and worker processes could not be forked any more
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
