"""Search for good settings of an experiment.

The folder of a search: search.json describes the search, study.db is an Optuna study with all trials and their curves,
best.toml is the best experiment, and trials/ holds the runs under way.
"""

from __future__ import annotations

import itertools
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedarena.common.files import make_folder
from fedarena.config.comparison_plan import View
from fedarena.config.components import is_from_python
from fedarena.config.data_sources import with_recorded_form
from fedarena.config.errors import BadValue, ResumeMismatch
from fedarena.config.experiment import Experiment
from fedarena.config.limits import check_paths
from fedarena.data.published_files import reading
from fedarena.engine.setup import open_context
from fedarena.experiments.option_checks import check_names, check_numbers
from fedarena.experiments.plan import check_common_score
from fedarena.experiments.run import Out
from fedarena.experiments.runtime_options import RuntimeOptions, SideBySide
from fedarena.experiments.search_gains import HeldOutGain, held_out_gains
from fedarena.experiments.search_space import Method, Space, own_space
from fedarena.experiments.search_space import preset as published
from fedarena.experiments.study import AHEAD, Search, Study, Trial, TrialScore, held_out_text, need_optuna
from fedarena.experiments.task_folder import locked_folder
from fedarena.experiments.trials import columns, format_values, run_trials
from fedarena.results.json_files import read_table, write_table, write_text
from fedarena.results.run_folder import fingerprints
from fedarena.runtimes.single_thread import one_thread

SHOWN = 5  # of the best trials
DAMAGED = "restore the file from a copy, or search again in a new folder"


class SearchTable(BaseModel):
    """The content of search.json, for its validation."""

    name: str
    trials: int
    study: str | None
    experiment: str
    space: dict[str, Any]
    method: Method
    seed: int
    score: TrialScore
    ahead: int
    prune: bool
    evaluate_on: View = "common"  # files of the first version do not name it


@dataclass(frozen=True, repr=False)
class Found:
    """The result of a search: the best trial, and all trials.

    >>> import fedarena as fa
    >>> found = fa.search("digits", space={"local.lr": {"choices": [1e-6, 0.2]}}, method="grid", rounds=2, out=False)
    >>> [trial.values["local.lr"] for trial in found.ranked]
    [0.2, 1e-06]
    >>> found.experiment.local.lr
    0.2
    """

    search: Search
    trials: list[Trial]
    best: Trial
    dir: Path | None = None
    study: Path | None = None

    @property
    def experiment(self) -> Experiment:
        """The experiment with the best values, evaluated on its test samples, which the search did not use."""
        return self.search.experiment.with_(**self.best.values, validate_share=None)

    @property
    def ranked(self) -> list[Trial]:
        """The finished trials, the best first."""
        return sorted((t for t in self.trials if t.state == "done"), key=lambda t: (-(t.score or 0.0), t.number))

    def client_gains(self) -> list[HeldOutGain]:
        """Return what each client gains from the best trial over training alone, on held-out samples; it takes two runs."""
        return held_out_gains(self.search, self.best.values)

    def as_dict(self) -> dict[str, Any]:
        """Return what `fedarena search --json` prints."""
        search = self.search
        return {
            "algorithm": search.experiment.algorithm.name,
            "dataset": search.experiment.data.name,
            "method": search.method,
            "seed": search.seed,
            "score": search.score,
            "evaluate_on": search.evaluate_on,
            "validate_share": search.validating.validate_share,
            "space": search.space.as_table(),
            "best": self.best.as_dict(),
            "trials": [trial.as_dict() for trial in self.trials],
            "best_toml": None if self.dir is None else str(self.dir / "best.toml"),
            "study": None if self.study is None else str(self.study),
            "dir": None if self.dir is None else str(self.dir),
        }

    def __str__(self) -> str:
        search, count = (
            self.search,
            {state: sum(t.state == state for t in self.trials) for state in ("pruned", "failed")},
        )
        ended = "".join(f", {number} {state}" for state, number in count.items() if number)
        share = held_out_text(search.validating.validate_share, search.evaluate_on)
        lines = [
            f"{search.experiment.algorithm.name} on {search.experiment.data.name}: {len(self.trials)} trials "
            f"({search.method}, seed {search.seed}){ended}, evaluated on {share}",
            *columns(self.ranked[:SHOWN], list(search.space.keys)),
        ]
        if self.dir is not None:
            lines += ["the best, on the test samples:", f"  fedarena run {self.dir / 'best.toml'}"]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Found {format_values(self.best.values)}: {self.best.score:.4f} in {len(self.trials)} trials>"


def search(
    source: Any = None,
    *,
    space: Any = None,
    trials: int | None = None,
    preset: str | None = None,
    method: Method | None = None,
    seed: int = 0,
    score: TrialScore = "best",
    evaluate_on: View | None = None,
    ahead: int = AHEAD,
    prune: bool = True,
    study: str | Path | None = None,
    out: Out = None,
    resume: str | Path | None = None,
    runtime: SideBySide = "processes",
    workers: int | None = None,
    address: str | None = None,
    progress: bool = False,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Found:
    """Search for good settings of an experiment on samples held out of its training samples; test samples are not used.

    `space` is a table or a TOML file of ranges and choices; without one, the algorithm's own. `seed` is that of the
    search; keywords are other keys of the experiment. Trials are compared on all held-out samples together
    ("common"), or on those of each client ("own", the default where clients have models of their own). The same call again
    resumes the search, until `trials` are done.
    `runtime="ray"` makes them on the Ray cluster at `address`, or on one that is started here for the purpose. `out` is the
    folder, by default one under `runs/` that belongs to this search; `out=False` saves none.

    >>> import fedarena as fa
    >>> found = fa.search("digits", space={"local.lr": {"choices": [1e-6, 0.2]}}, method="grid", rounds=2, out=False)
    >>> found.best.values
    {'local.lr': 0.2}
    """
    check_numbers(trials=(trials, 1), ahead=(ahead, 1), seed=(seed, 0))
    check_names(method=(method, Method), score=(score, TrialScore), evaluate_on=(evaluate_on, View))
    need_optuna()
    place = RuntimeOptions(runtime, workers, address)
    place.check(SideBySide)
    check_paths(("--out", out), ("--resume", resume), ("--study", study))
    if resume is not None:
        if source is not None or overrides or settings or space or preset or out or study or evaluate_on:
            raise BadValue(
                "a resumed search stays as it was", remedy="leave out all but --resume and --trials", where="--resume"
            )
        wanted, trials, study = _read(Path(resume), trials)
        out = Path(resume)
    else:
        experiment = Experiment.make(source, overrides, **settings)
        wanted, trials = _wanted(experiment, space, preset, trials, method)
        view = evaluate_on or ("own" if experiment.algorithm.made.personal else "common")
        wanted = replace(wanted, seed=seed, score=score, ahead=ahead, prune=prune, evaluate_on=view)
    with one_thread():  # before workers are forked, nothing here may start threads of its own
        context = open_context(wanted.validating)
        if wanted.evaluate_on == "common":
            check_common_score(context)
        begins = fingerprints(context)
    name = wanted.name(begins)
    if resume is not None and _read_table(Path(resume))["name"] != name:
        raise ResumeMismatch(
            "the data or the model is not the one this search began with",
            remedy="restore what it used, or start a new search",
            where="--resume",
        )
    at_once = min(wanted.ahead, trials)
    place = place.with_useful_workers(at_once, f"{at_once} trial{'s' * (at_once != 1)} may be under way at once")
    with (
        place.ready(wanted.experiment.device) as nodes,
        locked_folder(
            "search", out, None, lambda out: _home(wanted, name, out), lambda root: sorted((root / "trials").glob("*"))
        ) as root,
    ):
        table = {"name": name, "trials": trials, "study": None if study is None else str(study), **wanted.as_dict()}
        write_table(root / "search.json", table)
        file = root / "study.db" if study is None else Path(study)
        under_way = Study(wanted, trials, root / "trials", file, name)
        if progress and under_way.all:
            print(f"{len(under_way.all)} of {under_way.trials} trials are done already", file=sys.stderr)
        run_trials([under_way], place.workers, progress, nodes)
        found = _found(under_way, root, file)
        return replace(found, dir=None, study=None) if out is False else found


def load_search(root: Path) -> Found:
    """Return the result of the search in a folder; raise if it has not finished."""
    need_optuna()
    wanted, trials, study = _read(root, None)
    file = root / "study.db" if study is None else Path(study)
    done = Study(wanted, trials, root / "trials", file, _read_table(root)["name"])
    if not done.over:
        raise BadValue(
            f"{len(done.all)} of {done.trials} trials of this search have ended",
            remedy=f"continue it: fedarena search --resume {root}",
            where=str(root),
        )
    return Found(done.search, done.all, done.best_or_error, root, file)


def _wanted(
    experiment: Experiment, space: Any, preset: str | None, trials: int | None, method: Method | None
) -> tuple[Search, int]:
    """Return the requested search, checked against the experiment, and its number of trials."""
    if space is not None and preset is not None:
        raise BadValue("both a space and a preset are given", remedy="use one of them", where="--preset")
    where = str(space) if isinstance(space, str | Path) else "space"
    if preset is not None:
        known = published(preset, experiment)
        space, method, trials = known.space, method or known.method, trials or known.trials
    wanted = Search(experiment, own_space(experiment) if space is None else Space.make(space), method or "tpe")
    wanted.space.check(experiment, where)
    trials = trials or wanted.size
    if trials is None:
        raise BadValue("the number of trials is not given", remedy="give it: --trials 20", where="--trials")
    return wanted, trials


# The folder


def _home(wanted: Search, name: str, out: str | Path | None) -> Path:
    """Return the requested folder, or the first under runs/ that is free or belongs to this search."""
    stem = f"search-{wanted.experiment.data.name}-{wanted.experiment.algorithm.name}-seed{wanted.seed}"
    for number in itertools.count(1):
        root = Path("runs") / (stem if number == 1 else f"{stem}-{number}") if out is None else Path(out)
        if _belongs(root, name):
            make_folder(root)
            return root
        if out is not None:
            holds = (root / "search.json").exists()
            raise ResumeMismatch(
                f"{root} holds " + ("another search" if holds else "something else"),
                remedy="choose another folder" + (f", or resume it: --resume {root}" if holds else ""),
                where="--out",
            )
    raise AssertionError("unreachable")


def _belongs(root: Path, name: str) -> bool:
    if (root / "search.json").exists():
        return bool(_read_table(root)["name"] == name)
    return not root.exists() or (root.is_dir() and not any(root.iterdir()))


def _read_table(root: Path) -> dict[str, Any]:
    if not (root / "search.json").exists():
        raise BadValue(f"{root} holds no search", remedy="give the folder of one", where="--resume")
    table = read_table(root / "search.json", DAMAGED)
    with reading(root / "search.json", remedy=DAMAGED):
        SearchTable.model_validate(table)
    return table


def _read(root: Path, trials: int | None) -> tuple[Search, int, str | None]:
    """Return the search of a folder, its number of trials, and the file of its study if that is elsewhere."""
    table = _read_table(root)
    with reading(root / "search.json", remedy=DAMAGED):
        experiment = with_recorded_form(tomllib.loads(table["experiment"]))
        own = next((key for key, part in experiment.items() if is_from_python(part)), None)
    if own is not None:
        raise BadValue(
            f"the {own} of this search ('{experiment[own]['name']}') came from Python, and no file can restore it",
            remedy=f"use Python, and the same call as before: fa.search(..., out='{root}')",
            where=str(root),
        )
    how = {key: table[key] for key in ("method", "seed", "score", "ahead", "prune")}
    how["evaluate_on"] = table.get("evaluate_on", "common")
    wanted = Search(Experiment.make(experiment), Space.make(table["space"]), **how)
    return wanted, trials or table["trials"], table["study"]


def _found(study: Study, root: Path, file: Path) -> Found:
    """Return the result of a study, and write best.toml."""
    found = Found(study.search, study.all, study.best_or_error, root, file)
    text = (
        f"# trial {found.best.number} of a search: {found.best.score:.4f} on samples held out of the training samples\n"
    )
    write_text(root / "best.toml", text + found.experiment.to_toml())
    return found
