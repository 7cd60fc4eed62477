"""A sweep over the share of attackers: every algorithm at each share, the baseline without an attack, and the chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedarena as fa
from fedarena.config.errors import FedarenaError
from fedarena.experiments.sweep import parse_sweep, with_sweep
from fedarena.results.comparison import Comparison
from fedarena.results.tradeoff_points import as_dict, levels, points

SMALL: dict[str, Any] = {
    "model": "logreg", "clients": 6, "rounds": 1, "partition": "iid", "attack": {"name": "backdoor", "size": 2},
}  # fmt: skip


@pytest.mark.slow
def test_every_algorithm_at_every_share_of_attackers(tmp_path: Path) -> None:
    result = fa.compare(
        "digits", ["fedavg", "local"], seeds=2, sweep="attack.share=0,0.34", out=tmp_path / "c", workers=1, **SMALL
    )
    assert result.labels == ["fedavg share=0", "fedavg share=0.34", "local"]
    assert list(levels(result)) == ["local", "centralized"]
    assert [run.experiment.attack for run in result.runs["centralized"]] == [None, None]
    honest, attacked = points(result)
    plain, false = result.runs["fedavg share=0"], result.runs["fedavg share=0.34"]
    assert honest.attack_success == pytest.approx(sum(run.attack_success for run in plain) / 2)
    assert attacked.attack_success > 0.9
    assert [run.experiment.seed for run in plain] == [run.experiment.seed for run in false]
    named = [next(note for note in run.notes if "clients attack" in note) for run in false]
    assert named[0] != named[1]  # other attackers in another split
    loaded = Comparison.load(tmp_path / "c")
    assert as_dict(loaded) == as_dict(result)
    assert result.rows()[1]["attack_success"] == pytest.approx(attacked.attack_success)
    page = fa.report(result, tmp_path / "r.html").read_text()
    assert "What attackers cost" in page
    assert "What privacy and bytes cost" not in page
    assert "share of attackers" in page
    assert "attack success" in page
    assert (tmp_path / "c" / "tradeoff.png").stat().st_size > 10_000


def test_baselines_without_updates_run_once() -> None:
    entered, _ = with_sweep(["fedavg", "local", "centralized"], {"attack.share": [0, 0.2]})
    assert list(entered) == ["fedavg share=0", "fedavg share=0.2", "local", "centralized"]


@pytest.mark.parametrize(("text", "message"), [("attack.shar=0,1", "did you mean 'share'"), ("attack.name=a,b", "no key")])
def test_only_numbers_of_attacks_are_swept(text: str, message: str) -> None:
    with pytest.raises(FedarenaError, match=message):
        parse_sweep(text)


def test_a_sweep_without_an_attack_is_refused() -> None:
    with pytest.raises(FedarenaError, match="attack without a name"):
        fa.compare("digits", ["fedavg"], seeds=2, sweep="attack.share=0,0.2", out=False, model="logreg")
