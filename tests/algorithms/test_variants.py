"""Variants: a setting of the paper's class selects them, and nothing but their code differs from a class of its own."""

from __future__ import annotations

import ast
import copy
import io
import pickle
import tokenize
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import on_blobs

import fedarena as fa
from fedarena import algorithms
from fedarena.algorithms import (
    AdaptiveFedProx,
    FedAvg,
    FedIR,
    FedNova,
    FedProx,
    LiteralFedAvg,
    Scaffold,
    ScaffoldVariant,
    StepCountFedNova,
)
from fedarena.config.algorithm_text import label_of
from fedarena.config.components import Component
from fedarena.config.errors import BadValue
from fedarena.config.registry import components, name_of
from fedarena.engine.devices import Stragglers

VARIANTS: list[tuple[type, dict[str, Any], type]] = [
    (FedAvg, {"denominator": "all"}, LiteralFedAvg),
    (FedAvg, {"literal_eta": True}, LiteralFedAvg),
    (FedProx, {"schedule": "adaptive"}, AdaptiveFedProx),
    (Scaffold, {"control_weighting": "size"}, ScaffoldVariant),
    (Scaffold, {"control_weighting": "cohort"}, ScaffoldVariant),
    (Scaffold, {"momentum_form": "outside_tau"}, ScaffoldVariant),
    (Scaffold, {"start": "weights"}, ScaffoldVariant),
    (FedNova, {"tau_eff": "steps"}, StepCountFedNova),
]


@pytest.mark.parametrize(("paper", "settings", "variant"), VARIANTS)
def test_a_setting_selects_the_variant(paper: type, settings: dict[str, Any], variant: type) -> None:
    """By keyword, by position, by name in a table and inside a companion; copies and pickles are the same again."""
    made = paper(**settings)
    assert type(made) is variant
    assert type(paper()) is paper
    assert type(paper(*asdict(made).values())) is variant
    assert made == pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == replace(made)
    assert type(pickle.loads(pickle.dumps(made))) is variant
    assert [f.name for f in fields(made)] == [f.name for f in fields(paper)]
    chosen = Component.choose("algorithm", {"name": name_of(paper), **settings}, "algorithm")
    given = Component.choose("algorithm", made, "algorithm")
    assert chosen.made == made == given.made
    assert not given.own
    assert chosen == given
    assert chosen.settings == asdict(paper()) | settings
    key, value = next(iter(settings.items()))
    assert label_of({"algorithm": made}) == f"{name_of(paper)}:{key}={str(value).lower()}"
    assert type(FedIR(base=made).base) is variant


def test_every_value_of_a_setting_runs_the_papers_class_or_its_variant() -> None:
    """The default of every setting that selects a variant is the paper's, and each of its other values selects it."""
    for paper, _, variant in VARIANTS:
        for key, values in paper._selected_by.items():  # type: ignore[attr-defined]
            annotation = components("algorithm")[name_of(paper)].parameters[key].annotation
            possible = {True, False} if annotation is bool else set(annotation.__args__)
            assert possible - set(values) == {getattr(paper, key)}
            assert all(type(paper(**{key: value})) is variant for value in values)


def test_adaptive_fedprox_created_directly_says_so() -> None:
    assert AdaptiveFedProx(mu=0.3) == FedProx(mu=0.3, schedule="adaptive")


def test_a_value_that_does_not_exist_selects_nothing_and_is_refused() -> None:
    with pytest.raises(BadValue, match="schedule = 'sometimes' does not fit algorithm 'fedprox'"):
        Component.choose("algorithm", FedProx(schedule="sometimes"), "algorithm")  # type: ignore[arg-type]


def test_a_subclass_of_the_papers_class_refuses_a_setting_that_it_has_no_code_for() -> None:
    class Own(FedProx):
        pass

    class OwnAdaptive(AdaptiveFedProx):
        pass

    assert type(Own(mu=0.1)) is Own
    assert type(OwnAdaptive(mu=0.1, schedule="adaptive")) is OwnAdaptive
    with pytest.raises(BadValue, match="Own has no code for schedule = adaptive") as error:
        Own(schedule="adaptive")
    assert "AdaptiveFedProx" in error.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "settings", "variant"), VARIANTS)
def test_variants_have_the_same_bits_with_two_workers_and_after_a_resume(
    paper: type, settings: dict[str, Any], variant: type, tmp_path: Path
) -> None:
    easy: dict[str, Any] = {"model": "logreg", "partition": "iid", "clients": 4, "share": 0.7, "rounds": 3}
    easy |= {"algorithm": {"name": name_of(paper), **settings}, "local": {"lr": 0.05, "epochs": 1}}
    whole = fa.run("digits", **easy, out=False, runtime="serial")
    parallel = fa.run("digits", **easy, out=False, runtime="processes", workers=2)
    fa.run("digits", **easy, out=tmp_path / "run", runtime="serial", on_round=lambda record: record.round == 2)
    resumed = fa.run(resume=tmp_path / "run", runtime="serial")
    assert whole.weights_sha256 == parallel.weights_sha256 == resumed.weights_sha256


def test_stragglers_draw_their_epochs_evenly_from_the_fewest_to_all() -> None:
    """Of 20,000 draws with fraction 1/2: half are whole by not being stragglers, the others are U{2..5}."""
    rng, stragglers = np.random.default_rng(0), Stragglers(0.5, epochs_min=2)
    shares = np.bincount([stragglers.amount(5, rng) for _ in range(20_000)], minlength=6) / 20_000
    np.testing.assert_allclose(shares, [0, 0, 1 / 8, 1 / 8, 1 / 8, 5 / 8], atol=0.015)  # over four standard errors
    assert Stragglers(1.0, epochs_min=9).amount(5, rng) == 5
    assert {Stragglers(1.0, epochs_min=0).amount(1, rng) for _ in range(50)} == {0, 1}


def test_stragglers_are_those_of_the_algorithm_inside_a_companion() -> None:
    slow = FedProx(straggler_fraction=0.9)
    assert FedIR(base=slow).straggler_settings == slow.straggler_settings == (0.9, 1)
    assert fa.Scaffold().straggler_settings == (0.0, 1)
    local = {"lr": 0.1, "epochs": 8, "batch": 8}
    inside, usual = (on_blobs(FedIR(base=base), local=local, rounds=2) for base in (slow, FedProx()))
    assert inside.records[-1].steps < usual.records[-1].steps


def lines_of_code(path: Path) -> int:
    """Count the lines of a file that hold code, without imports and docstrings."""
    text = path.read_text(encoding="utf-8")
    others: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_docstring = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_docstring or isinstance(node, ast.Import | ast.ImportFrom):
            others |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in blank]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - others)


@pytest.mark.parametrize(
    ("name", "most"), [("fedavg", 15), ("fedprox", 20), ("scaffold", 30), ("fednova", 25), ("base", 180)]
)
def test_papers_and_the_contract_stay_short(name: str, most: int) -> None:
    """A reader recognises the paper on one screen: code behind other settings belongs to variants.py."""
    assert 5 < lines_of_code(Path(algorithms.__file__).parent / f"{name}.py") <= most
