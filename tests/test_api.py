"""The doors in Python: own data, own model, own components, and the result object."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedarena as fa
from tests.federations import blobs

QUICK: dict[str, Any] = {"rounds": 2, "runtime": "serial"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fa.Run:
    folder = tmp_path_factory.mktemp("runs") / "r"
    return fa.run("digits", rounds=6, evaluate={"every": 2, "target": 0.5}, out=folder, runtime="serial")


# Own data and models


def test_rows_and_labels_in_one_line() -> None:
    x, y = blobs()
    assert fa.run((x, y), out=False, **QUICK).final.accuracy > 0.5
    tensors = fa.run((torch.tensor(x), torch.tensor(y)), out=False, **QUICK)
    assert tensors.weights_sha256 == fa.run((x, y), out=False, **QUICK).weights_sha256


def test_a_client_for_each_row_is_a_natural_partition() -> None:
    x, y = blobs()
    result = fa.run((x, y, np.repeat(["a", "b", "c"], 80)), out=False, **QUICK)
    assert result.experiment.partition.name == "natural"
    assert list(result.clients["name"]) == ["a", "b", "c"]
    assert result.clients["rows"].sum() == 192  # four fifths of 240


def test_own_models_of_every_kind() -> None:
    x, y = blobs()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 9), nn.Linear(9, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.tanh(self.a(x)))

    def sized(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(shape[0], classes)

    for model in (Net, Net(), lambda: nn.Linear(6, 3), sized):
        result = fa.run((x, y), model=model, out=False, **QUICK)
        assert result.final.accuracy > 0.4
        restored = result.model()
        assert isinstance(restored, nn.Module)


def test_own_things_run_in_worker_processes_of_both_kinds(tmp_path: Path) -> None:
    """A script without a guard for __main__, with a model, an algorithm and a state of its own; forked and fresh."""
    script = tmp_path / "mine.py"
    script.write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            import numpy as np, torch, sys
            import fedarena as fa
            import fedarena.runtime.processes as processes
            processes.safe_start = lambda: sys.argv[1]
            print("once")

            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(64, 10)
                def forward(self, x):
                    return self.layer(x.flatten(1)).tanh()

            @dataclass(frozen=True)
            class Counted:
                w: np.ndarray
                rounds: int

            class Mine(fa.FedAvg):
                def init(self, w):
                    return Counted(w, 0)
                def remember(self, w):
                    return {"visits": 0}
                def client(self, got, kept, work):
                    reply = super().client(got, None, work)
                    return fa.Reply(reply.send, keep={"visits": kept["visits"] + 1}, weight=reply.weight)
                def server(self, state, mean, cohort):
                    return Counted(state.w - mean.delta, state.rounds + 1)

            mine = dict(algorithm=Mine(), model=lambda: Net(), rounds=4, workers=2)
            whole = fa.run("digits", out=False, **mine)
            fa.run("digits", out="r", on_round=lambda r: r.round == 2, **mine)
            resumed = fa.run("digits", resume="r", **mine)
            print(whole.weights_sha256 == resumed.weights_sha256, len(resumed.records))
            """
        )
    )
    for start in ("fork", "spawn"):
        folder = tmp_path / start
        folder.mkdir()
        done = subprocess.run([sys.executable, str(script), start], capture_output=True, text=True, cwd=folder)
        assert done.stdout.split() == ["once", "True", "4"], done.stderr


def test_a_run_with_own_things_says_how_to_bring_them_back() -> None:
    x, y = blobs()
    first = fa.run((x, y), model=lambda: nn.Linear(6, 3), out="r", **QUICK)
    with pytest.raises(fa.FedarenaError, match="came from Python"):
        fa.verify("r")
    verdict = fa.verify("r", data=fa.arrays(x, y), model=lambda: nn.Linear(6, 3), runtime="serial")
    assert verdict.same, verdict.differences
    assert first.again(out=False).weights_sha256 == first.weights_sha256


def test_other_data_under_the_same_name_is_noticed_on_resume() -> None:
    x, y = blobs()
    fa.run((x, y), out="r", rounds=4, runtime="serial", on_round=lambda r: r.round == 1)
    with pytest.raises(fa.FedarenaError, match="the data is not the one"):
        fa.run((x + 1, y), resume="r", rounds=4, runtime="serial")


# Own components


@dataclass(frozen=True)
class Halves:
    """The first half of the rows to client 0, the rest to client 1."""

    cut: float = field(default=0.5)

    def split(self, data: fa.Dataset, clients: int, rng: np.random.Generator) -> fa.Partition:
        rows = rng.permutation(data.n_train)
        middle = int(len(rows) * self.cut)
        return fa.Partition([np.sort(rows[:middle]), np.sort(rows[middle:])], data.test_rows)


def test_a_component_of_ones_own_as_object_or_by_name() -> None:
    as_object = fa.run("digits", partition=Halves(0.3), clients=2, out=False, **QUICK)
    assert as_object.clients["rows"].tolist() == [431, 1007]
    fa.register("partition", "halves")(Halves)
    by_name = fa.run("digits", partition={"name": "halves", "cut": 0.3}, clients=2, out=False, **QUICK)
    assert by_name.weights_sha256 == as_object.weights_sha256


def test_a_plug_in_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    """A real installed distribution: a module and its metadata on the path."""
    (tmp_path / "plug_in.py").write_text(
        "from dataclasses import dataclass\nimport fedarena as fa\n"
        '@dataclass(frozen=True)\nclass Slow(fa.FedAvg):\n    "FedAvg at a tenth of the pace."\n    server_lr: float = 0.1\n'
    )
    info = tmp_path / "plug_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedarena.algorithms]\nslow = plug_in:Slow\n")
    command = [sys.executable, "-m", "fedarena"]
    environment = {**__import__("os").environ, "PYTHONPATH": str(tmp_path)}
    listed = subprocess.run([*command, "list", "algorithms"], capture_output=True, text=True, env=environment).stdout
    assert "slow\n    FedAvg at a tenth of the pace." in listed
    arguments = ["run", "digits", "-q", "--set", "algorithm=slow", "--set", "rounds=1"]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "slow on digits" in ran.stdout


# The result


def test_result_in_numbers(run: fa.Run) -> None:
    assert [r.round for r in run.evaluations] == [2, 4, 6]
    assert run.final.round == 6
    assert run.best.accuracy == max(a for _, a in run.curve)
    assert run.monotone_curve[-1][1] == run.best.accuracy
    assert run.rounds_to(0.0) == 2
    assert run.rounds_to(1.1) is None
    assert run.bytes == run.records[-1].bytes_up + run.records[-1].bytes_down
    assert len(run.to_pandas()) == 6
    assert run.summary()["target"] == 0.5


def test_result_loads_from_its_folder(run: fa.Run) -> None:
    again = fa.load(run.dir)
    assert again.summary() == run.summary()
    assert all(torch.equal(again.state[k], v) for k, v in run.state.items())
    copied = run.save("copy")
    assert fa.load(copied).weights_sha256 == run.weights_sha256


def test_result_shows_itself(run: fa.Run) -> None:
    assert "fedavg on digits" in str(run)
    assert "<svg" in run._repr_html_()
    assert run.plot().get_xlabel() == "round"
    assert repr(run).startswith("<Run fedavg on digits: 6 rounds")
    pictured = fa.draw_curves({"one": run, "two": run}, "two.png")
    assert pictured.stat().st_size > 10_000


def test_model_and_confusion_agree_with_the_record(run: fa.Run) -> None:
    confusion = run.confusion()
    assert confusion.sum() == 359
    assert np.trace(confusion) / 359 == pytest.approx(run.final.accuracy)
    recalls = run.recalls()
    np.testing.assert_allclose(recalls, np.diag(confusion) / confusion.sum(axis=1))


def test_folder_has_what_it_promises(run: fa.Run) -> None:
    import pyarrow.parquet as pq

    assert run.dir is not None
    names = {p.name for p in run.dir.iterdir()}
    assert names == {
        "experiment.toml", "rounds.parquet", "clients.parquet", "partition.npz", "model.safetensors", "checkpoint",
        "versions.json", "result.json",
    }  # fmt: skip
    assert pq.read_table(run.dir / "rounds.parquet")["round"].to_pylist() == [2, 4, 6]
    clients = pq.read_table(run.dir / "clients.parquet").to_pydict()
    with np.load(run.dir / "partition.npz") as partition:
        assert partition["sizes"].tolist() == clients["rows"]
        assert len(partition["rows"]) == 1438


def test_rounds_is_a_loop_of_ones_own() -> None:
    seen = []
    for record in fa.rounds("digits", rounds=50, runtime="serial"):
        seen.append(record.round)
        if record.round == 3:
            break
    assert seen == [1, 2, 3]
    assert not Path("runs").exists()


def test_runs_get_free_names() -> None:
    a, b = (fa.run("digits", **{**QUICK, "rounds": 1}) for _ in range(2))
    assert (str(a.dir), str(b.dir)) == ("runs/digits-fedavg-seed0", "runs/digits-fedavg-seed0-2")


def test_feature_noise_reaches_the_clients() -> None:
    """The more noise, the less a client's own test accuracy says; client 0 sees clean rows; pooled rows keep theirs."""
    settings: dict[str, Any] = {"clients": 3, "rounds": 2, "out": False, "runtime": "serial"}
    clean = fa.run("digits", partition="iid", **settings)
    none = fa.run("digits", partition={"name": "feature_noise", "sigma": 1e-12}, **settings)
    much = fa.run("digits", partition={"name": "feature_noise", "sigma": 1.0}, **settings)
    assert none.final.accuracy == pytest.approx(clean.final.accuracy, abs=0.02)
    assert much.weights_sha256 != none.weights_sha256
    assert much.client_accuracy[0] > much.client_accuracy[2]
    pooled = fa.run("digits", algorithm="centralized", partition={"name": "feature_noise", "sigma": 1.0}, **settings)
    assert (
        pooled.weights_sha256 != fa.run("digits", algorithm="centralized", partition="iid", **settings).weights_sha256
    )
