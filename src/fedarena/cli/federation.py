"""`fedarena serve` and `fedarena join`: an experiment between organisations, each with rows of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedarena.common.logs import show_messages

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Keys for `fedarena serve` and `fedarena join`."
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
File = Annotated[Path | None, typer.Option("--file", help="A Python file of yours that registers components.")]


def serve(
    experiment: Annotated[str | None, typer.Argument(help="An experiment file.", show_default=False)] = None,
    participants: Annotated[
        int | None, typer.Option(min=1, help="How many must come; all whose keys are known by default.")
    ] = None,
    minimum: Annotated[
        int | None, typer.Option(min=1, help="Answers that are enough for a round.  [default: more than half]")
    ] = None,
    deadline: Annotated[float, typer.Option(min=0.1, help="Seconds for the answers of a round.")] = 300.0,
    attempts: Annotated[int, typer.Option(min=1, help="How often they are asked, if too few answer.")] = 3,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for participants to come.")] = 600.0,
    address: Annotated[str, typer.Option(help="Where to listen, `machine:port`.")] = "0.0.0.0:8440",
    keys: Annotated[Path, typer.Option(help="Folder of the organiser's keys, or the one it lies in.")] = Path("keys"),
    share_models: Annotated[
        bool,
        typer.Option("--share-models", help="Models that participants keep for themselves go to all, to be tested."),
    ] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a key: `--set local.lr=0.05`. Repeat it.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; the next free one under runs/ by default.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Organise an experiment between participants. Their rows, and what their algorithms remember, stay with them.

    `fedarena serve exp.toml`

    `fedarena serve exp.toml --participants 4 --minimum 3 --deadline 60 --keys keys/organiser --address 0.0.0.0:8440`

    `fedarena serve --resume runs/csv-fedavg-seed0`

    The experiment's data set is a table (`csv` or `parquet`) whose path lies with the participants: each runs
    `fedarena join`. A round goes on when all have answered; or when its deadline has passed, if a minimum has.
    """
    from fedarena.federation.api import serve as serve_experiment

    show_messages(quiet)
    _load(file)
    if experiment is None and resume is None:
        raise typer.BadParameter("name an experiment file, e.g. `fedarena serve exp.toml`")
    result = serve_experiment(
        experiment,
        participants=participants,
        minimum=minimum,
        deadline=deadline,
        attempts=attempts,
        wait=wait,
        address=address,
        keys=keys,
        shares_models=share_models,
        out=out,
        resume=resume,
        overrides=set_ or [],
    )
    for note in dict.fromkeys(result.notes):
        _sayer(quiet)(f"note: {note}")
    if json_:
        from fedarena.results.run_folder import as_json

        print(as_json(result.summary()))
    else:
        print(result)


def join(
    data: Annotated[
        Path, typer.Option(help="A .csv or .parquet file with your rows. It stays here.", show_default=False)
    ],
    server: Annotated[str, typer.Option(help="The organiser, `machine:port`.", show_default=False)],
    keys: Annotated[Path, typer.Option(help="Folder of your keys, or the one it lies in.")] = Path("keys"),
    name: Annotated[str | None, typer.Option(help="Who you are; as your keys say by default.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Column to predict, if it is called otherwise than in the experiment.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="A file of rows to test on, where the experiment sets data.test_path.")
    ] = None,
    separator: Annotated[str | None, typer.Option(help="Between columns, if it is not the experiment's.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="What must outlive this process.  [default: federation/NAME]")
    ] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="The experiment that you agreed to; any other is refused.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Consent without being asked; required without a terminal.")
    ] = False,
    runs: Annotated[int, typer.Option(min=1, help="Runs to take part in before the command ends.")] = 1,
    new_release: Annotated[
        bool,
        typer.Option(
            "--new-release",
            help="Allow releases over other samples or columns than before. Two of them can reveal single rows.",
        ),
    ] = False,
    least: Annotated[int, typer.Option(min=1, help="Fewest training rows over which sums are released.")] = 10,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to look for a server that is away.")] = 600.0,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take part in an experiment with your own rows, which do not leave this machine.

    `fedarena join --data mine.csv --server organiser.example.org:8440 --keys keys/clinic-a`

    `fedarena join --data mine.csv --label diagnosis --server 10.0.0.1:8440 --keys clinic-a --experiment agreed.toml`

    The experiment is shown, and what will leave this machine, and you are asked before anything does; without a terminal,
    `--yes` must say so. Stopped, it continues when it is started again with the same command. Client state, and a log of
    everything that was released, lie in `--folder`: keep it, releases are bound to the samples of the first one.
    """
    from fedarena.federation.api import join as join_federation

    show_messages(quiet)
    _load(file)
    found = join_federation(
        data,
        server,
        keys=keys,
        name=name,
        label=label,
        test=test,
        separator=separator,
        folder=folder,
        experiment=experiment,
        consent=_consent(yes, quiet) if yes or _has_terminal() else None,
        least=least,
        runs=runs,
        new_release=new_release,
        patience=patience,
    )
    print(json.dumps(found, indent=1) if json_ else f"{found['name']}: {found['trainings']} trainings")


@app.command()
def keys(
    names: Annotated[list[str], typer.Argument(help="The participants: `clinic-a clinic-b`.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for them.")] = Path("keys"),
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the organiser's machine. May be repeated.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="Days that the organiser's certificate is valid.")] = 365,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a certificate for the organiser and a key pair for each participant. More can be added later.

    `fedarena federation keys clinic-a clinic-b clinic-c`

    Give each party its own folder and nothing else. `ca.key` stays with you.
    """
    from fedarena.transport.certificates import make_federation_keys

    made = {name: str(path) for name, path in make_federation_keys(out, names, hosts=host or (), days=days).items()}
    print(json.dumps(made, indent=1) if json_ else "\n".join(made.values()))


def mount(doors: typer.Typer) -> None:
    """Add the commands to the main ones."""
    doors.command()(serve)
    doors.command()(join)
    doors.add_typer(app, name="federation")


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _consent(yes: bool, quiet: bool) -> Callable[[Any, list[str]], bool]:
    """Show the experiment and what will leave; ask, unless `--yes` was given."""

    def consent(experiment: Any, leaves: list[str]) -> bool:
        from fedarena.federation.consent import experiment_as_text

        told = ["the server's experiment:", *(f"  {line}" for line in experiment_as_text(experiment).splitlines())]
        told += ["what will leave this machine:", *(f"  - {line}" for line in leaves)]
        _sayer(quiet and yes)("\n".join(told))
        return yes or typer.confirm("take part?", err=True)

    return consent


def _load(file: Path | None) -> None:
    if file is not None:
        from fedarena.config.registry import load_file

        load_file(file)


def _sayer(quiet: bool) -> Callable[[str], None]:
    return (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))
