"""Measure scale, and write the results into docs/scale.md and its figure. It takes about ten minutes on an idle machine.

    python benchmarks/scale.py                   # measures
    python benchmarks/scale.py measured.json     # uses the output of `fedarena bench scale --json`

A table of the page is found by its columns, which are those that the command prints.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from fedarena.bench.scale import TABLES, measure
from fedarena.bench.table_format import Row
from fedarena.common.logs import show_messages
from fedarena.reports.paper_figures import COLOURS, LOOK

DOCS = Path(__file__).parent.parent / "docs"
PAGE, FIGURE = DOCS / "scale.md", DOCS / "images" / "scale-days.png"


def write_table(page: str, rows: list[Row], part: str) -> str:
    """Return the page with the measurements of one part in the table that has its columns."""
    _, columns = TABLES[part]
    lines = [[cell(row) for cell in columns.values()] for row in rows if row["part"] == part]
    head = f"| {' | '.join(columns)} |\n"
    table = f"{head}{'|---' * len(columns)}|\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
    page, found = re.subn(re.escape(head) + r"(\|.*\n)*", lambda _: table, page)
    if found != 1:
        sys.exit(f"{PAGE} has {found} tables with the columns {', '.join(columns)}: there should be one")
    return page


def draw(rows: list[Row], path: Path) -> None:
    """Draw the available devices, the lost updates and the accuracy over simulated time."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ways = [row for row in rows if row["part"] == "days"]
    ways = [row for row in ways if row["clients"] == ways[0]["clients"]]
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(7, 5.4), layout="constrained")
        there, lost, learned = figure.subplots(3, 1, sharex=True, height_ratios=[1, 1, 1.5])
        end = max(row["days"] for row in ways) * 24
        hours = list(range(int(end) + 1))
        there.fill_between(hours, [ways[0]["by_hour"][h % 24]["available"] / 1000 for h in hours], color="#c9d3da")
        there.set_ylabel("devices there\n(thousands)")
        for row, colour in zip(ways, COLOURS, strict=False):
            shares: list[Any] = [row["by_hour"][h % 24]["lost_share"] for h in hours]
            lost.plot(hours, [None if s is None else 100 * s for s in shares], color=colour, lw=1.2)
            learned.plot(*zip(*row["curve"], strict=True), color=colour, lw=1.2, label=row["design"])
        lost.set_ylabel("answers lost\n(%, by hour of day)")
        learned.set_ylabel("accuracy")
        learned.set_xlabel("simulated hours since midnight in the first time zone")
        learned.set_xticks(range(0, int(end) + 1, 12))
        learned.legend(frameon=False, loc="lower right")
        for axes in (there, lost, learned):
            axes.grid(axis="y", color="#e3e7ea", lw=0.6)
        figure.savefig(path, dpi=150)


def main() -> None:
    if len(sys.argv) > 1:
        rows: list[Row] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    else:
        show_messages()
        rows = measure((), 3)
        Path("scale.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    for part in TABLES:
        page = write_table(page, rows, part)
    PAGE.write_text(page, encoding="utf-8")
    draw(rows, FIGURE)
    print(f"{PAGE}\n{FIGURE}")


if __name__ == "__main__":
    main()
