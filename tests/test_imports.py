"""Imports go one way, and importing costs nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedarena

SOURCE = Path(fedarena.__file__).parent
SMALL = {"errors", "seeds", "registry", "component", "spec", "progress", "authority", "values", "formatting"}
ORDER = ["statistics", "data", "models", "algorithms", "engine", "runtime", "results", "arena", "federation"]
DOORS = {"api", "cli", "cli_federation", "cli_vertical", "bench", "contracts", "flower", "ui", "__main__", "__init__"}
VERTICAL = "vertical"  # stands beside the rest: it needs nothing of it but data, and only the doors need it
MAY_USE_VERTICAL = {"reproduction/cells.py"}  # papers have tables of both kinds
MAY_USE_DOORS = {"results/run.py"}  # `run.again()` goes back in through the front door


def place(module: str) -> str:
    """The folder or small file that a module of ours belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedarena":
            parts = node.module.split(".")
            names |= {f"fedarena.{a.name}" for a in node.names} if len(parts) == 1 else {node.module}
        elif isinstance(node, ast.Import):
            names |= {a.name for a in node.names if a.name.split(".")[0] == "fedarena"}
    return names


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_downwards_only(path: Path) -> None:
    relative = path.relative_to(SOURCE)
    home = relative.parts[0].removesuffix(".py")
    if home in DOORS:
        return
    for module in imported(path):
        target = place(module)
        if target in ("__init__", "__version__") or (target in DOORS and str(relative) in MAY_USE_DOORS):
            continue
        if home == "statistics":
            assert target in {"errors", "seeds", home}, f"{relative} imports {module}"
        elif home in SMALL:
            lazy = (home, target) == ("spec", "data")  # (x, y) given as rows: the one place where text meets arrays
            assert target in SMALL or lazy, f"{relative} imports {module}"
        elif home == VERTICAL:
            assert target in SMALL | {"data", VERTICAL}, f"{relative} imports {module}"
        else:
            beside = {VERTICAL} if str(relative) in MAY_USE_VERTICAL else set()
            allowed = SMALL | beside | set(ORDER[: ORDER.index(home) + 1])
            assert target in allowed, f"{relative} imports {module}"


def test_what_a_federation_says_does_not_depend_on_who_carries_it() -> None:
    """Flower is known to the link alone."""
    code = "import sys, fedarena.federation.api; print('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_import_is_light() -> None:
    """No torch, pandas, pyarrow, matplotlib or scikit-learn before they are used."""
    code = "import sys, fedarena; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "pandas", "pyarrow", "matplotlib", "sklearn", "scipy", "pydantic"} & set(eval(loaded))


def test_listing_algorithms_does_not_load_torch() -> None:
    code = (
        "import sys; from fedarena.config.registry import components; assert 'fedavg' in components('algorithm');"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_every_public_name_is_there() -> None:
    for name in fedarena.__all__:
        assert getattr(fedarena, name) is not None
    with pytest.raises(AttributeError):
        _ = fedarena.nothing_of_the_kind
