"""The grid of gains: a cell for each client and algorithm, its colour by the sign, its strength by the size."""

from __future__ import annotations

import re

from fedarena.reports.charts.gain_grid import gain_grid
from fedarena.reports.charts.svg import NARROW, WIDE

GAINS = {("north", "fedavg"): 0.2, ("north", "ditto"): -0.1, ("south", "fedavg"): 0.0}


def drawn(width: float) -> str:
    return str(gain_grid(["north", "south"], ["fedavg", "ditto"], GAINS, lambda gain: f"{gain:+.2f}", width))


def test_colours_and_strengths_follow_the_gains() -> None:
    """Half of the largest gain has 0.2 + 0.8 / 2 of the strength."""
    cells = re.findall(r'fill-opacity="([\d.]+)" class="area (\w+)"', drawn(WIDE))
    assert cells == [("1.00", "better"), ("0.60", "worse"), ("0.20", "equal")]
    assert drawn(WIDE).count("–") == 1  # south has no result of ditto
    assert "north, ditto: -0.10" in drawn(WIDE)


def test_everything_lies_within_the_width() -> None:
    for width in (NARROW, WIDE):
        for x, wide in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn(width)):
            assert 0 <= float(x) < float(x) + float(wide) <= width
