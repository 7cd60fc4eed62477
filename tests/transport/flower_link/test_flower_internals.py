"""Every name of Flower that fedarena uses is still there, and every undocumented one says why it is needed."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from fedarena.transport.flower_link import flower_internals

SOURCE = Path(flower_internals.__file__)
DOCUMENTED = "flwr.app"


def imported_names() -> list[tuple[str, str, int]]:
    """Return module, name and line of everything that is imported from Flower, inside functions too."""
    found = []
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flwr"):
            found += [(node.module or "", alias.name, alias.lineno) for alias in node.names]
    return found


@pytest.mark.slow
def test_every_name_of_flower_is_still_there() -> None:
    for module, name, _ in imported_names():
        try:
            getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            pytest.fail(f"Flower no longer has {module}.{name}")


def test_names_of_flower_are_imported_in_one_file_only() -> None:
    others = [path for path in SOURCE.parents[1].rglob("*.py") if path != SOURCE and "import" in path.read_text()]
    assert len(others) > 10
    assert not [path.name for path in others if "from flwr" in path.read_text() or "import flwr" in path.read_text()]


def test_every_undocumented_name_has_a_reason() -> None:
    """A comment on the line of the name, or on the line of the name before it where one reason covers both."""
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    without = [
        name
        for module, name, line in imported_names()
        if module != DOCUMENTED and "#" not in lines[line - 1] + lines[line - 2]
    ]
    assert not without
