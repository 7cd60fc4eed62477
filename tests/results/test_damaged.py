"""Damaged run, comparison and search folders: one message and exit code 2, and `verify` notices every changed file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.engine import checkpoint

SMALL: dict[str, Any] = {"model": "logreg", "clients": 3, "partition": "iid", "rounds": 2}
NOT_A_TABLE = ["", "null", "[]", "{}", "7", '"text"', "{broken", b"\xff\xfe"]
LOGS = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe\x00\n",
    "no record": b"[1, 2]\n",
    "a number": b"3\n",
    "another key": b'{"round": 1, "acuracy": 0.5}\n',
    "no round": b'{"accuracy": 0.5}\n',
    "a text for a number": b'{"round": 1, "accuracy": "high"}\n',
    "cut": b'{"round": 1, "accur',
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with client states and an earlier snapshot, one that is not finished, a comparison, a search."""
    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "SYNC_SECONDS", 0.0)
        fa.run("digits", algorithm="scaffold", out=root / "run", runtime="serial", **SMALL)
        shutil.copytree(root / "run", root / "half")
        (root / "half" / "result.json").unlink()
        fa.compare(
            "digits", ["fedavg", "fedprox"], seeds=2, baseline=False, workers=1, out=root / "comparison", **SMALL
        )
        space = {"local.lr": {"choices": [0.1, 0.2]}}
        fa.search("digits", space=space, method="grid", workers=1, out=root / "search", **SMALL)
    return root


def refused(*words: object) -> str:
    """The message of a command that must end with exit code 2, and not by an error of ours."""
    done = CliRunner().invoke(app, [*map(str, words), "-q"])
    assert done.exit_code == 2, (words, done.stdout, done.stderr, done.exception)
    assert isinstance(done.exception, SystemExit)
    what, remedy = done.stderr.split("\n  -> ")
    assert what
    assert remedy
    return what


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("content", NOT_A_TABLE)
def test_files_that_hold_no_table_are_named(content: str | bytes, made: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(made, tmp_path / "made"))
    result = write(root / "run" / "result.json", content)
    for words in (("verify", root / "run"), ("report", root / "run")):
        assert str(result) in refused(*words)
    versions = write(root / "half" / "versions.json", content)
    assert str(versions) in refused("run", "--resume", root / "half")
    plan = write(root / "comparison" / "comparison.json", content)
    for words in (("report", root / "comparison"), ("compare", "--resume", root / "comparison")):
        assert str(plan) in refused(*words)
    search = write(root / "search" / "search.json", content)
    assert str(search) in refused("search", "--resume", root / "search")


@pytest.mark.slow
@pytest.mark.parametrize("hashed", [True, False], ids=["hashed", "of an earlier version"])
@pytest.mark.parametrize("how", LOGS)
def test_a_damaged_log_is_named(how: str, hashed: bool, made: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(made, tmp_path / "made"))
    for name in ("run", "half"):
        write(root / name / "checkpoint" / "rounds.jsonl", LOGS[how])
    if not hashed:
        table = json.loads((root / "run" / "result.json").read_text())
        write(
            root / "run" / "result.json", json.dumps({k: v for k, v in table.items() if k not in ("files", "sha256")})
        )
    for words in (("verify", root / "run"), ("report", root / "run"), ("run", "--resume", root / "half")):
        assert "rounds.jsonl" in refused(*words)


@pytest.mark.parametrize("name", ["model.safetensors", "clients.parquet", "rounds.parquet", "partition.npz"])
@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"PAR1", b"\xff" * 9])
def test_damaged_data_files_are_named(name: str, content: bytes, made: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(made / "run", tmp_path / "run"))
    write(root / name, content)
    assert name in refused("verify", root, "--runtime", "serial")
    if name in ("model.safetensors", "clients.parquet"):
        assert name in refused("report", root)


@pytest.mark.slow
def test_a_changed_setting_of_a_stored_experiment_or_plan_is_noticed(made: Path, tmp_path: Path) -> None:
    """A digit is enough: the run would go on with another rate, the comparison be judged by another rope."""
    root = Path(shutil.copytree(made, tmp_path / "made"))
    for file, old, new in (
        (root / "half" / "experiment.toml", "lr = 0.1", "lr = 0.2"),
        (root / "comparison" / "comparison.json", '"rope": 0.01', '"rope": 0.02'),
        (root / "search" / "search.json", '"seed": 0', '"seed": 1'),
    ):
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
    assert "experiment.toml" in refused("run", "--resume", root / "half")
    assert "comparison.json" in refused("compare", "--resume", root / "comparison")
    assert "search.json" in refused("search", "--resume", root / "search")


@pytest.mark.slow
def test_verify_notices_every_changed_and_every_missing_file(made: Path, tmp_path: Path) -> None:
    files = [path for path in (made / "run").rglob("*") if path.is_file() and path.name != "lock"]
    assert {path.suffix for path in files} == {".toml", ".json", ".npz", ".parquet", ".safetensors", ".jsonl"}
    assert len(list((made / "run" / "checkpoint" / "clients").iterdir())) > 3  # of two snapshots
    assert fa.verify(made / "run", runtime="serial").same
    for number, path in enumerate(files):
        for how in ("changed", "missing"):
            root = Path(shutil.copytree(made / "run", tmp_path / f"{number}-{how}"))
            file = root / path.relative_to(made / "run")
            if how == "missing":
                file.unlink()
            else:
                content = bytearray(file.read_bytes())
                content[len(content) // 2] ^= 1
                file.write_bytes(content)
            try:
                verdict = fa.verify(root, runtime="serial")
            except fa.FedarenaError as error:
                noticed = str(error)
            else:
                noticed = "\n".join(verdict.differences)
            assert file.name in noticed or (how, file.name) == ("missing", "result.json"), file


def test_a_file_that_belongs_to_no_round_is_noticed(made: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(made / "run", tmp_path / "run"))
    state = next((root / "checkpoint" / "clients").iterdir())
    shutil.copyfile(state, state.with_name("2-9.safetensors"))
    assert "2-9.safetensors belongs to no saved round" in fa.verify(root, runtime="serial").differences[0]
