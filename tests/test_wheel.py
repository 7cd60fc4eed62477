"""The package as users install it: a wheel with kernels, and an installation without a compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("src", "papers", "pyproject.toml", "setup.py", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
NO_COMPILER = {"CC": "false", "CXX": "false"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs the sources"),
    pytest.mark.xdist_group("wheel"),
]


def build_wheel(folder: Path, **environment: str) -> Path:
    """Return a wheel of the sources without anything that was built in place."""
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source)
    command = [
        *PIP,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        str(folder),
        str(source),
    ]
    subprocess.run(command, check=True, env=os.environ | environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


def run_digits(wheel: Path, folder: Path) -> tuple[str, str]:
    """Install a wheel without a compiler beside the packages of this environment; return what trained, and stderr."""
    site = folder / "site"
    install = [*PIP, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, env=os.environ | NO_COMPILER)
    environment = {name: value for name, value in os.environ.items() if name != "FEDARENA_KERNELS"}
    environment |= NO_COMPILER | {"PYTHONPATH": str(site), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "fedarena", "run", "digits", "--set", "rounds=1", "--out", "run", "--json"]
    found = subprocess.run(command, check=True, env=environment, cwd=folder, capture_output=True, text=True)
    where = [sys.executable, "-c", "import fedarena; print(fedarena.__file__)"]
    imported = subprocess.run(where, check=True, env=environment, cwd=folder, capture_output=True, text=True).stdout
    assert Path(imported.strip()).is_relative_to(site)
    assert json.loads(found.stdout)["rounds"] == 1
    return json.loads((folder / "run" / "versions.json").read_text())["path"], found.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler to build the wheel")
def test_a_wheel_brings_its_kernels(tmp_path: Path) -> None:
    from fedarena.models.compiled import library

    if library() is None:
        pytest.skip("this processor has no kernels")
    path, messages = run_digits(build_wheel(tmp_path, FEDARENA_KERNEL_BUILDS="best"), tmp_path)
    assert path.startswith("compiled")
    assert "no compiled kernels" not in messages


def test_without_a_compiler_it_installs_and_says_once_what_is_slower(tmp_path: Path) -> None:
    path, messages = run_digits(build_wheel(tmp_path, **NO_COMPILER), tmp_path)
    assert not path.startswith("compiled")
    assert messages.count("no compiled kernels, so networks train several times slower") == 1
