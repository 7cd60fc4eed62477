"""A checkpoint that is incomplete or was changed is never continued from unnoticed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import small_net
from tests.support.federations import blobs
from typer.testing import CliRunner

import fedarena as fa
from fedarena.algorithms.scaffold import Scaffold
from fedarena.cli.main import app
from fedarena.config.errors import DataBroken
from fedarena.engine import checkpoint
from fedarena.engine.checkpoint import CheckpointStore, stored_types
from fedarena.engine.checkpoint_files import CheckpointFolder, load_tree, save_tree
from fedarena.engine.tensor_file import DTYPES, file_hash, write_tensors

SCAFFOLD: dict[str, Any] = {
    "algorithm": "scaffold", "clients": 5, "per_round": 3, "rounds": 6, "partition": "iid", "seed": 3,
    "local": {"lr": 0.05, "epochs": 1, "batch": 8},
}  # fmt: skip


def run(**how: Any) -> fa.Run:
    return fa.run(blobs(), model=small_net, runtime="serial", **{**SCAFFOLD, **how})


def stop_at(round: int) -> Any:
    return lambda record: record.round == round


def saved(folder: Path) -> CheckpointFolder:
    return CheckpointFolder(folder / "checkpoint", stored_types(Scaffold()))


def newest_state(folder: Path) -> Path:
    """A client state that only the newest snapshot needs."""
    files = saved(folder)
    return next((files.folder / "clients").glob(f"*-{files.rounds()[0]}.safetensors"))


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round is synced to the disk, so that the round before the newest is kept."""
    monkeypatch.setattr(checkpoint, "SYNC_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "SYNC_SHARE", float("inf"))


@pytest.fixture(scope="module")
def whole() -> fa.Run:
    return run(out=False)


def damage_one_way(how: str, folder: Path) -> Path:
    """Damage the newest round in one way; return the file that the error must name."""
    files = saved(folder)
    last = files.rounds()[0]
    if how == "state missing":
        (path := newest_state(folder)).unlink()
    elif how == "state changed":
        flip_last_byte(path := newest_state(folder))
    elif how == "state of another client":
        path, other = sorted((files.folder / "clients").glob(f"*-{last}.safetensors"))[:2]
        shutil.copyfile(other, path)
    elif how == "snapshot changed":
        flip_last_byte(path := files.snapshot_path(last))
    elif how == "snapshot of another round":
        shutil.copyfile(files.snapshot_path(last - 1), path := files.snapshot_path(last))
    elif how == "snapshots missing":
        for round in files.rounds():
            files.snapshot_path(round).unlink()
        path = files.snapshot_path(last - 1)  # the newest that must have been there, by the log
    elif how == "last record changed":
        *lines, line = files.lines()
        changed = json.dumps({**json.loads(line), "accuracy": 0.123}).encode() + b"\n"
        (path := files.log).write_bytes(b"".join([*lines, changed]))
    else:
        path = files.log
        path.write_bytes(b"".join(files.lines()[:-1]))
    return path


LAST_INTACT = {
    "state missing": 3, "state changed": 3, "state of another client": 3, "snapshot changed": 3,
    "snapshot of another round": 3, "snapshots missing": 0, "last record changed": 3, "last record missing": 3,
}  # fmt: skip


@pytest.mark.usefixtures("synced")
@pytest.mark.parametrize("how", LAST_INTACT)
def test_damage_is_named_and_the_last_intact_round_can_be_continued(how: str, whole: fa.Run, tmp_path: Path) -> None:
    run(out=tmp_path / "r", on_round=stop_at(4))
    path = damage_one_way(how, tmp_path / "r")
    before = {file: file.read_bytes() for file in (tmp_path / "r").rglob("*") if file.is_file()}
    with pytest.raises(DataBroken) as refused:
        run(resume=tmp_path / "r")
    assert str(path) in refused.value.what
    assert f"the last intact round is round {LAST_INTACT[how]}" in refused.value.what
    assert f"fedarena run --resume {tmp_path / 'r'} --from-intact" in refused.value.remedy
    assert {file: file.read_bytes() for file in (tmp_path / "r").rglob("*") if file.is_file()} == before
    again = run(resume=tmp_path / "r", from_intact=True)
    assert again.weights_sha256 == whole.weights_sha256
    assert again.curve == whole.curve
    assert fa.load(tmp_path / "r", data=fa.arrays(*blobs()), model=small_net).weights_sha256 == whole.weights_sha256


def test_a_short_run_starts_over_where_no_saved_round_is_intact(whole: fa.Run, tmp_path: Path) -> None:
    """It was over before its first sync: only the newest round is kept."""
    run(out=tmp_path / "r", on_round=stop_at(4))
    assert saved(tmp_path / "r").rounds() == [4]
    newest_state(tmp_path / "r").unlink()
    with pytest.raises(DataBroken, match="the last intact round is round 0") as refused:
        run(resume=tmp_path / "r")
    assert "start over in the same folder" in refused.value.remedy
    assert run(resume=tmp_path / "r", from_intact=True).weights_sha256 == whole.weights_sha256


def test_an_intact_run_resumes_as_ever_from_intact_or_not(whole: fa.Run, tmp_path: Path) -> None:
    run(out=tmp_path / "r", on_round=stop_at(4))
    rounds: list[int] = []
    run(resume=tmp_path / "r", from_intact=True, on_round=lambda r: bool(rounds.append(r.round)) or r.round == 5)
    assert rounds == [1, 2, 3, 4, 5]
    assert run(resume=tmp_path / "r").weights_sha256 == whole.weights_sha256


@pytest.mark.slow
def test_the_command_ends_with_exit_code_2_and_takes_the_option(tmp_path: Path) -> None:
    out = str(tmp_path / "r")
    words = [
        "digits",
        "--set",
        "rounds=3",
        "--set",
        "clients=4",
        "--set",
        "model=logreg",
        "--set",
        "algorithm=scaffold",
    ]
    run_it = lambda *more: CliRunner().invoke(app, ["run", *more, "-q", "--runtime", "serial"])
    assert run_it(*words, "--out", out).exit_code == 0
    first = json.loads(Path(out, "result.json").read_text())["weights_sha256"]
    state = newest_state(Path(out))
    state.unlink()
    refused = run_it("--resume", out)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("DataBroken: ")
    assert str(state) in refused.stderr
    assert Path(out, "result.json").exists()
    assert run_it("--resume", out, "--from-intact").exit_code == 0
    assert json.loads(Path(out, "result.json").read_text())["weights_sha256"] == first
    refused = run_it("digits", "--from-intact")
    assert refused.exit_code == 2
    assert "--resume RUN" in refused.stderr


# What is kept


@pytest.mark.parametrize("synced_rounds", [(), (1,), (3,), (2, 3), (2, 5), (1, 2, 3, 4, 5, 6)])
def test_every_snapshot_in_the_folder_is_complete_after_every_round(
    synced_rounds: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest, and the newest synced one before it; and no file of client state that neither of them needs."""
    monkeypatch.setattr(checkpoint, "SYNC_SECONDS", 0.0)
    sync = CheckpointStore._sync

    def at_times(store: CheckpointStore, *results: Path) -> None:
        if store._last is not None and store._last.round in synced_rounds:
            sync(store, *results)

    def look(record: Any) -> None:
        files = saved(tmp_path / "r")
        earlier = [round for round in synced_rounds if round < record.round][-1:]
        assert files.rounds() == [record.round, *earlier]
        kept = [files.check(round, files.lines()) for round in files.rounds()]
        needed = {path for intact in kept for path in files.paths(intact.round, intact.files)}
        there = {*files.folder.glob("server-*"), *(files.folder / "clients").iterdir()}
        assert there == needed

    monkeypatch.setattr(CheckpointStore, "_sync", at_times)
    monkeypatch.setattr(checkpoint, "SYNC_SHARE", float("inf"))
    run(out=tmp_path / "r", on_round=look)


@pytest.mark.usefixtures("synced")
def test_a_synced_snapshot_has_all_its_files_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is needed to resume was handed to fsync after it was written, and the folders that name it, too."""
    synced: set[tuple[int, int]] = set()
    fsync = os.fsync

    def noted(number: int) -> None:
        synced.add((os.fstat(number).st_ino, os.fstat(number).st_mtime_ns))
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    run(out=tmp_path / "r", on_round=stop_at(4))
    folder, files = tmp_path / "r", saved(tmp_path / "r")
    intact, damage = files.last_intact()
    assert damage is None
    needed = files.paths(4, intact.files) | {files.log} | {folder / name for name in checkpoint.RUN_FILES}
    results = {folder / name for name in ("result.json", "model.safetensors", "rounds.parquet", "clients.parquet")}
    for path in needed | results:
        assert (path.stat().st_ino, path.stat().st_mtime_ns) in synced, path
    inodes = {inode for inode, _ in synced}
    assert {path.stat().st_ino for path in (folder, files.folder, files.folder / "clients", tmp_path)} <= inodes


# Earlier versions


def as_an_earlier_version_wrote_it(folder: Path) -> None:
    """Take all hashes out of a run folder."""
    types = stored_types(Scaffold())
    for path in (folder / "checkpoint").rglob("*.safetensors"):
        tree = load_tree(path, types)
        if path.name.startswith("server"):
            tree = replace(tree, files=None, log=())
        save_tree(path, tree, hashed=False)
    for name in ("versions.json", "result.json"):
        if (folder / name).exists():
            table = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({k: v for k, v in table.items() if k not in ("sha256", "files")}))
    toml = (folder / "experiment.toml").read_text().splitlines(keepends=True)
    assert toml[-1].startswith("# sha256")
    (folder / "experiment.toml").write_text("".join(toml[:-1]))


def test_runs_of_earlier_versions_resume_verify_and_load(whole: fa.Run, tmp_path: Path) -> None:
    run(out=tmp_path / "r", on_round=stop_at(3))
    as_an_earlier_version_wrote_it(tmp_path / "r")
    own: dict[str, Any] = {"data": fa.arrays(*blobs()), "model": small_net}
    assert fa.verify(tmp_path / "r", runtime="serial", **own).same
    assert run(resume=tmp_path / "r").weights_sha256 == whole.weights_sha256
    assert fa.verify(tmp_path / "r", runtime="serial", **own).same
    for round in saved(tmp_path / "r").rounds():  # 6, and 3 with which it was resumed
        assert saved(tmp_path / "r").snapshot(round).names_its_files
    newest_state(tmp_path / "r").unlink()
    with pytest.raises(DataBroken, match="is missing; the last intact round is round 3"):
        run(resume=tmp_path / "r", rounds=7)


# Files of tensors


@pytest.mark.slow
def test_tensors_come_back_and_any_changed_byte_is_noticed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"a{k}": np.array(rng.integers(0, 2, (k % 3, 5)), dtype) for k, dtype in enumerate(DTYPES)}
    arrays |= {"scalar": np.array(1.5), "big": np.arange(4, dtype=">i4"), "strided": np.arange(12.0)[::3]}
    path = tmp_path / "t.safetensors"
    digest = write_tensors(path, arrays, '"tree"')
    from safetensors.numpy import load_file

    back = load_file(path)
    assert {*back} == {*arrays}
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].shape == array.shape
    assert file_hash(path) == (digest, True)
    sound = path.read_bytes()
    assert hashlib.sha256(sound).digest() != digest  # the hash itself is not part of what is hashed
    for at in range(len(sound)):
        changed = bytearray(sound)
        changed[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
            file_hash(path)
