"""A real federation has the metrics of a simulation: from totals over all clients, or of each client by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federation.test_release_log import answers, log, other_models, requests
from tests.support.federation_clients import Federation, write

import fedarena as fa
from fedarena.config.errors import BadValue, UnknownName
from fedarena.federation import messages
from fedarena.federation.consent import federated_experiment
from fedarena.federation.evaluation_sums import layout_of
from fedarena.federation.metric_sums import MetricSums
from fedarena.federation.request_limits import REPEATS
from fedarena.federation.requests import ResponseRule
from fedarena.federation.statistics_release import StatisticsMask, decoded, is_vector, signed_total
from fedarena.federation.what_leaves import what_leaves
from fedarena.federation.wire_format import Payload, pack, unpack, unpack_body

SIZES = {"alfa": 160, "bravo": 220, "charlie": 130}
SUMMED = {"accuracy", "balanced_accuracy", "f1", "precision", "recall", "log_loss", "brier", "ece", "loss"}
BY_ORDER = ("auc", "average_precision")
SINGLE = 1e-6  # logits are in single precision, from batches of each client's own
HISTOGRAMS: dict[str, Any] = {"evaluate": {"histograms": 20}}


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, SIZES)


def served(federation: Federation, **settings: Any) -> fa.Run:
    federation.start()
    return federation.serve(federation.experiment(**settings))


# Values


def test_metrics_from_sums_are_those_of_the_simulation(federation: Federation) -> None:
    federated, serial = federation.both()
    assert set(federated.metrics) == SUMMED
    for name in ("accuracy", "balanced_accuracy", "f1", "precision", "recall"):
        assert federated.metrics[name] == serial.metrics[name]
    for name in ("log_loss", "brier", "ece", "loss"):
        assert federated.metrics[name] == pytest.approx(serial.metrics[name], rel=SINGLE)
    assert federated.confusion().tolist() == serial.confusion().tolist()
    for own, other in zip(federated.calibration(), serial.calibration(), strict=True):
        assert own == pytest.approx(other, rel=SINGLE)
    assert federated.recalls().tolist() == serial.recalls().tolist()
    assert federated.measured.class_names == ("a", "b", "c")


def test_the_auc_of_each_client_is_not_called_that_of_all(federation: Federation) -> None:
    """The mean over clients is no AUC over all samples: it compares no sample of one client with one of another."""
    federated, serial = federation.both()
    for name in BY_ORDER:
        assert name not in federated.metrics
        assert federated.own_metrics[name] == pytest.approx(serial.own_metrics[name], rel=SINGLE)
        assert federated.own_metrics[name] != pytest.approx(serial.metrics[name], abs=0.001)
        np.testing.assert_allclose(federated.client_metrics[name], serial.client_metrics[name], rtol=SINGLE)
    assert f"mean over clients of their own values: auc {federated.own_metrics['auc']:.3g}" in str(federated)
    assert federated.metric_bounds == {}


def test_from_histograms_the_auc_of_all_samples_lies_within_its_bounds(federation: Federation) -> None:
    federated, serial = federation.both(**HISTOGRAMS)
    assert set(federated.metrics) == {*SUMMED, *BY_ORDER}
    assert set(federated.own_metrics) == {"accuracy"}
    for name in BY_ORDER:
        low, high = federated.metric_bounds[name]
        assert low < serial.metrics[name] < high
        assert low < federated.metrics[name] < high
    low, high = federated.metric_bounds["auc"]
    assert high - federated.metrics["auc"] == pytest.approx(federated.metrics["auc"] - low)
    assert f"auc {federated.metrics['auc']:.3g} ({low:.3g} to {high:.3g})" in str(federated)
    assert federated.weights_sha256 == serial.weights_sha256


@pytest.mark.slow
def test_more_bins_give_a_smaller_interval(tmp_path: Path) -> None:
    widths = []
    for bins in (5, 50, 500):
        (tmp_path / str(bins)).mkdir()
        low, high = served(Federation(tmp_path / str(bins), SIZES), evaluate={"histograms": bins}).metric_bounds["auc"]
        widths.append(high - low)
    assert widths[0] > 2 * widths[1] > 4 * widths[2]


def test_two_classes_have_a_histogram_of_the_positive_one(tmp_path: Path) -> None:
    federation = Federation(tmp_path, SIZES)
    for name, rows in federation.rows.items():
        federation.rows[name] = [[*row[:5], "ill" if row[5] == "c" else "well"] for row in rows]
    write(federation.pooled, [row for rows in federation.rows.values() for row in rows])
    for name, rows in federation.rows.items():
        write(federation.files[name], rows)
    evaluate = {"histograms": 40, "positive": "ill", "threshold": 0.3, "metric": "recall"}
    federated, serial = federation.both(evaluate=evaluate)
    assert federated.metric_curve == serial.metric_curve
    assert federated.metrics["f1"] == serial.metrics["f1"]
    assert federated.confusion().tolist() == serial.confusion().tolist()
    for name in BY_ORDER:
        low, high = federated.metric_bounds[name]
        assert low <= serial.metrics[name] <= high
    joined = federation.clients["alfa"]._joined
    assert joined is not None
    assert layout_of(joined.worker.context, 40).scored == (0,)


def test_a_metric_of_sums_is_followed_and_stops_the_run(federation: Federation) -> None:
    curve = dict(fa.run(federation.experiment(evaluate={"metric": "f1"}), out=False, runtime="serial").metric_curve)
    assert curve[1] < curve[2]
    target = (curve[1] + curve[2]) / 2
    run = served(federation, evaluate={"metric": "f1", "target": target, "stop_at_target": True})
    assert run.metric_curve == [(1, curve[1]), (2, curve[2])]
    assert run.metrics["f1"] == curve[2]


@pytest.mark.slow
def test_the_auc_is_followed_through_histograms(federation: Federation) -> None:
    federated, serial = federation.both(evaluate={"histograms": 200, "metric": "auc"})
    for (_, found), (_, exact) in zip(federated.metric_curve, serial.metric_curve, strict=True):
        assert found == pytest.approx(exact, abs=0.01)
    assert federated.metric_curve[-1][1] == federated.metrics["auc"]


def test_metrics_that_sums_do_not_give_cannot_be_followed(federation: Federation) -> None:
    with pytest.raises(BadValue, match="'auc' cannot be computed") as found:
        federation.experiment(evaluate={"metric": "auc"})
    assert "evaluate.histograms" in found.value.remedy
    with pytest.raises(UnknownName, match="did you mean 'accuracy'"):
        federation.experiment(evaluate={"metric": "acuracy"})
    federation.start()
    with pytest.raises(BadValue, match="'f1' cannot be computed"):
        federation.serve(federation.experiment(algorithm="local", evaluate={"metric": "f1"}))


def test_own_models_have_the_metrics_of_their_clients(federation: Federation) -> None:
    federated, serial = federation.both(algorithm="local")
    assert set(federated.metrics) == {"accuracy", "loss", "log_loss"}
    assert federated.own_metrics["auc"] == pytest.approx(serial.own_metrics["auc"], rel=SINGLE)
    assert federated.measured.confusion is None


def test_a_run_folder_keeps_bounds_and_curves(federation: Federation) -> None:
    run = served(federation, **HISTOGRAMS)
    again = fa.load(federation.folder / "run")
    assert again.metric_bounds == run.metric_bounds != {}
    assert again.metrics == run.metrics
    assert again.confusion().tolist() == run.confusion().tolist()
    assert again.calibration() == run.calibration()
    result = json.loads((federation.folder / "run" / "result.json").read_text())
    assert result["metric_bounds"]["auc"] == list(run.metric_bounds["auc"])


def test_what_clients_did_not_send_is_said_to_be_missing(federation: Federation) -> None:
    """A file of that path is not looked for: the server has no rows."""
    federation.start()
    data = {"name": "csv", "label": "label", "drop": ["site"], "standardise": False}
    experiment = federated_experiment({"data": data, "model": "logreg", "rounds": 1, "algorithm": "local"}, [])
    run = federation.serve(experiment)
    for curve in (run.confusion, run.calibration):
        with pytest.raises(BadValue, match="the samples of this run stayed with the clients"):
            curve()


@pytest.mark.slow
def test_a_resumed_server_has_the_same_metrics(federation: Federation) -> None:
    evaluate = {"histograms": 20, "metric": "brier"}
    whole = served(federation, evaluate=evaluate)
    (federation.folder / "again").mkdir()
    other = Federation(federation.folder / "again", SIZES)
    other.start()

    def stop(record: Any) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    experiment = other.experiment(evaluate=evaluate)
    with pytest.raises(KeyboardInterrupt):
        other.serve(experiment, on_round=stop)
    other.start()
    run = other.serve(experiment, resume=other.folder / "run")
    assert (run.metrics, run.metric_bounds, run.metric_curve) == (
        whole.metrics,
        whole.metric_bounds,
        whole.metric_curve,
    )
    assert run.calibration() == whole.calibration()


# What leaves, and what limits it


def test_the_server_reads_totals_and_no_sums_of_one_client(federation: Federation) -> None:
    served(federation, **HISTOGRAMS)
    sent = {
        n: unpack(c).payload for n, c in federation.link.up if isinstance(unpack_body(c).body, messages.EvaluationSums)
    }
    assert list(sent) == [*SIZES]
    contexts = {name: federation.clients[name]._joined.worker.context for name in SIZES}  # type: ignore[union-attr]
    layout = layout_of(contexts["alfa"], 20)
    total = MetricSums.from_integers(signed_total(sent.values(), layout.size), layout)
    labels = [context.data.y[context.owners.test] for context in contexts.values()]  # type: ignore[union-attr]
    assert total.confusion.sum(axis=1).tolist() == np.bincount(np.concatenate(labels)).tolist()
    for vector, y in zip(sent.values(), labels, strict=True):
        assert is_vector(vector, layout.size)
        assert (np.unpackbits(vector.view(np.uint8)).mean() - 0.5) ** 2 < 0.001  # as many ones as zeros: random
        rows = np.array(decoded(vector)[:12], object).reshape(3, 4).sum(axis=1)
        assert not any(int(row) == int(count) for row, count in zip(rows, np.bincount(y, minlength=3), strict=True))


def test_two_clients_send_sums_that_the_server_reads_after_saying_so(tmp_path: Path) -> None:
    federation = Federation(tmp_path, {"alfa": 160, "bravo": 220})
    seen: list[str] = []
    federation.start(consent=lambda experiment, leaves: seen.extend(leaves) or "")
    run = federation.serve(federation.experiment(**HISTOGRAMS))
    assert sum("the server reads your own sums" in text for text in seen) == 4  # sums and histograms, of two clients
    assert any("how the scores of your test rows are spread" in text for text in seen)
    assert set(run.metrics) == {*SUMMED, *BY_ORDER}
    assert any("score histograms of 20 bins, readable by the server" in line["what"] for line in log(federation))


def test_consent_shows_the_release_and_the_labels_that_it_counts(federation: Federation) -> None:
    seen: list[str] = []
    federation.start("alfa", consent=lambda experiment, leaves: seen.extend(leaves) or "")
    federation.start("bravo", "charlie")
    federation.serve(federation.experiment(**HISTOGRAMS))
    text = "\n".join(seen)
    assert "score histograms: of each class how many of its test rows" in text
    assert "in each of 20 equal bins: masked, so that the server reads only the totals over all 3 clients" in text
    counts = {label: sum(row[5] == label for row in federation.rows["alfa"]) for label in "abc"}
    assert f"these rows: {counts['a']} of 'a', {counts['b']} of 'b', {counts['c']} of 'c'" in text
    assert "own AUC" not in text
    plain = "\n".join(what_leaves(federation.experiment(), False, 3))
    assert "after the last round, its own AUC and average precision over its test rows" in plain
    assert "histogram" not in plain
    followed = "\n".join(what_leaves(federation.experiment(evaluate={"metric": "auc", "histograms": 9}), False, 3))
    assert "at every evaluation, score histograms" in followed
    assert "at every evaluation, over its test rows: how many with each label" in followed
    assert "after the last round" not in followed


def forged(federation: Federation, request: messages.MessageBody, **changes: Any) -> list[bytes]:
    """Return the last request of this kind to alfa, changed by the server."""
    content = requests(federation, type(request))[-1]
    message = unpack(content, federation.clients["alfa"]._joined.worker.types)  # type: ignore[union-attr]
    new = message.body.model_copy(update=changes)
    return [pack(message.run, message.round, new, Payload.of(message.payload))]


@pytest.mark.parametrize(
    ("settings", "bins", "has"),
    [({}, 20, "none"), (HISTOGRAMS, 200, "20 bins"), ({"evaluate": {"histograms": 2}}, 3, "2 bins")],
)
def test_histograms_that_were_not_agreed_on_are_refused_and_logged(
    settings: dict[str, Any], bins: int, has: str, federation: Federation
) -> None:
    served(federation, **settings)
    why = f"asked for score histograms of {bins} bins, and the agreed experiment has {has}"
    assert answers(federation, forged(federation, messages.EvaluationSumsRequest(), histograms=bins)) == [why]
    assert (log(federation)[-1]["event"], log(federation)[-1]["what"]) == ("refused", why)


def test_values_of_one_client_are_refused_where_histograms_were_agreed_on(federation: Federation) -> None:
    served(federation, **HISTOGRAMS)
    message = unpack(
        requests(federation, messages.EvaluateRequest)[-1], federation.clients["alfa"]._joined.worker.types
    )  # type: ignore[union-attr]
    asked = pack(message.run, 0, messages.OwnMetricsRequest(), Payload.of(message.payload))
    assert answers(federation, [asked]) == ["the agreed experiment takes AUC and average precision from histograms"]


def test_sums_of_own_models_are_refused(federation: Federation) -> None:
    served(federation, algorithm="local")
    message = unpack(
        requests(federation, messages.EvaluateRequest)[-1], federation.clients["alfa"]._joined.worker.types
    )  # type: ignore[union-attr]
    asked = pack(message.run, 0, messages.EvaluationSumsRequest(), Payload.of(message.payload))
    assert answers(federation, [asked]) == ["no evaluation sums: every client has its own model"]


def with_new_key(federation: Federation, content: bytes) -> bytes:
    """A request for sums with a new key of alfa, and keys of the server's own for the others."""
    message = unpack(content, federation.clients["alfa"]._joined.worker.types)  # type: ignore[union-attr]
    response = unpack_body(
        federation.clients["alfa"].handle(pack(message.run, 0, messages.StatisticsKeyRequest()))
    ).body
    keys = {0: response.key, **{k: StatisticsMask().public for k in (1, 2)}}  # type: ignore[union-attr]
    return pack(message.run, 0, message.body.model_copy(update={"keys": keys}), Payload.of(message.payload))


@pytest.mark.parametrize(("metric", "evaluations"), [("accuracy", 1), ("f1", 4)])
def test_sums_are_released_for_as_many_models_as_are_evaluated(
    metric: str, evaluations: int, federation: Federation
) -> None:
    """Four: three rounds, and one more where the server stops early."""
    served(federation, evaluate={"metric": metric})
    asked = requests(federation, messages.EvaluationSumsRequest)
    left = evaluations + REPEATS - len(asked)
    others = other_models(federation, asked[-1], left + 2)
    found = [answers(federation, [with_new_key(federation, content)])[0] for content in others]
    assert found[:left] == ["evaluationsums"] * left
    assert all("different questions as 'evaluation sums'" in text for text in found[left:])
    federation.start("alfa")  # a restarted process counts on
    assert (
        answers(
            federation,
            [requests(federation, messages.Invitation)[0], requests(federation, messages.AgreementRequest)[-1]],
        )[-1]
        == "ready"
    )
    assert "different questions" in answers(federation, [with_new_key(federation, others[-1])])[0]
    assert answers(federation, [with_new_key(federation, asked[-1])]) == ["evaluationsums"]  # the same again


def test_values_of_one_client_are_released_for_few_models(federation: Federation) -> None:
    served(federation)
    others = other_models(federation, requests(federation, messages.OwnMetricsRequest)[-1], REPEATS + 1)
    found = answers(federation, others)
    assert found[:REPEATS] == ["ownmetrics"] * REPEATS
    assert "different questions as 'metrics of this client'" in found[-1]


def test_one_key_masks_the_sums_of_one_model(federation: Federation) -> None:
    """Two vectors under one mask would reveal the difference of a client's counts."""
    served(federation)
    content = requests(federation, messages.EvaluationSumsRequest)[-1]
    assert answers(federation, [content]) == ["evaluationsums"]
    assert answers(federation, other_models(federation, content, 1)) == [
        "a key masks one release, for one list of clients"
    ]


@pytest.mark.slow
def test_a_client_with_few_test_rows_keeps_what_the_server_could_read(tmp_path: Path) -> None:
    """Among three its sums are masked; its own AUC stays, and is counted as undefined."""
    few = Federation(tmp_path, {**SIZES, "charlie": 25})
    run = served(few)
    assert np.isnan(run.client_metrics["auc"]).tolist() == [False, False, True]
    assert run.measured.undefined["auc"] == 1
    assert set(run.metrics) == SUMMED
    (tmp_path / "two").mkdir()
    two = Federation(tmp_path / "two", {"alfa": 160, "bravo": 25})
    alone = served(two)
    assert set(alone.metrics) == {"accuracy", "loss", "log_loss"}
    assert "'bravo': sums over 5 test rows that the server can read would reveal too much of each" in alone.notes[0]


# Faults


@pytest.mark.slow
def test_without_all_clients_there_are_no_totals(federation: Federation) -> None:
    """Totals over two of three would give the sums of the third by their difference with those of all."""

    def before(name: str, content: bytes) -> None:
        if name == "bravo" and isinstance(unpack_body(content).body, messages.StatisticsKeyRequest):
            federation.link.disconnect("bravo")

    federation.link.before = before
    federation.start()
    run = federation.serve(federation.experiment(evaluate={"metric": "f1"}), rule=ResponseRule(0.5, None, 2))
    assert set(run.metrics) == {"accuracy", "loss", "log_loss"}
    assert all(np.isnan(value) for _, value in run.metric_curve)
    assert any(note.startswith("metrics of sums over all clients are missing: 'bravo'") for note in run.notes)
    assert run.measured.confusion is None
    assert np.isnan(run.client_metrics["auc"]).tolist() == [False, True, False]


def test_a_client_that_is_restarted_between_key_and_sums_gets_new_keys(federation: Federation) -> None:
    killed: list[str] = []

    def before(name: str, content: bytes) -> None:
        if name == "bravo" and not killed and isinstance(unpack_body(content).body, messages.EvaluationSumsRequest):
            killed.append(name)
            federation.start("bravo")

    federation.link.before = before
    assert set(served(federation).metrics) == SUMMED
    assert killed == ["bravo"]


def test_sums_that_cannot_be_right_are_left_out(federation: Federation) -> None:
    def change(name: str, content: bytes) -> bytes:
        message = unpack(content, None) if b'"what":"evaluationsums"' in content else None
        if message is None or name != "alfa":
            return content
        message.payload[0, 0] ^= 1 << 20  # a million samples more, under the mask
        return pack(message.run, message.round, message.body, Payload.of(message.payload))

    federation.link.change = change
    run = served(federation)
    assert set(run.metrics) == {"accuracy", "loss", "log_loss"}
    assert "they cannot be right: the confusion matrix is not that of the test samples" in run.notes[0]


@pytest.mark.parametrize("values", [{"auc": 1.5, "average_precision": 0.5}, {"auc": 0.5}])
def test_values_of_one_client_that_cannot_be_right_are_left_out(values: Any, federation: Federation) -> None:
    def change(name: str, content: bytes) -> bytes:
        message = unpack_body(content)
        if name != "alfa" or not isinstance(message.body, messages.OwnMetrics):
            return content
        return pack(message.run, message.round, message.body.model_copy(update={"values": values}))

    federation.link.change = change
    run = served(federation)
    assert np.isnan(run.client_metrics["auc"]).tolist() == [True, False, False]
