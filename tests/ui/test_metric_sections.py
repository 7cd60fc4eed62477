"""The page of a run shows its metrics, and nothing of a folder that holds nonsense in their place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedarena as fa
from fedarena.ui.catalogue import Catalogue
from fedarena.ui.comparison_page import page as comparison_page
from fedarena.ui.partial_scores import common_splits, means
from fedarena.ui.run_page import page

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("metrics")
    fa.run("breast_cancer", clients=4, partition="iid", rounds=2, runtime="serial", out=root / "run")
    return root


def shown(folder: Path) -> str:
    catalogue = Catalogue(folder)
    (sight,) = catalogue.scan().runs
    text = page(catalogue, sight.id, {})
    assert text is not None
    return text


def test_the_page_of_a_run_shows_metrics_confusion_matrix_and_calibration_curve(folder: Path) -> None:
    run, text = fa.load(folder / "run"), shown(folder)
    for value in (run.metrics["auc"], run.own_metrics["auc"]):
        assert f"<td>{value:.4f}</td>" in text
    for name in ("metrics", "confusion", "calibration"):
        assert f'<section id="{name}">' in text
    assert "label malignant, prediction malignant: " in text


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": {EVIL: 1.0, "auc": EVIL}, "own_metrics": [EVIL], "own_undefined": {"auc": EVIL}},
        {"evaluation": {"confusion": [[1, 2], [3]], "calibration": [EVIL, {"confidence": None}], "class_names": 3}},
        {"evaluation": {"confusion": [[1, -2], [3, 4]], "calibration": 7}},
        {"evaluation": {"confusion": [[1, 2], [3, 4]], "class_names": [EVIL, EVIL]}},
        {"evaluation": EVIL, "metrics": EVIL},
        {"unseen": {"before": {EVIL: EVIL}, "after": EVIL, "steps": EVIL}},
        {"unseen": {"before": EVIL}},
    ],
)
def test_whatever_stands_in_the_place_of_metrics_is_harmless(
    folder: Path, changes: dict[str, Any], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(folder / "run", tmp_path / "run"))
    result = json.loads((copy / "result.json").read_text())
    (copy / "result.json").write_text(json.dumps({**result, **changes}))
    assert EVIL not in shown(tmp_path)


def test_a_run_from_before_there_were_metrics_has_no_such_section(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder / "run", tmp_path / "run"))
    result = json.loads((copy / "result.json").read_text())
    (copy / "result.json").write_text(json.dumps({k: v for k, v in result.items() if "metrics" not in k}))
    assert 'id="metrics"' not in shown(tmp_path)


def test_the_page_of_a_validated_run_shows_the_metrics_of_its_round(tmp_path: Path) -> None:
    how: dict[str, Any] = {"clients": 4, "partition": "iid", "rounds": 3, "evaluate": {"validation": 0.2}}
    run = fa.run("breast_cancer", **how, runtime="serial", out=tmp_path / "run")
    text = shown(tmp_path)
    assert run.validated is not None
    assert '<section id="validated">' in text
    assert f"after round {run.validated.round}, chosen on training samples" in text
    assert f"<td>{run.validated_metrics['auc']:.4f}</td>" in text


def test_the_page_of_a_run_shows_clients_that_never_trained(tmp_path: Path) -> None:
    how: dict[str, Any] = {"clients": 4, "partition": "iid", "rounds": 2, "evaluate": {"unseen": 0.5, "unseen_steps": 3}}
    run = fa.run("breast_cancer", algorithm="fedper", **how, runtime="serial", out=tmp_path / "run")
    text = shown(tmp_path)
    assert run.unseen is not None
    assert '<section id="unseen">' in text
    assert "after 3 steps" in text
    assert f"<td>{run.unseen.before['log_loss']:.4f}</td><td>{run.unseen.after['log_loss']:.4f}</td>" in text


@pytest.mark.slow
def test_the_page_of_a_comparison_has_the_signs_of_its_score(tmp_path: Path) -> None:
    how: dict[str, Any] = {"clients": 4, "partition": "iid", "rounds": 4, "model": "logreg", "local": {"lr": 5.0}}
    found = fa.compare(
        "digits", ["fedavg", "local"], score="validated", seeds=3, out=tmp_path / "c", workers=1, baseline=False, **how
    )
    catalogue = Catalogue(tmp_path)
    (match,) = catalogue.scan().comparisons
    assert means(match) == {label: pytest.approx(np.mean(scores)) for label, scores in found.scores().items()}
    duel, common = found.duel("fedavg", "local"), common_splits(match, "fedavg", "local")
    assert common is not None
    pair, splits = common
    assert splits == 3
    assert pair.sign == duel.verdict
    assert pair.probabilities(found.plan.rope) == pytest.approx((duel.p_better, duel.p_equal, duel.p_worse))
    text = comparison_page(catalogue, match.id, {})
    assert text is not None
    assert "Differences in validated accuracy" in text
    assert ">validated</th>" in text, "a column of the table of costs"
