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
        "`smoke`: does it run; `small`: does the order of the algorithms agree; `full`: as published.  "
        "[default: small]",
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Reproduce all of them, one after the other.")] = False,
    only: Annotated[str | None, "Run only cells that match this pattern: `--only 'C=0.1 B=10 *'`."] = None,
    out: Annotated[Path | None, "Folder; by default one under runs/papers/ that belongs to it."] = None,
    resume: Annotated[Path | None, "Resume the reproduction in this folder."] = None,
    save: Annotated[Path | None, "Also write the result file into this folder."] = None,
    page: Annotated[Path | None, "Run nothing; write a page about the result files of --save (papers/results)."] = None,
    judge: Annotated[Path | None, "Run nothing; judge this result file again by the current recipe."] = None,
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
    from fedarena.reproduction.reproduce import judge_again, reproduce_all, write_page
    from fedarena.reproduction.reproduce import reproduce as reproduce_table
    from fedarena.reproduction.result import show_reproduction, show_verdicts

    runs_something = any((name, everything, size, only, out, resume, workers))
    options: dict[str, Any] = {"size": size, "workers": workers, "save": save, "out": out, "progress": not quiet}
    if page is not None:
        if runs_something or judge:
            raise typer.BadParameter("--page goes with --save and --json")
        path = write_page(page, save)
        print_result(path, {"page": str(path)}, json_)
        return
    if judge is not None:
        if runs_something or save:
            raise typer.BadParameter("--judge goes with --json")
        results = [judge_again(judge)]
    elif everything:
        if name or only or resume:
            raise typer.BadParameter("--all goes with --size, --out, --save and --workers")
        results = reproduce_all(**options)
    else:
        results = [reproduce_table(name, only=only, resume=resume, **options)]
    if json_:
        described = [result.as_dict() for result in results]
        print_json(described if everything else described[0])
    elif everything:
        show_verdicts(results)
    else:
        show_reproduction(results[0])
        if judge is None:
            print("\n".join(str(path) for path in (results[0].figure, results[0].dir) if path is not None))
    if any(result.failures for result in results):
        raise typer.Exit(1)
