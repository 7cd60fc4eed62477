"""The final model at a client: a run folder with the model, its preprocessing and metrics on the client's own samples."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedarena.algorithms.base import Model
from fedarena.common.files import writing
from fedarena.config.components import component_settings
from fedarena.config.errors import CannotWrite, DataBroken
from fedarena.data.dataset import Partition
from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.evaluation import LocalEvaluator
from fedarena.engine.personal_model import OwnModel
from fedarena.engine.record import RoundRecord, plain_record
from fedarena.engine.round_evaluation import collected_metrics
from fedarena.engine.setup import make_context
from fedarena.experiments.run import write_result
from fedarena.federation import messages
from fedarena.federation.client_context import ClientContext, round_budget
from fedarena.federation.redaction import ShareableError
from fedarena.federation.reply_pattern import check_model, check_structure
from fedarena.federation.wire_format import WireRefused
from fedarena.models.task import sha256
from fedarena.results import run_folder
from fedarena.results.json_files import read_table, write_text
from fedarena.results.run import Run
from fedarena.runtimes.serial import SerialRuntime


def check_out(path: Path) -> Path:
    """Return the folder that a user names for the model; raise if it holds anything but the model of a client."""
    if not _is_empty(path) and not (path / run_folder.FEDERATION).is_file():
        raise CannotWrite(f"{path} exists already", remedy="choose another folder", where="--out")
    return path


def _is_empty(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


@dataclass(frozen=True)
class ModelFolder:
    """The run folder in which a client stores the final model of one run."""

    path: Path
    run: str
    client: str

    def check(self) -> None:
        """Refuse a folder that holds anything else than the model of this run."""
        marker = self.path / run_folder.FEDERATION
        if not _is_empty(self.path) and not (marker.is_file() and marker.read_text(encoding="utf-8") == self._text):
            raise ShareableError(
                "its folder for the final model is not empty", remedy=f"choose another than {self.path}", where="--out"
            )

    @property
    def _text(self) -> str:
        return json.dumps({"run": self.run, "client": self.client}, indent=1)

    @property
    def is_complete(self) -> bool:
        """Return whether the final model is stored."""
        return (self.path / "result.json").exists()

    def store(
        self, context: ClientContext, request: messages.FinalModelRequest, common: Broadcast, own: OwnModel
    ) -> None:
        """Check the final model, evaluate it on the client's own test samples, and write the folder."""
        check_model(common.message, context)
        check_structure(common.buffers, context.initial_buffers, "BatchNorm's statistics")
        if sha256(common.message.w, common.buffers.values) != request.sha256:
            raise WireRefused("a final model with another sha256 than the message says")
        budget = round_budget(context.experiment) or 1
        if not 1 <= request.rounds <= budget:
            raise ShareableError(f"a final model after round {request.rounds} of {budget}")
        model = Broadcast(common.message if own[0] is None else Model(own[0]), own[1] or common.buffers)
        if self._holds(sha256(model.message.w, model.buffers.values)):
            return
        self.check()
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "result.json").unlink(missing_ok=True)
        write_text(self.path / run_folder.FEDERATION, self._text)
        result, alone = self._evaluated(context, model, request.rounds)
        log = [json.dumps(plain_record(record)) for record in result.records]
        with writing(self.path):
            (self.path / "checkpoint").mkdir(exist_ok=True)
        write_text(self.path / "checkpoint" / "rounds.jsonl", "".join(f"{line}\n" for line in log))
        run_folder.write_start(self.path, alone)
        write_result(result, alone, self.path)

    def _holds(self, sha: str) -> bool:
        """Return whether this model is stored already, by an earlier process of the client."""
        if not self.is_complete:
            return False
        try:
            return bool(read_table(self.path / "result.json", "")["weights_sha256"] == sha)
        except (DataBroken, KeyError):
            return False

    def _evaluated(self, context: ClientContext, model: Broadcast, rounds: int) -> tuple[Run, ExperimentContext]:
        """Return the run as this client knows it: its own samples, and an evaluation after the last round."""
        owners, me = context.owners, context.agreed.client
        notes = [f"'{self.client}' is one of {context.agreed.clients} clients: metrics are over its own test samples"]
        test = owners.test
        if not len(test):
            test, notes = owners.clients[me], [*notes, "it has no test samples: metrics are over training samples"]
        solo = Partition([owners.clients[me]], test, [test], names=(self.client,), notes=tuple(notes))
        alone = make_context(context.experiment, context.data, solo)
        alone.algorithm, alone.label_scale = context.algorithm, context.label_scale
        evaluator = LocalEvaluator(alone, SerialRuntime(alone))
        seen = evaluator.evaluate_shared(model, evaluator.metrics, clients=True)
        measured = collected_metrics(alone, seen, evaluator.own_samples)
        alone.task.load(model.message.w)
        alone.task.load_buffers(model.buffers)
        followed = None if measured.metric in ("accuracy", "loss") else measured.common[measured.metric]
        last = RoundRecord(
            round=rounds,
            accuracy=seen.accuracy,
            loss=seen.loss,
            weighted_accuracy=seen.accuracy,
            best_accuracy=seen.accuracy,
            metric=followed,
        )
        result = Run(
            alone.experiment,
            [*(RoundRecord(round=earlier) for earlier in range(1, rounds)), last],
            sha256(model.message.w, model.buffers.values),
            seen.own,
            solo.sizes,
            self.path,
            alone.task.state(),
            solo.notes,
            component_settings(context.algorithm),
            measured=measured,
        )
        return result, alone
