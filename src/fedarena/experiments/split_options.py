"""The options that define the splits of a comparison: folds or seeds, and what the splits have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedarena.config.comparison_plan import PARTS, Part
from fedarena.config.errors import BadValue, check_known
from fedarena.config.experiment import Experiment

MOST = 1000  # folds, repeats or seeds: each of them is a run
Names = str | Iterable[str]


@dataclass(frozen=True)
class Splitting:
    """Folds and repeats, or seeds; what all splits share, and what the folds of a repeat share."""

    folds: int | None = None
    repeats: int | None = None
    seeds: int | None = None
    fixed: tuple[str, ...] = ()
    per_repeat: tuple[str, ...] = ()

    @classmethod
    def from_options(
        cls, folds: int | None, repeats: int | None, seeds: int | None, fixed: Names, per_repeat: Names
    ) -> Splitting:
        """Return the splitting that these options define; raise if they contradict each other."""
        chosen = cls(
            folds, repeats, seeds, _names(fixed, (*PARTS, "test"), "--fixed"), _names(per_repeat, PARTS, "--per-repeat")
        )
        chosen._check()
        return chosen

    def __bool__(self) -> bool:
        return self != Splitting()

    def _check(self) -> None:
        for name, count in (("folds", self.folds), ("repeats", self.repeats), ("seeds", self.seeds)):
            if count is not None and count > MOST:
                raise BadValue(
                    f"{name} = {count}", remedy=f"give at most {MOST}: each of them is a run", where=f"--{name}"
                )
        if self.seeds is not None and (self.folds is not None or self.repeats is not None):
            raise BadValue(
                "folds and seeds exclude each other", remedy="give --folds and --repeats, or --seeds", where="--seeds"
            )
        both = [part for part in self.fixed if part in self.per_repeat]
        if both:
            raise BadValue(
                f"{both[0]} cannot be the same in all splits and be drawn for every repeat",
                remedy="name it once: --fixed or --per-repeat",
                where="--per-repeat",
            )
        if "test" in self.fixed and self.seeds is None:
            raise BadValue(
                "folds test every sample, so the test samples cannot stay the same",
                remedy="give --seeds N with --fixed test",
                where="--fixed",
            )
        if self.per_repeat and self.seeds is not None:
            raise BadValue(
                "with --seeds every split is a repeat of its own",
                remedy="give --folds and --repeats, or leave out --per-repeat",
                where="--per-repeat",
            )

    def check_experiment(self, experiment: Experiment) -> None:
        """Raise if the experiment divides its samples, or seeds a part, in another way than these options."""
        for key in ("folds", "fold_seed"):
            if getattr(experiment, key) is not None:
                raise BadValue(
                    "the experiment holds out samples itself",
                    remedy="leave folds, fold and fold_seed out of it: --folds does it",
                    where=key,
                )
        part: Part
        for part in PARTS:
            if part in self.per_repeat and getattr(experiment, f"{part}_seed") is not None:
                raise BadValue(
                    f"the experiment has a {part}_seed, which is the same in all splits",
                    remedy=f"leave out {part}_seed, or --per-repeat {part}",
                    where=f"{part}_seed",
                )
        if self.seeds is not None and "test" not in self.fixed and experiment.data.settings.get("time"):
            raise BadValue(
                "samples with times are not divided at random",
                remedy="give --folds for forward splits, or --seeds N --fixed test",
                where="--seeds",
            )

    @property
    def of_plan(self) -> dict[str, Any]:
        """The fields of a plan that these options set."""
        return {
            "folds": None if self.seeds else self.folds or 5,
            "repeats": self.seeds or self.repeats or 1,
            "fixed": self.fixed,
            "per_repeat": self.per_repeat,
        }


def _names(given: Names, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    """Return the names of a comma-separated text or of a list, each once and in the order of `known`."""
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else [*given]
    if isinstance(given, str) and not given.strip():
        names = []
    for name in names:
        more = f"give any of {', '.join(known)}, with commas between them"
        check_known(name, known, f"{option} does not accept '{name}'", more, option)
    return tuple(name for name in known if name in names)
