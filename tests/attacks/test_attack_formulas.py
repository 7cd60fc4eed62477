"""Every attack by its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from fedarena.attacks import (
    ALittleIsEnough,
    Attack,
    Backdoor,
    Gaussian,
    InnerProductManipulation,
    LabelFlip,
    MinMax,
    MinSum,
    SameValue,
    SeenUpdates,
    SignFlip,
)
from fedarena.attacks.alie import largest_deviation
from fedarena.config.errors import BadValue, FedarenaError
from fedarena.config.registry import components
from fedarena.data.dataset import Dataset

RNG = np.random.default_rng(0)
HONEST = RNG.standard_normal((9, 6)) + 1.0


def seen(attackers: int = 3) -> SeenUpdates:
    """Return nine updates that attackers know, of which the first are their own."""
    return SeenUpdates(HONEST[:attackers], HONEST, len(HONEST))


def sent(attack: Attack, attackers: int = 3) -> np.ndarray[Any, Any]:
    return attack.updates(seen(attackers), np.random.default_rng(1))


def images(n: int = 20) -> Dataset:
    x = RNG.integers(0, 200, (n, 1, 4, 5)).astype(np.uint8)
    return Dataset("images", x, np.arange(n) % 3, n - 5, 3)


def test_sign_flip() -> None:
    np.testing.assert_array_equal(sent(SignFlip(scale=10.0)), -10 * HONEST[:3])


def test_same_value() -> None:
    np.testing.assert_array_equal(sent(SameValue(value=-2.5)), np.full((3, 6), -2.5))


def test_gaussian_noise_replaces_the_updates() -> None:
    """Mean and standard deviation of 60,000 numbers: errors of 5 / sqrt(60,000) are beyond five standard errors."""
    many = SeenUpdates(np.full((3, 20_000), 7.0), np.full((3, 20_000), 7.0), 9)
    noise = Gaussian(sd=4.0).updates(many, np.random.default_rng(0)) / 4.0
    assert abs(noise.mean()) < 5 / np.sqrt(60_000)
    assert abs(noise.std() - 1) < 5 / np.sqrt(60_000)
    assert len(np.unique(noise)) > 59_000
    assert not Gaussian(sd=0.0).updates(many, np.random.default_rng(0)).any()


@pytest.mark.parametrize(("clients", "attackers", "supporters"), [(50, 12, 14), (50, 24, 2), (10, 2, 4), (51, 12, 14)])
def test_alie_deviation_follows_from_the_numbers_of_clients(clients: int, attackers: int, supporters: int) -> None:
    """z is the quantile of the share of honest clients that need not side with the attackers for a majority."""
    assert supporters + attackers == clients // 2 + 1
    share = (clients - attackers - supporters) / (clients - attackers)
    assert largest_deviation(clients, attackers) == pytest.approx(norm.ppf(share), abs=1e-12)


def test_alie_deviation_at_its_ends() -> None:
    assert largest_deviation(10, 2) == 0  # 4 of 8 honest clients: the median
    assert largest_deviation(1, 1) == 0
    assert largest_deviation(10, 9) == 0
    assert np.isfinite(largest_deviation(100, 60))  # a majority already


def test_alie_sends_mean_minus_z_deviations() -> None:
    z = norm.ppf((9 - 3 - 2) / (9 - 3))
    expected = HONEST.mean(axis=0) - z * HONEST.std(axis=0)
    np.testing.assert_allclose(sent(ALittleIsEnough()), np.tile(expected, (3, 1)), rtol=1e-12)
    own = HONEST.mean(axis=0) - 1.5 * HONEST.std(axis=0)
    np.testing.assert_allclose(sent(ALittleIsEnough(z=1.5))[0], own, rtol=1e-12)


@pytest.mark.parametrize(("epsilon", "backwards"), [(1.9, False), (2.1, True)])
def test_ipm_turns_the_mean_around_from_its_bound_on(epsilon: float, backwards: bool) -> None:
    """The mean of n - m honest updates and m of -epsilon times theirs points backwards for epsilon > (n - m) / m = 2."""
    honest = HONEST[3:]
    attack = InnerProductManipulation(epsilon=epsilon)
    false = attack.updates(SeenUpdates(HONEST[:3], honest, 9), np.random.default_rng(0))
    true_mean = honest.mean(axis=0)
    assert (false @ true_mean < 0).all()
    mean = np.concatenate([honest, false]).mean(axis=0)
    assert (mean @ true_mean < 0) == backwards


@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
def test_min_max_touches_its_bound(direction: Any) -> None:
    """The update is exactly as far from one honest update as the two furthest honest ones are apart, and no further."""
    found = sent(MinMax(direction=direction))[0]
    largest = max(np.linalg.norm(a - b) for a in HONEST for b in HONEST)
    assert np.linalg.norm(HONEST - found, axis=1).max() == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
def test_min_sum_touches_its_bound(direction: Any) -> None:
    found = sent(MinSum(direction=direction))[0]
    largest = max(((HONEST - a) ** 2).sum() for a in HONEST)
    assert ((HONEST - found) ** 2).sum() == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize("attack", [MinMax(direction="unit"), MinSum(direction="unit")])
def test_the_bounded_attacks_move_against_the_mean(attack: Attack) -> None:
    mean = HONEST.mean(axis=0)
    away = sent(attack)[0] - mean
    assert away @ mean == pytest.approx(-np.linalg.norm(away) * np.linalg.norm(mean), rel=1e-12)


@pytest.mark.parametrize("attack", [MinMax(), MinSum(), ALittleIsEnough(z=2.0)])
def test_one_known_update_leaves_no_room(attack: Attack) -> None:
    """With a single known update there is no deviation and no distance: the attackers send it."""
    alone = SeenUpdates(HONEST[:1], HONEST[:1], 9)
    np.testing.assert_array_equal(attack.updates(alone, np.random.default_rng(0)), HONEST[:1])


# Samples


def test_label_flip_of_all_classes_and_of_one() -> None:
    data = images()
    x, y = LabelFlip().samples(data.x, data.y, data, RNG)
    assert x is data.x
    assert y.tolist() == [2 - one for one in data.y]
    _, one = LabelFlip(source=1, target=0).samples(data.x, data.y, data, RNG)
    assert one.tolist() == [0 if label == 1 else label for label in data.y]


def test_a_backdoor_marks_a_share_of_the_samples_of_an_attacker() -> None:
    data = images()
    x, y = Backdoor(target=2, size=2, poisoned=0.25).samples(data.x, data.y, data, np.random.default_rng(3))
    marked = (x[:, :, -2:, -2:] == data.x.max()).all(axis=(1, 2, 3))
    assert marked.sum() == 5
    assert (y[marked] == 2).all()
    np.testing.assert_array_equal(x[~marked], data.x[~marked])
    np.testing.assert_array_equal(y[~marked], data.y[~marked])
    np.testing.assert_array_equal(x[:, :, :-2], data.x[:, :, :-2])
    np.testing.assert_array_equal(x[:, :, :, :-2], data.x[:, :, :, :-2])


def test_the_trigger_of_a_table_is_one_column() -> None:
    x = RNG.standard_normal((10, 4)).astype(np.float32)
    data = Dataset("table", x, np.arange(10) % 2, 8, 2)
    marked = Backdoor(feature=2, value=9.5).triggered(x, data)
    assert (marked[:, 2] == 9.5).all()
    np.testing.assert_array_equal(np.delete(marked, 2, axis=1), np.delete(x, 2, axis=1))
    assert (Backdoor(feature=2).triggered(x, data)[:, 2] == x[:, 2].max()).all()


def test_a_backdoor_is_scaled_so_that_its_mean_replaces_the_model() -> None:
    """Where honest clients stay in place, the mean of all n updates is the mean update of the attackers."""
    false = sent(Backdoor())
    np.testing.assert_allclose(false.sum(axis=0) / 9, HONEST[:3].mean(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(sent(Backdoor(scale=1.0)), HONEST[:3])


# Which clients attack


def test_attackers_of_a_smaller_share_are_among_those_of_a_larger_one() -> None:
    def attackers(share: float) -> tuple[int, ...]:
        return SignFlip(share=share).attackers(range(1, 51), [str(k) for k in range(51)], np.random.default_rng(5))

    few, some, many = (set(attackers(share)) for share in (0.1, 0.2, 0.54))
    assert few < some < many
    assert [len(few), len(some), len(many), len(attackers(0.0))] == [5, 10, 27, 0]
    assert 0 not in many  # a client without samples


def test_attackers_by_name_or_number() -> None:
    names = ("Cleveland", "Hungary", "Zurich")
    rng = np.random.default_rng(0)
    assert SignFlip(clients=("Zurich", "Hungary")).attackers([0, 1, 2], names, rng) == (1, 2)
    assert SignFlip(clients=(1,)).attackers([0, 1, 2], ("0", "1", "2"), rng) == (1,)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (SignFlip(share=0.1), "of 3 clients is no client"),
        (SignFlip(clients=("0", "1", "2")), "all clients attack"),
        (SignFlip(clients=("4",)), "there is no client '4'"),
    ],
)
def test_impossible_attackers_are_refused(attack: Attack, message: str) -> None:
    with pytest.raises(FedarenaError, match=message):
        attack.attackers([0, 1, 2], ("0", "1", "2"), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (LabelFlip(source=1), "a source or a target alone"),
        (LabelFlip(source=1, target=3), "no class 3"),
        (Backdoor(target=3), "no class 3"),
        (Backdoor(size=5), r"attack\.size = 5 is outside"),
    ],
)
def test_what_the_data_do_not_have_is_refused(attack: Attack, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        attack.check(images())


def test_share_and_clients_exclude_each_other() -> None:
    with pytest.raises(BadValue, match=r"both attack\.share and attack\.clients"):
        SignFlip(share=0.1, clients=(1,))


def test_every_attack_is_registered_with_its_paper() -> None:
    found = components("attack")
    names = "label_flip sign_flip gaussian same_value alie ipm min_max min_sum backdoor"
    assert set(names.split()) <= set(found)
    assert all(entry.paper for entry in found.values())
