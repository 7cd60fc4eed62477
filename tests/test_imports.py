"""Imports point one way, and importing is quick."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fedarena

SOURCE = Path(fedarena.__file__).parent
# A folder imports from itself and from those before it, inside functions too.
LAYERS = [
    "config",
    "common",
    "statistics",
    "data",
    "trees",
    "models",
    "algorithms",
    "selection_rules",
    "attacks",
    "privacy",
    "engine",
    "runtimes",
    "results",
    "integrations",
    "reports",
    "experiments",
    "transport",
    "federation",
    "vertical",
    "reproduction",
    "api",
    "flower",
    "bench",
    "ui",
    "cli",
    "__main__",
]
VERTICAL_MAY_USE = {"config", "common", "data", "trees", "transport", "vertical", "statistics"}  # independent of the engine


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of fedarena that a file imports anywhere, except for types alone."""

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.ImportFrom) and child.module and child.module.split(".")[0] == "fedarena":
                base = child.module.removeprefix("fedarena").lstrip(".")
                for alias in child.names:
                    full = f"{base}.{alias.name}".lstrip(".")
                    yield full if full in MODULES else base
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    if alias.name.split(".")[0] == "fedarena":
                        yield alias.name.removeprefix("fedarena").lstrip(".")
            yield from walk(child)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_point_downwards_only(name: str) -> None:
    home = name.split(".")[0]
    for target in imported(MODULES[name]):
        layer = target.split(".")[0]
        if layer:
            assert LAYERS.index(layer) <= LAYERS.index(home), f"{name} imports {target}"
            assert home != "vertical" or layer in VERTICAL_MAY_USE, f"{name} imports {target}"


@pytest.mark.slow
def test_no_module_imports_itself_by_way_of_others() -> None:
    """Not even inside functions: `TopologicalSorter` raises an error that names the modules of a cycle."""
    TopologicalSorter({name: {*imported(path)} - {name, ""} for name, path in MODULES.items() if name}).prepare()


@pytest.mark.slow
def test_messages_of_a_federation_do_not_depend_on_flower() -> None:
    """Only the Flower link imports Flower."""
    code = "import sys, fedarena.federation.api; print('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_import_is_light() -> None:
    """No torch, pandas, pyarrow, matplotlib or scikit-learn before they are used."""
    code = "import sys, fedarena; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "pandas", "pyarrow", "matplotlib", "sklearn", "scipy", "pydantic"} & set(eval(loaded))


def test_help_is_quick() -> None:
    """The command line imports what a command needs when it runs."""
    code = "import sys, fedarena.cli.main; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "numpy", "pandas", "pyarrow", "matplotlib", "sklearn", "scipy", "pydantic"} & set(eval(loaded))


@pytest.mark.slow
def test_listing_algorithms_does_not_load_torch() -> None:
    code = (
        "import sys; from fedarena.config.registry import components; assert 'fedavg' in components('algorithm');"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_every_public_name_is_there() -> None:
    for name in fedarena.__all__:
        assert getattr(fedarena, name) is not None


def test_the_table_of_names_and_the_imports_for_types_agree() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {a.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert typed == {name: f"fedarena.{module}" for name, module in fedarena._MODULES.items()}
    assert sorted(fedarena.__all__) == sorted(typed)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = fedarena.nothing_of_the_kind


HEAVY = ("sklearn", "pandas", "scipy", "pyarrow", "matplotlib", "jinja2", "ray", "flwr", "grpc")


@pytest.mark.slow
def test_a_run_imports_no_library_before_it_needs_it() -> None:
    """A run without a folder needs none of these; a run folder has a Parquet file."""
    code = f"""
import sys
import fedarena as fa
fa.run("digits", rounds=1, clients=2, out=False)
print([name for name in {HEAVY} if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
