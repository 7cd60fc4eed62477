"""The page about what could and could not be reproduced, written from result files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedarena.common.formatting import format_duration
from fedarena.reproduction.result import measured_text
from fedarena.reproduction.score_sheet import format_number

Result = Mapping[str, Any]
SIZES = ("smoke", "small", "full")
MOST = 40  # rows of a table
MARK = re.compile(r"\b([AEMPT])-(\d{1,2})\b")  # an ambiguity of a paper, explained in docs/reference
MARK_PAGES = {"A": "algorithms", "E": "experiments", "M": "models", "P": "partitions", "T": "metrics"}
SECTION = re.compile(r"\balgorithms (\d+)\b")  # recipes of early results cite a section by its number
HEAD = """\
# What we could and could not reproduce

Find out which published tables, figures and claims were run again with fedarena, what the result was, and where it
differs from the published one.

Every number below comes from a file in `papers/results/`, with the experiments, seeds and versions that produced it; the
page is generated from those files (`fedarena reproduce --page docs/reproduced.md`). How a recipe works, and how to run one
of its rows again bit by bit, is explained in [papers](papers.md).

`agrees`: a run of the published size, within the tolerance set before it was run. `ordering agrees`: a smaller run, or one
whose numbers are further off, in which every ordering that can be checked holds; what only the published size can show is
reported and not judged. `differs`: the reason says where. `not comparable`: something needed for the comparison is missing.

Times are the sum over all runs, by the clock: some ran beside much other work, and take less alone.

Marks such as [A-14](reference/algorithms.md#a-14) number the places where papers are ambiguous or contradict themselves;
each links to its [explanation](reference/index.md#marks).
"""


def reproduced_page(results: Sequence[Result], known: Mapping[str, str]) -> str:
    """Return the page; `known` has the titles of all recipes by id, including those that were never run."""
    places = {name: place for place, name in enumerate(known)}
    ordered = sorted(results, key=lambda r: (places.get(r["id"], len(places)), SIZES.index(r["size"])))
    parts = [HEAD, _summary(ordered), *map(_section, ordered)]
    missing = [name for name in known if name not in {result["id"] for result in ordered}]
    if missing:
        parts.append("\n".join(["## Not run yet", "", *(f"- {name}: {known[name]}" for name in missing)]))
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _summary(results: Sequence[Result]) -> str:
    lines = ["| id | what | size | runs | verdict |", "|---|---|---|---|---|"]
    for r in results:
        lines.append(
            f"| [{r['id']}](#{_slug(_heading(r))}) | {_cell(r['title'])} | {r['size']} | {len(r['runs'])} | {r['verdict']} |"
        )
    return "\n".join(lines)


def _section(result: Result) -> str:
    """Return the section of a result: its verdict, published and measured numbers, and its checks."""
    lines = [f"## {_heading(result)}", "", f"{result['title']}. {result['source']}.", "", f"> {result['claim']}", ""]
    lines += [f"**{result['verdict']}**: {result['reason']}.", "", *_table(result), *_checks(result)]
    lines += [f"- {note}" for note in result["notes"]]
    count = len(result["runs"])
    spent = f"{count} run{'s' * (count != 1)}, {format_duration(max(result['seconds'], 1))} added up"
    return _linked("\n".join([*lines, *([""] if result["notes"] else []), f"`{result['command']}` ({spent})"]))


def _table(result: Result) -> list[str]:
    """Return the table of published numbers; without any, that of the first measure."""
    rows = [row for row in result["rows"] if row["published"] is not None]
    rows = rows or [row for row in result["rows"] if row["measure"] == result["rows"][0]["measure"]]
    if not rows:
        return []
    lines = ["| cell | measure | published | measured |", "|---|---|---|---|"]
    for row in rows[:MOST]:
        tuned = f" ({row['tuned']})" if "tuned" in row else ""
        values = f"{format_number(row['published'])} | {measured_text(row)}"
        lines.append(f"| {_cell(row['cell'] + tuned)} | {_cell(row['measure'])} | {values} |")
    more = [f"| ... and {len(rows) - MOST} more in the file | | | |"] if len(rows) > MOST else []
    return [*lines, *more, ""]


def _checks(result: Result) -> list[str]:
    lines = ["| check | holds | found |", "|---|---|---|"]
    for check in result["checks"]:
        held = {True: "yes", False: "**no**", None: "not run"}[check["held"]]
        if check["held"] is not None and not check["judged"]:
            held = held.strip("*") + ", not judged"
        wrong = [f for f in check["findings"] if not f["held"]] or check["findings"]
        found = "; ".join(f"{f['of']}: {f['value']}" if f["of"] else f["value"] for f in wrong[:3])
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        lines.append(f"| {_cell(check['says'])} | {held} | {_cell(found + more)} |")
    return [*lines, ""] if result["checks"] else []


def _linked(text: str) -> str:
    """Link the marks of ambiguities to the pages that explain them (docs/reference/index.md#marks)."""
    text = SECTION.sub(lambda cited: f"[{cited[0]}](reference/algorithms.md#section-{cited[1]})", text)
    return MARK.sub(lambda mark: f"[{mark[0]}](reference/{MARK_PAGES[mark[1]]}.md#{mark[0].lower()})", text)


def _heading(result: Result) -> str:
    return f"{result['id']} {result['size']}"


def _slug(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
