"""The contract of every component, as `fedarena check NAME` tests it on built-in components and on those of users.

Each check yields the statements that hold, and raises `ContractBroken` with the first that does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.config.errors import BadValue, ContractBroken, FedarenaError, check_known, quoted
from fedarena.config.registry import Kind, components, find, load_file
from fedarena.data.partitions.checks import check_partition as check_split
from fedarena.data.partitions.checks import require

if TYPE_CHECKING:
    from fedarena.results.run import Run

EXAMPLE_INPUTS: tuple[
    tuple[tuple[int, ...], bool], ...
] = (  # shapes that a model may accept, and whether they are texts
    ((1, 28, 28), False),
    ((3, 32, 32), False),
    ((3, 24, 24), False),
    ((12,), False),
    ((12,), True),
)


def check_component(name: str, file: Path | None = None) -> dict[str, Any]:
    """Find the components of this name, of any kind, and check each. `file` is a Python file that registers it."""
    if file is not None:
        load_file(file)
    kinds = [kind for kind in CHECKS if name in components(kind)]
    more = "give --file FILE.py if it is yours; `fedarena list` shows what is known"
    check_known(
        name, [n for kind in CHECKS for n in components(kind)], f"no component is called '{quoted(name)}'", more
    )
    held: list[str] = []
    broken: list[str] = []
    for kind in kinds:
        try:
            held.extend(f"{kind}: {statement}" for statement in CHECKS[kind](name))
        except BadValue:  # it cannot be checked without settings, which is a mistake of the user
            raise
        except ContractBroken as error:
            broken.append(f"{kind}: {error.what}")
        except Exception as error:
            what = error.what if isinstance(error, FedarenaError) else str(error)
            broken.append(f"{kind}: {type(error).__name__}: {what}")
    return {"name": name, "held": held, "broken": broken}


def check_algorithm(name: str) -> Iterator[str]:
    """Check an algorithm on a small federation with partial participation and dropouts."""
    from fedarena.config.experiment import Experiment
    from fedarena.engine.setup import open_context
    from fedarena.experiments.run import run

    settings: dict[str, Any] = {
        "data": "digits", "model": "logreg", "clients": 5, "share": 0.6, "rounds": 4, "dropouts": 0.2,
        "partition": "iid", "algorithm": name, "local": {"lr": 0.05, "epochs": 1, "batch": 32},
    }  # fmt: skip
    try:
        open_context(Experiment.make(settings))
    except BadValue as error:
        if error.where != "model":
            raise
        settings["model"] = "mlp_2nn"  # it needs a network
    first = run(settings, out=False, runtime="serial")
    require(bool(np.isfinite(first.final.loss or 0.0)), "its loss is not finite on an easy problem")
    yield "trains on digits with its default settings"
    yield from _check_reproducible(settings, first)
    one = run(settings, out=False, runtime="serial", rounds=1, dropouts=1 - 1e-12)
    two = run(settings, out=False, runtime="serial", rounds=2, dropouts=1 - 1e-12)
    if one.records[-1].answered == 0:
        require(one.weights_sha256 == two.weights_sha256, "a round without answers changes the model")
        yield "a round without answers changes nothing"


def _check_reproducible(settings: dict[str, Any], first: Run) -> Iterator[str]:
    """Yield the statements about the bits of a run: with two workers, and stopped and resumed."""
    from fedarena.experiments.run import run

    second = run(settings, out=False, runtime="processes", workers=2)
    require(first.weights_sha256 == second.weights_sha256, "two workers give other bits than one process")
    yield "gives the same bits in one process and with two workers"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        run(settings, out=path, runtime="serial", on_round=lambda r: r.round == 2)
        resumed = run(settings, resume=path, runtime="serial")
    require(
        resumed.weights_sha256 == first.weights_sha256, "stopped after round 2 and resumed, it ends with other bits"
    )
    yield "stopped and resumed, it ends with the same bits"


def check_selection_rule(name: str) -> Iterator[str]:
    """Check a selection rule with FedAvg on a small federation: the right number of clients, and the same bits."""
    from fedarena.experiments.run import run

    settings: dict[str, Any] = {
        "data": "digits", "model": "logreg", "clients": 8, "share": 0.4, "rounds": 4, "dropouts": 0.1, "select": name,
        "algorithm": "fedavg", "local": {"lr": 0.05, "epochs": 1, "batch": 32},
    }  # fmt: skip
    first = run(settings, out=False, runtime="serial")
    require(all(record.selected == 3 for record in first.records), "a round does not have as many clients as it should")
    yield "selects as many clients as a round has"
    yield from _check_reproducible(settings, first)


def check_attack(name: str) -> Iterator[str]:
    """Check an attack by two of five clients on a small federation."""
    from fedarena.experiments.run import run

    settings: dict[str, Any] = {
        "data": "digits", "model": "logreg", "clients": 5, "rounds": 3, "partition": "iid", "algorithm": "fedavg",
        "local": {"lr": 0.05, "epochs": 1, "batch": 32}, "attack": {"name": name, "share": 0.4},
    }  # fmt: skip
    first = run(settings, out=False, runtime="serial")
    plain = run(settings, out=False, runtime="serial", attack={"share": 0})
    require(first.weights_sha256 != plain.weights_sha256, "two attackers change nothing")
    yield "changes the model with two attackers of five clients"
    none = run({key: value for key, value in settings.items() if key != "attack"}, out=False, runtime="serial")
    require(plain.weights_sha256 == none.weights_sha256, "without attackers it changes the model")
    yield "without attackers it gives the bits of the run without an attack"
    yield from _check_reproducible(settings, first)


def check_partition(name: str) -> Iterator[str]:
    """Check the invariants of every partition."""
    yield from check_split(find("partition", name).build({}))


def check_model(name: str) -> Iterator[str]:
    """Check a model on images, or on tables or texts if it does not accept images."""
    import torch

    from fedarena.config.errors import ModelMismatch
    from fedarena.models.building import build

    make = find("model", name).build({})
    for shape, is_text in EXAMPLE_INPUTS:
        try:
            task = build(make, shape, 10, seed=1, is_text=is_text)
            break
        except ModelMismatch as error:
            problem = error
    else:
        raise problem
    yield f"takes rows of shape {shape} and gives ten classes; {task.size} parameters, {task.path} path"
    again = build(make, shape, 10, seed=1, is_text=is_text)
    require(np.array_equal(task.vector(), again.vector()), "the same seed gives other initial weights")
    yield "the same seed gives the same weights"
    w = np.random.default_rng(0).standard_normal(task.size).astype(task.vector_dtype)
    start = task.vector()
    task.load(w)
    require(np.array_equal(task.vector(), w), "a vector that is loaded differs when read back")
    task.load(start)
    yield "parameters and flat vector are one and the same"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.randint(0, 10, (8, *shape)) if is_text else torch.rand(8, *shape)
        y = torch.randint(0, 10, (8, *shape)) if is_text else torch.randint(0, 10, (8,))
        losses = [task.accumulate(task.batch_layout(x), y, task.weights, -0.01) for _ in range(20)]
    require(
        bool(losses[-1] < losses[0]),
        f"twenty steps on one batch do not lower the loss ({losses[0]:.3f} to {losses[-1]:.3f})",
    )
    yield "steps of SGD lower the loss"


def check_dataset(name: str) -> Iterator[str]:
    """Check the samples, labels and defaults of a data set."""
    from fedarena.config.experiment import Experiment

    entry = find("dataset", name)
    if any(p.is_required for p in entry.parameters.values()):
        raise BadValue(
            f"'{name}' needs settings of its own", remedy="check it through an experiment: `fedarena data show`"
        )
    source = entry.build({})
    data, again = source.load(0), source.load(0)
    require(data.fingerprint() == again.fingerprint(), "two loads give other rows")
    yield "loads the same rows every time"
    labels = data.y[data.y >= 0]
    require(len(data.x) == len(data.y), "rows and labels differ in number")
    require(0 < data.n_train < len(data.x), "there must be training rows and test rows")
    require(bool(labels.max() < data.classes), "a label lies outside the classes")
    require(data.x.dtype.kind != "f" or bool(np.isfinite(data.x).all()), "a row is not finite")
    yield f"{data.n_train} training and {len(data.x) - data.n_train} test rows, {data.classes} classes"
    Experiment.make(name)
    yield "its defaults make a complete experiment"


CHECKS: dict[Kind, Callable[[str], Iterator[str]]] = {
    "algorithm": check_algorithm,
    "partition": check_partition,
    "model": check_model,
    "dataset": check_dataset,
    "selection": check_selection_rule,
    "attack": check_attack,
}
