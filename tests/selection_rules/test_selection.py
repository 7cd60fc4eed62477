"""Selection rules in an experiment: which algorithms and settings they go with, and the keys."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import on_blobs, small_net
from tests.support.federations import blobs
from tests.test_docs import rows_of_table

from fedarena.config.errors import BadValue, UnknownName
from fedarena.config.experiment import Experiment
from fedarena.config.registry import components
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.context import ExperimentContext
from fedarena.engine.setup import open_context
from fedarena.engine.training_loss import LossTask
from fedarena.experiments.component_checks import check_component
from fedarena.federation.what_leaves import what_leaves

LOSSES = ("power_of_choice", "oort")


def test_uniform_is_the_selection_without_a_rule() -> None:
    for settings in ({}, {"dropouts": 0.3}, {"devices": {"available": "day", "speed": 0.01}}):
        plain, named = (on_blobs(clients=6, share=0.5, select=select, **settings) for select in (None, "uniform"))
        assert plain.weights_sha256 == named.weights_sha256
        assert [r.clock for r in plain.records] == [r.clock for r in named.records]


@pytest.mark.parametrize("select", LOSSES)
@pytest.mark.parametrize("algorithm", ["fedasync", "fedbuff", "coop", "afl", "fsvrg", "local", "centralized"])
def test_algorithms_that_select_no_clients_refuse_by_name(algorithm: str, select: str) -> None:
    with pytest.raises(BadValue, match=f"{algorithm}.*{select}"):
        on_blobs(algorithm, select=select)


def test_an_algorithm_with_a_selection_of_its_own_refuses() -> None:
    with pytest.raises(BadValue, match="selects clients by a rule of its own, and not by oort"):
        on_blobs({"name": "fedavg", "with": ["fedvc"]}, select="oort")


@pytest.mark.parametrize("select", LOSSES)
def test_losses_of_single_clients_are_refused_where_they_must_not_be_seen(select: str) -> None:
    for uplink in ("mean_only", {"secure": True}, {"clip": 1.0, "noise": 1.0}):
        with pytest.raises(BadValue, match=f"{select} must see the loss of each client by itself"):
            on_blobs(select=select, uplink=uplink)
    with pytest.raises(BadValue, match=f"{select} uses the training loss of each client, which local.privacy"):
        on_blobs(select=select, local={"privacy": {"clip": 1.0, "noise": 1.0}})


REFUSING = (
    "fedasync",
    "fedbuff",
    "coop",
    "afl",
    "fsvrg",
    "local",
    "centralized",
    "local_trees",
    "centralized_trees",
    "fedvc",
)
BUILT_IN = [name for name, entry in components("algorithm").items() if entry.make.__module__.startswith("fedarena")]


@pytest.mark.parametrize("algorithm", sorted({*BUILT_IN} - {*REFUSING}))
@pytest.mark.parametrize("select", LOSSES)
def test_rules_go_with_every_synchronous_algorithm(algorithm: str, select: str) -> None:
    """Rounds in which an algorithm asks all clients, as histboost and FedPAGE do in the first, select none."""
    run = on_blobs(algorithm, clients=6, share=0.5, select=select, rounds=3)
    assert [r.selected for r in run.records if r.answered < 6] == [3] * sum(r.answered < 6 for r in run.records)
    assert not [note for note in run.notes if "the model" not in note]


def test_candidates_alone_are_a_uniform_selection_to_the_bit() -> None:
    chosen = {"name": "power_of_choice", "d": 3, "candidates": "uniform"}
    drawn, usual = (on_blobs(clients=6, share=0.5, select=select) for select in (chosen, None))
    assert drawn.weights_sha256 == usual.weights_sha256
    assert drawn.bytes == usual.bytes


def measured(algorithm: Any, kept: Any = None, own: Any = None) -> tuple[ExperimentContext, float, Any]:
    """Return the loss that client 1 reports for selection before round 4, and the weights of the server's first state."""
    context = open_context(
        Experiment.make(
            blobs(), algorithm=algorithm, model=small_net, clients=4, partition="iid", select="power_of_choice"
        )
    )
    state = context.algorithm.init(context.initial)
    common = Broadcast(context.algorithm.measured(state), context.initial_buffers)
    return context, LossTask(3, 1, ClientState(kept, own=own)).run(context, common), state


def loss_of(context: ExperimentContext, w: Any) -> float:
    context.task.load(w)
    return float(context.evaluate(context.partition.clients[1]).loss.mean())


def test_the_loss_is_that_of_shared_and_own_layers_together() -> None:
    head = np.random.default_rng(0).standard_normal(27).astype(np.float32)
    context, found, state = measured("fedper", own=head)
    assert found == loss_of(context, np.concatenate([state.w, head]))  # the head comes last
    assert found != loss_of(context, context.task.initial)


def test_the_loss_is_that_of_the_best_cluster() -> None:
    context, found, state = measured({"name": "ifca", "clusters": 4})
    assert found == min(loss_of(context, w) for w in state.each)
    assert found != max(loss_of(context, w) for w in state.each)


def test_the_loss_is_that_of_a_model_which_stays_with_the_client() -> None:
    """Nothing is sent to measure it."""
    own = np.random.default_rng(0).standard_normal(83).astype(np.float32)
    context, found, state = measured("fedproto", kept=own)
    assert found == loss_of(context, own)
    assert not context.algorithm.measured(state).rows.size


def test_overselection_and_availability_are_respected() -> None:
    run = on_blobs(clients=8, share=0.25, select={"name": "power_of_choice", "d": 8}, devices={"overselect": 1.5})
    assert [(r.selected, r.answered) for r in run.records] == [(3, 2)] * 3
    day = on_blobs(clients=8, share=0.25, select="oort", devices={"available": "day", "hours": 4.0})
    assert all(1 <= r.selected <= 2 for r in day.records)


def test_the_key_is_read_written_and_unset() -> None:
    exp = Experiment.make("digits", ["select.d=7"], select="power_of_choice")
    assert exp.select is not None
    assert exp.select.settings == {"d": 7, "candidates": "samples"}
    assert "select" not in Experiment.make("digits").as_table()  # recorded experiments keep their text
    assert Experiment.make(tomllib.loads(exp.to_toml())) == exp
    assert exp.with_(select="none").select is None
    assert exp.with_(select="oort").select.settings["alpha"] == 2.0  # type: ignore[union-attr]
    with pytest.raises(UnknownName, match="no selection is called 'ort'"):
        Experiment.make("digits", select="ort")
    with pytest.raises(BadValue, match="d = 0 does not fit selection 'power_of_choice'"):
        Experiment.make("digits", select={"name": "power_of_choice", "d": 0})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(components("selection")))
def test_contract(name: str) -> None:
    report = check_component(name)
    assert not report["broken"]
    assert len(report["held"]) == 3


def test_consent_names_what_a_rule_needs() -> None:
    def said(select: Any) -> str:
        data = {"name": "csv", "path": "a.csv", "label": "y"}
        return " ".join(what_leaves(Experiment.make({"data": data, "model": "logreg"}, select=select), False))

    assert "loss of the model over its training rows" not in said(None) + said("uniform") + said("oort")
    assert "the mean loss of the model over its training rows, whenever it is considered" in said("power_of_choice")
    assert "the mean squared loss over its training rows of the model that it received" in said("oort")


def test_the_page_explains_every_setting_with_its_range_and_default() -> None:
    shown = {row[0]: tuple(row[1:3]) for row in rows_of_table("selection.md")}
    parameters = [p for name in ("uniform", *LOSSES) for p in components("selection")[name].parameters.values()]
    assert shown == {p.name: (p.type, f"`{str(p.default).lower()}`") for p in parameters}
