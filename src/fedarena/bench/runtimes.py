"""The same rounds in three runtimes on this machine: worker processes, a Ray cluster, a real federation over Flower.

The workload is small on purpose: four clients with four hundred samples each, one epoch of `mlp_2nn`. The rest is the
overhead of the runtime. Flower's includes TLS, node authentication, and a process for each client.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import json
import logging
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.bench.table_format import Row
from fedarena.config.errors import FedarenaError
from fedarena.runtimes.cleanup import temporary_folder

LOGGER = logging.getLogger(__name__)
NAMES = ("alfa", "bravo", "charlie", "delta")
ROWS, FEATURES = 400, 30
WARM = 3  # rounds that do not count: workers start, models are built
ROUNDS = 20  # that count, in each repetition
PATIENCE = 300.0  # seconds for a whole federation
NEEDS = {"ray": ("ray",), "flower": ("flwr", "cryptography")}


def measure(repetitions: int) -> list[Row]:
    """Time rounds in each runtime, one after the other: Ray and Flower are never quite idle."""
    rows: list[Row] = []
    with temporary_folder() as folder:
        write_tables(folder)
        for runtime, run in RUNTIMES.items():
            LOGGER.info(f"scale: rounds in {runtime}")
            note, seconds = missing(runtime), None
            if not note:
                try:
                    seconds = median_round(run(folder, WARM + ROUNDS * repetitions))
                except (FedarenaError, OSError, subprocess.SubprocessError) as error:
                    note = f"{runtime} cannot be measured: {str(error).splitlines()[0]}"
            if note:
                LOGGER.info(note)
            rows.append(
                {"work": "scale", "part": "place", "design": runtime, "seconds_per_round": seconds, "note": note}
            )
    return rows


def missing(runtime: str) -> str:
    """Return why a runtime cannot be measured here; an empty text if it can."""
    absent = [name for name in NEEDS.get(runtime, ()) if importlib.util.find_spec(name) is None]
    return (
        f"{runtime} is left out: {', '.join(absent)} is not installed (`pip install 'fedarena[{runtime}]'`)"
        if absent
        else ""
    )


def median_round(walls: list[float]) -> float:
    """Return the median time of a round, given the seconds since the start at the end of each."""
    return float(statistics.median(np.diff(walls)[WARM - 1 :]))


def write_tables(folder: Path) -> None:
    """Write a file for each client, and one with the samples of all clients for simulations."""
    rng = np.random.default_rng(0)
    columns = [f"f{i}" for i in range(FEATURES)]
    everything: list[list[Any]] = []
    for name in NAMES:
        y = rng.integers(0, 2, ROWS)
        x = rng.standard_normal((ROWS, FEATURES)) + y[:, None]
        rows = [[*map(float, row), int(label)] for row, label in zip(x, y, strict=True)]
        _write(folder / f"{name}.csv", [[*columns, "label"], *rows])
        everything += [[*row, name] for row in rows]
    _write(folder / "all.csv", [[*columns, "label", "site"], *everything])


def _write(path: Path, rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def experiment(path: Path, rounds: int, **data: Any) -> dict[str, Any]:
    """Return the experiment, which is evaluated once, after its last round."""
    return {
        "data": {"name": "csv", "path": str(path), "label": "label", "standardise": False, **data},
        "model": "mlp_2nn", "partition": "natural", "share": 1.0, "rounds": rounds,
        "local": {"lr": 0.05, "epochs": 1, "batch": 32}, "evaluate": {"every": rounds},
    }  # fmt: skip


def simulated(runtime: Any, folder: Path, rounds: int) -> list[float]:
    """Run in worker processes, the default of a run, or on a Ray cluster that is started for the purpose."""
    import fedarena as fa

    run = fa.run(
        experiment(folder / "all.csv", rounds, client="site"), runtime=runtime, workers=2, out=folder / f"in-{runtime}"
    )
    return [record.wall_seconds for record in run.records]


def flower(folder: Path, rounds: int) -> list[float]:
    """Run `fedarena serve`, and `fedarena join` for each client, with new keys."""
    import fedarena as fa

    keys, out = folder / "keys", folder / "in-flower"
    (folder / "exp.toml").write_text(fa.Experiment.make(experiment(Path("mine.csv"), rounds)).to_toml())
    subprocess.run(_command("federation", "keys", *NAMES, "--out", str(keys), "--quiet"), check=True, **SILENT)
    address = f"127.0.0.1:{free_port()}"
    serve = ["serve", str(folder / "exp.toml"), "--address", address, "--keys", str(keys), "--out", str(out), "--quiet"]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_started(*serve))
        for name in NAMES:
            join = ["join", "--data", str(folder / f"{name}.csv"), "--server", address, "--keys", str(keys / name)]
            stack.enter_context(_started(*join, "--folder", str(folder / f"state-{name}"), "--yes", "--quiet"))
        code = server.wait(timeout=PATIENCE)
    if code:
        raise subprocess.CalledProcessError(code, "fedarena serve")
    lines = (out / "checkpoint" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["wall_seconds"] for line in lines]


RUNTIMES: dict[str, Callable[[Path, int], list[float]]] = {
    "processes": partial(simulated, "processes"),
    "ray": partial(simulated, "ray"),
    "flower": flower,
}
SILENT: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "fedarena", *words]


@contextlib.contextmanager
def _started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, which is terminated at the end of the block if it does not end by itself."""
    process = subprocess.Popen(_command(*words), **SILENT)
    try:
        yield process
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """Return the number of a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
