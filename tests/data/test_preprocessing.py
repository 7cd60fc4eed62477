"""What a model sees of raw rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedarena.data.dataset import Preparation
from fedarena.data.preprocessing import jitter, test_batch, training_batch, whiten, window

test_batch.__test__ = False  # type: ignore[attr-defined]  # a function of ours, no test

IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (16, 3, 32, 32), dtype=np.uint8))
STATS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_divided_by_255(dtype: torch.dtype) -> None:
    seen = training_batch(IMAGES, "scale", None, rng(), dtype)
    assert seen.dtype == dtype
    assert torch.equal(seen, IMAGES.to(dtype) / 255)
    assert torch.equal(seen, test_batch(IMAGES, "scale", None, dtype))


def test_rows_themselves_are_never_changed() -> None:
    table = torch.full((4, 3), 255.0)
    training_batch(table, "scale", None, rng(), torch.float32)
    assert (table == 255).all()


def test_standardising_takes_off_the_mean_of_each_channel() -> None:
    seen = test_batch(IMAGES, "standardise", STATS, torch.float64)
    for c in range(3):
        assert torch.allclose(seen[:, c], (IMAGES[:, c].double() / 255 - STATS[0][c]) / STATS[1][c], atol=1e-6)
    with pytest.raises(ValueError, match="standardise"):
        test_batch(IMAGES, "standardise", None, torch.float32)


def test_texts_and_tables_pass_unchanged() -> None:
    text, table = torch.arange(12).view(3, 4), torch.rand(3, 4)
    assert training_batch(text, "none", None, rng(), torch.float32) is text
    assert training_batch(table, "none", None, rng(), torch.float32) is table
    assert training_batch(table, "none", None, rng(), torch.float64).dtype == torch.float64


@pytest.mark.parametrize("how", ["niid", "mcmahan"])
def test_the_same_stream_shows_the_same_pictures(how: Preparation) -> None:
    first, again, other = (training_batch(IMAGES, how, None, rng(s), torch.float32) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_niid_crops_are_windows_of_the_reflected_picture() -> None:
    padded = functional.pad(IMAGES.float() / 255, (4, 4, 4, 4), mode="reflect")
    windows = padded.unfold(2, 32, 1).unfold(3, 32, 1)  # all 9 x 9 crops
    seen = training_batch(IMAGES, "niid", None, rng(), torch.float32)
    flipped = 0
    for i, picture in enumerate(seen):
        both = (picture[:, None, None], picture.flip(2)[:, None, None])
        plain, mirrored = ((windows[i] == shown).all(dim=(0, 3, 4)).any() for shown in both)
        assert plain or mirrored
        flipped += bool(mirrored)
    assert 2 <= flipped <= 14
    assert torch.equal(test_batch(IMAGES, "niid", None, torch.float32), IMAGES / 255)


def test_mcmahan_pictures_are_24_by_24_and_white() -> None:
    for seen in (
        training_batch(IMAGES, "mcmahan", None, rng(), torch.float64),
        test_batch(IMAGES, "mcmahan", None, torch.float64),
    ):
        assert seen.shape == (16, 3, 24, 24)
        assert torch.allclose(seen.mean(dim=(1, 2, 3)), torch.zeros(16, dtype=torch.float64), atol=1e-9)
        assert torch.allclose(seen.std(dim=(1, 2, 3), correction=0), torch.ones(16, dtype=torch.float64))


def test_mcmahan_tests_on_the_centre() -> None:
    centre = IMAGES[:, :, 4:28, 4:28].double() / 255
    assert torch.allclose(test_batch(IMAGES, "mcmahan", None, torch.float64), whiten(centre))


def test_a_picture_of_one_colour_stays_finite() -> None:
    assert (whiten(torch.full((2, 3, 24, 24), 0.5)) == 0).all()


def test_jitter_keeps_the_order_of_pixels_and_stays_in_its_bounds() -> None:
    x = torch.rand(50, 3, 8, 8, dtype=torch.float64)
    seen = jitter(x, rng())
    contrast = (seen.std(dim=(2, 3)) / x.std(dim=(2, 3))).mean(dim=1)
    brightness = (seen - x).mean(dim=(1, 2, 3))
    assert contrast.min() >= 0.2
    assert contrast.max() <= 1.8
    assert brightness.abs().max() <= 63 / 255


def test_a_window_beyond_the_border_is_reflected() -> None:
    row = torch.arange(5).view(1, 1, 1, 5).expand(1, 1, 5, 5)
    seen = window(row, np.array([0]), np.array([-2]), 5, np.array([False]))
    assert seen[0, 0, 0].tolist() == [2, 1, 0, 1, 2]
    mirrored = window(row, np.array([0]), np.array([2]), 5, np.array([True]))
    assert mirrored[0, 0, 0].tolist() == [2, 3, 4, 3, 2]
