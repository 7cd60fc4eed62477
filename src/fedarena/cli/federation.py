"""`fedarena serve`, `fedarena join` and `fedarena federation keys`: an experiment between organisations."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from annotated_types import Ge

from fedarena.cli.options import File, Json, Quiet, Set, add_commands, command_group, passed_on
from fedarena.cli.output import print_result

LOGGER = logging.getLogger(__name__)

app = command_group("Make keys for `fedarena serve` and `fedarena join`.")


def serve(
    experiment: Annotated[str | None, typer.Argument(help="An experiment file.", show_default=False)] = None,
    participants: Annotated[int | None, "Clients that must join; by default all that have keys.", Ge(1)] = None,
    minimum: Annotated[
        int | None, "Clients whose answers are enough for a round.  [default: more than half]", Ge(1)
    ] = None,
    deadline: Annotated[float, "Seconds that clients have to answer in a round.", Ge(0.1)] = 300.0,
    attempts: Annotated[int, "Attempts at a round in which too few clients answer.", Ge(1)] = 3,
    wait: Annotated[float, "Seconds to wait for clients to join.", Ge(0)] = 600.0,
    address: Annotated[str, "Address to listen on, `machine:port`."] = "0.0.0.0:8440",
    keys: Annotated[Path, "Folder of the server's keys, or its parent folder."] = Path("keys"),
    share_models: Annotated[
        bool, "Send the personal model of each client to all clients, to be evaluated there."
    ] = False,
    set_: Set = None,
    out: Annotated[Path | None, "Folder of the run; by default the next free one under runs/."] = None,
    resume: Annotated[Path | None, "Resume the run in this folder."] = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the server of an experiment between organisations. The samples and the state of the clients stay with them.

    `fedarena serve exp.toml`

    `fedarena serve exp.toml --participants 4 --minimum 3 --deadline 60 --keys keys/organiser --address 0.0.0.0:8440`

    `fedarena serve --resume runs/csv-fedavg-seed0`

    The data set of the experiment is a table (`csv` or `parquet`) of which each client has its own file; each client runs
    `fedarena join`. A round ends when all clients have answered, or at its deadline if at least the minimum has.
    """
    options = passed_on(locals(), "set_", "share_models")
    from fedarena.federation.api import serve as serve_experiment

    if experiment is None and resume is None:
        raise typer.BadParameter("name an experiment file, e.g. `fedarena serve exp.toml`")
    result = serve_experiment(experiment, shares_models=share_models, overrides=set_ or [], **options)
    for note in dict.fromkeys(result.notes):
        LOGGER.info("note: %s", note)
    print_result(result, result.summary() if json_ else None, json_)


def join(
    data: Annotated[
        Path,
        typer.Option(help="A .csv or .parquet file with your samples. It stays on this machine.", show_default=False),
    ],
    server: Annotated[str, typer.Option(help="Address of the server, `machine:port`.", show_default=False)],
    keys: Annotated[Path, "Folder of your keys, or its parent folder."] = Path("keys"),
    name: Annotated[str | None, "Name of this client; by default the one of its keys."] = None,
    label: Annotated[
        list[str] | None,
        "Column to predict, if its name differs from the experiment's; repeat it for several, in their order.",
    ] = None,
    test: Annotated[Path | None, "File with test samples, if the experiment sets data.test_path."] = None,
    separator: Annotated[str | None, "Separator of columns, if it differs from the experiment's."] = None,
    folder: Annotated[
        Path | None, "Folder of the client state and of the log of releases.  [default: federation/NAME]"
    ] = None,
    out: Annotated[
        Path | None, "Folder for the final model.  [default: `model` in the folder of the run, below --folder]"
    ] = None,
    experiment: Annotated[
        Path | None, "The experiment file that you agreed to; any other experiment is refused."
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Consent without a prompt; required without a terminal.")
    ] = False,
    runs: Annotated[int, "Number of runs to join before the command ends.", Ge(1)] = 1,
    new_release: Annotated[
        bool, "Allow releases over other samples or columns than before. Two such releases can reveal single samples."
    ] = False,
    least: Annotated[int, "Smallest number of training samples over which sums are released.", Ge(1)] = 10,
    patience: Annotated[float, "Seconds to keep trying to reach the server.", Ge(0)] = 600.0,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Join an experiment with your own samples, which do not leave this machine.

    `fedarena join --data mine.csv --server organiser.example.org:8440 --keys keys/clinic-a`

    `fedarena join --data mine.csv --label diagnosis --server 10.0.0.1:8440 --keys clinic-a --experiment agreed.toml`

    The command shows the experiment and what will leave this machine, and asks for your consent; without a terminal, give
    it with `--yes`. To resume after a stop, run the same command again. The client state and a log of everything that was
    released are in `--folder`. Do not delete it: later releases must be over the same samples as the first one. At the end
    of the run you have the final model in a run folder, `--out`, which `fedarena predict` uses.
    """
    options = passed_on(locals(), "data", "server", "yes")
    from fedarena.federation.api import join as join_federation

    consent = _consent(yes, quiet) if yes or _has_terminal() else None
    found = join_federation(data, server, experiment=experiment, consent=consent, **options)
    lines = [f"{found['name']}: {found['trainings']} trainings", *(f"model: {path}" for path in found["models"])]
    print_result("\n".join(lines), found, json_)


def keys(
    names: Annotated[list[str], typer.Argument(help="Names of the clients: `clinic-a clinic-b`.", show_default=False)],
    out: Annotated[Path, "Folder for the keys."] = Path("keys"),
    host: Annotated[list[str] | None, "Host name or address of the server's machine. May be repeated."] = None,
    days: Annotated[int, "Days for which the server's certificate is valid.", Ge(1)] = 365,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a certificate for the server and a key pair for each client. Clients can be added later.

    `fedarena federation keys clinic-a clinic-b clinic-c`

    Give each party its own folder and nothing else. Do not pass on `ca.key`.
    """
    from fedarena.transport.certificates import make_federation_keys

    made = {name: str(path) for name, path in make_federation_keys(out, names, hosts=host or (), days=days).items()}
    print_result("\n".join(made.values()), made, json_)


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _consent(yes: bool, quiet: bool) -> Callable[[Any, list[str]], bool]:
    """Return a function that shows the experiment and what will leave this machine, and asks unless `--yes` was given."""

    def consent(experiment: Any, leaves: list[str]) -> bool:
        from fedarena.federation.consent import experiment_as_text

        lines = ["the server's experiment:", *(f"  {line}" for line in experiment_as_text(experiment).splitlines())]
        lines += ["what will leave this machine:", *(f"  - {line}" for line in leaves)]
        if not (quiet and yes):  # a question needs its text, even with --quiet
            print("\n".join(lines), file=sys.stderr, flush=True)
        return yes or typer.confirm("join this experiment?", err=True)

    return consent


add_commands(app, keys)
