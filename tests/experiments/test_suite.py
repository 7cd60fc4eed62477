"""Suites end to end: three tiny federations, the same bits for any workers and after kill -9, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import forked_processes
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.errors import BadValue, FedarenaError, ResumeMismatch
from fedarena.config.seeds import derived_seed
from fedarena.experiments.federations import is_suite
from fedarena.reports.suite_report import suite_toml
from fedarena.results.suite import SuiteComparison

GRID = """
data = "digits"
model = "logreg"
clients = 4
rounds = 1
partition = "label_dirichlet"

[grid]
"partition.beta" = [0.1, 1.0, 10.0]
"""
NAMES = ["beta=0.1", "beta=1.0", "beta=10.0"]
TWO = ["fedavg", "scaffold"]
TINY: dict[str, Any] = {"model": "logreg", "rounds": 1, "clients": 4}
PATIENCE = 180.0  # seconds, after which something is wrong


def facts(found: SuiteComparison) -> dict[str, Any]:
    return {
        name: {label: [(r.weights_sha256, r.curve, r.final.loss) for r in runs] for label, runs in one.runs.items()}
        for name, one in found.federations.items()
    }


def verdict(folder: Path) -> dict[str, Any]:
    """What the folder says was concluded, without where it lies."""
    table: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return {key: value for key, value in table.items() if key != "dir"}


def cli(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["compare", *words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite that was run undisturbed, by one worker."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "suite.toml").write_text(GRID)
    fa.compare(folder / "suite.toml", TWO, folds=2, baseline=False, out=folder / "s", workers=1)
    return folder


@pytest.mark.slow
def test_every_federation_is_an_ordinary_comparison(folder: Path) -> None:
    found = fa.load(folder / "s")
    assert isinstance(found, SuiteComparison)
    assert list(found.federations) == NAMES
    for name, one in found.federations.items():
        place = folder / "s" / "federations" / name
        alone = fa.load(place)
        assert isinstance(alone, fa.Comparison)
        assert alone.scores() == one.scores()
        assert alone.plan.experiment["seed"] == derived_seed(0, "federation", name)
    assert fa.report(place, folder / "one.html").is_file()
    plan = one.plan
    again = fa.compare(plan.experiment, TWO, folds=2, baseline=False, out=False, workers=1)
    assert again.scores() == one.scores()


def test_federations_share_no_random_numbers(folder: Path) -> None:
    """With the seed of all in each of them, folds would be the same, and their error would count three times."""
    found = fa.load(folder / "s")
    seeds = [one.runs["fedavg"][0].experiment.fold_seed for one in found.federations.values()]
    assert len(set(seeds)) == 3


@pytest.mark.slow
def test_two_workers_give_the_same_bits(folder: Path, tmp_path: Path) -> None:
    two = fa.compare(folder / "suite.toml", TWO, folds=2, baseline=False, out=tmp_path / "s", workers=2)
    assert facts(two) == facts(fa.load(folder / "s"))
    assert verdict(tmp_path / "s") == verdict(folder / "s")


HOLD = """
import os, time
from pathlib import Path
from fedarena.engine.checkpoint import CheckpointStore

save = CheckpointStore.save

def hold(keeper, snapshot, record):
    while len(list(Path("c/federations").glob("*/cells/*/*/result.json"))) >= 5:
        Path(f"held-{os.getpid()}").touch()
        time.sleep(1)
    save(keeper, snapshot, record)

CheckpointStore.save = hold
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs workers that begin as copies of their process")
def test_killed_and_resumed_as_one_it_has_the_same_bits(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "hold.py").write_text(HOLD)
    words = [str(folder / "suite.toml"), "-a", "fedavg", "-a", "scaffold", "--folds", "2", "--no-baseline", "-q"]
    command = [sys.executable, "-m", "fedarena", "compare", *words, "--out", "c", "--workers", "1", "--file", "hold.py"]
    process = forked_processes.Popen(command, cwd=tmp_path, capture=True)
    deadline = time.monotonic() + PATIENCE
    while not list(tmp_path.glob("held-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate()
    root = tmp_path / "c"
    assert len(list(root.glob("federations/*/cells/*/*/result.json"))) == 5  # one federation and a quarter
    with pytest.raises(BadValue, match="not finished"):
        fa.load(root)
    (root / "federations" / NAMES[2] / "comparison.json").unlink()  # as a kill at the very beginning leaves it
    code, printed, _ = cli("--resume", str(root), "--json", "-q")
    assert code == 0
    assert json.loads(printed)["verdict"] == verdict(folder / "s")["verdict"]
    assert facts(fa.load(root)) == facts(fa.load(folder / "s"))
    assert verdict(root) == verdict(folder / "s")


@pytest.mark.slow
def test_a_resumed_suite_stays_as_it_was(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "s"
    shutil.copytree(folder / "s", root)
    with pytest.raises(ResumeMismatch, match="compares other federations"):
        fa.compare(["digits", {"data": "digits", "rounds": 2, "name": "b"}, {"data": "digits", "name": "c", **TINY}],
                   TWO, resume=root)  # fmt: skip
    with pytest.raises(BadValue, match="stays as it was"):
        fa.compare(resume=root, rounds=2)
    wider = fa.compare(resume=root, rope=0.2)
    assert wider.rope == 0.2  # type: ignore[attr-defined]
    assert any("rope was 0.01 at first" in note for note in wider.notes)
    again = fa.compare(folder / "suite.toml", TWO, folds=2, baseline=False, resume=root)
    assert facts(again) == facts(fa.load(folder / "s"))  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_command_answers_first_and_json_has_the_keys(folder: Path, tmp_path: Path) -> None:
    code, printed, output = cli("--resume", str(folder / "s"), "--report", str(tmp_path / "r.html"))
    assert code == 0
    assert printed.lstrip().startswith("On the next federation like these 3, ")
    assert printed.splitlines()[-2:] == [str(folder / "s"), str(tmp_path / "r.html")]
    assert "fedavg, scaffold · 3 federations · 12 runs" in output
    code, printed, _ = cli("--resume", str(folder / "s"), "--json", "-q")
    found = json.loads(printed)
    assert {"federations", "pairs", "mean_ranks", "about", "verdict", "varying"} <= set(found)
    assert [one["name"] for one in found["federations"]] == NAMES
    assert set(found["federations"][0]["scores"]) == set(TWO)
    assert [s["key"] for s in found["varying"]] == ["partition.beta"]


@pytest.mark.slow
def test_a_dry_run_covers_all_federations_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    before = sorted(folder.rglob("*"))
    code, printed, _ = cli(
        str(folder / "suite.toml"), "-a", "fedavg", "-a", "scaffold", "--folds", "2", "--dry-run", "--json"
    )
    assert code == 0
    found = json.loads(printed)
    assert [one["name"] for one in found["federations"]] == NAMES
    assert found["runs"] == 3 * 3 * 2  # with the baseline
    code, printed, _ = cli("--resume", str(folder / "s"), "--dry-run", "--json")
    assert json.loads(printed)["runs"] == 0
    assert sorted(folder.rglob("*")) == before


@pytest.mark.slow
def test_the_report_says_how_to_repeat_it_with_the_same_scores(folder: Path, tmp_path: Path) -> None:
    found = fa.load(folder / "s")
    (tmp_path / "suite.toml").write_text(suite_toml(found))
    again = fa.compare(tmp_path / "suite.toml", TWO, folds=2, baseline=False, out=False, workers=1)
    assert facts(again) == facts(found)  # type: ignore[arg-type]


@pytest.mark.slow
def test_files_blocks_tables_and_experiments_name_federations(tmp_path: Path) -> None:
    for name, beta in (("clinics", 0.1), ("banks", 1.0)):
        (tmp_path / f"{name}.toml").write_text(
            f'data = "digits"\nmodel = "logreg"\nrounds = 1\nclients = 4\n'
            f'partition = {{ name = "label_dirichlet", beta = {beta} }}\n'
        )
    iid = fa.Experiment.make("digits", partition="iid", **TINY)
    sources = [str(tmp_path / "clinics.toml"), tmp_path / "banks.toml", {"name": "shops", "data": "digits", **TINY}]
    found = fa.compare(sources, TWO, seeds=2, baseline=False, out=False, workers=1)
    assert list(found.federations) == ["clinics", "banks", "shops"]
    assert found.dir is None
    (tmp_path / "blocks.toml").write_text(
        'data = "digits"\nmodel = "logreg"\nrounds = 1\n\n[[federation]]\nname = "few"\nclients = 4\n\n'
        '[[federation]]\nclients = 8\n\n[[federation]]\nclients = 16\npartition = "iid"\n'
    )
    blocks = fa.compare(tmp_path / "blocks.toml", TWO, seeds=2, baseline=False, out=False, workers=1)
    assert isinstance(blocks, SuiteComparison)
    assert list(blocks.federations) == ["few", "clients=8", "clients=16,iid"]
    assert blocks.varying[0].values == {"few": 4, "clients=8": 8, "clients=16,iid": 16}
    named = [iid, iid.with_(clients=5), iid.with_(clients=6)]
    code = fa.compare(named, TWO, seeds=2, baseline=False, out=False, workers=1)
    assert list(code.federations) == ["clients=4", "clients=5", "clients=6"]


@pytest.mark.slow
def test_clients_own_samples_decide_everywhere_as_soon_as_local_takes_part() -> None:
    tables = [{"name": f"n{n}", "data": "digits", **TINY, "clients": n} for n in (3, 4, 5)]
    found = fa.compare(tables, ["fedavg", "local"], seeds=2, baseline=False, out=False, workers=1)
    assert {one.plan.evaluate_on for one in found.federations.values()} == {"own"}
    assert set(found.mean_ranks) == {"fedavg", "local"}


def test_what_is_a_suite(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text('data = "digits"\n')
    (tmp_path / "many.toml").write_text('[grid]\ndata = ["digits"]\n')
    assert is_suite(["digits"])
    assert is_suite(tmp_path / "many.toml")
    assert is_suite(str(tmp_path / "many.toml"))
    assert not is_suite(tmp_path / "one.toml")
    assert not is_suite("digits")
    assert not is_suite((np.zeros((2, 2)), np.zeros(2)))
    assert not is_suite(None, tmp_path)


def table(**settings: Any) -> dict[str, Any]:
    return {"data": "digits", **TINY, **settings}


@pytest.mark.parametrize(
    ("source", "asked", "what"),
    [
        ([], {}, "0 federations cannot show"),
        (["digits", table(name="b")], {}, "2 federations cannot show how federations differ"),
        ([table(name="a"), table(name="A", clients=5), table(name="c", clients=6)], {}, "cannot be distinguished"),
        ([table(name="a"), table(name="a", clients=5), table(name="c", clients=6)], {}, "'a' twice"),
        ([table(name="a"), table(name="b"), table(name="c", clients=6)], {}, "are the same experiment"),
        ([table(name=".."), table(name="b", clients=5), table(name="c", clients=6)], {}, "cannot be the name"),
        ([table(name="x" * 300), table(name="b", clients=5), table(name="c", clients=6)], {}, "cannot be the name"),
        ([table(name="a"), table(name="b", clients=5), table(name="c", evaluate={"metric": "auc"})], {}, "differ in metric"),
        ([table(name=f"n{n}", clients=n) for n in (3, 4, 5)], {"sweep": "uplink.noise=0,1"}, "--sweep works on one"),
        ([table(name=f"n{n}", clients=n) for n in (3, 4, 5)], {"rope": -1}, "rope = -1"),
        ([table(name=f"n{n}", clients=n) for n in (3, 4, 5)], {"rope": 2, "metric": "log_loss"}, "rope = 2"),
        ([table(name=f"n{n}", clients=n) for n in (3, 4, 5)], {"metric": "nothing"}, "nothing"),
        ([table(name=f"n{n}", clients=n) for n in (3, 4, 5)], {"colour": "red"}, "no key 'colour'"),
        ([table(name="a"), table(name="b", clients=5), table(name="c", modell="x")], {}, "no key 'modell'"),
    ],
)  # fmt: skip
def test_what_is_refused_before_work(source: Any, asked: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(FedarenaError, match=what):
        fa.compare(source, TWO, seeds=2, out=tmp_path / "s", **asked)
    assert not (tmp_path / "s").exists()


class OwnLoss(torch.nn.Module):
    """A model that brings its own loss: another task than classification."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x.flatten(1))
        return out

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(x), y)


def test_tasks_are_not_mixed(tmp_path: Path) -> None:
    sources = [table(name="a"), table(name="b", clients=5), table(name="c", clients=6, model=OwnLoss)]
    with pytest.raises(BadValue, match="the federations differ in task: a has 'classification', c has 'custom'"):
        fa.compare(sources, TWO, seeds=2, out=tmp_path / "s", metric="loss")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[grid]\nclients = [2, 3]\n", "2 federations cannot show"),
        ("[grid]\nclients = 3\n", "grid.clients is not a list"),
        ("[grid]\n", "names no key"),
        (f"[grid]\nclients = {list(range(2, 13))}\nrounds = {list(range(1, 11))}\n", "110 federations are too many"),
        ("federation = 3\n", "not a list of tables"),
        ('[grid]\nclients = [2, 3, 4]\n[[federation]]\nname = "a"\n', r"both \[\[federation\]\] and \[grid\]"),
        ("[grid]\nclientz = [2, 3, 4]\n", "no key 'clientz'"),
        (
            '[[federation]]\nname = "a"\n[[federation]]\nname = "a"\n[[federation]]\nname = "c"\n',
            "cannot be distinguished",
        ),
    ],
)
def test_bad_suite_files_are_one_message_and_exit_code_2(text: str, what: str, tmp_path: Path) -> None:
    file = tmp_path / "suite.toml"
    file.write_text(f'data = "digits"\nmodel = "logreg"\n{text}')
    code, printed, output = cli(str(file), "-a", "fedavg", "-a", "scaffold", "--out", str(tmp_path / "s"))
    assert code == 2
    assert printed == ""
    assert "Traceback" not in output
    assert " -> " in output
    import re

    assert re.search(what, output), output
    assert not (tmp_path / "s").exists()


def test_a_damaged_suite_is_one_message(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "s"
    shutil.copytree(folder / "s", root)
    for text in ("{", "[]", '{"federations": []}', '{"federations": [{"name": "..", "seed": 0, "plan": {}}]}'):
        (root / "suite.json").write_text(text)
        with pytest.raises(FedarenaError):
            fa.load(root)


@pytest.mark.slow
def test_paths_in_a_suite_file_are_meant_from_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for k in range(3):
        rows = [f"{a:.3f},{b:.3f},{int(a + b > 0)}" for a, b in rng.standard_normal((60, 2))]
        (tmp_path / f"t{k}.csv").write_text("\n".join(["a,b,y", *rows]))
    blocks = "".join(
        f'[[federation]]\nname = "t{k}"\ndata = {{ name = "csv", path = "t{k}.csv", label = "y" }}\n' for k in range(3)
    )
    (tmp_path / "suite.toml").write_text(f'model = "logreg"\nrounds = 1\nclients = 2\n{blocks}')
    monkeypatch.chdir("/")
    found = fa.compare(tmp_path / "suite.toml", TWO, seeds=2, baseline=False, out=False, workers=1)
    assert list(found.federations) == ["t0", "t1", "t2"]  # type: ignore[attr-defined]
