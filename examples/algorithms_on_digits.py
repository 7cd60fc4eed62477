"""Every algorithm with its defaults on unlike clients: the table of docs/algorithms.md.

`python examples/algorithms_on_digits.py` runs them all (a minute or two on one core) and writes the table between its
two marks in that page. An algorithm that is registered takes part; companions go around FedAvg.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import fedarena as fa
from fedarena.config.registry import components

PAGE = Path(__file__).parent.parent / "docs" / "algorithms.md"
BEGIN, END = "<!-- table: python examples/algorithms_on_digits.py -->", "<!-- end of table -->"
REFERENCES = ("centralized", "local", "fedavg")
TARGET = 0.9
SEEDS = range(3)
EXPERIMENT: dict[str, Any] = {
    "data": "digits",
    "clients": 10,
    "share": 0.5,
    "rounds": 60,
    "partition": {"name": "label_dirichlet", "beta": 0.2},
    "local": {"lr": 0.1, "epochs": 2, "batch": 32},
}


def built_in() -> list[str]:
    """Return the names of all algorithms of the package, baselines first."""
    names = [n for n, entry in components("algorithm").items() if entry.make.__module__.startswith("fedarena.")]
    return [*REFERENCES, *sorted(set(names) - set(REFERENCES))]


def row(name: str, runs: list[fa.Run]) -> str:
    """Return the row of one algorithm over all seeds: final and best accuracy, rounds to 90 %, megabytes sent."""
    final = [100 * (run.final.accuracy or 0.0) for run in runs]
    best = mean(100 * (run.best.accuracy or 0.0) for run in runs)
    spread = f" ± {stdev(final):.1f}" if len(runs) > 1 else ""
    sent = mean(run.bytes for run in runs) / 1e6
    own = "" if runs[0].metrics else " on own rows"  # without a complete common model
    cells = [
        f"[`{name}`](algorithms/{name}.md)",
        f"{mean(final):.1f}{spread}" + (" (diverged)" if any(run.diverged for run in runs) else "") + own,
        f"{best:.1f}",
        rounds_to_target(runs),
        f"{sent:.0f}" if sent else "-",
    ]
    return f"| {' | '.join(cells)} |"


def rounds_to_target(runs: list[fa.Run]) -> str:
    """Return the mean over the seeds that reached the target, and how many did if not all."""
    arrived = [rounds for run in runs if (rounds := run.rounds_to(TARGET)) is not None]
    if not arrived:
        return "never"
    return f"{mean(arrived):.0f}" + (f" ({len(arrived)} of {len(runs)})" if len(arrived) < len(runs) else "")


def table(seeds: range = SEEDS, **changes: Any) -> Iterator[str]:
    """Yield the table line by line, as the runs end."""
    yield "| algorithm | accuracy, % | best | rounds to 90 % | MB sent |"
    yield "|---|---|---|---|---|"
    for name in built_in():
        table = {**EXPERIMENT, "algorithm": name, **changes}
        yield row(name, [fa.run({**table, "seed": seed}, out=False, runtime="serial") for seed in seeds])


def write(lines: list[str], page: Path = PAGE) -> None:
    """Write the table between its marks and leave the rest of the page unchanged."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(before + "\n".join([BEGIN, *lines, END]) + after, encoding="utf-8")


def main() -> None:
    lines = []
    for line in table():
        print(line, file=sys.stderr, flush=True)
        lines.append(line)
    write(lines)
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
