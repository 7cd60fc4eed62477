"""Python commands in processes of their own that start in milliseconds: `Popen` and `run` as in `subprocess`.

A new interpreter takes seconds to import torch and fedarena. Here one server process imports them once for each test
process, and every command is forked from it: a real process with its own folder, environment and output, which can be
killed. The server has run nothing before, so that a command finds the state of a new interpreter.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("sklearn.datasets", "fedarena.cli.main", "fedarena.experiments.compare", "fedarena.federation.server"),
        *("fedarena.federation.client", "fedarena.vertical.training_task"),
    ]
)


STARTED: list[Popen] = []


@atexit.register
def kill_all() -> None:
    """Kill what failed tests have left: the end of this process would wait for it."""
    for process in STARTED:
        process.kill()


class Popen:
    """A command `[sys.executable, ("-m", MODULE | "-c", CODE | FILE), *arguments]` in a process of its own.

    Output goes to files, which `communicate` reads; without `capture` it is dropped.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: dict[str, str] | None = None,
        capture: bool = False,
    ) -> None:
        assert command[0] == sys.executable
        self.args = list(command)
        self._folder = tempfile.TemporaryDirectory() if capture else None
        outputs = [str(Path(self._folder.name, name)) if self._folder else os.devnull for name in ("stdout", "stderr")]
        where = str(cwd or Path.cwd())
        self._process = CONTEXT.Process(target=_execute, args=(self.args[1:], where, env or dict(os.environ), outputs))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        STARTED.append(self)

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end and return what it has written to stdout and stderr."""
        self.wait(timeout)
        return self.written("stdout"), self.written("stderr")

    def written(self, name: str) -> str:
        """Return what it has written to stdout or stderr so far."""
        file = Path(self._folder.name, name) if self._folder else None
        return file.read_text(encoding="utf-8") if file and file.exists() else ""


def run(
    command: Sequence[str],
    *,
    cwd: str | Path | None = None,
    env: dict[str, str] | None = None,
    check: bool = False,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with its output captured."""
    process = Popen(command, cwd=cwd, env=env, capture=True)
    try:
        done = subprocess.CompletedProcess(process.args, process.wait(timeout), *process.communicate())
    except BaseException:
        process.kill()
        raise
    if check:
        done.check_returncode()
    return done


def _execute(arguments: list[str], folder: str, environment: dict[str, str], outputs: list[str]) -> None:
    """Do in the forked process what a new interpreter does with these arguments."""
    gc.freeze()  # what the server has imported stays, and its pages remain shared
    for number, path in enumerate(outputs, start=1):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # the folder of this environment
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    kind, *rest = arguments
    if kind == "-m":
        sys.path.insert(0, folder)
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.path.insert(0, str(Path(kind).parent))
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")
