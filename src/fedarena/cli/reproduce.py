"""`fedarena reproduce`: published tables and figures, run again and compared with what was published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedarena.cli.options import Json, Quiet, Workers
from fedarena.cli.output import print_json, print_result


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="A published table or figure: an id of `fedarena list papers`.", show_default=False),
    ] = None,
    size: Annotated[
        Literal["smoke", "small", "full"] | None,
        typer.Option(
            help="`smoke`: does it run; `small`: does the order of the algorithms agree; `full`: as published.  "
            "[default: small]"
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Reproduce all of them, one after the other.")] = False,
    only: Annotated[
        str | None, typer.Option(help="Run only cells that match this pattern: `--only 'C=0.1 B=10 *'`.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder; by default one under runs/papers/ that belongs to it.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the reproduction in this folder.")] = None,
    save: Annotated[Path | None, typer.Option(help="Also write the result file into this folder.")] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Run nothing; write a page about the result files of --save (papers/results)."),
    ] = None,
    judge: Annotated[
        Path | None, typer.Option(help="Run nothing; judge this result file again by the current recipe.")
    ] = None,
    workers: Workers = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a published table or figure again: published and measured values side by side, and whether they agree.

    `fedarena reproduce N-F2`

    `fedarena reproduce N-T1 --size small --save papers/results`

    `fedarena reproduce P-ROC --size full --only "C=0.1 B=10 *"`

    `fedarena reproduce --all --size smoke`

    `fedarena reproduce --page docs/reproduced.md`

    Running the same command again resumes it. A run that is smaller than the published one never `agrees`; at most, its
    `ordering agrees`.
    """
    runs_something = any((name, everything, size, only, out, resume, workers))
    if page is not None:
        if runs_something or judge:
            raise typer.BadParameter("--page goes with --save and --json")
        _write_page(page, save, json_)
    elif judge is not None:
        if runs_something or save:
            raise typer.BadParameter("--judge goes with --json")
        _judge_again(judge, json_)
    else:
        options: dict[str, Any] = {"size": size, "workers": workers, "save": save, "out": out, "progress": not quiet}
        if everything:
            if name or only or resume:
                raise typer.BadParameter("--all goes with --size, --out, --save and --workers")
            _reproduce_all(options, json_)
        else:
            _reproduce_one({**options, "name": name, "only": only, "resume": resume}, json_)


def _write_page(page: Path, save: Path | None, json_: bool) -> None:
    from fedarena.reproduction.reproduce import write_page

    path = write_page(page, save)
    print_result(path, {"page": str(path)}, json_)


def _judge_again(file: Path, json_: bool) -> None:
    from fedarena.reproduction.reproduce import judge_again
    from fedarena.reproduction.result import show_reproduction

    result = judge_again(file)
    print_json(result.as_dict()) if json_ else show_reproduction(result)
    _exit_if_failed([result])


def _reproduce_all(options: dict[str, Any], json_: bool) -> None:
    from fedarena import api
    from fedarena.reproduction.result import show_verdicts

    results = api.reproduce_all(**options)
    print_json([result.as_dict() for result in results]) if json_ else show_verdicts(results)
    _exit_if_failed(results)


def _reproduce_one(options: dict[str, Any], json_: bool) -> None:
    from fedarena import api
    from fedarena.reproduction.result import show_reproduction

    result = api.reproduce(**options)
    if json_:
        print_json(result.as_dict())
    else:
        show_reproduction(result)
        print("\n".join(str(path) for path in (result.figure, result.dir) if path is not None))
    _exit_if_failed([result])


def _exit_if_failed(results: list[Any]) -> None:
    if any(result.failures for result in results):
        raise typer.Exit(1)
