"""Settings are checked before anything is computed, and say what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from fedarena.config.errors import BadValue, UnknownName
from fedarena.vertical.settings import BoostSettings


@pytest.mark.parametrize(
    "values",
    [
        {"trees": 0},
        {"depth": 13},
        {"bins": 1},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"trees": True},
        {"trees": 2.0},
        {"packing": "yes"},
        {"algorithm": "securebost"},
        {"key_bits": 2000},
        {"key_bits": 1024},
        {"goss": True, "goss_top": 0.8, "goss_rest": 0.3},
        {"goss": True, "goss_rest": 0.0},
        {"multi_output": True},
        {"tree_mode": "layered", "depth": 2, "host_depth": 2},
        {"algorithm": "secureboost", "packing": True},
        {"algorithm": "secureboost", "goss": True},
        {"algorithm": "secureboost", "tree_mode": "mix"},
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        BoostSettings(**values)


def test_a_misspelt_setting_is_named() -> None:
    with pytest.raises(UnknownName, match="did you mean 'trees'"):
        BoostSettings.from_json('{"tree": 3}')


def test_old_keys_only_under_their_flag() -> None:
    assert BoostSettings(key_bits=1024, allow_1024=True).key_bits == 1024


def test_secureboost_has_no_shortcuts_and_plus_can_do_without_each() -> None:
    plain, plus = BoostSettings(algorithm="secureboost"), BoostSettings(packing=False)
    assert not any(plain.uses(s) for s in ("packing", "subtraction", "compression", "sparse"))
    assert [plus.uses(s) for s in ("packing", "subtraction", "compression", "sparse")] == [False, True, True, True]


def test_settings_travel_as_json() -> None:
    settings = BoostSettings(objective="softmax", classes=3, sparse=False, precision=40, lr=0.1)
    assert BoostSettings.from_json(settings.to_json()) == settings
    for bad in ("[]", "{", '{"trees": 3, "more": 1}', '{"trees": "3"}'):
        with pytest.raises((BadValue, UnknownName)):
            BoostSettings.from_json(bad)


def test_a_round_is_a_tree_per_class() -> None:
    each = BoostSettings(objective="softmax", classes=4, trees=3)
    together = BoostSettings(objective="softmax", classes=4, trees=3, multi_output=True)
    assert (each.total_trees, together.total_trees) == (12, 3)
