"""`fedarena list` and `fedarena check`: the components an experiment can name, and whether they keep their contract."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedarena.cli.options import File, Json, Quiet
from fedarena.cli.output import print_json

if TYPE_CHECKING:
    from fedarena.config.registry import Entry

WIDEST = 110  # columns of a listing


def list_(
    kind: Annotated[
        Literal["algorithms", "attacks", "partitions", "models", "datasets", "selections", "metrics", "papers"],
        typer.Argument(help="What to list."),
    ],
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """List components with their settings and defaults, the metrics, or the published tables and figures.

    `fedarena list algorithms`

    `fedarena list models --json`

    `fedarena list papers`
    """
    if kind == "papers":
        _list_papers(json_)
    elif kind == "metrics":
        _list_metrics(json_)
    else:
        from fedarena.config.registry import components

        entries = components(kind[:-1]).values()  # type: ignore[arg-type]
        if json_:
            print_json([entry.describe() for entry in entries])
        else:
            _print_entries(entries)


def _print_entries(entries: Iterable[Entry]) -> None:
    width = min(shutil.get_terminal_size().columns, WIDEST)
    for entry in entries:
        print(f"{entry.name}" + (f"  ({entry.paper})" if entry.paper else ""))
        print(textwrap.fill(entry.summary, width, initial_indent="    ", subsequent_indent="    "))
        for parameter in entry.parameters.values():
            default = "none" if parameter.default is None else parameter.default
            print(
                f"      {parameter.name}: {parameter.type}, "
                + ("required" if parameter.is_required else f"default {default}")
            )


def _list_metrics(json_: bool) -> None:
    from fedarena.statistics.metric_registry import all_metrics

    metrics = [metric.describe() for metric in all_metrics().values()]
    if json_:
        print_json(metrics)
        return
    for metric in metrics:
        print(f"{metric['name']}  ({', '.join(metric['tasks'])}; {metric['direction']}, rope {metric['rope']:g})")
        print(f"    {metric['summary']}")


def _list_papers(json_: bool) -> None:
    from fedarena.reproduction.recipe_index import all_recipes

    recipes = [recipe.describe() for recipe in all_recipes()]
    if json_:
        print_json(recipes)
        return
    width = max(len(recipe["name"]) for recipe in recipes)
    for recipe in recipes:
        print(f"{recipe['name']:{width}}  {recipe['summary']}")
        print(f"{'':{width}}  {recipe['paper']}")


def check(
    name: Annotated[str, typer.Argument(help="An algorithm, attack, partition, model, data set or selection rule.")],
    file: Annotated[Path | None, "Python file that registers it."] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the contract tests on a component, built in or your own. Exit code 1 if it breaks the contract.

    `fedarena check fedavg`

    `fedarena check mine --file mine.py`
    """
    from fedarena.experiments.component_checks import check_component

    report = check_component(name, file)
    if json_:
        print_json(report)
    else:
        for statement in report["held"]:
            print(f"  holds   {statement}")
        for statement in report["broken"]:
            print(f"  BROKEN  {statement}")
    if report["broken"]:
        raise typer.Exit(1)
