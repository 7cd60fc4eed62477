"""Shared memory and temporary folders of a killed process are removed by the next command; those of living ones stay."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedarena as fa
from fedarena.runtimes.cleanup import SHARED_MEMORY, owned_name, remove_leftovers, temporary_folder

pytestmark = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="shared memory has no files here")

# A run that waits after its second round: its segments are there, and so is its temporary folder.
WAITING = """
import sys, time
import fedarena as fa
fa.run("digits", rounds=9, out=False, workers=2, model="logreg", partition="iid",
       on_round=lambda record: record.round == 2 and (print("waiting", flush=True), time.sleep(600)))
"""
UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder for temporary files, also in processes that a test starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


class Waiting:
    """A process group in the middle of a run."""

    def __init__(self, before: list[str] | None = None) -> None:
        command = [*(before or []), sys.executable, "-c", WAITING]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "waiting\n"

    @property
    def segments(self) -> set[Path]:
        """Return the shared memory that its processes use."""
        found = set()
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with contextlib.suppress(OSError):  # a process that has just ended
                if os.getpgid(int(maps.parent.name)) == self.process.pid:
                    found |= {Path(line.split()[5]) for line in maps.read_text().splitlines() if _is_segment(line)}
        return found

    def kill(self) -> None:
        """Kill all of its processes at once: none of them can clean up."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def _is_segment(line: str) -> bool:
    return "/dev/shm/" in line and not line.endswith("(deleted)")  # one that has grown was removed under its old name


def there(paths: set[Path]) -> set[Path]:
    """Return those of the paths that exist."""
    return {path for path in paths if os.path.lexists(path)}


@pytest.fixture
def living(temporary: Path) -> Iterator[tuple[set[Path], set[Path]]]:
    """Return the segments and the temporary folder of a run that continues."""
    waiting = Waiting()
    yield waiting.segments, set(temporary.iterdir())
    waiting.kill()
    remove_leftovers()


def run_command(folder: Path) -> None:
    command = ["run", "digits", "--set", "rounds=1", "--set", "model=logreg", "--workers", "2", "--out", "r", "-q"]
    subprocess.run([sys.executable, "-m", "fedarena", *command], cwd=folder, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_the_next_command_removes_what_a_killed_group_left_and_nothing_of_the_living(
    living: tuple[set[Path], set[Path]], temporary: Path, tmp_path: Path
) -> None:
    living_segments, living_folders = living
    assert living_segments
    assert living_folders
    waiting = Waiting()
    segments, folders = waiting.segments, set(temporary.iterdir()) - living_folders
    waiting.kill()
    assert segments
    assert folders
    assert there(segments | folders) == segments | folders  # none of its processes could remove them
    run_command(tmp_path)
    assert not there(segments | folders)
    assert there(living_segments | living_folders) == living_segments | living_folders


@pytest.mark.slow
def test_a_comparison_removes_them_too(temporary: Path) -> None:
    waiting = Waiting()
    segments = waiting.segments
    waiting.kill()
    fa.compare("digits", ["fedavg", "fedsgd"], seeds=2, rounds=1, model="logreg", workers=1, out=False, baseline=False)
    assert segments
    assert not there(segments)
    assert not any(temporary.iterdir())


def name_of(pid: int, start: int | None = None, scope: str | None = None) -> str:
    """Return a segment name as a process of this number would give it."""
    name = owned_name()
    assert name is not None
    _, own_scope, _, own_start, _ = name.split("-")
    return f"fedarena-{scope or own_scope}-{pid}-{own_start if start is None else start}-{secrets.token_hex(8)}"


@pytest.fixture
def dead() -> int:
    """Return the id of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def survives(name: str, make: Any = Path.touch) -> bool:
    """Report whether something of this name outlives the removal of what dead processes left."""
    path = SHARED_MEMORY / name
    make(path)
    try:
        remove_leftovers()
        return os.path.lexists(path)
    finally:
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)


def test_a_segment_outlives_its_owner_only_until_the_next_start(dead: int) -> None:
    assert not survives(name_of(dead))
    assert survives(name_of(os.getpid()))
    assert not survives(name_of(os.getpid(), start=1))  # the number of an earlier process, used again


def test_a_process_that_waits_for_its_parent_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    start = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    assert survives(name_of(child.pid, start))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert not survives(name_of(child.pid, start))
    finally:
        child.communicate()


def test_an_owner_in_another_namespace_is_never_judged(dead: int) -> None:
    assert survives(name_of(dead, scope="0123456789abcdef"))


def test_what_does_not_carry_the_name_of_an_owner_stays(dead: int) -> None:
    name = name_of(dead)
    for other in (f"psm_{name}", f"{name}.txt", f"x{name}", "fedarena-mine", name.replace("-", "_")):
        assert survives(other)


def test_a_folder_or_a_link_in_shared_memory_stays(dead: int, tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    assert survives(name_of(dead), Path.mkdir)
    assert survives(name_of(dead), lambda path: path.symlink_to(tmp_path / "kept"))
    assert (tmp_path / "kept").exists()


def test_a_link_in_the_temporary_folder_is_not_followed(dead: int, temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (temporary / name_of(dead)).symlink_to(tmp_path / "kept")
    (temporary / name_of(dead)).touch()
    (temporary / name_of(dead)).mkdir()
    remove_leftovers()
    assert len(list(temporary.iterdir())) == 2
    assert (tmp_path / "kept" / "file").exists()


def test_a_temporary_folder_goes_with_its_block(temporary: Path) -> None:
    with temporary_folder() as folder:
        (folder / "file").touch()
        assert folder.parent == temporary
    assert not any(temporary.iterdir())


def may_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not may_unshare(), reason="this system allows no namespaces")
def test_a_run_in_another_pid_namespace_keeps_its_segments(temporary: Path) -> None:
    waiting = Waiting(UNSHARE)
    segments = waiting.segments
    try:
        assert segments
        remove_leftovers()
        assert there(segments) == segments
        assert any(temporary.iterdir())
    finally:
        waiting.kill()
        for path in segments:
            path.unlink()
