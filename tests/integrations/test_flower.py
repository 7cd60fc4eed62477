"""A Strategy of ours in a Flower app gives the bits of a run here; and the example app really runs over Flower."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedarena as fa
from fedarena.config.errors import FedarenaError

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedarena[flower]'")
pytestmark = pytest.mark.filterwarnings("ignore:Protobuf gencode")

from flwr.app import Array, Context, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from fedarena.integrations.flower import Strategy, train  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"
LOCAL = {"lr": 0.05, "epochs": 2, "batch": 16}
HOSPITALS = 4


def network(norm: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), *([nn.BatchNorm1d(32)] if norm else []), nn.ReLU(), nn.Linear(32, 10))


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any, Any]:
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y, np.arange(len(x)) % HOSPITALS


class HereGrid:
    """Flower's Grid with the nodes in this process, whose answers come in the wrong order, and some not at all."""

    def __init__(self, app: ClientApp, deaf: set[tuple[int, int]] = frozenset()) -> None:  # type: ignore[assignment]
        self.app, self.deaf, self.exchanges = app, deaf, 0
        numbers = [31, 7, 19, 5]  # Flower's ids say nothing of a node
        self.nodes = {
            node: Context(1, node, {"partition-id": k}, RecordDict(), {})
            for k, node in zip(range(4), numbers, strict=True)
        }
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for message in messages:
            context = self.nodes[message.metadata.dst_node_id]
            message.metadata.__dict__["_message_id"] = "here"
            reply = self.app(message, context)  # it has worked, and remembers: but its answer may be lost
            if (self.exchanges, int(context.node_config["partition-id"])) not in self.deaf:
                replies.append(reply)
        self.exchanges += 1
        return replies[::-1]


def app_of(digits: tuple[Any, Any, Any], norm: bool = False) -> ClientApp:
    x, y, owner = digits
    app = ClientApp()

    @app.train()
    def _(message: Message, context: Context) -> Message:
        mine = owner == context.node_config["partition-id"]
        return train(message, context, network(norm), x[mine], y[mine])

    return app


def here(digits: tuple[Any, Any, Any], norm: bool, **settings: Any) -> dict[str, torch.Tensor]:
    """The same without Flower."""
    x, y, owner = digits
    data = fa.arrays(x, y, owner, x_test=x[:50], y_test=y[:50])
    return fa.run(data, model=network(norm), local=LOCAL, rounds=4, out=False, runtime="serial", **settings).state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "norm"),
    [
        ("fedavg", True),
        ("scaffold", True),
        ("fednova", True),
        ({"name": "fedavgm", "beta": 0.5, "with": ["fedir"]}, True),
        ("feddyn", False),
        ("loadaboost", False),
        ("fsvrg", False),
        ("fedpage", False),
        ("cyclic", True),
    ],
    ids=str,
)
def test_same_bits_as_a_run_here(digits: tuple[Any, Any, Any], algorithm: Any, norm: bool) -> None:
    strategy = Strategy(network(norm), algorithm, min_nodes=HOSPITALS, evaluate=False, share=0.5, local=LOCAL)
    result = strategy.start(HereGrid(app_of(digits, norm)), num_rounds=4)  # type: ignore[arg-type]
    mine = result.arrays.to_torch_state_dict()
    theirs = here(digits, norm, algorithm=algorithm, share=0.5)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_a_lost_answer_is_as_if_it_was_never_given(digits: tuple[Any, Any, Any]) -> None:
    """SCAFFOLD's invariant, c is the mean of all c_k, breaks if a client continues from a state the server never received."""
    lost = {(2, 1), (3, 1), (4, 1)}  # the first exchange is the introduction
    grid = HereGrid(app_of(digits), lost)
    strategy = Strategy(network(False), "scaffold", min_nodes=HOSPITALS, evaluate=False, local=LOCAL)
    strategy.start(grid, num_rounds=5)  # type: ignore[arg-type]
    kept = [sorted({k.split("-")[1] for k in c.state if k.startswith("fedarena-")}) for c in grid.nodes.values()]
    usual = ["3.0", "4.0"]
    assert kept == [
        usual,
        ["0.0", "4.0"],
        usual,
        usual,
    ]  # the second went on from its first round, the last one accepted


def test_an_unusable_answer_is_left_out(digits: tuple[Any, Any, Any]) -> None:
    x, y, owner = digits
    app = ClientApp()

    @app.train()
    def _(message: Message, context: Context) -> Message:
        mine = owner == context.node_config["partition-id"]
        answer = train(message, context, network(False), x[mine], y[mine])
        if context.node_config["partition-id"] == 2 and "metrics" in answer.content:
            arrays = answer.content.array_records["arrays"]
            arrays["array0"] = Array(np.zeros(3, np.float32))
        return answer

    strategy = Strategy(network(False), "fedavg", min_nodes=HOSPITALS, evaluate=False, local=LOCAL)
    result = strategy.start(HereGrid(app), num_rounds=2)  # type: ignore[arg-type]
    deaf = {(exchange, 2) for exchange in (1, 2)}
    without = strategy.start(HereGrid(app_of(digits), deaf), num_rounds=2)  # type: ignore[arg-type]
    mine, theirs = result.arrays.to_torch_state_dict(), without.arrays.to_torch_state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_an_error_that_quotes_a_row_stays_with_the_client(digits: tuple[Any, Any, Any]) -> None:
    class Telling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if rows.abs().sum() > 0:
                raise ValueError(f"a secret: {rows[0, 3]}")
            return self.layer(rows)

    x, y, owner = digits
    app = ClientApp()

    @app.train()
    def _(message: Message, context: Context) -> Message:
        mine = owner == context.node_config["partition-id"]
        return train(message, context, Telling(), x[mine], y[mine])

    with pytest.raises(RuntimeError) as error:
        Strategy(Telling(), min_nodes=HOSPITALS).start(HereGrid(app))  # type: ignore[arg-type]
    assert str(error.value) == "ValueError"


@pytest.mark.parametrize("setting", [{"uplink": {"secure": True}}, {"rounds": 3}, {"dropouts": 0.5}], ids=str)
def test_what_a_strategy_would_not_do_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(FedarenaError, match="has no setting"):
        Strategy(network(False), "fedavg", **setting)


def test_noise_that_the_server_knows_is_refused() -> None:
    with pytest.raises(FedarenaError, match="from the seed, which the server knows"):
        Strategy(network(False), "fedavg", local={"privacy": {"clip": 1.0, "noise": 1.0}})


def test_unknown_algorithms_are_refused_before_anything_starts() -> None:
    with pytest.raises(FedarenaError, match="no algorithm is called 'fedavgg'"):
        Strategy(network(False), "fedavgg")


def test_asynchronous_algorithms_are_refused(digits: tuple[Any, Any, Any]) -> None:
    with pytest.raises(FedarenaError, match="no synchronous rounds"):
        Strategy(network(False), "coop", min_nodes=HOSPITALS).start(HereGrid(app_of(digits)))  # type: ignore[arg-type]


@contextlib.contextmanager
def running(*command: str, log: Path, env: dict[str, str]) -> Iterator[None]:
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=env, start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
        process.wait()


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.slow
def test_the_example_runs_over_flower(tmp_path: Path) -> None:
    """SuperLink, two SuperNodes and the app, as its user would start them."""
    address, bin = f"127.0.0.1:{port()}", Path(sys.executable).parent
    env = {**os.environ, "FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
    env["PATH"] = f"{bin}{os.pathsep}{env['PATH']}"
    env.setdefault("PYTHONPATH", str(Path(fa.__file__).parents[1]))
    (tmp_path / "config.toml").write_text(f'[superlink.here]\naddress = "{address}"\ninsecure = true\n')
    with contextlib.ExitStack() as stack:
        host, number = address.split(":")
        superlink = ["flower-superlink", "--insecure", "--host", host, "--port", number]
        superlink.append("--disable-runtime-dependency-installation")
        stack.enter_context(running(*superlink, log=tmp_path / "superlink.log", env=env))
        wait_for(address)
        for k in range(2):
            node = ["flower-supernode", "--insecure", "--superlink", address, "--port", str(port())]
            node += ["--node-config", f"partition-id={k}"]
            stack.enter_context(running(*node, log=tmp_path / f"node{k}.log", env=env))
        flwr = [str(bin / "flwr"), "run", str(EXAMPLE), "here", "--stream", "--run-config", "rounds=1"]
        with running(*flwr, log=tmp_path / "run.log", env=env):
            accuracy = float(wait_for_text(tmp_path / "run.log", r"accuracy of each round: \[([0-9.]+)\]"))
    assert accuracy > 0.63  # the share of the larger class


def wait_for(address: str, seconds: float = 60) -> None:
    host, number = address.split(":")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((host, int(number)), timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError(address)


def wait_for_text(log: Path, pattern: str, seconds: float = 240) -> str:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := re.search(pattern, log.read_text()):
            return found[1]
        time.sleep(0.2)
    raise TimeoutError(log.read_text())
