"""The public functions of a federation: `serve` runs the server, `join` a client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedarena.config.errors import BadValue, PartyFailed
from fedarena.config.experiment import Experiment
from fedarena.config.limits import check_path
from fedarena.engine.record import RoundRecord
from fedarena.federation import server
from fedarena.federation.client import LEAST, FederationClient
from fedarena.federation.client_data import ClientFile
from fedarena.federation.client_model import check_out
from fedarena.federation.consent import differences, federated_experiment
from fedarena.federation.release_log import LOG
from fedarena.federation.requests import ResponseRule
from fedarena.federation.server import WAIT, ServerOptions
from fedarena.results import run_folder
from fedarena.results.run import Run
from fedarena.transport import flower_link

LOGGER = logging.getLogger(__name__)

ADDRESS = "0.0.0.0:8440"
KEYS = "keys"


def serve(
    source: Any = None,
    *,
    participants: int | None = None,
    minimum: int | None = None,
    deadline: float = ResponseRule.deadline,
    attempts: int = ResponseRule.attempts,
    wait: float = WAIT,
    address: str = ADDRESS,
    keys: str | Path = KEYS,
    shares_models: bool = False,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    overrides: Sequence[str] = (),
    on_round: Callable[[RoundRecord], bool | None] | None = None,
    **settings: Any,
) -> Run:
    """Run the server of an experiment between clients, each with samples of its own, and return the result.

    `source` and keywords are those of `run`; the data set is a table of which each client has its own file. `keys` is the
    server's folder, as `fedarena federation keys` makes it; without `participants` all clients with keys must join within
    `wait` seconds. A round ends when all clients have answered, or after `deadline` seconds if `minimum` have; with fewer
    the requests are sent again, `attempts` times in all.
    """
    from fedarena.transport.certificates import SERVER, ServerKeys

    experiment = _experiment(source, resume, list(overrides), settings)
    own = ServerKeys.load(_folder_of(keys, SERVER))
    wanted = len(own.clients) if participants is None else participants
    _check_terms(wanted, len(own.clients), minimum)
    terms = ServerOptions(wanted, ResponseRule(deadline, minimum, attempts), wait, shares_models)

    def open_link(folder: Path) -> flower_link.Link:
        opened = flower_link.open_link(folder, address, own)
        LOGGER.info("listening on %s", opened.address)
        return opened

    return server.serve(experiment, open_link, terms, out=out, resume=resume, on_round=on_round)


def _experiment(source: Any, resume: str | Path | None, overrides: list[str], settings: dict[str, Any]) -> Experiment:
    if source is None:
        if resume is None:
            raise BadValue("no experiment is named", remedy="`fedarena serve exp.toml`, or --resume RUN")
        source = run_folder.read_experiment(Path(resume))
    experiment = federated_experiment(source, overrides, **settings)
    if resume is not None:
        run_folder.check_same_experiment(Path(resume), experiment)
    return experiment


def _check_terms(wanted: int, known: int, minimum: int | None) -> None:
    if not 1 <= wanted <= known:
        raise BadValue(
            f"{wanted} clients, and the keys of {known} are known",
            remedy=f"give 1 to {known}, or add keys: `fedarena federation keys NAME`",
            where="--participants",
        )
    if minimum is not None and not 1 <= minimum <= wanted:
        raise BadValue(f"a minimum of {minimum} of {wanted}", remedy=f"give 1 to {wanted}", where="--minimum")


def _folder_of(keys: str | Path, name: str) -> Path:
    """Return the folder of one party, given it or its parent folder."""
    folder = Path(keys)
    return folder / name if (folder / name).is_dir() else folder


def join(
    data: str | Path,
    server: str,
    *,
    keys: str | Path = KEYS,
    name: str | None = None,
    label: str | Sequence[str] | None = None,
    test: str | Path | None = None,
    separator: str | None = None,
    folder: str | Path | None = None,
    experiment: Any = None,
    consent: Callable[[Experiment, list[str]], bool] | None = lambda experiment, leaves: True,
    least: int = LEAST,
    runs: int = 1,
    new_release: bool = False,
    out: str | Path | None = None,
    patience: float = flower_link.PATIENCE,
) -> dict[str, Any]:
    """Take part in an experiment with the rows of a file, which stays here, until the server ends it.

    `label` is the column to predict, if it has another name here than in the experiment (several in their order there);
    `test` a file of rows to test on, where the experiment asks for one. What must outlive this process lies in `folder`:
    client state, the log of releases, and the samples to which they are bound (`new_release` allows others, once). Before
    anything is sent, `consent` sees the experiment and what will leave; None refuses everything. An `experiment` that is
    given must be the server's. The process takes part in `runs` runs. The result names them and lists what was released and
    refused. At the end of a run the client has the final model, in the run folder `out` or in `model` in the folder of that
    run.
    """
    from fedarena.transport.certificates import ClientKeys

    own = ClientKeys.load(_folder_of(keys, name or ""))
    if name is not None and name != own.name:
        raise BadValue(f"the keys are those of '{own.name}', not of '{name}'", remedy="check --keys", where="--name")
    mine = None if experiment is None else federated_experiment(experiment, [])
    own_label = label if label is None or isinstance(label, str) else tuple(label)
    file = ClientFile(Path(data), None if test is None else Path(test), own_label, separator)
    file.check()
    if out is not None and runs > 1:
        raise BadValue(f"one folder for the models of {runs} runs", remedy="leave out --out or --runs", where="--out")
    if consent is None:
        raise BadValue(
            "there is no terminal on which to ask for your consent",
            remedy="run it in a terminal, or add --yes, with --experiment agreed.toml to accept that experiment only",
            where="--yes",
        )

    def agrees(theirs: Experiment, leaves: list[str]) -> str:
        for other in differences(mine, theirs).values() if mine is not None else ():
            return f"the experiment is not the one it agreed to: {other}"
        return "" if consent(theirs, leaves) else "it does not agree to the experiment"

    state = Path(folder) if folder is not None else Path("federation") / own.name
    me = FederationClient(
        file,
        state,
        name=own.name,
        consent=agrees,
        least=least,
        runs=runs,
        server=server,
        new_release=new_release,
        out=None if out is None else check_out(check_path(out, "--out")),
    )

    def handle(content: bytes) -> bytes:
        answer = me.handle(content)
        if me.goodbye is not None:
            raise flower_link.FederationEnded(answer)
        return answer

    try:
        flower_link.join(server, own, handle, patience=patience)
    except KeyboardInterrupt as stopped:
        stopped.add_note("start it again with the same command, and it continues where it was")
        raise
    finally:
        released = me.releases.summary(me.runs)
        me.log.info("\n".join([f"releases, as logged in {state / LOG}:", *(f"  {text}" for text in released)]))
    if me.goodbye is not None and not me.goodbye.finished:
        raise PartyFailed(
            f"the server does not accept '{own.name}': {me.goodbye.reason}", remedy="fix the cause, then join again"
        )
    models = (me.model_folder(run) for run in me.runs)
    return {
        "name": own.name,
        "trainings": me.trainings,
        "folder": str(state),
        "runs": list(me.runs),
        "models": [str(model.path) for model in models if model.is_complete],
        "releases": released,
    }
