"""Pictures of a partition: how many samples of each class every client holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedarena.data.dataset import Dataset, Partition
from fedarena.data.partition_statistics import class_counts, statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Counts = NDArray[np.int64]

SHOWN = 10  # clients in the bar chart
NUMBERED = 150  # cells up to which the heat map prints its numbers
GREY = "#5b6470"


def plot_partition(data: Dataset, partition: Partition, path: str | Path) -> Path:
    """Write a PNG: a heat map of clients and classes beside the bars of ten clients; for texts, the sizes alone."""
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    path = Path(path)
    if data.task == "next_symbol":
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        draw_sizes(figure.subplots(), partition.sizes)
    else:
        figure = Figure(figsize=(12, 5.6), layout="constrained")
        counts = class_counts(data, partition)
        names = (data.has_classes and data.class_names) or tuple(str(y) for y in range(data.stratum_count))
        heat, bars = figure.subplots(1, 2, width_ratios=(1, 1.1))
        draw_heat_map(heat, counts, names)
        draw_bars(bars, counts, names)
    figure.suptitle(_title(data, partition), fontsize=11, color=GREY)
    figure.savefig(path, dpi=150)
    return path


def draw_heat_map(axes: Axes, counts: Counts, names: tuple[str, ...]) -> None:
    """Draw the samples of every client (down) and class (across), darker for more."""
    shown = np.ma.masked_equal(counts, 0)  # what a client lacks stays white, however light the smallest count
    image = axes.imshow(shown, aspect="auto", cmap="YlGnBu", vmin=0, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, label="rows", pad=0.02).outline.set_visible(False)
    if counts.size <= NUMBERED:
        for (k, y), n in np.ndenumerate(counts):
            if n:
                axes.text(y, k, str(n), ha="center", va="center", fontsize=8, color=_ink(int(n), counts))
    axes.set(xlabel="class", ylabel="client")
    axes.set_title("rows of each client and class", loc="left")
    if len(names) <= 20:
        _name(axes, names)
    if len(counts) <= 20:
        axes.set_yticks(range(len(counts)))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def draw_bars(axes: Axes, counts: Counts, names: tuple[str, ...]) -> None:
    """Draw the samples of ten clients, evenly chosen, in one colour for each class."""
    from matplotlib import colormaps

    chosen = np.unique(np.linspace(0, len(counts) - 1, SHOWN).astype(int))
    held = np.flatnonzero(counts[chosen].sum(axis=0))
    palette = colormaps["tab20" if len(held) > 10 else "tab10"] if len(held) <= 20 else colormaps["turbo"]
    left = np.zeros(len(chosen))
    places = np.arange(len(chosen))
    for i, y in enumerate(held):
        colour = palette(i) if len(held) <= 20 else palette(i / (len(held) - 1))
        axes.barh(places, counts[chosen, y], left=left, color=colour, label=names[y], edgecolor="white", linewidth=0.4)
        left += counts[chosen, y]
    axes.set_yticks(places, [str(k) for k in chosen])
    axes.invert_yaxis()
    axes.set(xlabel="rows", ylabel="client")
    axes.set_title(
        "rows by class" if len(chosen) == len(counts) else f"{len(chosen)} of {len(counts)} clients", loc="left"
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if len(held) <= 20:
        axes.legend(title="class", loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=9)


def draw_sizes(axes: Axes, sizes: Counts) -> None:
    """Draw the number of samples of all clients, largest first."""
    axes.bar(np.arange(1, len(sizes) + 1), np.sort(sizes)[::-1], width=1, color="#1d91c0")
    axes.set(xlabel="clients, largest first", ylabel="rows", xlim=(0.5, len(sizes) + 0.5))
    axes.spines[["top", "right"]].set_visible(False)


def _title(data: Dataset, partition: Partition) -> str:
    facts = statistics(data, partition)
    low, high = facts.rows_min, facts.rows_max
    sizes = f"{low} rows each" if low == high else f"{low} to {high} rows"
    text = f"{data.name}: {facts.clients} clients, {sizes}, {facts.unused} unused"
    return text if facts.l1 is None else f"{text}, mean L1 distance to all labels {facts.l1:.2f}"


def _ink(n: int, counts: Counts) -> str:
    return "white" if n > 0.55 * counts.max() else "#1b2733"


def _name(axes: Axes, names: tuple[str, ...]) -> None:
    long = max(map(len, names)) > 3
    axes.set_xticks(range(len(names)), names, rotation=40 if long else 0, ha="right" if long else "center")
