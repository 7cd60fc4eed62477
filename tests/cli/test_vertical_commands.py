"""The commands as a user types them: results on stdout, messages that say what to do, exit codes that mean something."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.vertical_parties import Site, ended, write_csv
from typer.testing import CliRunner, Result

from fedarena.cli.main import app
from fedarena.config.errors import BadValue
from fedarena.vertical.model import GuestModel
from fedarena.vertical.party_tables import TableSource, load_table, split_columns
from fedarena.vertical.task_file import TrainingTask
from fedarena.vertical.training_task import training_rows

SMALL = ("--trees", "2", "--depth", "2")
KEYS = {"algorithm", "dataset", "trees", "depth", "key_bits", "auc", "auc_pooled", "splits_equal", "seconds_per_tree",
        "bytes_up", "bytes_down", "model_dirs"}  # fmt: skip


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["vertical", *map(str, words)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """A table of all parties' columns with three kinds of labels, a gap, a constant column and words."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 4)).round(3)
    score = x @ [1.0, -1, 1, 0.5]
    columns = {f"x{i}": x[:, i] for i in range(4)} | {
        "gap": np.where(np.arange(200) % 3 == 0, "", x[:, 0].astype(str)),
        "same": np.ones(200),
        "word": np.repeat(["a", "b"], 100),
        "paid": (score > 0).astype(int),
        "grade": np.digitize(score, [-1, 1]),
        "amount": score.round(4),
        "number": [f"n{i:03}" for i in range(200)],
    }
    write_csv(tmp_path / "people.csv", columns)
    return tmp_path / "people.csv"


OTHERS = ("--drop", "word", "--drop", "grade", "--drop", "amount", "--drop", "number")


@pytest.mark.slow
def test_a_simulation_is_lossless_and_says_all_it_should(tmp_path: Path) -> None:
    out = tmp_path / "trial"
    result = run("train", "breast_cancer", *SMALL, "--check-pooled", "--out", out, "--json")
    found = json.loads(result.stdout)
    assert found.keys() >= KEYS
    assert (found["algorithm"], found["dataset"], found["key_bits"]) == ("secureboost_plus", "breast_cancer", 2048)
    assert found["splits_equal"] is True
    assert found["auc"] == found["auc_pooled"] > 0.95
    assert found["bytes_up"] > 2 * 455 * 512, "a ciphertext for each training row of each tree"
    assert found["model_dirs"] == [str(out / "guest"), str(out / "host")]
    assert [line.split()[:2] for line in result.stderr.splitlines()] == [["tree", "1/2"], ["tree", "2/2"]]
    for word in ("gain", "auc", "MB up", "MB down"):
        assert word in result.stderr


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A training that several tests look at, and what its command printed."""
    out = tmp_path_factory.mktemp("quiet") / "t"
    return out, run("train", "breast_cancer", *SMALL, "--out", out, "-q")


@pytest.mark.slow
def test_quiet_says_nothing_but_the_result(quiet: tuple[Path, Result]) -> None:
    out, result = quiet
    assert result.stderr == ""
    assert "2 trees of depth 2, 2048 bits, guest and host" in result.stdout
    assert str(out / "host") in result.stdout


def test_predictions_are_those_of_the_training(quiet: tuple[Path, Result], tmp_path: Path) -> None:
    out, _ = quiet
    trained = GuestModel.load(out / "guest").history[-1]
    assert trained["metric"] == "auc"
    shown = run("predict", "breast_cancer", "--model", out, "-q").stdout.splitlines()
    assert shown[0] == "id,prediction,malignant,benign"
    rows = np.array([line.split(",")[2:] for line in shown[1:]], dtype=float)
    assert rows.sum(axis=1) == pytest.approx(np.ones(569), abs=1e-6)
    from fedarena.statistics.metrics import auc

    y = load_table("breast_cancer").y
    assert y is not None
    test = ~training_rows(569, 0.2, 0)
    assert auc(y[test], rows[test, 1]) == pytest.approx(trained["value"], abs=1e-9)
    predicted = json.loads(
        run("predict", "breast_cancer", "--model", out, "--to", tmp_path / "p.csv", "--json", "-q").stdout
    )
    assert predicted["rows"] == 569
    assert (tmp_path / "p.csv").read_text().splitlines() == shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "options", "metric"),
    [("paid", (), "auc"), ("grade", (), "accuracy"), ("amount", ("--objective", "squared_error"), "rmse")],
)
def test_a_table_with_two_hosts_and_a_label_of_any_kind(
    people: Path, label: str, options: tuple[str, ...], metric: str
) -> None:
    out = people.parent / "out"
    aside = [w for name in ("word", "paid", "grade", "amount") if name != label for w in ("--drop", name)]
    shares = ("--columns", "guest=x0,same", "--columns", "bank=x1,x2", "--columns", "shop=*")
    found = json.loads(
        run("train", people, "--label", label, "--id", "number", *aside, *shares, *options, *SMALL, "--check-pooled",
            "--out", out, "--json", "-q").stdout
    )  # fmt: skip
    assert found["parties"] == ["guest", "bank", "shop"]
    assert found.keys() >= KEYS
    assert found["splits_equal"] is True
    assert found[metric] == pytest.approx(found[f"{metric}_pooled"], abs=1e-6)
    lines = people.read_text().splitlines()
    place = lines[0].split(",").index(label)
    left_out = {place, lines[0].split(",").index("word")}  # a column that the training dropped need not be there
    unlabelled = [",".join(w for i, w in enumerate(line.split(",")) if i not in left_out) for line in lines]
    # A new column does no harm.
    unlabelled = [f"{line},{'remark' if i == 0 else 'none'}" for i, line in enumerate(unlabelled)]
    (people.parent / "new.csv").write_text("\n".join(unlabelled[:50]) + "\n")
    shown = run("predict", people.parent / "new.csv", "--model", out, "-q").stdout.splitlines()
    assert [line.split(",")[0] for line in shown] == ["id", *(f"n{i:03}" for i in range(49))]


def test_columns_are_assigned_as_asked() -> None:
    table = load_table("breast_cancer")
    assert {name: len(own) for name, own in split_columns(table).items()} == {"guest": 10, "host": 20}
    assert {name: len(own) for name, own in split_columns(table, hosts=3).items()} == {
        "guest": 10, "host-1": 7, "host-2": 7, "host-3": 6}  # fmt: skip
    asked = split_columns(table, ["bank=mean area", "guest=*"])
    assert list(asked) == ["guest", "bank"]
    assert asked["bank"] == [3]
    with pytest.raises(BadValue, match=r"'\.\./out' cannot be a party's name"):
        split_columns(dataclasses.replace(table, parties=("guest", "../out") * 15))


@pytest.mark.slow
def test_an_interrupted_simulation_resumes(
    quiet: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = quiet[0], tmp_path / "broken"

    def stop(record: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedarena.vertical.training_task.tree_line", stop)
        result = run("train", "breast_cancer", *SMALL, "--out", broken, code=130)
    assert f"resume with: fedarena vertical train --resume {broken}" in result.stderr
    assert len(GuestModel.load(broken / "guest").trees) == 1
    for option, message in {"--depth": "--depth cannot change", "--peers": "--peers is not for a simulation"}.items():
        assert message in run("train", "--resume", broken, option, "3", code=2).stderr
    run("train", "--resume", broken, "-q")
    assert GuestModel.load(broken / "guest") == GuestModel.load(whole / "guest")


def test_keys_are_made_once(tmp_path: Path) -> None:
    found = json.loads(run("keys", "guest", "bank", "--out", tmp_path, "--json").stdout)
    assert Path(found["folders"]["bank"], "cert.pem").exists()
    assert "already there" in run("keys", "bank", "--out", tmp_path, code=2).stderr


OTHER_PARTIES = {"simulation": (), "guest": ("--party", "guest"), "host": ("--party", "host")}
NOT_FOR: dict[str, list[tuple[str, ...]]] = {
    "simulation": [("--peers", "a=b:1"), ("--listen", "a:1"), ("--keys", "k"), ("--guest", "guest"), ("--deadline", "9"),
                   ("--patience", "120"), ("--insecure-hashed-ids",), ("--min-rows", "50"), ("--most-trees", "9"),
                   ("--most-bits", "9"), ("--most-ids", "9")],
    "guest": [("--columns", "guest=*"), ("--hosts", "2"), ("--check-pooled",), ("--listen", "a:1"), ("--most-trees", "9")],
    "host": [("--trees", "25"), ("--depth", "5"), ("--set", "lr=1"), ("--algorithm", "secureboost"), ("--peers", "a=b:1"),
             ("--objective", "logistic"), ("--key-bits", "2048"), ("--exponents", "full"), ("--test-share", "0.2"),
             ("--check-pooled",), ("--columns", "guest=*"), ("--hosts", "2"), ("--resume", "x"), ("--patience", "9")],
}  # fmt: skip


MISTAKES = {
    ("train", "breast_cancr"): "did you mean 'breast_cancer'?",
    ("train", "nothing.csv"): "there is no file nothing.csv",
    ("train", "breast_cancer", "--set", "tres=3"): "did you mean 'trees'?",
    ("train", "breast_cancer", "--set", "depth"): "write --set key=value",
    ("train", "breast_cancer", "--key-bits", "1024"): "a key of 1024 bits can be broken",
    ("train", "breast_cancer", "--key-bits", "512"): "choose 2048 or 3072",
    ("train", "breast_cancer", "--test-share", "1"): "leaves none to train",
    ("train", "breast_cancer", "--hosts", "40"): "more parties than columns",
    ("train", "breast_cancer", "--columns", "guest=*"): "a guest and at least one host are needed",
    ("train", "breast_cancer", "--columns", "guest=*", "--columns", "bank=nothing"): "has no column 'nothing'",
    ("train", "breast_cancer", "--columns", "guest=mean area", "--columns", "bank=mean texture"): "no party has column",
    ("train", "breast_cancer", "--check-pooled", "--set", "goss=true"): "cannot be compared",
    ("train", "breast_cancer", "--party", "guest"): "needs a certificate",
    ("train", "breast_cancer", "--party", "guest", "--keys", "k"): "name one: --peers",
    ("train", "breast_cancer", "--party", "host", "--keys", "k"): "name it: --listen",
    ("train", "breast_cancer", "--party", "host", "--keys", "k", "--listen", "a:1"): "cannot read",
    ("train", "breast_cancer", "--party", "host", "--keys", "k", "--listen", "a:1", "--label", "y"): "not for a host",
    ("train", "breast_cancer", "--objective", "logistic", "--set", "objective=softmax"): "'objective' is set twice",
    ("predict", "breast_cancer", "--model", "m", "--min-rows", "3"): "--min-rows is not for a simulation",
    ("predict", "a.csv", "--party", "host", "--model", "m", "--to", "p.csv"): "--to is not for a host",
    ("align", "a.csv", "--party", "guest", "--id", "id", "--most-ids", "9"): "--most-ids is not for a guest",
    **{("train", "breast_cancer", *OTHER_PARTIES[party], *words): f"{words[0]} is not for a {party}"
       for party, options in NOT_FOR.items() for words in options},
    ("train",): "name a table",
    ("train", "--resume", "nowhere"): "there is no training in nowhere",
    ("predict", "breast_cancer"): "name the model's folder",
    ("predict", "breast_cancer", "--model", "nowhere"): "there is no training in nowhere",
    ("align", "breast_cancer"): "--party and --id",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_message_before_work(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*words, code=2)
    assert MISTAKES[words] in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not list(tmp_path.iterdir()), "nothing is left behind"


@pytest.mark.slow
def test_bad_tables_are_refused_by_name(people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(people.parent)

    def error_of(*options: object) -> str:
        return " ".join(run("train", people, *options, code=2).stderr.split())

    assert "the guest's table has no label" in error_of("--drop", "word", "--drop", "number")
    assert "column 'word' is not numeric" in error_of("--label", "paid", "--drop", "number")
    assert "has no column 'payd'" in error_of("--label", "payd")
    assert "has 200 distinct values" in error_of("--label", "amount", "--drop", "word", "--drop", "number")
    text = people.read_text()
    header, first, *rest = text.splitlines()
    people.write_text("\n".join([header, first.replace(first.split(",")[0], "inf", 1), *rest]))
    assert "infinit" in error_of("--label", "paid", *OTHERS, *SMALL)
    write_csv(people, {"x": np.arange(60), "z": np.arange(60), "paid": np.ones(60, int)})
    assert "all rows have the same label" in error_of("--label", "paid")
    assert [path.name for path in people.parent.iterdir()] == ["people.csv"], "nothing is left behind"


@pytest.mark.slow
def test_a_quantity_is_one_however_it_is_named(people: Path) -> None:
    """Labels 10, 20 and 50 as numbers: an error in their unit, not in class numbers."""
    grades = people.parent / "grades.csv"
    x = np.random.default_rng(0).random(90).round(3)
    write_csv(grades, {"a": x, "b": x[::-1], "q": np.array([10, 20, 50])[(3 * x).astype(int)]})
    found = []
    for i, option in enumerate((("--set", "objective=squared_error"), ("--objective", "squared_error"))):
        words = ("--trees", "1", "--depth", "1", "--out", people.parent / str(i), "--json", "-q")
        found.append(json.loads(run("train", grades, "--label", "q", *option, *words).stdout))
    assert found[0]["rmse"] == found[1]["rmse"] > 3
    assert found[0].keys() >= KEYS
    assert (found[0]["auc"], found[0]["auc_pooled"], found[0]["splits_equal"]) == (None, None, None)
    words = [w for name in ("paid", "grade", "amount") for w in ("--drop", name)]
    result = run(
        "train", people, "--label", "word", "--id", "number", *words, *SMALL, "--objective", "squared_error", code=2
    )
    assert "a label is not a number: could not convert string to float: 'a'" in " ".join(result.stderr.split())


def test_ids_are_read_as_they_are_written(tmp_path: Path) -> None:
    """`007` is not `7`, and both may be there; of Parquet files large strings are strings."""
    import pyarrow as pa
    from pyarrow import parquet

    ids = ["007", "7", "0070"]
    (tmp_path / "a.csv").write_text("id,x\n" + "".join(f"{i},1.5\n" for i in ids))
    parquet.write_table(pa.table({"id": pa.array(ids, pa.large_string()), "x": [1.5] * 3}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        assert load_table(str(tmp_path / name), ids="id").ids == tuple(ids)
        assert TableSource(str(tmp_path / name), ids="id").load_ids().ids == tuple(ids)


@pytest.mark.slow
def test_a_party_does_not_load_torch() -> None:
    """It would triple the time until a host listens."""
    words = ["vertical", "predict", "breast_cancer", "--model", "nowhere", "--json"]
    code = f"import sys; from fedarena.cli.main import main; sys.argv[1:] = {words}\ntry: main()\n"
    code += "finally: print(sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "no training in nowhere" in found.stderr
    assert "'fedarena.vertical.prediction_task'" in found.stdout
    assert "'torch'" not in found.stdout


def test_nothing_secret_is_kept_beside_a_model(quiet: tuple[Path, Result]) -> None:
    """A guest's folder can be backed up: it holds no private key, of Paillier or of TLS, and no pickle."""
    for path in (p for p in quiet[0].rglob("*") if p.is_file()):
        assert path.suffix in (".json", ".safetensors")
        text = path.read_text(errors="replace") if path.suffix == ".json" else ""
        assert "PRIVATE" not in text
        assert not text or max(len(word) for word in text.replace('"', " ").replace(",", " ").split()) < 100
    assert TrainingTask.load(quiet[0]).source.table == "breast_cancer"


@pytest.mark.slow
def test_two_processes_align_train_and_predict(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    site = Site(tmp_path)
    try:
        host, guest = (site.start(site.command(name, "--json", verb="align")) for name in ("bank", "guest"))
        counted = json.loads(ended(guest)[0])
        assert counted["common"] == 220
        assert counted["counts"] == {"guest": 220, "bank": 240}
        assert json.loads(ended(host)[0]) == counted, "both call the parties by the same names"

        host, guest = site.start(site.command("bank", "--json")), site.start(site.guest_training("--json"))
        trained = json.loads(ended(guest)[0])
        assert json.loads(ended(host)[0]) == {"party": "bank", "trees": 3, "model_dirs": ["bank-model"]}
        assert trained["rows"] == 220
        assert trained.keys() >= KEYS

        host = site.start(site.command("bank", "--model", "bank-model", verb="predict"))
        more = ("--model", "guest-model", "--label", "paid", "--to", "p.csv", "--json")
        predicted = json.loads(ended(site.start(site.command("guest", *more, verb="predict")))[0])
        ended(host)
        assert predicted["rows"] == 220
        assert predicted["auc"] > trained["auc"] - 0.1
        assert (tmp_path / "p.csv").read_text().startswith("id,prediction,0,1\n")
    finally:
        site.stop()
