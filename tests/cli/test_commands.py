"""The command: results on stdout, messages on stderr, exit codes, and one message with a remedy for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import forked_processes
from typer.testing import CliRunner, Result

from fedarena.cli.main import app

KEYS = {
    "algorithm", "dataset", "partition", "model", "rounds", "final_accuracy", "best_accuracy", "final_loss", "uploads",
    "bytes_up", "bytes_down", "wall_seconds", "samples_per_second", "weights_sha256", "run_dir",
}  # fmt: skip
QUICK = ["--set", "rounds=2", "--set", "clients=4", "--set", "partition=iid", "--runtime", "serial"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def refused(*arguments: str) -> str:
    """The one message of a mistake: exit code 2, nothing on stdout, no traceback, no run folder left."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "\n  -> " in result.stderr
    assert len(result.stderr.strip().splitlines()) == 2
    return result.stderr


@pytest.mark.slow
def test_run_prints_the_contracts_keys() -> None:
    result = call("run", "digits", *QUICK, "--json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert printed.keys() >= KEYS
    assert printed["rounds"] == 2
    assert Path(printed["run_dir"], "experiment.toml").exists()


def test_run_from_a_file_with_overrides() -> None:
    Path("exp.toml").write_text('data = "digits"\nclients = 4\npartition = "iid"\nlocal = { lr = 0.5, epochs = 2 }\n')
    result = call("run", "exp.toml", *QUICK, "--set", "local.lr=0.05", "--set", "algorithm=fedsgd", "--json", "-q")
    run = Path(json.loads(result.stdout)["run_dir"])
    text = (run / "experiment.toml").read_text()
    assert "lr = 0.05, epochs = 2" in text
    assert 'name = "fedsgd"' in text
    assert result.stderr == ""


@pytest.mark.slow
def test_call_file_and_command_give_the_same_bits() -> None:
    import fedarena as fa

    settings: dict[str, Any] = {"rounds": 2, "clients": 4, "partition": "iid"}
    called = fa.run("digits", out=False, **settings)
    Path("exp.toml").write_text('data = "digits"\nrounds = 2\nclients = 4\npartition = { name = "iid" }\n')
    from_file = fa.run("exp.toml", out=False)
    commanded = json.loads(call("run", "digits", *QUICK, "--json").stdout)
    assert called.weights_sha256 == from_file.weights_sha256 == commanded["weights_sha256"]


@pytest.mark.slow
def test_verify_says_yes_and_no() -> None:
    call("run", "digits", *QUICK, "--out", "r")
    result = call("verify", "r", "--json", "-q")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["same"] is True
    log = Path("r/checkpoint/rounds.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[1]["accuracy"] += 0.001
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = call("verify", "r")
    assert result.exit_code == 1
    assert "round 2, accuracy" in result.stdout


@pytest.mark.parametrize("kind", ["algorithms", "partitions", "models", "datasets"])
def test_list(kind: str) -> None:
    listed = json.loads(call("list", kind, "--json").stdout)
    assert all(entry.keys() >= {"name", "summary", "paper", "parameters"} for entry in listed)
    assert all(entry["summary"] for entry in listed)
    text = call("list", kind).stdout
    assert all(entry["name"] in text for entry in listed)


@pytest.mark.slow
def test_list_has_every_name_of_the_contract() -> None:
    names = {kind: {e["name"] for e in json.loads(call("list", kind, "--json").stdout)} for kind in
             ("algorithms", "partitions", "models", "datasets")}  # fmt: skip
    assert names["algorithms"] >= {"fedavg", "fedsgd", "centralized", "local"}
    assert names["partitions"] >= set(
        (
            "iid iid_stratified shards nilsson_iid nilsson_noniid non_iid classes_per_client label_dirichlet "
            "client_dirichlet quantity_dirichlet feature_noise multimodal natural"
        ).split()
    )
    assert names["models"] >= set(
        (
            "logreg mlp_2nn cnn_mcmahan cnn_mcmahan_cifar lenet5_mod allconvnet cnnnet simple_cnn "
            "simple_cnn_mnist lenet lenet5 char_lstm word_lstm resnet18"
        ).split()
    )
    assert names["datasets"] >= set(
        (
            "digits breast_cancer mnist fashion_mnist cifar10 heart_disease tiny_shakespeare csv parquet arrays lines"
        ).split()
    )


@pytest.mark.slow
def test_data_show(tmp_path: Path) -> None:
    result = call("data", "show", "digits", "--plot", "p.png", "--json")
    shown = json.loads(result.stdout)
    assert sum(map(sum, shown["counts"])) == 1438
    assert Path("p.png").stat().st_size > 10_000
    assert "mean L1 distance" in call("data", "show", "digits").stdout


@pytest.mark.slow
def test_every_command_explains_itself_with_an_example() -> None:
    for command in (["run"], ["list"], ["data", "get"], ["data", "show"], ["verify"], ["check"], ["bench"]):
        text = call(*command, "--help").stdout
        assert f"fedarena {' '.join(command)} " in text.replace("\n", " "), command


def test_check_shows_what_holds() -> None:
    result = call("check", "iid", "--json")
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["held"]) >= 5


def test_check_catches_a_broken_component_from_a_file() -> None:
    Path("mine.py").write_text(
        "from dataclasses import dataclass\nimport numpy as np\nimport fedarena as fa\n"
        '@fa.register("partition", "everything_to_all")\n@dataclass(frozen=True)\nclass EverythingToAll:\n'
        '    "Each client gets every row."\n'
        "    def split(self, data, clients, rng):\n"
        "        rows = rng.permutation(data.n_train)\n"
        "        return fa.Partition([rows] * clients, data.test_rows)\n"
    )
    result = call("check", "everything_to_all", "--file", "mine.py")
    assert result.exit_code == 1
    assert "BROKEN" in result.stdout


OWN = """
from dataclasses import dataclass
from tests.support import forked_processes

import fedarena as fa

@fa.register("algorithm", "half")
@dataclass(frozen=True)
class Half(fa.FedAvg):
    "FedAvg at half the pace."
    server_lr: float = 0.5
"""


@pytest.mark.slow
def test_a_file_of_components_works_with_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where workers are started fresh and cannot import it."""
    import fedarena.runtimes.process_pool as processes

    Path("deep").mkdir()
    Path("deep/own.py").write_text(OWN)
    for start in ("fork", "spawn"):
        monkeypatch.setattr(processes, "safe_start", lambda start=start: start)
        arguments = ["--set", "algorithm=half", "--set", "rounds=1", "--file", "deep/own.py", "--workers", "1"]
        result = call("run", "digits", *arguments, "--json", "--out", start)
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["algorithm"] == "half"
    assert call("verify", "spawn", "--file", "deep/own.py").exit_code == 0
    Path("bad.py").write_text("1 / 0")
    assert "ZeroDivisionError" in refused("run", "digits", "--file", "bad.py")


def test_json_is_json_even_when_training_diverged() -> None:
    result = call("run", "digits", *QUICK, "--set", "local.lr=1e30", "--set", "on_nan=keep", "--json")
    assert json.loads(result.stdout, parse_constant=lambda word: pytest.fail(word))["final_loss"] is None


@pytest.mark.slow
def test_a_run_on_a_file_can_be_repeated_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("t.csv").write_text("a,b,ill\n" + "".join(f"{i % 5},{i % 7},{i % 2}\n" for i in range(60)))
    call("run", "t.csv", "--set", "data.label=ill", "--set", "rounds=1", "--out", "r")
    Path("other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert call("verify", "../r").exit_code == 0
    assert call("run", "../r/experiment.toml", "--out", "again").exit_code == 0


# Mistakes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("algorithm=fedvag", "did you mean 'fedavg'?"),
        ("model=mlp_2n", "did you mean 'mlp_2nn'?"),
        ("partition=label_dirichlt", "did you mean 'label_dirichlet'?"),
        ("partition.betta=1", "did you mean 'beta'?"),
        ("roundz=3", "did you mean 'rounds'?"),
        ("lr=0.1", "did you mean 'local.lr'?"),
        ("algorithm=xyz", "choose one of afl, apfl, "),
        ("local.lrate=3", "did you mean 'lr'?"),
        ("evaluate.evry=3", "did you mean 'every'?"),
        ("algorithm.server_lrr=1", "did you mean 'server_lr'?"),
        ("rounds=many", "rounds = 'many'"),
        ("rounds=0", "greater than or equal to 1"),
        ("share=1.5", "less than or equal to 1"),
        ("local.lr=-1", "greater than 0"),
        ("local.batch=0.5", "a whole number of rows"),
        ("local.momentum=1.0", "less than 1"),
        ("local.decay_counter=never", "'global', 'per_client', 'round' or 'reset'"),
        ("algorithm.server_lr=0", "float > 0"),
        ("algorithm.denominator=half", "selected | all"),
        ("partition.beta=-1", "beta"),
        ("clients=2000", "2000 clients cannot share 1438 training rows"),
        ("partition.min_size=500", "too few for 500 rows"),
        ("per_round=11", "at most 10"),
        ("model=lenet5_mod", "needs images of at least 16"),
        ("device=gpu9", "device"),
        ("seed=-1", "greater than or equal to 0"),
        ("data.name=nothing", "no dataset is called 'nothing'"),
        ("local", "write --set key=value"),
    ],
)
def test_bad_settings(change: str, said: str) -> None:
    assert said in refused("run", "digits", "--set", change)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("trian",), "Did you mean `fedarena vertical train`?"),
        (("sevre",), "Did you mean `fedarena serve`?"),
        (("data", "shwo"), "Did you mean `fedarena data show`?"),
        (("xyz",), "`fedarena --help` lists them all."),
    ],
)
def test_an_unknown_command_is_answered_with_the_nearest(command: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, command, prog_name="fedarena", terminal_width=200)
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())


@pytest.mark.slow
def test_options_that_stand_for_keys_do_what_set_does() -> None:
    short = ("-a", "fedprox:mu=0.1", "--rounds", "2", "--clients", "4", "--lr", "0.05")
    keys = ("algorithm.name=fedprox", "algorithm.mu=0.1", "rounds=2", "clients=4", "local.lr=0.05")
    first = json.loads(call("run", "digits", *short, "--json", "--out", "short").stdout)
    assignments = [part for key in keys for part in ("--set", key)]
    second = json.loads(call("run", "digits", *assignments, "--json", "--out", "long").stdout)
    assert first["weights_sha256"] == second["weights_sha256"]
    both = json.loads(call("run", "digits", *short, "--set", "rounds=3", "--json", "--out", "both").stdout)
    assert both["rounds"] == 3, "--set comes last"


def test_bad_file() -> None:
    assert "no experiment file" in refused("run", "nowhere.toml")
    Path("bad.toml").write_text("data = digits")
    assert "bad.toml" in refused("run", "bad.toml")
    Path("typo.toml").write_text('data = "digits"\nalgorithm = { name = "fedavgg" }\n')
    assert "(typo.toml, algorithm.name)" in refused("run", "typo.toml")


def test_missing_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDARENA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "fedarena data get mnist" in refused("run", "mnist")


@pytest.mark.slow
def test_truncated_and_altered_data_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDARENA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x, y = np.zeros((60000, 28, 28), np.uint8), np.zeros(60000, np.uint8)
    np.savez_compressed(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x[:10000], y_test=y[:10000])
    assert "mnist.npz" in refused("run", "mnist")
    whole = (tmp_path / "mnist.npz").read_bytes()
    (tmp_path / "mnist.npz").write_bytes(whole[: len(whole) // 2])
    assert "mnist.npz" in refused("run", "mnist")


@pytest.mark.slow
def test_bad_tables() -> None:
    Path("t.csv").write_text("age,weight,ill\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(40)))
    assert "sick" in refused("run", "t.csv", "--set", "data.label=sick")
    assert "no label is given" in refused("run", "t.csv")
    Path("n.csv").write_text("age,weight,ill\n" + "".join(f"{i},{'' if i == 3 else 1},{i % 2}\n" for i in range(40)))
    assert "weight" in refused("run", "n.csv", "--set", "data.label=ill", "--missing", "error")
    assert "gone.csv" in refused("run", "gone.csv", "--set", "data.label=ill")


@pytest.mark.slow
def test_a_table_in_one_line() -> None:
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'yes' if a + b > 0 else 'no'},site{i % 3}" for i, (a, b) in
            enumerate(rng.standard_normal((90, 2)))]  # fmt: skip
    Path("t.csv").write_text("a,b,ill,site\n" + "\n".join(rows) + "\n")
    result = call("run", "t.csv", "--set", "data.label=ill", "--set", "data.client=site", "--set", "rounds=3", "--json")
    printed = json.loads(result.stdout)
    assert printed["partition"] == "natural"
    assert printed["final_accuracy"] > 0.7


@pytest.mark.slow
def test_resume_of_another_experiment_or_of_nothing() -> None:
    call("run", "digits", *QUICK, "--out", "r")
    assert "its local.lr is 0.1, not 0.01" in refused(
        "run", "digits", *QUICK, "--set", "local.lr=0.01", "--resume", "r"
    )
    assert "belongs to another experiment" in refused("run", "breast_cancer", "--resume", "r")
    Path("empty").mkdir()
    assert "empty" in refused("run", "--resume", "empty")
    assert call("run").exit_code == 2


@pytest.mark.slow
def test_a_finished_run_may_resume_for_more_rounds_not_for_fewer() -> None:
    call("run", "digits", *QUICK, "--out", "r")
    assert "the same rounds or more" in refused("run", "--resume", "r", "--set", "rounds=1")
    assert "budget" in refused("run", "--resume", "r", "--set", "uploads=100")
    more = json.loads(call("run", "--resume", "r", "--set", "rounds=4", "--json").stdout)
    straight = json.loads(call("run", "digits", *QUICK, "--set", "rounds=4", "--json").stdout)
    assert more["weights_sha256"] == straight["weights_sha256"]


@pytest.mark.slow
def test_a_folder_that_is_taken_or_cannot_be_written() -> None:
    call("run", "digits", *QUICK, "--out", "r")
    assert "--resume r" in refused("run", "digits", "--out", "r")
    Path("file").write_text("")
    assert "file" in refused("run", "digits", "--out", "file/run")
    assert "not a run folder" in refused("verify", "nowhere")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX resource limits")
@pytest.mark.parametrize(("model", "largest"), [("logreg", 60_000), ("mlp_2nn", 200_000)])
def test_a_disk_that_fills_up_loses_nothing(model: str, largest: int) -> None:
    """No file may grow beyond a limit: a real write fails (the log in mid-run; the first checkpoint of the larger
    model), the message says so, and the run can be resumed."""
    limited = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({largest}, {largest})); from fedarena.cli.main import main; main()"
    )
    rounds = 200 if model == "logreg" else 3  # the log must reach the limit; the first checkpoint does
    settings = ["--set", f"rounds={rounds}", "--set", f"model={model}"]
    command = ["run", "digits", "--out", "r", "-q", "--runtime", "serial", *settings]
    done = forked_processes.run([sys.executable, "-c", limited, *command], timeout=120)
    assert done.returncode == 2, done.stderr
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    resumed = call("run", "--resume", "r", "--json", "-q", "--workers", "1")
    assert resumed.exit_code == 0, resumed.stderr
    assert json.loads(resumed.stdout)["rounds"] == rounds


@pytest.mark.slow
def test_python_dash_m_and_version() -> None:
    out = subprocess.run([sys.executable, "-m", "fedarena", "--version"], capture_output=True, text=True)
    assert out.stdout.strip() == __import__("fedarena").__version__
