"""Measure how often the verdict of `fedarena compare` is right: coverage, wrong decisions and power on real federations.

    python benchmarks/calibration.py run --out calibration --workers 2     # resumable; 150,246 runs of about 50 ms
    python benchmarks/calibration.py judge calibration                     # writes results/calibration.{npz,json}
    python benchmarks/calibration_page.py                                  # writes the tables of docs/trust.md again

Every setting is compared again and again with the defaults of `compare`, each time with another seed: once as 3 x 5 folds,
whose first repeat is also judged alone, and once as 10 random divisions. Each comparison has real alternatives and a null:
FedAvg against a second FedAvg that shares the test samples and the partition, with its own initial weights, client schedule
and batch order. The true difference of a pair is the mean over further splits, one per seed, that no comparison uses;
the true difference of the null is 0.

`judge` needs no training: it reads the scores of all runs, which are committed as results/calibration.npz.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from simulated_scores import suite_coverage

from fedarena.statistics.bayes import posterior, verdict
from fedarena.statistics.joint import rank
from fedarena.statistics.sequential import FIRST_LOOK, look

HERE = Path(__file__).parent
RESULTS = HERE / "results"
FOLDS, REPEATS, SEEDS = 5, 3, 10
COMPARISONS = 200  # of every setting, as folds and as seeds; the first repeats of the folds are judged as well
TRUTH = 200  # further splits for the true difference, of every setting and way to split
FIRST_TRUTH_SEED = 1_000_000
COPIES, COPY_COMPARISONS = 15, 40
ROPE, LEVEL, INTERVAL = 0.01, 0.95, 0.9
MOST_REPEATS = 10  # of a comparison that stops when it is decided
REGROUPED = 200  # comparisons that are put together from all repeats of a setting, to see stopping rules
Array = NDArray[np.float64]


# What is compared


def small_cnn() -> Any:
    """Return a convolutional network of 3,098 parameters for images of 28 x 28 pixels."""
    from torch import nn

    return nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))


def small_mnist() -> tuple[Any, Any]:
    """Return the first 600 training images of MNIST, scaled to [0, 1], and their labels."""
    from fedarena.data import published_files

    arrays = published_files.load_published("mnist")
    return arrays["x_train"][:600, None].astype(np.float32) / 255, arrays["y_train"][:600].astype(np.int64)


@dataclass(frozen=True)
class Setting:
    """A federation, its training, and the algorithms that are compared on it; the first one is also the null."""

    name: str
    title: str
    source: Callable[[], Any]
    samples: int  # of all clients, training and test
    keys: dict[str, Any]
    algorithms: tuple[str, ...] = ("fedavg", "fednova", "fedprox:mu=1")
    model: Callable[[], Any] | str = "logreg"
    copies: bool = False  # whether many copies of one algorithm are compared as well
    shared: bool = False  # whether the earlier way to split is judged as well
    local: bool = False  # whether local training is judged as well, on clients' own test samples

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the scores of a split: the algorithms, and the second run of the first one."""
        return (*self.algorithms, "copy")

    def plan(self, seed: int, **splits: Any) -> Any:
        """Return the plan that `fedarena compare` makes of this setting and seed."""
        from fedarena.experiments.run_comparison import make_plan

        keys = {**self.keys, "evaluate": {"every": self.keys["rounds"]}}  # the final score is all that counts
        return make_plan(self.source(), self.algorithms, baseline=False, model=self.model, seed=seed, **keys, **splits)


DIGITS: dict[str, Any] = {
    "clients": 10,
    "partition": {"name": "label_dirichlet", "beta": 0.3},
    "rounds": 8,
    "local": {"lr": 0.3},
}
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "digits-dirichlet",
            "digits, Dirichlet 0.3, all clients",
            lambda: "digits",
            1797,
            DIGITS,
            shared=True,
            local=True,
        ),
        Setting(
            "digits-sampled",
            "digits, Dirichlet 0.3, 30 % of the clients a round",
            lambda: "digits",
            1797,
            {**DIGITS, "per_round": 3},
            copies=True,
        ),
        Setting(
            "digits-iid",
            "digits, iid, 5 clients",
            lambda: "digits",
            1797,
            {**DIGITS, "clients": 5, "rounds": 5, "partition": "iid"},
        ),
        # The printed table was made before tables were encoded for each split, and is repeated in that form.
        Setting(
            "breast-cancer",
            "breast cancer, Dirichlet 0.5",
            lambda: {"data": {"name": "breast_cancer", "fitted_on": "file"}},
            569,
            {
                "clients": 5,
                "partition": {"name": "label_dirichlet", "beta": 0.5},
                "rounds": 8,
                "local": {"lr": 0.1},
            },
        ),
        Setting(
            "heart-disease",
            "heart disease, four hospitals",
            lambda: {"data": {"name": "heart_disease", "fitted_on": "file"}},
            920,
            {"partition": "natural", "rounds": 8, "local": {"lr": 0.1}},
            copies=True,
            local=True,
        ),
        Setting(
            "mnist-cnn",
            "600 MNIST images, CNN, Dirichlet 1",
            functools.cache(small_mnist),
            600,
            {
                "clients": 5,
                "partition": {"name": "label_dirichlet", "beta": 1.0},
                "rounds": 4,
                "local": {"lr": 0.2, "batch": 10, "epochs": 1},
            },
            model=small_cnn,
        ),
    )
}


# Running


class Unit(NamedTuple):
    """A piece of work that is saved as a whole: one comparison, or one block of splits for the truth."""

    setting: str
    kind: str  # folds, seeds, copies, shared or local; truth-folds, truth-seeds or truth-local
    index: int


BLOCK = 20  # splits of the truth in one unit


def units(comparisons: int, truth: int, copy_comparisons: int, names: list[str]) -> Iterator[Unit]:
    """Yield all work, a twentieth of every setting at a time: what is there after a stop is a smaller study."""
    for part in range(20):
        for name in names:
            setting, blocks = SETTINGS[name], math.ceil(truth / BLOCK)
            counts = {"folds": comparisons, "seeds": comparisons, "truth-folds": blocks, "truth-seeds": blocks}
            counts["copies"] = copy_comparisons if setting.copies else 0
            counts["shared"] = comparisons if setting.shared else 0
            counts |= {"local": comparisons, "truth-local": blocks} if setting.local else {}
            for kind, count in counts.items():
                for index in range(part, count, 20):
                    yield Unit(name, kind, index)


def scores_of(unit: Unit) -> list[Any]:
    """Return splits x columns of final accuracies."""
    from fedarena.config.comparison_plan import Split

    setting = SETTINGS[unit.setting]
    folds: dict[str, Any] = {"folds": FOLDS, "repeats": REPEATS}
    if unit.kind in ("folds", "seeds"):
        plan = setting.plan(unit.index, **(folds if unit.kind == "folds" else {"seeds": SEEDS}))
        return [split_scores(plan, split, setting.algorithms) for split in plan.splits]
    if unit.kind == "shared":  # as version 0.2 split: the folds of a repeat share partition, start and schedule
        plan = replace(setting.plan(unit.index, folds=FOLDS), protocol="shared")
        return [split_scores(plan, split, setting.algorithms) for split in plan.splits]
    if unit.kind == "copies":
        plan = setting.plan(unit.index, folds=FOLDS)
        first = setting.algorithms[0]
        cells = [plan.cell(first, split) for split in plan.splits]
        return [final_accuracies([copied(cell, k) for k in range(COPIES)]) for cell in cells]
    if unit.kind == "local":
        plan = setting.plan(unit.index, **folds)
        return [own_accuracies(plan, split, setting.algorithms[0]) for split in plan.splits]
    found = []
    for i in range(unit.index * BLOCK, (unit.index + 1) * BLOCK):
        seed = FIRST_TRUTH_SEED + i
        if unit.kind == "truth-seeds":
            plan, split = setting.plan(seed, seeds=2), Split(0)
        else:
            plan, split = setting.plan(seed, **folds), Split(0, i % FOLDS)
        if unit.kind == "truth-local":
            found.append(own_accuracies(plan, split, setting.algorithms[0]))
            continue
        found.append(final_accuracies([plan.cell(label, split) for label in setting.algorithms]))
    return found


def split_scores(plan: Any, split: Any, algorithms: tuple[str, ...]) -> list[float]:
    """Return the scores of all algorithms on one split, and of a second run of the first one."""
    cells = [plan.cell(label, split) for label in algorithms]
    return final_accuracies([*cells, copied(cells[0], 1)])


def copied(cell: Any, k: int) -> Any:
    """Return the same experiment on the same samples and partition, with the k-th start, schedule and batch order."""
    from fedarena.config.seeds import derived_seed

    return cell if k == 0 else cell.with_(seed=derived_seed(cell.seed, "copy", k), partition_seed=cell.seed)


def final_accuracies(experiments: list[Any]) -> list[float]:
    """Return the final accuracy on common test samples of experiments that share samples and partition."""
    from fedarena.engine.async_loop import open_loop
    from fedarena.engine.checkpoint import CheckpointStore
    from fedarena.engine.context import ExperimentContext
    from fedarena.engine.setup import build_model_and_algorithm, partition_data
    from fedarena.runtimes.serial import SerialRuntime

    data, partition = partition_data(experiments[0])
    found = []
    for experiment in experiments:
        site = build_model_and_algorithm(ExperimentContext(experiment, data, partition))
        with tempfile.TemporaryDirectory() as folder:
            keeper = CheckpointStore(Path(folder), site.algorithm, False, False)
            *_, last = open_loop(site, SerialRuntime(site), keeper).rounds()
        found.append(last.accuracy)
    return found


def own_accuracies(plan: Any, split: Any, algorithm: str) -> list[float]:
    """Return the final accuracies of an algorithm and of local training on clients' own test samples."""
    from fedarena.experiments.run import run
    from fedarena.results.scoring import Scoring

    cell = plan.cell(algorithm, split)
    scoring = Scoring("final", "accuracy", "own")
    runs = [run(experiment, out=False, runtime="serial") for experiment in (cell, cell.with_(algorithm="local"))]
    return [scoring.value(found) for found in runs]


def run_study(out: Path, todo: list[Unit], workers: int) -> None:
    """Run every unit that the folder does not hold yet; a stop loses at most the units under way."""
    out.mkdir(parents=True, exist_ok=True)
    done = {unit for unit, _ in saved(out)}
    todo = [unit for unit in todo if unit not in done]
    print(f"{len(done)} units are there, {len(todo)} are left", file=sys.stderr)
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, initializer=start_worker) as pool:
        for count, (unit, scores) in enumerate(pool.imap_unordered(work, todo), 1):
            with (out / f"{unit.setting}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": unit.kind, "index": unit.index, "scores": scores}) + "\n")
            if count % 20 == 0:
                print(f"{count} of {len(todo)}", file=sys.stderr, flush=True)


def start_worker() -> None:
    """Leave Ctrl-C to the parent, and the other cores to other workers."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    os.nice(10)


def work(unit: Unit) -> tuple[Unit, list[Any]]:
    """Return a unit with its scores, from a worker process."""
    return unit, scores_of(unit)


def saved(out: Path) -> Iterator[tuple[Unit, list[Any]]]:
    """Yield the units of a folder; a line that a kill cut short is left out."""
    for name in SETTINGS:
        path = out / f"{name}.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                continue
            yield Unit(name, found["kind"], found["index"]), found["scores"]


# Judging


def gathered(out: Path) -> dict[str, Array]:
    """Return the scores of a folder as arrays, units in order: setting/kind -> units x splits x columns."""
    found: dict[str, dict[int, list[Any]]] = {}
    for unit, scores in saved(out):
        found.setdefault(f"{unit.setting}/{unit.kind}", {})[unit.index] = scores
    arrays = {key: np.array([block[i] for i in sorted(block)], dtype=np.float64) for key, block in found.items()}
    for name in {key.split("/")[0] for key in found}:
        arrays[f"{name}/rho-seeds"] = np.array(SETTINGS[name].plan(0, seeds=2).rho)
    return arrays


class Truth(NamedTuple):
    """The true mean difference of a pair, and the standard error with which it is known."""

    mean: float
    error: float


def true_difference(truth: Array, a: int, b: int) -> Truth:
    """Return the mean of column b minus column a over independent splits."""
    d = truth[:, b] - truth[:, a]
    return Truth(float(d.mean()), float(d.std(ddof=1) / math.sqrt(len(d))))


def is_wrong(sign: str, truth: Truth, rope: float = ROPE) -> bool:
    """Return whether the region of a sign excludes the truth by more than two of its standard errors.

    >>> [is_wrong(sign, Truth(0.0, 0.0)) for sign in "+=-?"]
    [True, False, True, False]
    >>> is_wrong("=", Truth(0.03, 0.005)), is_wrong("=", Truth(0.018, 0.005))
    (True, False)
    """
    margin = 2 * truth.error
    wrong = {
        "+": truth.mean + margin < rope,
        "-": truth.mean - margin > -rope,
        "=": abs(truth.mean) - margin > rope,
    }
    return wrong.get(sign, False)


def wilson(hits: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson interval of a share (95 %).

    >>> tuple(round(x, 4) for x in wilson(10, 100))  # Wilson 1927
    (0.0552, 0.1744)
    """
    if n == 0:
        return 0.0, 1.0
    centre, spread = hits / n + z * z / (2 * n), z * math.sqrt(hits / n * (1 - hits / n) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


def judged_pair(a: Array, b: Array, rho: float, truth: Truth, samples: float = math.inf) -> dict[str, Any]:
    """Return how often comparisons x splits of scores lead to intervals and verdicts that are right about b - a."""
    covered, signs = 0, []
    for x, y in zip(a, b, strict=True):
        known = posterior(x, y, rho, samples)
        low, high = known.interval(INTERVAL)
        covered += low <= truth.mean <= high
        left, equal, right = known.regions(ROPE)
        signs.append(verdict(right, equal, left, LEVEL))
    wrong = sum(is_wrong(sign, truth) for sign in signs)
    decided = sum(sign != "?" for sign in signs)
    return {
        "truth": truth.mean,
        "truth_error": truth.error,
        "comparisons": len(signs),
        "coverage": covered / len(signs),
        "decided": decided,
        "wrong": wrong,
        "wrong_lower_bound": wilson(wrong, len(signs))[0],
        "signs": {sign: signs.count(sign) for sign in "+=-?"},
        "contradictions": min(signs.count("+"), signs.count("-")),
        "contradictions_of_40": min(signs[:40].count("+"), signs[:40].count("-")),
    }


def judged_setting(setting: Setting, scores: dict[str, Array]) -> dict[str, Any]:
    """Return the figures of one setting, for every number of splits."""

    def of(kind: str) -> Array:
        return scores[f"{setting.name}/{kind}"]

    def truth_of(kind: str) -> Array:
        return np.concatenate([*of(f"truth-{kind}")])

    folds, rho = of("folds"), 1 / FOLDS
    schemes = {
        "1x5 folds": (folds[:, :FOLDS], truth_of("folds"), rho),
        "3x5 folds": (folds, truth_of("folds"), rho),
        "10 seeds": (of("seeds"), truth_of("seeds"), float(of("rho-seeds"))),
    }
    if setting.shared:
        schemes["1x5 folds, shared"] = (of("shared"), truth_of("folds"), rho)
    found: dict[str, Any] = {"title": setting.title}
    for scheme, (x, truth, correlation) in schemes.items():
        pairs, samples = {}, int(correlation * setting.samples)
        for b in range(1, len(setting.algorithms)):
            for a in range(b):
                names = f"{setting.algorithms[b]} - {setting.algorithms[a]}"
                known = true_difference(truth, a, b)
                pairs[names] = judged_pair(x[:, :, a], x[:, :, b], correlation, known, samples)
        pairs["null"] = judged_pair(x[:, :, 0], x[:, :, -1], correlation, Truth(0.0, 0.0), samples)
        found[scheme] = {"pairs": pairs, "leaders": leaders(setting, x, truth, correlation)}
    if setting.local:
        x, truth = of("local"), true_difference(truth_of("local"), 0, 1)
        for scheme, part in (("1x5 folds", x[:, :FOLDS]), ("3x5 folds", x)):
            found[scheme]["pairs"]["local - fedavg, own samples"] = judged_pair(
                part[:, :, 0], part[:, :, 1], rho, truth, int(rho * setting.samples)
            )
    found["until decided"] = until_decided(setting, folds, truth_of("folds"))
    if setting.copies:
        found["copies"] = copies(of("copies"))
    return found


def leaders(setting: Setting, x: Array, truth: Array, rho: float) -> dict[str, float]:
    """Return how often the named best choice is the best one, or within one rope of it."""
    means = truth.mean(axis=0)
    best, near = 0, 0
    for scores in x:
        found = rank(dict(zip(setting.algorithms, scores.T, strict=False)), rho, draws=2**12)
        gap = means.max() - means[setting.algorithms.index(next(iter(found.standings)))]
        best, near = best + (gap == 0), near + (gap <= ROPE)
    return {"best": best / len(x), "within_rope": near / len(x)}


def until_decided(setting: Setting, folds: Array, truth: Array) -> dict[str, Any]:
    """Return how often stopping when decided ends in a wrong decision.

    Repeats are independent whatever their comparison was, so comparisons of up to 10 repeats are put together from all
    repeats of a setting, at random.
    """
    repeats = folds.reshape(-1, FOLDS, folds.shape[-1])
    rng = np.random.default_rng(0)
    names = setting.algorithms
    pairs = {f"{names[b]} - {names[0]}": (b, true_difference(truth, 0, b)) for b in range(1, len(names))}
    pairs["null"] = (-1, Truth(0.0, 0.0))
    found = {}
    for name, (b, difference) in pairs.items():
        signs, ends = [], []
        for _ in range(REGROUPED):
            chosen = repeats[rng.choice(len(repeats), MOST_REPEATS, replace=False)].reshape(-1, folds.shape[-1])
            sign, end = stopped(chosen[:, 0], chosen[:, b])
            signs.append(sign)
            ends.append(end)
        wrong, decided = sum(ends_wrong(s, difference) for s in signs), sum(s != "?" for s in signs)
        found[name] = {
            "comparisons": len(signs),
            "decided": decided,
            "wrong": wrong,
            "wrong_lower_bound": wilson(wrong, len(signs))[0],
            "splits": float(np.mean(ends)),
        }
    return found


def stopped(a: Array, b: Array) -> tuple[str, int]:
    """Return how a comparison that adds repeats until it is decided ends (b > a, equal, b < a, undecided), and when."""
    for n in range(FIRST_LOOK, len(a) + 1, FOLDS):
        seen = look({"a": a[:n], "b": b[:n]}, 1 / FOLDS, rope=ROPE, threshold=LEVEL, draws=2**12)
        if seen.decided:
            return {("a",): "a", ("b",): "b"}.get(seen.best_set, "="), n
    return "?", len(a)


def ends_wrong(end: str, truth: Truth) -> bool:
    """Return whether the named best one is not the best one, or those called equal are more than one rope apart."""
    margin = 2 * truth.error
    return {"b": truth.mean + margin <= 0, "a": truth.mean - margin >= 0, "=": is_wrong("=", truth)}.get(end, False)


def copies(x: Array) -> dict[str, float]:
    """Return the largest P(best) that any of many copies of one algorithm got, over all comparisons."""
    largest = 0.0
    for scores in x:
        found = rank({f"copy {k:02}": column for k, column in enumerate(scores.T)}, 1 / FOLDS)
        largest = max(largest, *(standing.p_best for standing in found.standings.values()))
    return {"comparisons": len(x), "copies": x.shape[-1], "largest_p_best": largest}


def simulated_suites() -> list[dict[str, float]]:
    """Return the coverage of the hierarchical posterior on 500 simulated suites, for several shapes of a suite."""
    found = []
    for federations, tau in ((3, 0.01), (6, 0.01)):
        coverage = suite_coverage(500, federations=federations, tau=tau, level=INTERVAL)
        found.append({"size": federations, "tau": tau, **coverage._asdict()})
    return found


def judge(scores: dict[str, Array]) -> dict[str, Any]:
    """Return all figures of the study."""
    names = [name for name in SETTINGS if f"{name}/folds" in scores]
    settings = {name: judged_setting(SETTINGS[name], scores) for name in names}
    return {"settings": settings, "suites": simulated_suites()}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run what the folder does not hold yet")
    running.add_argument("--out", type=Path, default=Path("calibration"))
    running.add_argument("--workers", type=int, default=2)
    running.add_argument("--comparisons", type=int, default=COMPARISONS)
    running.add_argument("--truth", type=int, default=TRUTH)
    running.add_argument("--setting", action="append", choices=list(SETTINGS))
    judging = commands.add_parser("judge", help="judge the scores of a folder, or the committed ones")
    judging.add_argument("out", type=Path, nargs="?")
    asked = parser.parse_args()
    if asked.command == "run":
        few = min(COPY_COMPARISONS, asked.comparisons)
        todo = [*units(asked.comparisons, asked.truth, few, asked.setting or list(SETTINGS))]
        run_study(asked.out, todo, asked.workers)
    elif asked.command == "judge":
        if asked.out is not None:
            np.savez_compressed(RESULTS / "calibration.npz", **gathered(asked.out))
        with np.load(RESULTS / "calibration.npz") as file:
            found = judge(dict(file))
        (RESULTS / "calibration.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
