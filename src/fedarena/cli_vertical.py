"""`fedarena vertical`: boosting between parties that hold different columns about the same people."""

from __future__ import annotations

import json
import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedarena.errors import BadValue

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Boosting between parties that hold different columns about the same people (SecureBoost).",
)


class Party(StrEnum):
    """Who this process is."""

    guest = "guest"
    host = "host"


class Algorithm(StrEnum):
    """With or without the shortcuts of SecureBoost+; the trees are the same."""

    secureboost = "secureboost"
    secureboost_plus = "secureboost_plus"


class Objective(StrEnum):
    """What is predicted."""

    logistic = "logistic"
    softmax = "softmax"
    squared_error = "squared_error"


class Exponents(StrEnum):
    """Of encryption: short ones are faster and rest on an extra assumption."""

    full = "full"
    short = "short"


TableName = Annotated[
    str | None,
    typer.Argument(help="A .csv, .parquet or .npz file, or a data set, e.g. breast_cancer.", show_default=False),
]
Who = Annotated[Party | None, typer.Option(help="Who this process is; a simulation of all parties if not named.")]
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
Deadline = Annotated[float, typer.Option(min=1, help="Guest: seconds that an answer may take.")]
Patience = Annotated[float, typer.Option(min=0, help="Guest: seconds to wait for a host that is not there.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


@app.command()
def train(
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
    algorithm: Annotated[Algorithm | None, typer.Option(help="[default: secureboost_plus]")] = None,
    trees: Annotated[
        int | None, typer.Option(min=1, help="Trees; with several classes, of each.  [default: 25]")
    ] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Levels of a tree.  [default: 5]")] = None,
    objective: Annotated[Objective | None, typer.Option(help="What fits the label by default.")] = None,
    key_bits: Annotated[int | None, typer.Option(help="Size of the Paillier key.  [default: 2048]")] = None,
    exponents: Annotated[Exponents | None, typer.Option(help="Of encryption.  [default: full]")] = None,
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
    insecure_hashed_ids: Hashed = False,
    min_rows: MinRows = 50,
    deadline: Deadline = 600.0,
    patience: Patience = 120.0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the model; the next free one under runs/ by default.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the training in this folder.")] = None,
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
    from fedarena.vertical import training
    from fedarena.vertical.host import HostPolicy
    from fedarena.vertical.joining import Matching
    from fedarena.vertical.tasks import Task

    matching = Matching(insecure_hashed_ids, min_rows)

    if party is Party.host:
        source, line = _source(table, None, id_, drop), _line(party, keys, peers, listen, guest, deadline, patience)
        refuse = {"--label": label, "--columns": columns, "--hosts": hosts, "--resume": resume, "--peers": peers}
        _refuse_named(refuse, "the guest's affair, or a simulation's")
        policy = HostPolicy(**_named(min_leaf_rows=min_leaf_rows, min_bin_count=min_bin_count, most_trees=most_trees))
        place = lambda: out or _free_folder(source.name)
        found = training.serve_training(source, line, place, policy, matching, _sayer(quiet))
        _show(found, json_, f"{found['trees']} trees, this host's half is in {found['model_dirs'][0]}")
        return
    if resume is not None:
        task = Task.load(resume)
    else:
        quantity = objective is Objective.squared_error
        source = _source(table, label, id_, drop, columns, hosts, quantity)
        named = _named(
            algorithm=algorithm,
            trees=trees,
            depth=depth,
            objective=objective,
            key_bits=key_bits,
            exponents=exponents,
            min_leaf_rows=min_leaf_rows,
            min_bin_count=min_bin_count,
        )
        settings = {**{k: getattr(v, "value", v) for k, v in named.items()}, **_settings(set_)}
        task = Task(
            source=source,
            settings=settings,
            line=None if party is None else _line(party, keys, peers, listen, guest, deadline, patience),
            matching=matching,
            test_share=test_share,
            check_pooled=check_pooled,
        )
    place = lambda: resume or out or _free_folder(task.source.name)
    found = training.train(task, place, resume=resume is not None, on_tree=_tree_line(quiet), say=_sayer(quiet))
    _show(found, json_, training.told(found))
    if found.get("splits_equal") is False:
        raise typer.Exit(1)


@app.command()
def predict(
    table: TableName = None,
    model: Annotated[Path | None, typer.Option(help="Folder of this party's model, or of a simulation.")] = None,
    party: Who = None,
    peers: Peers = None,
    listen: Listen = None,
    keys: Keys = None,
    guest: GuestName = "guest",
    label: Label = None,
    id_: Id = None,
    drop: Drop = None,
    to: Annotated[
        Path | None, typer.Option(help="Write the predictions to this CSV file; to stdout by default.")
    ] = None,
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

    A host learns which rows are asked about, not what is predicted.
    """
    from fedarena.vertical import predicting
    from fedarena.vertical.joining import Matching

    if model is None:
        raise typer.BadParameter("name the model's folder: --model")
    source = _source(table, label, id_, drop)
    line: Any = None if party is None else _line(party, keys, peers, listen, guest, deadline, patience)
    matching = Matching(insecure_hashed_ids, min_rows)
    if party is Party.host:
        found = predicting.serve_prediction(source, line, model, matching, _sayer(quiet))
        _show(found, json_, f"{found['rows']} rows")
        return
    found, lines = predicting.predict(source, line, model, matching, _sayer(quiet))
    if to is not None:
        predicting.write_text(to, lines)
        _show({**found, "to": str(to)}, json_, "\n".join([*_metrics(found), str(to)]))
    elif json_:
        _show(found, json_, "")
    else:
        _sayer(quiet)("\n".join(_metrics(found)))
        sys.stdout.write(lines)


@app.command()
def align(
    table: TableName = None,
    party: Who = None,
    peers: Peers = None,
    listen: Listen = None,
    keys: Keys = None,
    guest: GuestName = "guest",
    id_: Id = None,
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
    from fedarena.vertical import meeting
    from fedarena.vertical.joining import Matching

    if party is None or id_ is None:
        raise typer.BadParameter("say who this is and what names a row: --party and --id")
    source = _source(table, None, id_, None)
    line = _line(party, keys, peers, listen, guest, deadline, patience)
    work = meeting.align_as_host if party is Party.host else meeting.align_as_guest
    found = work(source, line, Matching(insecure_hashed_ids, min_rows), _sayer(quiet))
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
    from fedarena.vertical.certificates import make_keys

    made = make_keys(out, names, days)
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
    from fedarena.vertical.tasks import Source

    if table is None:
        raise typer.BadParameter("name a table, e.g. `fedarena vertical train breast_cancer`")
    return Source(table, label, ids, tuple(drop or ()), tuple(columns or ()), hosts, quantity)


def _line(
    party: Party,
    keys: Path | None,
    peers: list[str] | None,
    listen: str | None,
    guest: str,
    deadline: float,
    patience: float,
) -> Any:
    from fedarena.vertical.tasks import Line

    if keys is None:
        raise BadValue(
            f"a {party.value} shows a certificate", remedy="name its folder: --keys keys/NAME", where="--keys"
        )
    if party is Party.host and not listen:
        raise BadValue("a host listens", remedy="say where: --listen 0.0.0.0:7001", where="--listen")
    if party is Party.guest and not peers:
        raise BadValue("a guest needs a host", remedy="name one: --peers bank=machine:7001", where="--peers")
    every = tuple(peer for text in peers or () for peer in text.split(","))
    return Line(str(keys), every, listen or "", guest, deadline, patience)


def _named(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _refuse_named(options: dict[str, Any], why: str) -> None:
    for option, value in options.items():
        if value:
            raise BadValue(f"{option} is not for a host: it is {why}", remedy="leave it out", where=option)


def _settings(texts: list[str] | None) -> dict[str, Any]:
    """`lr=0.1` as a setting; values are TOML, or text."""
    import tomllib

    found = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise BadValue(f"'{text}' is not a setting", remedy="write name=value, e.g. --set lr=0.1", where="--set")
        name = "lambda_" if name == "lambda" else name
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
        from fedarena.vertical.training import tree_told

        print(tree_told(record), file=sys.stderr, flush=True)

    return (lambda record: None) if quiet else see


def _sayer(quiet: bool) -> Any:
    return (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))


def _free_folder(name: str) -> Path:
    from fedarena.results.folder import free_folder

    return free_folder(f"vertical-{name}")


def _show(found: dict[str, Any], json_: bool, text: str) -> None:
    if json_:  # JSON knows no NaN
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in found.items()}
        text = json.dumps(finite, indent=1)
    print(text)
