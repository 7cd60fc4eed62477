"""MLflow receives every round, and does not delay, change or break a run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.comparison_plan import Plan
from fedarena.integrations import mlflow as mlflow_tracking
from fedarena.integrations.mlflow import track
from fedarena.results.comparison import Comparison

if importlib.util.find_spec("mlflow") is None:  # importing it takes a second: only where these tests run
    pytest.skip("no MLflow here: pip install 'fedarena[track]'", allow_module_level=True)

SETTINGS: dict[str, Any] = {"rounds": 4, "clients": 4, "partition": "iid", "runtime": "serial"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that MLflow keeps its database and files in."""
    return tmp_path_factory.mktemp("tracked")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def newest(store: Path, **tags: str) -> Any:
    """The newest MLflow run of the store, as MLflow itself reads it."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{store / 'mlflow.db'}")
    group = client.get_experiment_by_name("fedarena")
    wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    return client, client.search_runs([group.experiment_id], wanted, order_by=["attributes.start_time DESC"])[0]


@pytest.mark.slow
def test_every_round_every_key_and_every_file_arrives(store: Path) -> None:
    settings = {**SETTINGS, "evaluate": {"every": 2}, "algorithm": {"name": "fedprox", "mu": 0.5}}
    run = fa.run("digits", **settings, out="run", track=store)
    client, kept = newest(store)
    assert kept.info.status == "FINISHED"
    assert kept.data.params["algorithm"] == "fedprox"
    assert kept.data.params["algorithm.mu"] == "0.5"
    assert kept.data.params["local.lr"] == str(run.experiment.local.lr)
    sent = [(m.step, m.value) for m in client.get_metric_history(kept.info.run_id, "bytes_up")]
    assert sent == [(r.round, r.bytes_up) for r in run.records]
    seen = [(m.step, m.value) for m in client.get_metric_history(kept.info.run_id, "accuracy")]
    assert seen == run.curve
    assert [step for step, _ in seen] == [2, 4]
    assert {file.path for file in client.list_artifacts(kept.info.run_id)} == set(mlflow_tracking.FILES)
    assert kept.data.tags["fedarena.weights_sha256"] == run.weights_sha256


@pytest.mark.slow
def test_tracking_changes_no_bit(store: Path) -> None:
    alone = fa.run("digits", **SETTINGS, out=False)
    assert fa.run("digits", **SETTINGS, out=False, track=store).weights_sha256 == alone.weights_sha256


@pytest.mark.slow
def test_rounds_arrive_during_the_run(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_tracking, "SECONDS", 0.0)
    seen = []

    def look(record: Any) -> None:
        client, kept = newest(store)
        seen.append((record.round, len(client.get_metric_history(kept.info.run_id, "accuracy")), kept.info.status))

    fa.run("digits", **SETTINGS, out=False, track=store, on_round=look)
    assert seen == [(n, n, "RUNNING") for n in (1, 2, 3, 4)]


def test_an_interrupted_run_is_logged_as_killed_with_its_rounds(store: Path) -> None:
    def interrupt(record: Any) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fa.run("digits", **SETTINGS, out="run", track=store, on_round=interrupt)
    client, kept = newest(store)
    assert kept.info.status == "KILLED"
    assert [m.step for m in client.get_metric_history(kept.info.run_id, "accuracy")] == [1, 2, 3]


@pytest.mark.slow
def test_a_database_that_breaks_costs_one_warning_and_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_tracking, "SECONDS", 0.0)
    alone = fa.run("digits", **SETTINGS, out=False)

    def destroy(record: Any) -> None:
        if record.round == 2:
            (tmp_path / "kept" / "mlflow.db").write_bytes(b"no database" * 1000)

    with pytest.warns(UserWarning, match="MLflow does not answer, the run continues without it") as caught:
        run = fa.run("digits", **SETTINGS, out="run", track="kept", on_round=destroy)
    assert len([w for w in caught if "MLflow" in str(w.message)]) == 1
    assert run.weights_sha256 == alone.weights_sha256
    assert fa.load("run").final.round == 4


class Server(BaseHTTPRequestHandler):
    """As much of MLflow's REST interface as a run needs to begin, over a real connection."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        what = self.path.partition("?")[0].rpartition("mlflow/")[2]
        if what == "experiments/get-by-name":
            body: Any = {"experiment": {"experiment_id": "1", "name": "fedarena", "artifact_location": "file:///tmp"}}
        elif what == "runs/create":
            info = {"run_id": "a", "run_uuid": "a", "experiment_id": "1", "status": "RUNNING", "artifact_uri": "x:/a"}
            body = {"run": {"info": info, "data": {}}}
        else:
            body = {}
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = answer

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    there = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=there.serve_forever, daemon=True).start()
    yield there
    there.shutdown()
    there.server_close()


@pytest.mark.slow
def test_a_server_that_goes_away_costs_one_warning_and_no_bit(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_tracking, "SECONDS", 0.0)
    monkeypatch.setattr(
        mlflow_tracking.MlflowStore, "describe", lambda *_: None
    )  # files would need a store of their own
    alone = fa.run("digits", **SETTINGS, out=False)

    def leave(record: Any) -> None:
        if record.round == 2:
            server.shutdown()
            server.server_close()

    address = f"http://127.0.0.1:{server.server_port}"
    with pytest.warns(UserWarning, match="MLflow does not answer") as caught:
        run = fa.run("digits", **SETTINGS, out=False, track=address, on_round=leave)
    assert len([w for w in caught if "MLflow" in str(w.message)]) == 1
    assert run.weights_sha256 == alone.weights_sha256


@pytest.mark.slow
def test_a_finished_run_can_be_sent_afterwards(store: Path) -> None:
    run = fa.run("digits", **SETTINGS, out="run")
    id = track(fa.load("run"), store)
    client, kept = newest(store)
    assert kept.info.run_id == id
    assert [(m.step, m.value) for m in client.get_metric_history(id, "accuracy")] == run.curve
    took = (kept.info.end_time - kept.info.start_time) / 1000
    assert took == pytest.approx(run.records[-1].wall_seconds, abs=0.01)


@pytest.mark.slow
def test_a_comparison_is_one_run_with_a_nested_run_a_cell(store: Path) -> None:
    table = {"data": "digits", "clients": 4, "partition": "iid", "rounds": 1}
    plan = Plan(table, {"fedavg": {"algorithm": "fedavg"}, "fedprox:mu=1": {"algorithm": "fedprox"}}, repeats=2)
    runs = {
        label: [fa.run(plan.cell(label, split), out=False, runtime="serial") for split in plan.splits]
        for label in plan.contestants
    }
    comparison = Comparison(plan, runs)
    id = track(comparison, store)
    client, parent = newest(store, **{"fedarena.test": plan.test})
    assert parent.info.run_id == id
    assert parent.data.metrics["best/fedprox-mu-1"] == pytest.approx(sum(comparison.scores()["fedprox:mu=1"]) / 2)
    assert parent.data.tags["mlflow.note.content"].startswith(comparison.words[0])
    nested = client.search_runs([parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{id}'")
    assert len(nested) == 4
    assert {run.data.tags["fedarena.split"] for run in nested} == {"seed0", "seed1"}


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["run", "digits", "--quiet", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert not Path("runs").exists()
    return result.stderr


def test_a_server_that_is_not_there_is_refused_before_work_starts() -> None:
    message = refused("--track", "http://127.0.0.1:9")
    assert message.startswith("BadValue: no MLflow store answers at http://127.0.0.1:9")
    assert len(message.strip().splitlines()) == 2


def test_without_mlflow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert "pip install 'fedarena[track]'" in refused("--track", "mlruns")


@pytest.mark.slow
def test_mlflow_is_not_loaded_unless_asked_for() -> None:
    code = "import sys, fedarena.cli.main, fedarena.api; print('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
