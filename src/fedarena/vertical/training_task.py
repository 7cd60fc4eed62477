"""A training as a user asks for it: simulated from one table, or as the guest or a host of several parties."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedarena.common.files import writing
from fedarena.config.errors import BadValue, CannotWrite
from fedarena.config.seeds import stream
from fedarena.transport.certificates import Identity
from fedarena.transport.channel import Channel, HostProtocol
from fedarena.transport.frames import FrameKind
from fedarena.vertical.bins import checked_columns
from fedarena.vertical.handshake import HostParty, Matching, align_guest, kept_alignment
from fedarena.vertical.host_service import common, serve
from fedarena.vertical.model import FILE as MODEL
from fedarena.vertical.model import GuestModel, write_json
from fedarena.vertical.party_tables import GUEST, PartyTable, split_columns
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.task_file import DONE, FILE, METRICS, PartyConnection, Say, TableSource, TrainingTask

if TYPE_CHECKING:
    from fedarena.vertical.host import HostPolicy
    from fedarena.vertical.simulation import Simulated

OnTree = Callable[[Any], None]
Place = Callable[[], Path]  # makes the folder of a training, once everything else is known to be well


def train(task: TrainingTask, place: Place, *, resume: bool, on_tree: OnTree, say: Say) -> dict[str, Any]:
    """Simulate, or train as the guest; go on where the folder's training stopped. What `--json` prints."""
    if task.line is not None and task.check_pooled:
        raise BadValue(
            "only a simulation has all columns in one place to compare with",
            remedy="leave out --check-pooled, or --party",
        )
    table = task.source.load()
    settings = fitted(task.settings, table)
    checked_columns(table.x, table.names, table.name)
    check_share(task.test_share)
    dealt = {} if task.line is not None else split_columns(table, task.source.columns, task.source.hosts)
    if task.check_pooled:
        from fedarena.vertical.pooled_check import refuse_lossy

        refuse_lossy(settings)
    folder = place()
    if not resume:
        _take(folder)
        source = dataclasses.replace(task.source, classes=table.class_names)
        dataclasses.replace(task, source=source).save(folder)
    elif task.line is not None and (model := _complete(folder)) is not None:
        if not (folder / DONE).exists():
            _say_goodbye(task.line, folder, len(model.trees), say)
        return {**_figures(task, _rows_of(folder, table), model), "model_dirs": [str(folder)]}
    try:
        if task.line is None:
            return _simulated(task, table, dealt, settings, folder, resume, on_tree)
        with task.line.channels(say) as channels:
            alignment = align_guest(channels, table, task.matching, folder=folder, say=say)
            say(common(alignment))
            return _as_guest(task, table.rows(alignment.rows), settings, channels, folder, resume, on_tree)
    except KeyboardInterrupt as stopped:
        stopped.add_note(f"go on with: fedarena vertical train --resume {folder}")
        raise


def _complete(folder: Path) -> GuestModel | None:
    """The model of a folder, if all its trees are there."""
    if not (folder / MODEL).exists():
        return None
    model = GuestModel.load(folder)
    return model if model.finished else None


def _say_goodbye(line: PartyConnection, folder: Path, trees: int, say: Say) -> None:
    """The guest stopped after its last tree: hosts may be waiting still, or have been told and gone."""
    from fedarena.vertical.guest import send_goodbye

    with line.channels(say) as channels:
        send_goodbye(channels)
    write_json(folder / DONE, {"trees": trees})


def _rows_of(folder: Path, table: PartyTable) -> PartyTable:
    """The rows that a training used."""
    kept = kept_alignment(folder, table)
    return table if kept is None else table.rows(kept.rows)


def fitted(settings: dict[str, Any], table: PartyTable) -> BoostSettings:
    """The settings, with the objective that fits the labels unless one is named."""
    if table.y is None:
        raise BadValue("the guest's table has no label", remedy="name its column: --label", where="--label")
    asked = {"objective": table.objective, **settings}
    if asked["objective"] != "squared_error":
        asked["classes"] = max(len(table.class_names), 2)
    return BoostSettings.of(asked)


def check_share(test_share: float) -> None:
    """Some rows must be left to train."""
    if not 0 <= test_share < 1:
        raise BadValue(
            f"a share of {test_share} test rows leaves none to train",
            remedy="choose from 0 to below 1",
            where="--test-share",
        )


def training_rows(rows: int, test_share: float, seed: int) -> NDArray[np.bool_]:
    """Which rows the trees are grown from; the others judge them."""
    training = np.ones(rows, dtype=bool)
    training[stream(seed, "split").permutation(rows)[: round(rows * test_share)]] = False
    return training


def _take(folder: Path) -> None:
    """A folder of its own for a new training."""
    if (folder / FILE).exists():
        raise CannotWrite(
            f"{folder} holds a training already", remedy=f"go on with it: --resume {folder}, or choose another folder"
        )
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def _as_guest(
    task: TrainingTask,
    table: PartyTable,
    settings: BoostSettings,
    channels: Sequence[Channel],
    folder: Path,
    resume: bool,
    on_tree: OnTree,
) -> dict[str, Any]:
    from fedarena.vertical.guest import Guest

    assert table.y is not None
    training = training_rows(len(table), task.test_share, settings.seed)
    kept: dict[str, Any] = {"names": table.names, "folder": folder, "resume": resume}
    model = Guest(table.x, table.y, channels, settings, training=training, on_tree=on_tree, **kept).train()
    write_json(folder / DONE, {"trees": len(model.trees)})
    return {**_figures(task, table, model), "model_dirs": [str(folder)]}


def _simulated(
    task: TrainingTask,
    table: PartyTable,
    dealt: dict[str, list[int]],
    settings: BoostSettings,
    folder: Path,
    resume: bool,
    on_tree: OnTree,
) -> dict[str, Any]:
    """All parties in this process; each still has a folder of its own."""
    from fedarena.vertical.simulation import simulate

    assert table.y is not None
    training = training_rows(len(table), task.test_share, settings.seed)
    names = [[table.names[i] for i in own] for own in dealt.values()]
    tables = [table.x[:, own] for own in dealt.values()]
    found = simulate(
        tables,
        table.y,
        settings,
        names=names,
        hosts=list(dealt)[1:],
        training=training,
        folder=folder,
        resume=resume,
        on_tree=on_tree,
    )
    pooled = _pooled(found, tables, table.y, training) if task.check_pooled else {}
    return {**_figures(task, table, found.guest), **pooled, "model_dirs": [str(folder / party) for party in dealt]}


def _pooled(
    found: Simulated, tables: Sequence[NDArray[np.float64]], y: NDArray[np.float64], training: NDArray[np.bool_]
) -> dict[str, Any]:
    from fedarena.vertical.pooled_check import check_pooled

    check = check_pooled(found, tables, y, training=training)
    return {
        f"{check.metric}_pooled": check.pooled,
        "splits_equal": check.splits_equal,
        "splits": check.splits,
        "margin_difference": check.margin_difference,
    }


def _figures(task: TrainingTask, table: PartyTable, model: GuestModel) -> dict[str, Any]:
    """A training in numbers, the same names for all; what was measured before a restart counts."""
    last = model.history[(model.best_round or 0) * model.settings.trees_per_round - 1]
    return {
        "algorithm": model.settings.algorithm,
        "dataset": task.source.name,
        "parties": [GUEST, *model.hosts],
        "rows": len(table),
        "trees": len(model.trees),
        "depth": model.settings.depth,
        "key_bits": model.settings.key_bits,
        "auc": None,
        "auc_pooled": None,
        "splits_equal": None,
        str(last["metric"]): last["value"],
        "seconds_per_tree": sum(h["seconds"] for h in model.history) / len(model.history),
        "bytes_up": sum(h["bytes_up"] for h in model.history),
        "bytes_down": sum(h["bytes_down"] for h in model.history),
    }


def tree_line(record: Any) -> str:
    """A finished tree on one line."""
    width = len(str(record.trees))
    return (
        f"tree {record.tree:>{width}}/{record.trees}  gain {record.gain:10.4f}  {record.metric} {record.value:.5f}  "
        f"{record.bytes_up / 1e6:.2f} MB up  {record.bytes_down / 1e6:.2f} MB down  {record.seconds:.2f} s"
    )


def counted(trees: int) -> str:
    """In words."""
    return "1 tree" if trees == 1 else f"{trees} trees"


def training_summary(found: dict[str, Any]) -> str:
    """A training for people."""
    metric = next(name for name in METRICS if found.get(name) is not None)
    lines = [
        f"{found['algorithm']} on {found['dataset']}: {counted(found['trees'])} of depth {found['depth']}, "
        f"{found['key_bits']} bits, {' and '.join(found['parties'])}",
        f"  {metric} {found[metric]:.5f}   {found['seconds_per_tree']:.2f} s a tree, "
        f"{found['bytes_up'] / 1e6:.1f} MB up, {found['bytes_down'] / 1e6:.1f} MB down",
    ]
    if found.get("splits_equal") is not None:
        same = "the same trees" if found["splits_equal"] else "NOT the same trees"
        lines.append(f"  pooled {metric} {found[metric + '_pooled']:.5f}: {same} ({found['splits']} splits compared)")
    return "\n".join([*lines, *(f"  {place}" for place in found["model_dirs"])])


def serve_training(
    source: TableSource,
    line: PartyConnection,
    place: Callable[[str], Path],
    policy: HostPolicy,
    matching: Matching,
    say: Say,
) -> dict[str, Any]:
    """Be a host until the guest says that the training is over."""
    from fedarena.vertical.host import Host

    identity, table = Identity.load(line.keys), source.load()
    checked_columns(table.x, table.names, identity.name)
    folder = place(identity.name)
    if (folder / DONE).exists():
        raise CannotWrite(f"{folder} holds a finished training", remedy="choose another folder", where="--out")
    hosts: list[Host] = []

    def make(table: PartyTable) -> HostProtocol:
        hosts.append(Host(table.x, table.names, name=identity.name, folder=folder, policy=policy))
        return hosts[-1]

    def watch(kind: FrameKind, tree: int, level: int) -> None:
        if kind is FrameKind.TREE_END:
            say(f"tree {tree + 1} finished")

    party = HostParty(table, make, matching, name=identity.name, folder=folder, watch=watch, say=say)
    serve(party, line, identity, say)
    trees = len(hosts[-1].model.trees)
    if trees:  # else the guest left before the first one, and may come again
        write_json(folder / DONE, {"trees": trees})
    return {"party": identity.name, "trees": trees, "model_dirs": [str(folder)]}
