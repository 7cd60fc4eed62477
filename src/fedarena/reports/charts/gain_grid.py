"""A grid of gains: a row for each client, a column for each algorithm, the darker the larger the gain or loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from fedarena.reports.charts.svg import LETTER, ROOMY, WIDE, picture, rect, shorten, text, title

CELL = 22.0  # height of a row
FAINTEST = 0.2  # of a cell with the smallest gain

Gains = Mapping[tuple[str, str], float]  # by client and algorithm


def gain_grid(
    clients: Sequence[str],
    algorithms: Sequence[str],
    gains: Gains,
    write: Callable[[float], str],
    width: float = WIDE,
    about: str = "Mean gain of each client from each algorithm.",
) -> Markup:
    """Draw the gain of each client from each algorithm, in the colour of better or worse; `write` prints a value."""
    most = max((abs(gain) for gain in gains.values()), default=0.0) or 1.0
    longest = LETTER * max(map(len, clients)) + 14
    names = min(longest, 220.0 if width >= ROOMY else width / 3)
    column = min((width - names) / len(algorithms), 130.0)
    body, top = [], 24.0
    for j, algorithm in enumerate(algorithms):
        body.append(text(names + column * (j + 0.5), 14, shorten(algorithm, column - 6), "name", "middle"))
    for i, client in enumerate(clients):
        y = top + CELL * i
        body.append(text(0, y + 15, shorten(client, names - 6), "name"))
        for j, algorithm in enumerate(algorithms):
            gain = gains.get((client, algorithm))
            shown = "–" if gain is None else write(gain)
            if gain is not None:
                opacity = FAINTEST + (1 - FAINTEST) * abs(gain) / most
                hover = title(f"{client}, {algorithm}: {shown}")
                kind = "area better" if gain > 0 else "area worse" if gain < 0 else "area equal"
                cell = (names + column * j + 1, y + 1, column - 2, CELL - 2)
                body.append(rect(*cell, kind, hover, fill_opacity=f"{opacity:.2f}"))
            body.append(text(names + column * (j + 0.5), y + 15, shown, "cell-value", "middle"))
    summary = "; ".join(f"{client}, {algorithm}: {write(gain)}" for (client, algorithm), gain in gains.items())
    return picture(width, top + CELL * len(clients) + 6, f"{about} {summary}", body)
