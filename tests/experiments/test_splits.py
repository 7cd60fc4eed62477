"""A split repeats everything random, all algorithms of a split share it, and what is fixed stays as it is."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.comparison_plan import PARTS, Plan, Split
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import SEED_KEYS, Purpose
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.devices import build_fleet
from fedarena.engine.loop import TrainingLoop
from fedarena.engine.setup import open_context
from fedarena.experiments.run_comparison import make_plan
from fedarena.models.task import sha256
from fedarena.reports.collect import collect_runs, why_no_verdict
from fedarena.results.comparison import Comparison
from fedarena.results.plan_file import read_plan
from fedarena.results.run_status import comparison_cells
from fedarena.runtimes.serial import SerialRuntime

SMALL: dict[str, Any] = {"clients": 6, "model": "logreg", "rounds": 2, "share": 0.5, "dropouts": 0.3,
                         "devices": {"available": "day", "speeds": "uniform", "spread": 4}}  # fmt: skip
QUICK = ["--set", "rounds=2", "--set", "clients=4", "--set", "model=logreg"]
SUBSETS = [subset for n in range(4) for subset in itertools.combinations(PARTS, n)]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["compare", *words])


def random_parts(exp: Experiment, folder: Path) -> dict[str, Any]:
    """All that is random in a run, bit by bit: who owns what, what is tested, w_0, the schedule, the order of batches."""
    site = open_context(exp)
    whole = [np.sort(np.concatenate(pair)) for pair in zip(site.owners.clients, site.owners.client_tests, strict=True)]
    keeper = CheckpointStore(folder, site.algorithm)
    loop = TrainingLoop(site, SerialRuntime(site), keeper)
    selected = [loop.clients.select(round) for round in range(6)]
    keeper.close()
    fleet, everyone = build_fleet(exp, 6), range(6)
    times = [fleet.speed.tolist(), *(fleet.training_factors([*everyone], n).tolist() for n in range(3))]
    away = [fleet.drops_out(client, n) for client in everyone for n in range(5)]
    available = site.availability
    assert available is not None
    here = [available.is_available(3600.0 * hour).tolist() for hour in range(24)]
    return {
        "partition": [rows.tolist() for rows in whole],
        "test": site.owners.test.tolist(),
        "start": sha256(site.initial),
        "schedule": (selected, times, away, here),
        "batches": exp.seed_for("shuffle"),
    }


def all_parts(plan: Plan, label: str) -> dict[Split, dict[str, Any]]:
    return {split: random_parts(plan.cell(label, split), Path(label) / split.name) for split in plan.splits}


def plan(names: tuple[str, ...] = ("fedavg", "scaffold"), **how: Any) -> Plan:
    return make_plan("digits", names, baseline=False, **{**SMALL, **how})


def same(found: list[dict[str, Any]]) -> set[str]:
    """The parts that all of these have in common."""
    return {name for name in found[0] if all(parts[name] == found[0][name] for parts in found)}


# Seeds


def test_every_purpose_has_a_seed() -> None:
    assert {*SEED_KEYS} == {*get_args(Purpose)}
    exp = Experiment.make("digits", seed=7)
    assert {exp.seed_for(purpose) for purpose in SEED_KEYS} == {7}
    own = exp.with_(partition_seed=1, start_seed=2, schedule_seed=0, fold_seed=4)
    assert {p: own.seed_for(p) for p in ("partition", "init", "select", "folds", "shuffle")} == {
        "partition": 1, "init": 2, "select": 0, "folds": 4, "shuffle": 7,
    }  # fmt: skip
    assert Experiment.make(own.as_table()) == own
    assert not {"partition_seed", "start_seed", "schedule_seed", "fold_seed"} & {*exp.as_table()}


@pytest.mark.parametrize(("key", "part"), [(f"{part}_seed", part) for part in PARTS])
def test_a_seed_of_its_own_changes_one_part_and_nothing_else(key: str, part: str) -> None:
    exp = Experiment.make("digits", **SMALL, folds=3, fold=0, fold_seed=1)
    found = [random_parts(exp.with_(**{key: seed}), Path(str(seed))) for seed in (5, 6)]
    assert same(found) == {"partition", "test", "start", "schedule", "batches"} - {part}
    assert same([random_parts(exp, Path("a")), random_parts(exp.with_(**{key: 0}), Path("b"))]) == {*found[0]}


def test_a_run_with_the_seeds_written_out_is_the_same_run() -> None:
    plain = fa.run("digits", seed=3, out=False, runtime="serial", **SMALL)
    written = {"partition_seed": 3, "start_seed": 3, "schedule_seed": 3}
    assert (
        fa.run("digits", seed=3, out=False, runtime="serial", **written, **SMALL).weights_sha256 == plain.weights_sha256
    )


# Splits


def test_algorithms_share_a_split_and_splits_share_nothing() -> None:
    asked = plan(("fedavg", "scaffold", "feddyn"), folds=3, repeats=2)
    found = {label: all_parts(asked, label) for label in asked.contestants}
    for split in asked.splits:
        assert same([parts[split] for parts in found.values()]) == {"partition", "test", "start", "schedule", "batches"}
    for one, other in itertools.combinations(found["fedavg"].values(), 2):
        assert same([one, other]) == set()
    for repeat in (0, 1):
        tested = np.concatenate([parts["test"] for split, parts in found["fedavg"].items() if split.repeat == repeat])
        assert np.array_equal(np.sort(tested), np.arange(1797)), "every sample is tested once a repeat"


@pytest.mark.parametrize("fixed", SUBSETS)
def test_what_is_fixed_is_the_same_in_all_splits_and_nothing_else_is(fixed: tuple[str, ...]) -> None:
    found = [*all_parts(plan(folds=2, repeats=2, fixed=",".join(fixed)), "fedavg").values()]
    for one, other in itertools.combinations(found, 2):
        assert same([one, other]) == {*fixed}
    usual = random_parts(Experiment.make("digits", **SMALL), Path("usual"))
    assert all(found[0][part] == usual[part] for part in fixed if part != "partition"), "as the experiment has them"


@pytest.mark.parametrize("shared", SUBSETS)
def test_what_is_per_repeat_is_shared_by_its_folds_alone(shared: tuple[str, ...]) -> None:
    found = all_parts(plan(folds=2, repeats=2, per_repeat=shared), "fedavg")
    for (split, one), (beside, other) in itertools.combinations(found.items(), 2):
        assert same([one, other]) == ({*shared} if split.repeat == beside.repeat else set())


def test_repeat_1_of_a_seed_is_not_repeat_0_of_the_next() -> None:
    how = {"folds": 2, "repeats": 2, "per_repeat": PARTS}
    one = plan(**how, seed=15).cell("fedavg", Split(1, 0))
    other = plan(**how, seed=16).cell("fedavg", Split(0, 0))
    keys = ("seed", "fold_seed", "partition_seed", "start_seed", "schedule_seed")
    assert not {getattr(one, key) for key in keys} & {getattr(other, key) for key in keys}
    assert same([random_parts(one, Path("one")), random_parts(other, Path("other"))]) == set()


def test_seeds_have_their_own_divisions_or_the_published_test_samples() -> None:
    own = plan(seeds=3)
    tests = [parts["test"] for parts in all_parts(own, "fedavg").values()]
    assert len({*map(str, tests)}) == 3
    assert {len(test) for test in tests} == {359}
    assert own.rho == pytest.approx(359 / 1797)
    kept = plan(seeds=3, fixed="test")
    found = [parts["test"] for parts in all_parts(kept, "fedavg").values()]
    assert found == [[*range(1438, 1797)]] * 3
    assert kept.rho == 0
    both = [*all_parts(plan(seeds=2, fixed="test,partition"), "fedavg").values()]
    assert same(both) == {"test", "partition"}


def test_seeds_of_the_experiment_are_fixed() -> None:
    asked = plan(folds=2, partition_seed=4)
    assert asked.fixed == ("partition",)
    assert {asked.cell("fedavg", split).partition_seed for split in asked.splits} == {4}
    assert asked.about.startswith("The conclusion is about this partition;")
    with pytest.raises(fa.FedarenaError, match="the experiment has a partition_seed"):
        plan(folds=2, partition_seed=4, per_repeat="partition")


def test_partitions_with_their_own_folds_are_per_repeat() -> None:
    asked = make_plan("digits", ["fedavg", "scaffold"], partition="nilsson_iid", folds=3, repeats=2, clients=6)
    assert asked.per_repeat == ("partition",)
    for repeat in (0, 1):
        sites = [open_context(asked.cell("fedavg", split)) for split in asked.splits if split.repeat == repeat]
        tested = np.concatenate([site.owners.test for site in sites])
        assert len(np.unique(tested)) == len(tested) == 1797
        assert len({sha256(site.initial) for site in sites}) == 3
    assert "2 repeats cannot show how much that matters; 5 can." in asked.undecidable
    seeds = make_plan("digits", ["fedavg", "scaffold"], partition="nilsson_iid", seeds=3, clients=6)
    assert seeds.rho == pytest.approx(1 / 5)
    with pytest.raises(fa.FedarenaError, match="the test samples follow from the seed here"):
        fa.compare("digits", ["fedavg", "scaffold"], partition="nilsson_iid", seeds=3, fixed="test", clients=6)


# What is concluded


def test_the_sentence_says_what_the_conclusion_is_about() -> None:
    def about(**how: Any) -> str:
        return plan(**how).about

    drawn = "The conclusion is about federations drawn like this one"
    assert about() == (
        f"{drawn}; every split has its own test samples, partition, initial weights, client schedule and batch order."
    )
    assert about(fixed="partition") == (
        "The conclusion is about this partition; every split has its own test samples, initial weights, client schedule "
        "and batch order."
    )
    assert about(seeds=3, fixed="test,start") == (
        f"{drawn} with these initial weights on these test samples; every split has its own partition, client schedule "
        "and batch order."
    )
    assert about(per_repeat="partition,start,schedule") == (
        f"{drawn}; every split has its own test samples and batch order, and the folds of a repeat share partition, "
        "initial weights and client schedule."
    )
    x, y = np.zeros((60, 2), np.float32), np.arange(60) % 2
    natural = make_plan((x, y, np.arange(60) // 20), ["fedavg", "scaffold"], per_repeat="partition")
    assert natural.per_repeat == (), "natural clients are not drawn"
    assert natural.about.startswith(
        "The conclusion is about this federation; every split has its own test samples, initial"
    )


@pytest.mark.slow
def test_below_five_repeats_nothing_is_decided_where_folds_share_a_part() -> None:
    few = fa.compare("digits", {"one": "fedavg", "other": "fedavg"}, folds=2, per_repeat="start", out=False, **SMALL)
    assert {duel.verdict for duel in few.duels()} == {"?"}
    assert few.words[-1] == (
        "No pair is decided: the folds of a repeat share initial weights, and 1 repeat cannot show how much that matters; "
        "5 can."
    )
    enough = fa.compare(
        "digits", {"one": "fedavg", "other": "fedavg"}, folds=2, repeats=5, per_repeat="start", out=False, **SMALL
    )
    assert {duel.verdict for duel in enough.duels()} == {"="}


# Folders


BASE = Experiment.make("digits", model="logreg", clients=4, rounds=2, seed=15)
FEDAVG = BASE.as_table()["algorithm"]
OLD: dict[str, Any] = {  # what comparison.json held before splits had seeds of their own
    "experiment": {key: value for key, value in BASE.as_table().items() if key != "algorithm"},
    "contestants": {"fedavg": {"algorithm": FEDAVG}, "slow": {"algorithm": FEDAVG, "local": {"lr": 0.01}}},
    "reference": None,
    "repeats": 2,
    "rope": 0.01,
    "threshold": 0.95,
    "tuning": {},
    "tuned": {},
    "sweep": {},
    "notes": [],
    "versions": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("folds", [2, None])
def test_a_folder_without_the_new_fields_resumes_as_it_was_made(folds: int | None) -> None:
    Path("old").mkdir()
    Path("old/comparison.json").write_text(json.dumps({**OLD, "folds": folds}).replace("Infinity", '"inf"'))
    before = read_plan(Path("old"))
    assert before.protocol == "shared"
    for split in before.splits:
        expected = BASE.with_(seed=15 + split.repeat)
        if folds:
            expected = expected.with_(folds=2, fold=split.fold)
        assert before.cell("fedavg", split) == expected
    assert before.rho == (0.5 if folds else 0.0)
    done = fa.compare(resume="old", workers=1)
    for cell in comparison_cells(before, Path("old")):
        alone = fa.run(before.cell(cell.label, cell.split), out=False, runtime="serial")
        assert fa.load(cell.folder).weights_sha256 == alone.weights_sha256
    again = Comparison.load("old")
    assert again.scores() == done.scores()
    assert [again.plan.cell("slow", s) for s in again.plan.splits] == [before.cell("slow", s) for s in before.splits]
    end = (
        "test samples, and the folds of a repeat share partition, initial weights, client schedule and batch order."
        if folds
        else "partition, initial weights, client schedule and batch order."
    )
    assert again.plan.about.endswith(f"every split has its own {end}")
    words = {"folds": folds, "repeats": 2} if folds else {"seeds": 2}
    entered = {"fedavg": "fedavg", "slow": "fedavg:local.lr=0.01"}
    typed = fa.compare(BASE, entered, resume="old", baseline=False, **words)
    assert typed.scores() == done.scores(), "typed once more it goes on too"


@pytest.mark.slow
def test_the_protocol_is_part_of_the_folder() -> None:
    fa.compare("digits", ["fedavg", "fedprox"], seeds=2, fixed="partition", out="c", baseline=False, **SMALL)
    table = json.loads(Path("c/comparison.json").read_text())
    assert (table["protocol"], table["fixed"], table["per_repeat"]) == ("independent", ["partition"], [])
    with pytest.raises(fa.FedarenaError, match=r"its fixed is \('partition',\), not \(\)"):
        fa.compare("digits", ["fedavg", "fedprox"], seeds=2, resume="c", baseline=False, **SMALL)
    output = json.loads(call("--resume", "c", "--json", "-q").stdout)
    assert output["fixed"] == ["partition"]
    assert output["about"].startswith("The conclusion is about this partition;")


@pytest.mark.slow
def test_cells_gathered_by_hand_are_judged_alike() -> None:
    done = fa.compare(
        "digits", ["fedavg", "fedprox"], folds=2, repeats=2, fixed="start", out="c", baseline=False, **SMALL
    )
    folders = [run.dir for runs in done.runs.values() for run in runs]
    found = collect_runs([folder for folder in reversed(folders) if folder is not None])
    assert why_no_verdict(found) is None
    for key in ("rho", "about", "fixed", "per_repeat", "protocol", "repeats", "folds"):
        assert getattr(found.plan, key) == getattr(done.plan, key), key
    one, other = found.posterior("fedavg", "fedprox"), done.posterior("fedavg", "fedprox")
    assert (one.mean, one.scale) == (pytest.approx(other.mean), pytest.approx(other.scale))


# The command


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["--fixed", "partitions"], "did you mean 'partition'?"),
        (["--fixed", "partition,"], "--fixed does not accept ''"),
        (["--per-repeat", "test"], "--per-repeat does not accept 'test'"),
        (["--fixed", "test"], "give --seeds N with --fixed test"),
        (["--fixed", "start", "--per-repeat", "start,schedule"], "start cannot be the same in all splits"),
        (["--seeds", "3", "--per-repeat", "start"], "every split is a repeat of its own"),
        (["--set", "fold_seed=3"], "leave folds, fold and fold_seed out of it"),
        (["--set", "fold_seed=-1"], "fold_seed = -1"),
    ],
)
def test_a_mistake_is_one_message(words: list[str], output: str) -> None:
    result = call("digits", "-a", "fedavg", "-a", "scaffold", *QUICK, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert output in result.stderr
    assert len(result.stderr.strip().splitlines()) == 2
    assert not Path("runs").exists()


@pytest.mark.slow
def test_times_need_forward_splits() -> None:
    rows = "\n".join(f"{i % 7},{i % 2},{i}" for i in range(40))
    Path("t.csv").write_text(f"f,y,day\n{rows}\n")
    timed = ["t.csv", "-a", "fedavg", "-a", "fedprox", "--set", "data.label=y", "--set", "data.time=day", *QUICK]
    result = call(*timed, "--seeds", "3")
    assert result.exit_code == 2
    assert "give --folds for forward splits, or --seeds N --fixed test" in result.stderr
    output = json.loads(call(*timed, "--folds", "3", "--dry-run", "--json").stdout)
    assert "every split has its own later test samples" in output["about"]
    assert "correlation 0.25" in output["test"]
    assert call(*timed, "--folds", "3", "-q").exit_code == 0


@pytest.mark.slow
def test_a_dry_run_says_what_would_be_done_and_does_nothing() -> None:
    words = ["digits", "-a", "fedavg", "-a", "scaffold", *QUICK, "--folds", "3", "--repeats", "2"]
    result = call(*words, "--dry-run")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "fedavg, scaffold, centralized: 3 x 6 runs (2 x 3 folds)"
    assert lines[1].startswith("The conclusion is about federations drawn like this one;")
    assert lines[-1] == "nothing was run: leave out --dry-run to start"
    assert not list(Path().iterdir())
    output = json.loads(call(*words, "--tune", "4", "--dry-run", "--json").stdout)
    assert (output["runs"], output["trials"], len(output["splits"])) == (18, 4 * 18, 6)
    assert output["seconds"] > 0
    assert output["disk_bytes"] > 0
    assert not list(Path().iterdir())
    assert call("digits", "-a", "fedavg", "-a", "scafold", "--dry-run").exit_code == 2


@pytest.mark.slow
def test_a_dry_run_of_a_folder_counts_what_is_left() -> None:
    done = fa.compare("digits", ["fedavg", "fedprox"], seeds=2, out="c", baseline=False, **SMALL)
    assert done.dir is not None
    (done.plan.folder(done.dir, "fedprox", done.plan.splits[1]) / "result.json").unlink()
    output = json.loads(call("--resume", "c", "--dry-run", "--json").stdout)
    assert output["runs"] == 1
