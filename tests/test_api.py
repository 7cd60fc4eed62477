"""The doors in Python: own data, own model, own components, and the result object."""

from __future__ import annotations

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
from tests.support import forked_processes
from tests.support.federations import blobs

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


@pytest.mark.slow
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
        result = fa.run((x, y), model=model, out=False, rounds=25, runtime="serial")
        assert result.final.accuracy > 0.7
        restored = result.model()
        assert isinstance(restored, nn.Module)


@pytest.mark.slow
def test_own_things_run_in_worker_processes_of_both_kinds(tmp_path: Path) -> None:
    """A script without a guard for __main__, with a model, an algorithm and a state of its own; forked and fresh."""
    script = tmp_path / "mine.py"
    script.write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            import numpy as np, torch, sys
            import fedarena as fa
            import fedarena.runtimes.process_pool as processes
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

            mine = dict(algorithm=Mine(), model=lambda: Net(), rounds=4, workers=2 if sys.argv[1] == "fork" else 1)
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
        done = forked_processes.run([sys.executable, str(script), start], cwd=folder)
        assert done.stdout.split() == ["once", "True", "4"], done.stderr


@pytest.mark.slow
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


@pytest.mark.slow
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
    listed = forked_processes.run([*command, "list", "algorithms"], env=environment).stdout
    assert "slow\n    FedAvg at a tenth of the pace." in listed
    arguments = ["run", "digits", "-q", "--set", "algorithm=slow", "--set", "rounds=1"]
    ran = forked_processes.run([*command, *arguments], env=environment, cwd=tmp_path)
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


@pytest.mark.slow
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
        "experiment.toml", "rounds.parquet", "clients.parquet", "partition.npz", "model.json", "model.safetensors",
        "checkpoint", "versions.json", "result.json",
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


@pytest.mark.slow
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


# What a first reader tripped over


@pytest.mark.slow
def test_classes_of_a_script_are_the_same_before_and_after_a_worker(tmp_path: Path) -> None:
    """A payload class of __main__ comes back as itself, forked or fresh; one made inside a function too."""
    script = tmp_path / "mine.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from dataclasses import dataclass
            import numpy as np
            import fedarena as fa
            import fedarena.runtimes.process_pool as processes
            processes.safe_start = lambda: sys.argv[1]

            @dataclass(frozen=True)
            class Up:
                delta: np.ndarray

            @dataclass(frozen=True)
            class Kept:
                visits: int

            class Mine(fa.FedAvg):
                def remember(self, w):
                    return Kept(0)
                def client(self, got, kept, work):
                    assert isinstance(kept, Kept)
                    out = work.train(got.w)
                    return fa.Reply(Up(got.w - out.w), keep=Kept(kept.visits + 1), weight=work.rows)
                def server(self, state, mean, cohort):
                    assert isinstance(mean, Up)
                    return fa.Model(state.w - mean.delta)

            print(fa.run("digits", algorithm=Mine(), rounds=3, workers=1, out=False).final.round)
            """
        )
    )
    for start in ("fork", "spawn"):
        done = forked_processes.run([sys.executable, str(script), start], cwd=tmp_path)
        assert done.stdout.strip() == "3", done.stderr


def test_a_client_cannot_change_the_message_it_received() -> None:
    class Careless(fa.FedAvg):
        def client(self, got: Any, kept: Any, work: Any) -> fa.Reply:
            got.w[:] = 0
            return fa.Reply(fa.Step(got.w), weight=work.rows)

    for runtime in ("serial", "processes"):
        with pytest.raises(fa.FedarenaError, match="read-only"):
            fa.run("digits", algorithm=Careless(), rounds=1, out=False, runtime=runtime)


def test_states_that_cannot_be_stored_are_reported_at_once() -> None:
    class Tensors(fa.FedAvg):
        def client(self, got: Any, kept: Any, work: Any) -> fa.Reply:
            reply = super().client(got, None, work)
            return fa.Reply(reply.send, keep=torch.zeros(2), weight=reply.weight)

    with pytest.raises(fa.FedarenaError, match="holds a Tensor, which cannot be stored"):
        fa.run("digits", algorithm=Tensors(), **QUICK, out=False)


def test_state_of_a_class_made_inside_a_function() -> None:
    @dataclass(frozen=True)
    class Inner:
        visits: int

    class Keeps(fa.FedAvg):
        def remember(self, w: Any) -> Inner:
            return Inner(0)

        def client(self, got: Any, kept: Any, work: Any) -> fa.Reply:
            reply = super().client(got, None, work)
            return fa.Reply(reply.send, keep=Inner(kept.visits + 1), weight=reply.weight)

    assert fa.run("digits", algorithm=Keeps(), rounds=3, out=False, runtime="serial").final.round == 3


@pytest.mark.slow
def test_verify_looks_at_the_stored_files() -> None:
    from safetensors.torch import load_file, save_file

    fa.run("digits", out="r", **QUICK)
    assert fa.verify("r", runtime="serial").same
    state = load_file("r/model.safetensors")
    save_file({k: torch.zeros_like(v) for k, v in state.items()}, "r/model.safetensors")
    verdict = fa.verify("r", runtime="serial")
    assert any("model.safetensors" in d for d in verdict.differences)
    Path("r/partition.npz").write_text("x")
    with pytest.raises(fa.FedarenaError, match=r"partition\.npz"):
        fa.verify("r", runtime="serial")


@pytest.mark.parametrize(
    "name", ["versions.json", "experiment.toml", "result.json", "model.safetensors", "clients.parquet"]
)
def test_a_damaged_folder_is_reported(name: str) -> None:
    fa.run("digits", out="r", **QUICK)
    Path("r", name).write_text("{broken")
    with pytest.raises(fa.FedarenaError):
        fa.verify("r", runtime="serial")


@pytest.mark.slow
def test_a_continued_run_is_the_run_it_would_have_been() -> None:
    """The old last round was evaluated because it was last; it no longer is."""
    settings: dict[str, Any] = {"evaluate": {"every": 3}, "runtime": "serial"}
    fa.run("digits", rounds=5, out="r", **settings)
    continued = fa.run(resume="r", rounds=9, runtime="serial")
    straight = fa.run("digits", rounds=9, out=False, **settings)
    assert [r.accuracy for r in continued.records] == [r.accuracy for r in straight.records]
    assert [r.best_accuracy for r in continued.records] == [r.best_accuracy for r in straight.records]
    assert fa.verify("r", runtime="serial").same


def test_a_run_stopped_between_evaluations_is_stored_as_it_is() -> None:
    run = fa.run("digits", rounds=9, evaluate={"every": 4}, out="r", runtime="serial", on_round=lambda r: r.round == 2)
    assert fa.load("r").final == run.final
    assert fa.verify("r", runtime="serial").same


def test_local_models_are_asked_for_by_client() -> None:
    run = fa.run("digits", algorithm="local", clients=3, partition="iid", out="r", **QUICK)
    with pytest.raises(fa.FedarenaError, match="each client has its own"):
        run.model()
    right = np.array([np.trace(run.confusion(client=k)) for k in range(3)]) / 359
    sizes = run.clients["rows"].to_numpy()
    assert run.final.accuracy == pytest.approx((sizes * right).sum() / sizes.sum())


@pytest.mark.slow
def test_two_processes_do_not_share_a_folder() -> None:
    """Names are taken by making them; a folder at work is locked against a second process."""
    from fedarena.results.run_folder import new_folder

    exp = fa.Experiment.make("digits")
    assert len({new_folder(exp, None) for _ in range(5)}) == 5
    script = (
        "import fedarena as fa, sys\n"
        "try:\n    fa.run(resume='r')\nexcept fa.FedarenaError as error:\n    print(error.what)\n"
    )
    said = []

    def look(record: Any) -> None:
        if record.round == 1:
            said.append(forked_processes.run([sys.executable, "-c", script]).stdout)

    fa.run("digits", out="r", rounds=2, on_round=look)
    assert "another process is using" in said[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": 5}, "5 is not a valid model"),
        ({"algorithm": 5}, "5 is not a valid algorithm"),
        ({"algorithm": fa.FedAvg}, "the class FedAvg is not a valid algorithm"),
        ({"partition": True}, "True is not a valid partition"),
        ({"workers": "2"}, "workers = '2'"),
        ({"workers": 0}, "workers = 0"),
        ({"out": True}, "out = True"),
        ({"local": {"lr": float("inf")}}, "lr = inf"),
        ({"algorithm": fa.FedAvg(server_lr=float("inf"))}, "server_lr = inf"),
        ({"clients": True}, "clients is not true or false"),
        ({"model": lambda: 1 / 0}, "ZeroDivisionError"),
        ({"model": lambda a: nn.Linear(1, 1)}, "needs 1 arguments"),
    ],
)
def test_mistakes_in_python(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(fa.FedarenaError, match=said):
        fa.run("digits", **{**QUICK, **settings})
    assert not Path("runs").exists()


def test_a_partition_that_assigns_a_row_twice_is_refused() -> None:
    class Everything:
        def split(self, data: fa.Dataset, clients: int, rng: np.random.Generator) -> fa.Partition:
            return fa.Partition([np.arange(data.n_train)] * clients, data.test_rows)

    class Beyond:
        def split(self, data: fa.Dataset, clients: int, rng: np.random.Generator) -> fa.Partition:
            return fa.Partition([np.array([10**6])], data.test_rows)

    with pytest.raises(fa.FedarenaError, match="assigns a row twice"):
        fa.run("digits", partition=Everything(), out=False, **QUICK)
    with pytest.raises(fa.FedarenaError, match="do not exist"):
        fa.run("digits", partition=Beyond(), out=False, **QUICK)


@pytest.mark.slow
def test_clients_without_test_rows_and_with_noise() -> None:
    run = fa.run("digits", partition="feature_noise", clients=500, rounds=1, out=False, runtime="serial")
    assert np.isnan(run.client_accuracy).all()  # two or three rows each: a fifth of that is no test row
    assert run.final.weighted_accuracy is None


# What a second reader proved


class Remembers(fa.FedAvg):
    """Stores the w_0 that it received, for the test to see."""

    def remember(self, w: Any) -> Any:
        return w

    def client(self, got: Any, kept: Any, work: Any) -> fa.Reply:
        out = work.train(got.w)
        return fa.Reply(fa.Step(got.w - out.w + 1e-3 * kept), keep=kept, weight=work.rows)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_client_that_joins_late_remembers_the_true_start(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may have trained or evaluated before it meets a new client: w_0 is still w_0."""
    import fedarena.runtimes.process_pool as processes

    monkeypatch.setattr(processes, "safe_start", lambda: start)
    settings: dict[str, Any] = {"algorithm": Remembers(), "clients": 4, "per_round": 3, "seed": 2, "rounds": 3}
    serial = fa.run("digits", out=False, runtime="serial", **settings)
    workers = 2 if start == "fork" else 1  # a new interpreter takes seconds
    fa.run("digits", out="r", workers=workers, on_round=lambda r: r.round == 1, **settings)
    assert fa.run("digits", resume="r", workers=workers, **settings).weights_sha256 == serial.weights_sha256


@pytest.mark.slow
def test_random_layers_are_seeded_in_every_kind_of_work() -> None:
    """BatchNorm recomputed behind dropout, and a loss that draws: the same numbers again, and in workers."""
    net = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, 10))
    settings: dict[str, Any] = {"model": net, "bn_buffers": "recompute", "rounds": 2, "clients": 3, "partition": "iid"}
    a, b = (fa.run("digits", out=False, runtime="serial", **settings) for _ in range(2))
    c = fa.run("digits", out=False, workers=2, **settings)
    assert a.weights_sha256 == b.weights_sha256 == c.weights_sha256


@pytest.mark.slow
def test_dropout_in_the_kernels_is_the_same_for_any_number_of_workers() -> None:
    """Light clients that would otherwise be trained in bundles, several in one call."""
    net = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))
    settings: dict[str, Any] = {"model": net, "rounds": 2, "clients": 12, "partition": "iid"}
    alone = fa.run("digits", out=False, runtime="serial", **settings)
    for workers in (1, 2):
        assert fa.run("digits", out=False, workers=workers, **settings).weights_sha256 == alone.weights_sha256


def test_a_function_that_returns_one_module_starts_with_the_same_weights_every_time() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    shas = {fa.run("digits", model=lambda: net, out=False, **QUICK).weights_sha256 for _ in range(2)}
    assert len(shas) == 1


def test_a_constant_infinite_buffer_is_no_divergence() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)
            self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.flatten(1)) + self.mask[0]

    assert fa.run("digits", model=Masked, out=False, **QUICK).records[-1].answered == 10


def test_client_states_of_any_kind_are_stored_and_can_be_dropped() -> None:
    seen: list[Any] = []

    class Talks(fa.FedAvg):
        def client(self, got: Any, kept: Any, work: Any) -> fa.Reply:
            seen.append(kept)
            keep = {0: "hello", 1: None}.get(work.round, np.ones(2))
            return fa.Reply(fa.Step(0 * got.w), keep=keep, weight=1)

    fa.run("digits", algorithm=Talks(), clients=1, partition="iid", rounds=3, out=False, runtime="serial")
    assert seen == [None, "hello", None]


@pytest.mark.slow
def test_local_statistics_are_those_of_the_client_that_is_asked_for() -> None:
    settings: dict[str, Any] = {"model": {"name": "cnnnet", "norm": "bn"}, "clients": 3, "partition": "iid"}
    run = fa.run("digits", bn_buffers="local", rounds=4, out="r", runtime="serial", **settings)
    right = np.array([np.trace(run.confusion(client=k)) for k in range(3)]) / 359
    assert run.final.accuracy == pytest.approx((run.client_sizes * right).sum() / run.client_sizes.sum())
    with pytest.raises(fa.FedarenaError, match="no common model"):
        run.model()
    pooled = fa.run("digits", algorithm="centralized", bn_buffers="local", out="c", **settings, **QUICK)
    assert np.trace(pooled.confusion()) / 359 == pytest.approx(pooled.final.accuracy)


def test_a_run_under_way_again_is_not_finished() -> None:
    fa.run("digits", out="r", **QUICK)
    loop = fa.rounds(resume="r", rounds=5, runtime="serial")
    next(loop)
    with pytest.raises(fa.FedarenaError, match="another process is using"):
        fa.run(resume="r", rounds=5, runtime="serial")
    with pytest.raises(fa.FedarenaError, match="not finished"):
        fa.load("r")
    list(loop)
    assert fa.load("r").final.round == 5


@pytest.mark.slow
def test_baselines_do_not_drop_out_and_their_nan_is_seen() -> None:
    for name in ("centralized", "local"):
        run = fa.run("digits", algorithm=name, dropouts=0.6, out=False, rounds=4, clients=3, runtime="serial")
        assert all(r.dropped == 0 for r in run.records)
    with pytest.raises(fa.FedarenaError, match="non-finite"):
        fa.run("digits", algorithm="local", local={"lr": 1e20}, on_nan="raise", out=False, **QUICK)
    assert fa.run("digits", local={"lr": 1e30}, on_nan="keep", out=False, **QUICK).summary()["diverged"]


def test_numpy_numbers_are_numbers() -> None:
    fa.run("digits", algorithm=fa.FedProx(mu=np.float64(0.1)), out="r", **QUICK)
    assert "mu = 0.1," in Path("r/experiment.toml").read_text()
    assert fa.verify("r", runtime="serial").same


def test_mistakes_show_before_the_first_round() -> None:
    with pytest.raises(fa.FedarenaError, match="digitz"):
        fa.rounds("digitz")
    fa.run("digits", out="r", **QUICK)
    with pytest.raises(fa.FedarenaError, match="stays in its folder"):
        fa.run(resume="r", out="other")
    for name in ("fednova", "scaffold"):
        with pytest.raises(fa.FedarenaError, match="from rest"):
            fa.run("digits", algorithm=name, local={"momentum": 0.9, "reset_momentum": False}, out=False)


def test_a_reply_that_cannot_be_pickled_is_reported() -> None:
    import threading

    class Locked(fa.FedAvg):
        def client(self, got: Any, kept: Any, work: Any) -> fa.Reply:
            return fa.Reply(fa.Step(0 * got.w), keep=threading.Lock())

    with pytest.raises(fa.FedarenaError, match=r"pickle|stored"):
        fa.run("digits", algorithm=Locked(), rounds=1, out=False, workers=2)


@pytest.mark.slow
def test_a_slow_client_does_not_pile_up_the_others() -> None:
    """No answer is computed far ahead of the one that is waited for."""
    from fedarena.engine.client import Broadcast
    from fedarena.engine.setup import open_context
    from fedarena.models.task import Buffers
    from fedarena.runtimes.client_runtime import LOOKAHEAD, ProcessRuntime

    @dataclass(frozen=True)
    class Job:
        position: int

        def run(self, site: Any, common: Any) -> float:
            import time

            time.sleep(0.5 if self.position == 0 else 0.0)
            return time.monotonic()

    pool = ProcessRuntime(open_context(fa.Experiment.make("digits")), 2)
    try:
        nothing = Broadcast(None, Buffers(np.empty(0), np.empty(0, np.int64)))
        order = [position for position, _ in pool.map([Job(i) for i in range(100)], nothing)]
    finally:
        pool.close()
    assert sorted(order) == list(range(100))
    assert order.index(0) <= LOOKAHEAD * 2


@pytest.mark.slow
def test_a_broken_plug_in_does_not_take_the_others_along(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedarena.algorithms]\nbroken = no_such_module:Broken\n")
    environment = {**__import__("os").environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "fedarena", "list", "algorithms"]
    done = forked_processes.run(command, env=environment)
    assert done.returncode == 0
    assert "fedavg" in done.stdout
    assert "'broken' cannot be loaded" in done.stderr
