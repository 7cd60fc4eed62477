"""`fedarena vertical`: boosting between parties that have different columns about the same people."""

from __future__ import annotations

import dataclasses
import logging
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from annotated_types import Ge

from fedarena.cli.options import Json, Quiet, add_commands, command_group
from fedarena.cli.output import print_result
from fedarena.cli.vertical_options import (
    MAY_CHANGE,
    Label,
    MinRows,
    PartyOptions,
    split_peers,
)
from fedarena.common.files import free_folder, numbered_folders
from fedarena.config.errors import BadValue

LOGGER = logging.getLogger(__name__)

app = command_group(
    "Train boosted trees between parties that have different columns about the same people (SecureBoost)."
)


def train(
    options: PartyOptions,
    label: Label = None,
    drop: Annotated[list[str] | None, "Column to leave out. May be repeated."] = None,
    columns: Annotated[
        list[str] | None,
        "Simulation: columns of a party, `bank=income,debt`; `bank=*` has all others. May be repeated.",
    ] = None,
    hosts: Annotated[int | None, "Simulation: number of hosts that share the columns.", Ge(1)] = None,
    algorithm: Annotated[
        Literal["secureboost", "secureboost_plus"] | None,
        "With or without the optimisations of SecureBoost+.  [default: secureboost_plus]",
    ] = None,
    trees: Annotated[
        int | None, "Number of trees; with more than two classes, per class.  [default: 25]", Ge(1)
    ] = None,
    depth: Annotated[int | None, "Depth of a tree.  [default: 5]", Ge(1)] = None,
    objective: Annotated[
        Literal["logistic", "softmax", "squared_error"] | None,
        "Loss to minimise; by default the one that fits the label.",
    ] = None,
    key_bits: Annotated[int | None, "Size of the Paillier key in bits.  [default: 2048]"] = None,
    exponents: Annotated[
        Literal["full", "short"] | None,
        "Exponents of the encryption; short ones are faster and need an additional assumption.  [default: full]",
    ] = None,
    set_: Annotated[list[str] | None, "Change a setting of the trees: `--set lr=0.1`. May be repeated."] = None,
    test_share: Annotated[float, "Share of the rows held out for testing."] = 0.2,
    check_pooled: Annotated[bool, "Simulation: compare with XGBoost on all columns in one place."] = False,
    min_leaf_rows: Annotated[
        int | None, "Smallest number of rows of a leaf; a host rejects a guest that asks for less.  [default: 1]", Ge(1)
    ] = None,
    min_bin_count: Annotated[
        int | None, "Smallest number of rows of a bin; a host rejects a guest that asks for less.  [default: 1]", Ge(1)
    ] = None,
    most_trees: Annotated[int | None, "Host: largest number of trees that a guest may train.", Ge(1)] = None,
    most_bits: Annotated[
        int | None, "Host: bits that a guest may decrypt per split candidate; 4094 for plain secureboost.", Ge(1)
    ] = None,
    min_rows: MinRows = 50,
    out: Annotated[
        Path | None, "Folder of the model; by default one under runs/, which an unfinished host uses again."
    ] = None,
    resume: Annotated[
        Path | None, "Resume the training in this folder; only the options of the connection may change."
    ] = None,
) -> None:
    """Train trees on the columns of several parties. No party shows its columns or labels to another.

    `fedarena vertical train breast_cancer --check-pooled`

    `fedarena vertical train people.csv --label paid --columns guest=age --columns bank=income,debt`

    `fedarena vertical train bank.csv --party host --listen 0.0.0.0:7001 --keys keys/bank --id id --out bank-model`

    `fedarena vertical train shop.csv --party guest --peers bank=bank.example.org:7001 --keys keys/guest --id id --label paid`

    `fedarena vertical train --resume runs/vertical-shop`

    Without `--party`, all parties run in this process and exchange the same messages as between organisations. To resume a
    host that was stopped, run the same command again.
    """
    from fedarena.vertical import training_task
    from fedarena.vertical.task_file import TrainingTask

    if options.party is not None or resume is None:
        options.check()
    matching = options.matching(min_rows)
    limits = _named(min_leaf_rows=min_leaf_rows, min_bin_count=min_bin_count)
    if options.party == "host":
        from fedarena.vertical.host import HostPolicy

        policy = HostPolicy(**limits, **_named(most_trees=most_trees, most_bits=most_bits))
        folder = lambda name: out or _unfinished_folder(f"vertical-host-{name}")
        connection, source = options.connection(), options.source(drop=tuple(drop or ()))
        found = training_task.serve_training(source, connection, folder, policy, matching)
        summary = training_task.format_trees(found["trees"])
        print_result(f"{summary}, this host's part of the model is in {found['model_dirs'][0]}", found, options.json_)
        return
    if resume is not None:
        task = _resumed(options, TrainingTask.load(resume))
    else:
        named = _named(algorithm=algorithm, trees=trees, depth=depth, objective=objective, **limits)
        settings = _settings({**named, **_named(key_bits=key_bits, exponents=exponents)}, set_)
        source = options.source(
            label=label,
            drop=tuple(drop or ()),
            columns=tuple(columns or ()),
            hosts=hosts,
            quantity=settings.get("objective") == "squared_error",
        )
        line = None if options.party is None else options.connection()
        task = TrainingTask(source, settings, line, matching, test_share, check_pooled)
    place = lambda: resume or out or free_folder(f"vertical-{task.source.name}")
    found = training_task.train(task, place, resume=resume is not None)
    print_result(training_task.training_summary(found), found, options.json_)
    if found["splits_equal"] is False:
        raise typer.Exit(1)


def _resumed(options: PartyOptions, task: Any) -> Any:
    """Return the task of a training to resume, with the options of the connection that were given again."""
    for name, flag in options.given.items():
        if name in MAY_CHANGE and task.line is None:
            raise BadValue(f"{flag} is not for a simulation, and this training is one", remedy="remove it", where=flag)
        if name not in (*MAY_CHANGE, "resume", "json_", "quiet"):
            may = ", ".join(f"--{option}" for option in MAY_CHANGE)
            raise BadValue(
                f"{flag} cannot change when a training is resumed",
                remedy=f"remove it (only {may} may be given again)",
                where=flag,
            )
    if task.line is None:
        return task
    named = {name: getattr(options, name) for name in MAY_CHANGE if name in options.given}
    changed = {k: str(v) if k == "keys" else split_peers(v) if k == "peers" else v for k, v in named.items()}
    return dataclasses.replace(task, line=dataclasses.replace(task.line, **changed))


def predict(
    options: PartyOptions,
    model: Annotated[Path | None, "Folder of this party's model, or of a simulation's."] = None,
    label: Label = None,
    to: Annotated[Path | None, "CSV file for the predictions; by default they are printed on stdout."] = None,
    min_rows: MinRows = 1,
) -> None:
    """Predict with a trained model. Each party evaluates its own part of the trees.

    `fedarena vertical predict breast_cancer --model runs/vertical-breast_cancer --to predictions.csv`

    `fedarena vertical predict bank-new.csv --party host --listen 0.0.0.0:7001 --keys keys/bank --id id --model bank-model`

    `fedarena vertical predict shop-new.csv --party guest --peers bank=example.org:7001 --keys keys/guest --id id --model m`

    A host learns which rows are predicted, but not the predictions. Columns that the model does not use are ignored.
    """
    from fedarena.vertical import prediction_task

    options.check()
    if model is None:
        raise typer.BadParameter("name the model's folder with --model")
    source, matching = options.source(label=label), options.matching(min_rows)
    line = None if options.party is None else options.connection()
    if options.party == "host" and line is not None:
        found = prediction_task.serve_prediction(source, line, model, matching)
        print_result(f"{found['rows']} rows", found, options.json_)
        return
    found, lines = prediction_task.predict(source, line, model, matching)
    if to is not None:
        prediction_task.write_text(to, lines)
        print_result("\n".join([*_metrics(found), str(to)]), {**found, "to": str(to)}, options.json_)
    elif options.json_:
        print_result("", found, options.json_)
    else:
        LOGGER.info("\n".join(_metrics(found)))
        sys.stdout.write(lines)


def align(options: PartyOptions, min_rows: MinRows = 50) -> None:
    """Count the ids that all parties have in common, by private set intersection, and do nothing else.

    `fedarena vertical align bank.csv --party host --listen 0.0.0.0:7001 --keys keys/bank --id id`

    `fedarena vertical align shop.csv --party guest --peers bank=bank.example.org:7001 --keys keys/guest --id id`
    """
    from fedarena.vertical import alignment_task

    if options.party is None or options.id_ is None:
        raise typer.BadParameter("name the role of this process and the id column with --party and --id")
    options.check()
    run_alignment = alignment_task.align_as_host if options.party == "host" else alignment_task.align_as_guest
    found = run_alignment(options.source(), options.connection(), options.matching(min_rows))
    counts = ", ".join(f"{name} {count}" for name, count in found["counts"].items())
    print_result(f"{found['common']} people in common: {counts}", found, options.json_)


def keys(
    names: Annotated[list[str], typer.Argument(help="Names of all parties, including the guest: `guest bank`.")],
    out: Annotated[Path, "Folder for the certificates."] = Path("keys"),
    days: Annotated[int, "Days for which the certificates are valid.", Ge(1)] = 365,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a small certificate authority and a certificate for each party, to try things out.

    `fedarena vertical keys guest bank`

    `fedarena vertical keys shop bank insurer --out trial-keys`

    Give each party its own folder. `ca.key` is needed only to add a party later.
    """
    from fedarena.transport.certificates import make_vertical_keys

    made = make_vertical_keys(out, names, days)
    found = {"authority": str(out / "ca.pem"), "folders": {name: str(path) for name, path in made.items()}}
    print_result("\n".join(map(str, made.values())), found, json_)


def _named(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _settings(named: dict[str, Any], assignments: list[str] | None) -> dict[str, Any]:
    """Return the settings that have options of their own, and those that were given with `--set`."""
    from fedarena.config.toml_text import parse_assignment

    settings = dict(named)
    for text in assignments or ():
        name, value = parse_assignment(text, example="lr=0.1")
        name = "lambda_" if name == "lambda" else name
        if name in settings:
            raise BadValue(f"'{name}' is set twice", remedy="set it once", where="--set")
        settings[name] = value
    return settings


def _metrics(found: dict[str, Any]) -> list[str]:
    return [f"{name} {found[name]:.5f}" for name in ("auc", "accuracy", "rmse") if found.get(name) is not None]


def _unfinished_folder(stem: str) -> Path:
    """Return the first folder whose training is not finished, so that a host that is started again resumes it."""
    from fedarena.vertical.task_file import DONE

    return next(path for path in numbered_folders(stem) if not (path / DONE).exists())


add_commands(app, train, predict, align, keys)
