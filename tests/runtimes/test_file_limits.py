"""A limit on the size of files, as `ulimit -f` sets it, ends a command like a full disk: nothing that was saved is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support import forked_processes

import fedarena as fa

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX resource limits")

LIMITED = (
    "import resource, sys; most = int(sys.argv.pop(1)); resource.setrlimit(resource.RLIMIT_FSIZE, (most, most));"
    "from fedarena.cli.main import main; main()"
)
SETTINGS: dict[str, Any] = {"model": "logreg", "algorithm": "scaffold", "clients": 4, "per_round": 2, "rounds": 60}


def in_words(settings: dict[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def limited(largest: int, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(largest), *words, "-q"]
    return forked_processes.run(command, cwd=folder, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["serial", "processes"])
@pytest.mark.parametrize(
    ("model", "largest"), [("logreg", 300), ("mlp_2nn", 20_000), ("logreg", 20_000)], ids=["start", "state", "log"]
)
def test_a_limit_on_file_sizes_loses_nothing(runtime: str, model: str, largest: int, tmp_path: Path) -> None:
    """Reached by what is written before the first round, by the first state of a client, by the log in mid-run."""
    settings = {**SETTINGS, "model": model, "rounds": 60 if model == "logreg" else 2}
    words = ["run", "digits", *in_words(settings), "--out", "r"]
    done = limited(largest, *words, "--runtime", runtime, "--workers", "2", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    shared = runtime == "processes" and model == "mlp_2nn"  # memory that processes share is a file, too
    assert done.stderr.startswith(f"CannotWrite: {'no shared memory' if shared else 'the disk is full: '}")
    assert "ulimit -f" in done.stderr
    assert "Traceback" not in done.stderr
    begun = (tmp_path / "r" / "experiment.toml").exists()
    assert begun == (largest > 300)
    log = tmp_path / "r" / "checkpoint" / "rounds.jsonl"
    assert (log.exists() and log.read_text().count("\n") > 5) == (begun and model == "logreg")
    source: dict[str, Any] = {"resume": tmp_path / "r"} if begun else {"source": "digits", "out": tmp_path / "r"}
    again = fa.run(**source, runtime="serial", **settings)
    assert again.weights_sha256 == fa.run("digits", out=False, runtime="serial", **settings).weights_sha256


@pytest.mark.slow
@pytest.mark.parametrize("largest", [3000, 20_000])
def test_comparisons_and_searches_stop_alike_and_resume(largest: int, tmp_path: Path) -> None:
    words = [*in_words({**SETTINGS, "algorithm": "fedavg"}), "--workers", "1"]
    pair = ["-a", "fedavg", "-a", "scaffold", "--seeds", "2", "--no-baseline"]
    compare = limited(largest, "compare", "digits", *words, *pair, "--out", "c", folder=tmp_path)
    search = limited(largest, "search", "digits", *words, "--trials", "2", "--out", "s", folder=tmp_path)
    for done in (compare, search):
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("CannotWrite: ")
    found = fa.compare(resume=tmp_path / "c", workers=1)
    assert found.failures == {}
    assert len(fa.search(resume=tmp_path / "s", workers=1).trials) == 2
    assert json.loads((tmp_path / "c" / "comparison.json").read_text())["rope"] == 0.01
