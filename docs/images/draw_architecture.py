"""Draw the figures of docs/architecture.md: `python docs/images/draw_architecture.py` writes them beside this file.

A figure is a grid of boxes (title, file, note) with arrows between them. Files are named relative to src/fedarena;
tests/test_docs.py checks that they exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 262, 70, 40, 30, 18
HEAD = 30  # above the boxes of a figure whose columns have names
FONT = "font-family='-apple-system,Segoe UI,Helvetica,Arial,sans-serif'"
MONO = "font-family='ui-monospace,SFMono-Regular,Menlo,Consolas,monospace'"
FILLS = {"plain": "#ffffff", "server": "#e8f0fb", "client": "#e9f6ec", "result": "#fdf3dd"}
STROKES = {"plain": "#8c959f", "server": "#3b78c4", "client": "#3a8f52", "result": "#b98512"}


@dataclass(frozen=True)
class Box:
    """A step: where it stands in the grid, what happens, in which file, and one line more."""

    column: int
    row: float
    title: str
    file: str
    note: str
    kind: str = "plain"

    @property
    def x(self) -> float:
        return MARGIN + self.column * (WIDTH + GAP_X)

    def y(self, head: int) -> float:
        return MARGIN + head + self.row * (HEIGHT + GAP_Y)


def box(one: Box, head: int) -> str:
    x, y = one.x, one.y(head)
    return (
        f"<rect x='{x}' y='{y}' width='{WIDTH}' height='{HEIGHT}' rx='7' fill='{FILLS[one.kind]}' "
        f"stroke='{STROKES[one.kind]}' stroke-width='1.3'/>"
        f"<text x='{x + 12}' y='{y + 21}' {FONT} font-size='14' font-weight='600' fill='#1f2328'>{escape(one.title)}</text>"
        f"<text x='{x + 12}' y='{y + 40}' {MONO} font-size='12' fill='#0b5cad'>{escape(one.file)}</text>"
        f"<text x='{x + 12}' y='{y + 58}' {FONT} font-size='12' fill='#57606a'>{escape(one.note)}</text>"
    )


def arrow(start: Box, end: Box, head: int, label: str = "") -> str:
    """From one box to another: straight down, straight across, or around a corner at half the way."""
    x0, y0, x1, y1 = start.x, start.y(head), end.x, end.y(head)
    if start.column == end.column:
        way = 1 if y1 > y0 else -1
        points = [(x0 + WIDTH / 2, y0 + (HEIGHT if way > 0 else 0)), (x1 + WIDTH / 2, y1 + (0 if way > 0 else HEIGHT))]
    else:
        way = 1 if x1 > x0 else -1
        first = (x0 + (WIDTH if way > 0 else 0), y0 + HEIGHT / 2)
        last = (x1 + (0 if way > 0 else WIDTH), y1 + HEIGHT / 2)
        middle = (first[0] + last[0]) / 2
        points = [first, (middle, first[1]), (middle, last[1]), last] if first[1] != last[1] else [first, last]
    path = " ".join(f"{'M' if i == 0 else 'L'}{x:g} {y:g}" for i, (x, y) in enumerate(points))
    (xa, ya), (xb, yb) = points[0], points[-1]
    at = (xa + 8, (ya + yb) / 2 + 4, "start") if xa == xb else ((xa + xb) / 2, ya - 6, "middle")
    style = f"{FONT} font-size='12' fill='#57606a' text-anchor='{at[2]}'"
    said = f"<text x='{at[0]}' y='{at[1]}' {style}>{escape(label)}</text>" if label else ""
    return f"<path d='{path}' fill='none' stroke='#57606a' stroke-width='1.5' marker-end='url(#tip)'/>{said}"


def figure(title: str, boxes: dict[str, Box], arrows: list[tuple[str, ...]], columns: tuple[str, ...] = ()) -> str:
    head = HEAD if columns else 0
    width = max(one.x for one in boxes.values()) + WIDTH + MARGIN
    height = max(one.y(head) for one in boxes.values()) + HEIGHT + MARGIN
    names = "".join(
        f"<text x='{MARGIN + i * (WIDTH + GAP_X) + WIDTH / 2}' y='{MARGIN + 12}' {FONT} font-size='13' font-weight='600' "
        f"fill='#57606a' text-anchor='middle'>{escape(name)}</text>"
        for i, name in enumerate(columns)
    )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' width='{width:g}' height='{height:g}' "
        f"role='img'><title>{escape(title)}</title><defs><marker id='tip' viewBox='0 0 10 10' refX='9' refY='5' "
        "markerWidth='7' markerHeight='7' orient='auto'><path d='M0 0L10 5L0 10z' fill='#57606a'/></marker></defs>"
        f"<rect width='{width:g}' height='{height:g}' rx='10' fill='#ffffff'/>{names}"
        + "".join(arrow(boxes[a], boxes[b], head, *label) for a, b, *label in arrows)
        + "".join(box(one, head) for one in boxes.values())
        + "</svg>\n"
    )


def chain(*names: str) -> list[tuple[str, ...]]:
    return list(pairwise(names))


EXPERIMENT = figure(
    "The life of an experiment",
    {
        "text": Box(0, 0, "1  Read the experiment", "config/experiment.py", "file, keywords, arrays, --set"),
        "data": Box(1, 0, "2  Load and partition data", "engine/setup.py", "data/, data/partitions/, folds"),
        "context": Box(2, 0, "3  Build model and algorithm", "engine/context.py", "models/, algorithms/, devices"),
        "folder": Box(2, 1, "4  Open the run folder", "results/run_folder.py", "lock, start files, checkpoint"),
        "runtime": Box(1, 1, "5  Start workers", "experiments/run.py", "runtimes/: serial, processes, ray"),
        "loop": Box(0, 1, "6  Run rounds", "engine/loop.py", "one record a round, see below", "server"),
        "finish": Box(0, 2, "7  Compute final metrics", "experiments/run.py", "finish_run writes the result"),
        "run": Box(1, 2, "8  Return a Run", "results/run.py", "records, metrics, weights, notes", "result"),
        "report": Box(2, 2, "9  Report it", "reports/page.py", "HTML, figures and tables", "result"),
    },
    chain("text", "data", "context", "folder", "runtime", "loop", "finish", "run", "report"),
)

ROUND = figure(
    "The life of a round",
    {
        "select": Box(0, 0, "1  Select clients", "engine/selection.py", "available ones; devices, seeds", "server"),
        "broadcast": Box(0, 1, "2  Broadcast", "engine/loop.py", "the algorithm's message, buffers", "server"),
        "runtime": Box(
            1, 1, "3  Train: map tasks on workers", "runtimes/serial.py", "or processes, ray, remote clients"
        ),
        "task": Box(2, 1, "One client's task", "engine/tasks.py", "client state, buffers and seeds", "client"),
        "algorithm": Box(2, 2, "Algorithm.client", "algorithms/fedavg.py", "message, state, work -> reply", "client"),
        "work": Box(2, 3, "work.train, work.gradient", "engine/client.py", "batches, rates, random streams", "client"),
        "solver": Box(2, 4, "The local solver", "engine/solver.py", "the only training loop", "client"),
        "gradient": Box(2, 5, "Loss and gradient", "models/task.py", "compiled, tape or autograd", "client"),
        "reply": Box(1, 2, "Privacy steps of the client", "privacy/uplink.py", "clip, compress, mask", "client"),
        "receive": Box(0, 2, "4  Receive", "privacy/uplink.py", "unmask the sum, add noise", "server"),
        "aggregate": Box(0, 3, "5  Aggregate", "models/pytree.py", "weighted mean in client order", "server"),
        "server": Box(0, 4, "6  Update the server", "algorithms/base.py", "Algorithm.server; buffers", "server"),
        "evaluate": Box(0, 5, "7  Evaluate", "engine/evaluation.py", "common and clients' test samples", "server"),
        "checkpoint": Box(0, 6, "8  Checkpoint", "engine/checkpoint.py", "state survives kill -9", "server"),
        "record": Box(0, 7, "9  Yield the record", "engine/record.py", "costs, metrics, times", "result"),
    },
    [
        ("select", "broadcast"),
        *chain("broadcast", "runtime", "task", "algorithm", "work", "solver", "gradient"),
        *chain("algorithm", "reply", "receive", "aggregate", "server", "evaluate", "checkpoint", "record"),
    ],
    ("server", "worker pool", "client"),
)

COMPARISON = figure(
    "The life of a comparison",
    {
        "ask": Box(0, 0, "1  Name the contestants", "experiments/contestants.py", "names, tables or objects"),
        "plan": Box(
            1, 0, "2  Plan splits x contestants", "experiments/run_comparison.py", "all checked before any run"
        ),
        "tune": Box(2, 0, "3  Tune, if asked", "experiments/tune.py", "the same number of trials each"),
        "pool": Box(2, 1, "4  Run cells on a pool", "runtimes/process_pool.py", "or Ray; failures are recorded"),
        "cell": Box(1, 1, "5  A cell is a run", "experiments/task_folder.py", "cells/NAME/SPLIT, resumable"),
        "score": Box(0, 1, "6  Score each cell", "results/scoring.py", "round, metric, test samples"),
        "pairs": Box(0, 2, "7  Compare pairs", "statistics/bayes.py", "correlated Bayesian t-test"),
        "joint": Box(1, 2, "8  Compare all at once", "statistics/joint.py", "P(best), expected loss"),
        "more": Box(2, 2, "9  Decided?", "experiments/until_decided.py", "with --until-decided only"),
        "result": Box(
            2, 3, "10  Return a Comparison", "results/comparison.py", "table, verdict, client gains", "result"
        ),
        "report": Box(1, 3, "11  Report it", "reports/page.py", "or terminal tables, JSON, ui", "result"),
    },
    [
        *chain("ask", "plan", "tune", "pool", "cell", "score", "pairs", "joint", "more"),
        ("more", "pool", "no: add a repeat"),
        ("more", "result", "yes"),
        ("result", "report"),
    ],
)

FEDERATION = figure(
    "The life of a federation",
    {
        "serve": Box(0, 0, "fedarena serve", "federation/server.py", "experiment, keys, a run folder", "server"),
        "link": Box(1, 0, "Connect", "transport/flower_link/", "Flower, TLS, a key for each client"),
        "join": Box(2, 0, "fedarena join", "federation/api.py", "a table that stays here", "client"),
        "invite": Box(0, 1, "1  Invite", "federation/enrollment.py", "the experiment as text", "server"),
        "consent": Box(2, 1, "2  Consent", "federation/consent.py", "lists what leaves, and asks", "client"),
        "describe": Box(
            2, 2, "3  Describe the table", "federation/client_data.py", "columns, counts, statistics", "client"
        ),
        "agree": Box(0, 2, "4  Agree", "federation/agreement.py", "columns, classes, scaling", "server"),
        "loop": Box(0, 3, "5  Run rounds", "engine/loop.py", "the loop of every run", "server"),
        "remote": Box(
            0, 4, "6  Send tasks as messages", "federation/remote_runtime.py", "a runtime like any other", "server"
        ),
        "coordinator": Box(1, 4, "Requests", "federation/coordinator.py", "deadline, minimum, retries"),
        "handle": Box(
            2, 4, "7  Check the request", "federation/client.py", "limits, agreed terms, release log", "client"
        ),
        "work": Box(
            2, 5, "8  Train or evaluate", "federation/client_worker.py", "engine/tasks.py on own samples", "client"
        ),
        "secure": Box(
            2, 6, "9  Mask the response", "federation/secure_aggregation.py", "only the sum can be opened", "client"
        ),
        "messages": Box(1, 6, "Typed messages", "federation/messages.py", "JSON and arrays, never pickle"),
        "sum": Box(0, 6, "10  Add up responses", "federation/remote_runtime.py", "then as in every round", "server"),
        "evaluate": Box(0, 7, "11  Evaluate by sums", "federation/evaluation.py", "counts and losses only", "server"),
        "result": Box(0, 8, "12  Return a Run", "results/run.py", "an ordinary run folder", "result"),
    },
    [
        ("serve", "link"),
        ("join", "link"),
        ("serve", "invite"),
        *chain("invite", "consent", "describe", "agree", "loop", "remote", "coordinator", "handle", "work", "secure"),
        *chain("secure", "messages", "sum", "evaluate", "result"),
    ],
    ("server", "link", "each client"),
)

FIGURES = {"experiment": EXPERIMENT, "round": ROUND, "comparison": COMPARISON, "federation": FEDERATION}

if __name__ == "__main__":
    for name, drawn in FIGURES.items():
        (Path(__file__).parent / f"life-of-{name}.svg").write_text(drawn, encoding="utf-8")
