"""`fedarena vertical`: boosting between parties that hold different columns about the same people."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedarena.common.logs import show_messages
from fedarena.config.errors import BadValue

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Boosting between parties that hold different columns about the same people (SecureBoost).",
)


class PartyRole(StrEnum):
    """Who this process is."""

    guest = "guest"
    host = "host"


class AlgorithmChoice(StrEnum):
    """With or without the shortcuts of SecureBoost+; the trees are the same."""

    secureboost = "secureboost"
    secureboost_plus = "secureboost_plus"


class ObjectiveChoice(StrEnum):
    """What is predicted."""

    logistic = "logistic"
    softmax = "softmax"
    squared_error = "squared_error"


class ExponentsChoice(StrEnum):
    """Of encryption: short ones are faster and rest on an extra assumption."""

    full = "full"
    short = "short"


SIMULATION = "simulation"
ALONE, GUEST, HOST = (SIMULATION,), (PartyRole.guest.value,), (PartyRole.host.value,)
ONLY = {  # options that are not for everyone
    **dict.fromkeys(("columns", "hosts", "check_pooled"), ALONE),
    **dict.fromkeys(("label", "resume", "to", "test_share", "set_"), ALONE + GUEST),
    **dict.fromkeys(("algorithm", "trees", "depth", "objective", "key_bits", "exponents"), ALONE + GUEST),
    **dict.fromkeys(("peers", "deadline", "patience"), GUEST),
    **dict.fromkeys(("keys", "guest", "insecure_hashed_ids", "min_rows"), GUEST + HOST),
    **dict.fromkeys(("listen", "most_trees", "most_bits", "most_ids"), HOST),
}
MAY_CHANGE = ("peers", "keys", "deadline", "patience")  # of a training that goes on

TableName = Annotated[
    str | None,
    typer.Argument(help="A .csv, .parquet or .npz file, or a data set, e.g. breast_cancer.", show_default=False),
]
Who = Annotated[PartyRole | None, typer.Option(help="Who this process is; a simulation of all parties if not named.")]
Peers = Annotated[
    list[str] | None, typer.Option(help="Guest: a host and its address, `bank=machine:port`. May be repeated.")
]
Listen = Annotated[str | None, typer.Option(help="Host: where to listen, `machine:port`.")]
Keys = Annotated[Path | None, typer.Option(help="Folder with this party's certificate; `vertical keys` makes them.")]
GuestName = Annotated[str, typer.Option("--guest", help="The name in the guest's certificate.")]
Label = Annotated[str | None, typer.Option(help="Column to predict; the guest has it.")]
Id = Annotated[
    str | None, typer.Option("--id", help="Column that names a row. Without it rows are taken as they come.")
]
Drop = Annotated[list[str] | None, typer.Option(help="Column to leave out. May be repeated.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(help="Simulation: who has which columns, `bank=income,debt`; `bank=*` has the rest. Repeat it."),
]
Hosts = Annotated[int | None, typer.Option(min=1, help="Simulation: deal the columns to so many hosts.")]
Hashed = Annotated[
    bool, typer.Option("--insecure-hashed-ids", help="Align by plain hashes, which anyone can reverse by guessing ids.")
]
MinRows = Annotated[int, typer.Option(min=1, help="Fewest common rows that are worth a training.")]
MostIds = Annotated[
    int | None,
    typer.Option(min=1, help="Host: ids that a guest may ask about, in all.  [default: ten times its own]"),
]
Deadline = Annotated[float, typer.Option(min=1, help="Guest: seconds that an answer may take.")]
Patience = Annotated[float, typer.Option(min=0, help="Guest: seconds to wait for a host that is not there.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


@app.command()
def train(
    ctx: typer.Context,
    table: TableName = None,
    party: Who = None,
    peers: Peers = None,
    listen: Listen = None,
    keys: Keys = None,
    guest: GuestName = "guest",
    label: Label = None,
    id_: Id = None,
    drop: Drop = None,
    columns: Columns = None,
    hosts: Hosts = None,
    algorithm: Annotated[AlgorithmChoice | None, typer.Option(help="[default: secureboost_plus]")] = None,
    trees: Annotated[
        int | None, typer.Option(min=1, help="Trees; with several classes, of each.  [default: 25]")
    ] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Levels of a tree.  [default: 5]")] = None,
    objective: Annotated[ObjectiveChoice | None, typer.Option(help="What fits the label by default.")] = None,
    key_bits: Annotated[int | None, typer.Option(help="Size of the Paillier key.  [default: 2048]")] = None,
    exponents: Annotated[ExponentsChoice | None, typer.Option(help="Of encryption.  [default: full]")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of the trees: `--set lr=0.1`. May be repeated.")
    ] = None,
    test_share: Annotated[float, typer.Option(help="Share of the rows that judge the trees.")] = 0.2,
    check_pooled: Annotated[
        bool, typer.Option("--check-pooled", help="Simulation: compare with XGBoost on all columns in one place.")
    ] = False,
    min_leaf_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Fewest rows of a node; a host refuses a guest that wants less.  [default: 1]"),
    ] = None,
    min_bin_count: Annotated[
        int | None,
        typer.Option(min=1, help="Fewest rows of a bin; a host refuses a guest that wants less.  [default: 1]"),
    ] = None,
    most_trees: Annotated[int | None, typer.Option(min=1, help="Host: trees that a guest may grow.")] = None,
    most_bits: Annotated[
        int | None,
        typer.Option(min=1, help="Host: bits that a guest may read of each candidate; 4094 for plain secureboost."),
    ] = None,
    most_ids: MostIds = None,
    insecure_hashed_ids: Hashed = False,
    min_rows: MinRows = 50,
    deadline: Deadline = 600.0,
    patience: Patience = 120.0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the model; one under runs/ by default, for a host the same until it is done."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the training in this folder; only the line may be named anew.")
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train trees over the columns of several parties; no party shows its columns or labels to another.

    `fedarena vertical train breast_cancer --check-pooled`

    `fedarena vertical train people.csv --label paid --columns guest=age --columns bank=income,debt`

    `fedarena vertical train bank.csv --party host --listen 0.0.0.0:7001 --keys keys/bank --id id --out bank-model`

    `fedarena vertical train shop.csv --party guest --peers bank=bank.example.org:7001 --keys keys/guest --id id --label paid`

    `fedarena vertical train --resume runs/vertical-shop`

    Without `--party` all parties run in this process, over the same frames as between organisations. A host that was
    stopped goes on when it is started again with the same command.
    """
    from fedarena.vertical import training_task
    from fedarena.vertical.task_file import TrainingTask

    if party is not None or resume is None:
        _refuse_others(ctx, party)
    matching = _matching(insecure_hashed_ids, min_rows, most_ids)
    limits = _named(min_leaf_rows=min_leaf_rows, min_bin_count=min_bin_count)
    if party is PartyRole.host:
        line = _line(party, keys, peers, listen, guest, deadline, patience)
        limits |= _named(most_trees=most_trees, most_bits=most_bits)
        _train_as_host(_source(table, None, id_, drop), line, out, limits, matching, json_, quiet)
        return
    if resume is not None:
        task = _resumed(ctx, TrainingTask.load(resume))
    else:
        named = _named(algorithm=algorithm, trees=trees, depth=depth, objective=objective, **limits)
        settings = _settings({**named, **_named(key_bits=key_bits, exponents=exponents)}, set_)
        quantity = settings.get("objective") == ObjectiveChoice.squared_error.value
        task = TrainingTask(
            source=_source(table, label, id_, drop, columns, hosts, quantity),
            settings=settings,
            line=None if party is None else _line(party, keys, peers, listen, guest, deadline, patience),
            matching=matching,
            test_share=test_share,
            check_pooled=check_pooled,
        )
    place = lambda: resume or out or _free_folder(task.source.name)
    found = training_task.train(task, place, resume=resume is not None, on_tree=_tree_line(quiet), say=_sayer(quiet))
    _show(found, json_, training_task.training_summary(found))
    if found["splits_equal"] is False:
        raise typer.Exit(1)


def _train_as_host(
    source: Any, line: Any, out: Path | None, limits: dict[str, Any], matching: Any, json_: bool, quiet: bool
) -> None:
    from fedarena.vertical.host import HostPolicy
    from fedarena.vertical.training_task import counted, serve_training

    place = lambda name: out or _unfinished_folder(f"vertical-host-{name}")
    found = serve_training(source, line, place, HostPolicy(**limits), matching, _sayer(quiet))
    _show(found, json_, f"{counted(found['trees'])}, this host's half is in {found['model_dirs'][0]}")


def _resumed(ctx: typer.Context, task: Any) -> Any:
    """A training that goes on as it was begun, maybe over another line."""
    given = _given(ctx)
    for name, flag in given.items():
        if name in MAY_CHANGE and task.line is None:
            raise BadValue(f"{flag} is not for a simulation, which this training is", remedy="leave it out", where=flag)
        if name not in (*MAY_CHANGE, "resume", "json_", "quiet"):
            may = ", ".join(f"--{option}" for option in MAY_CHANGE)
            raise BadValue(
                f"{flag} cannot change: a training goes on as it was begun",
                remedy=f"leave it out (only {may} may be named anew)",
                where=flag,
            )
    if task.line is None:
        return task
    named = {name: ctx.params[name] for name in MAY_CHANGE if name in given}
    changed = {k: str(v) if k == "keys" else _every(v) if k == "peers" else v for k, v in named.items()}
    return dataclasses.replace(task, line=dataclasses.replace(task.line, **changed))


@app.command()
def predict(
    ctx: typer.Context,
    table: TableName = None,
    model: Annotated[Path | None, typer.Option(help="Folder of this party's model, or of a simulation.")] = None,
    party: Who = None,
    peers: Peers = None,
    listen: Listen = None,
    keys: Keys = None,
    guest: GuestName = "guest",
    label: Label = None,
    id_: Id = None,
    to: Annotated[
        Path | None, typer.Option(help="Write the predictions to this CSV file; to stdout by default.")
    ] = None,
    most_ids: MostIds = None,
    insecure_hashed_ids: Hashed = False,
    min_rows: MinRows = 1,
    deadline: Deadline = 600.0,
    patience: Patience = 120.0,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict with a trained model; every party walks its own part of the trees.

    `fedarena vertical predict breast_cancer --model runs/vertical-breast_cancer --to predictions.csv`

    `fedarena vertical predict bank-new.csv --party host --listen 0.0.0.0:7001 --keys keys/bank --id id --model bank-model`

    `fedarena vertical predict shop-new.csv --party guest --peers bank=example.org:7001 --keys keys/guest --id id --model m`

    A host learns which rows are asked about, not what is predicted. Columns that the model does not use are left out.
    """
    from fedarena.vertical import prediction_task

    _refuse_others(ctx, party)
    if model is None:
        raise typer.BadParameter("name the model's folder: --model")
    source = _source(table, label, id_, None)
    line: Any = None if party is None else _line(party, keys, peers, listen, guest, deadline, patience)
    matching = _matching(insecure_hashed_ids, min_rows, most_ids)
    if party is PartyRole.host:
        found = prediction_task.serve_prediction(source, line, model, matching, _sayer(quiet))
        _show(found, json_, f"{found['rows']} rows")
        return
    found, lines = prediction_task.predict(source, line, model, matching, _sayer(quiet))
    if to is not None:
        prediction_task.write_text(to, lines)
        _show({**found, "to": str(to)}, json_, "\n".join([*_metrics(found), str(to)]))
    elif json_:
        _show(found, json_, "")
    else:
        _sayer(quiet)("\n".join(_metrics(found)))
        sys.stdout.write(lines)


@app.command()
def align(
    ctx: typer.Context,
    table: TableName = None,
    party: Who = None,
    peers: Peers = None,
    listen: Listen = None,
    keys: Keys = None,
    guest: GuestName = "guest",
    id_: Id = None,
    most_ids: MostIds = None,
    insecure_hashed_ids: Hashed = False,
    min_rows: MinRows = 50,
    deadline: Deadline = 600.0,
    patience: Patience = 120.0,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Count the people that all parties know, by private set intersection, and do nothing else.

    `fedarena vertical align bank.csv --party host --listen 0.0.0.0:7001 --keys keys/bank --id id`

    `fedarena vertical align shop.csv --party guest --peers bank=bank.example.org:7001 --keys keys/guest --id id`
    """
    from fedarena.vertical import host_service

    if party is None or id_ is None:
        raise typer.BadParameter("say who this is and what names a row: --party and --id")
    _refuse_others(ctx, party)
    source = _source(table, None, id_, None)
    line = _line(party, keys, peers, listen, guest, deadline, patience)
    work = host_service.align_as_host if party is PartyRole.host else host_service.align_as_guest
    found = work(source, line, _matching(insecure_hashed_ids, min_rows, most_ids), _sayer(quiet))
    told = ", ".join(f"{name} {count}" for name, count in found["counts"].items())
    _show(found, json_, f"{found['common']} people in common: {told}")


@app.command()
def keys(
    names: Annotated[list[str], typer.Argument(help="The parties, the guest among them: `guest bank`.")],
    out: Annotated[Path, typer.Option(help="Folder for them.")] = Path("keys"),
    days: Annotated[int, typer.Option(min=1, help="Days that certificates are valid.")] = 365,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a small certificate authority and a certificate for each party, for a trial.

    `fedarena vertical keys guest bank`

    `fedarena vertical keys shop bank insurer --out trial-keys`

    Give each party its folder. `ca.key` is needed only to add a party later.
    """
    from fedarena.transport.certificates import make_vertical_keys

    made = make_vertical_keys(out, names, days)
    found = {"authority": str(out / "ca.pem"), "folders": {name: str(path) for name, path in made.items()}}
    _show(found, json_, "\n".join(map(str, made.values())))


def _source(
    table: str | None,
    label: str | None,
    ids: str | None,
    drop: list[str] | None,
    columns: list[str] | None = None,
    hosts: int | None = None,
    quantity: bool = False,
) -> Any:
    from fedarena.vertical.task_file import TableSource

    if table is None:
        raise typer.BadParameter("name a table, e.g. `fedarena vertical train breast_cancer`")
    return TableSource(table, label, ids, tuple(drop or ()), tuple(columns or ()), hosts, quantity)


def _line(
    party: PartyRole,
    keys: Path | None,
    peers: list[str] | None,
    listen: str | None,
    guest: str,
    deadline: float,
    patience: float,
) -> Any:
    from fedarena.vertical.task_file import PartyConnection

    if keys is None:
        raise BadValue(
            f"a {party.value} shows a certificate", remedy="name its folder: --keys keys/NAME", where="--keys"
        )
    if party is PartyRole.host and not listen:
        raise BadValue("a host listens", remedy="say where: --listen 0.0.0.0:7001", where="--listen")
    if party is PartyRole.guest and not peers:
        raise BadValue("a guest needs a host", remedy="name one: --peers bank=machine:7001", where="--peers")
    return PartyConnection(str(keys), _every(peers or ()), listen or "", guest, deadline, patience)


def _every(peers: Sequence[str]) -> tuple[str, ...]:
    return tuple(peer for text in peers for peer in text.split(","))


def _matching(insecure_hashed_ids: bool, min_rows: int, most_ids: int | None) -> Any:
    from fedarena.vertical.handshake import Matching

    return Matching(insecure_hashed_ids, min_rows, most_ids)


def _named(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _given(ctx: typer.Context) -> dict[str, str]:
    """What stands on the command line: names of parameters, and how they are written."""
    written = {str(option.name): option.opts[0] for option in ctx.command.params}
    typed = {name for name in written if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"}
    return {name: flag for name, flag in written.items() if name in typed}


def _refuse_others(ctx: typer.Context, party: PartyRole | None) -> None:
    """An option that means nothing here was meant for something."""
    here = SIMULATION if party is None else party.value
    for name, flag in _given(ctx).items():
        fits = ONLY.get(name, (here,))
        if here not in fits:
            remedy = f"leave it out, or say who this is: --party {fits[0]}" if party is None else "leave it out"
            raise BadValue(f"{flag} is not for a {here}: it is for a {' or a '.join(fits)}", remedy=remedy, where=flag)


def _settings(named: dict[str, Any], texts: list[str] | None) -> dict[str, Any]:
    """Settings with an option of their own, and others like `lr=0.1`, whose values are TOML, or text."""
    import tomllib

    found = {name: getattr(value, "value", value) for name, value in named.items()}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise BadValue(f"'{text}' is not a setting", remedy="write name=value, e.g. --set lr=0.1", where="--set")
        name = "lambda_" if name == "lambda" else name
        if name in found:
            raise BadValue(f"'{name}' is set twice", remedy="name it once", where="--set")
        try:
            found[name] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            found[name] = value
    return found


def _metrics(found: dict[str, Any]) -> list[str]:
    return [f"{name} {found[name]:.5f}" for name in ("auc", "accuracy", "rmse") if found.get(name) is not None]


def _tree_line(quiet: bool) -> Any:
    """Progress, one line a tree."""

    def see(record: Any) -> None:
        from fedarena.vertical.training_task import tree_line

        print(tree_line(record), file=sys.stderr, flush=True)

    return (lambda record: None) if quiet else see


def _sayer(quiet: bool) -> Any:
    show_messages(quiet)
    return (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))


def _free_folder(name: str) -> Path:
    from fedarena.results.run_folder import free_folder

    return free_folder(f"vertical-{name}")


def _unfinished_folder(stem: str) -> Path:
    """The first of its name whose training is not over: a host that is started again goes on."""
    from fedarena.vertical.task_file import DONE

    for number in itertools.count(1):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        if not (path / DONE).exists():
            return path
    raise AssertionError("numbers do not end")


def _show(found: dict[str, Any], json_: bool, text: str) -> None:
    if json_:  # JSON knows no NaN; the runs' own writer would load torch, which no party needs
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in found.items()}
        text = json.dumps(finite, indent=1)
    print(text)
