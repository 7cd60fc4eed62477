"""No row and no list of labels is in what a client hands to the link, in any form that we can think of."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.federation_clients import LABELS, Federation, write
from torch import Tensor, nn

from fedarena.config.registry import register
from fedarena.federation.messages import KINDS, ModelRequest
from fedarena.federation.requests import TooFewAnswers
from fedarena.federation.wire_format import pack, unpack_body

EXPERIMENTS: dict[str, dict[str, Any]] = {
    "scaffold, standardised": {"algorithm": "scaffold", "data": {"standardise": True}},
    "fedir": {"algorithm": {"name": "fedavg", "with": ["fedir"]}},
    "fsvrg, scaled by features": {"algorithm": {"name": "fsvrg", "h": 0.5, "scaling": "diagonal"}},
    "kept models that are shown": {"algorithm": "local"},
    "BatchNorm": {"model": "normed", "bn_buffers": "recompute"},
    "losses one by one": {"algorithm": "loadaboost"},
    "score histograms": {"evaluate": {"histograms": 50, "metric": "auc"}},
}


def forms_of_row(row: np.ndarray) -> Iterator[bytes]:
    """A row of features as bytes or text, also two features of it: fewer could be chance."""
    for dtype in (">f8", "<f8", "<f4", ">f4"):
        yield row[:2].astype(dtype).tobytes()
    yield row.astype("<f2").tobytes()  # two of these are four bytes, which masked sums can contain by chance
    yield ",".join(map(repr, row[:2].tolist())).encode()
    yield ", ".join(map(repr, row[:2].tolist())).encode()


def forms_of_labels(labels: list[int]) -> Iterator[bytes]:
    """A list of labels: numbers of any width, digits, words; eight of them, for fewer could be chance."""
    for dtype in ("<i8", ">i8", "<i4", "<i2", "<i1", "<f4", "<f8"):
        for start in range(0, len(labels) - 8, 4):
            yield np.array(labels[start : start + 8], dtype).tobytes()
    words = [LABELS[label] for label in labels]
    for texts in (list(map(str, labels)), words):
        for between in (",", ", ", "", "\\n", '","', '", "'):
            yield between.join(texts[:8]).encode()


@pytest.mark.slow
@pytest.mark.parametrize("settings", EXPERIMENTS.values(), ids=EXPERIMENTS.keys())
def test_rows_and_labels_never_leave(settings: dict[str, Any], tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment(**settings), terms={"shares_models": True})
    for name, rows in federation.rows.items():
        sent = b"".join(content for sender, content in federation.link.up if sender == name)
        assert len(sent) > 1000
        x = np.array([[float(value) for value in row[1:5]] for row in rows])
        y = [LABELS.index(row[5]) for row in rows]
        agreed = federation.clients[name]._joined.samples  # type: ignore[union-attr]
        scaled = federation.clients[name]._joined.worker.context.data  # type: ignore[union-attr]
        for row in (*x, *scaled.x):
            assert not any(form in sent for form in forms_of_row(row))
        numbered = np.array([sorted(LABELS).index(LABELS[label]) for label in y])
        orders = [y, numbered, numbered[agreed.train], numbered[agreed.test], scaled.y]
        for order in orders:
            assert not any(form in sent for form in forms_of_labels(list(map(int, order))))


def test_the_search_would_find_them(tmp_path: Path) -> None:
    """What is sent if a row is sent: the forms above are those of numpy, json and csv."""
    rows = Federation(tmp_path).rows["alfa"]
    x = np.array([[float(value) for value in row[1:5]] for row in rows])
    text = io.StringIO()
    csv.writer(text).writerows([row[1:] for row in rows])
    for leak in (x.astype(np.float32).tobytes(), x.tobytes(), str(x.tolist()).encode(), text.getvalue().encode()):
        assert all(any(form in leak for form in forms_of_row(row)) for row in x)
    y = [LABELS.index(row[5]) for row in rows]
    for leak in (
        np.array(y).tobytes(),
        np.array(y, np.int8).tobytes(),
        str(y).encode(),
        ",".join(map(str, y)).encode(),
    ):
        assert any(form in leak for form in forms_of_labels(y))


# What could be got out of a client by asking


def test_an_error_that_quotes_a_cell_stays_with_the_client(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    rows = [[*row[:1], "Mary Smith" if i == 3 else row[1], *row[2:]] for i, row in enumerate(federation.rows["alfa"])]
    write(federation.files["alfa"], rows)
    federation.start()
    with pytest.raises(TooFewAnswers):
        federation.serve(federation.experiment(), terms={"wait": 0.3})
    assert any("it holds 'Mary Smith' in row 4" in text for text in federation.client_messages["alfa"])
    assert "'alfa' does not take part: BadValue: see the messages of that client" in federation.server_messages
    assert not any(b"Mary" in content for _, content in federation.link.up)


def test_the_text_of_an_algorithms_error_stays_with_the_client(tmp_path: Path) -> None:
    @register("model", "talkative")
    class Talkative(nn.Linear):
        """Quotes the rows it sees."""

        def __init__(self, shape: tuple[int, ...], classes: int) -> None:
            super().__init__(shape[0], classes)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                raise RuntimeError(f"I have seen {x[0].tolist()}")
            return super().forward(x)

    federation = Federation(tmp_path)
    federation.start()
    experiment = federation.experiment(model="talkative", on_error="drop", rounds=1, fast=False)
    federation.serve(experiment)
    assert any("RuntimeError: I have seen [" in text for text in federation.client_messages["alfa"])
    assert any(b'"error":"RuntimeError"' in content for _, content in federation.link.up)
    assert not any(b"I have seen" in content for _, content in federation.link.up)


def test_a_column_of_names_is_no_label(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    rows = [[*row[:5], f"patient {i}"] for i, row in enumerate(federation.rows["alfa"])]
    write(federation.files["alfa"], rows)
    federation.start()
    with pytest.raises(TooFewAnswers):
        federation.serve(federation.experiment(), terms={"wait": 0.3})
    assert any(
        "the label has 41 distinct values in 41 rows: that looks like a name" in text
        for text in federation.server_messages
    )
    assert not any(b"patient 7" in content for _, content in federation.link.up)


def test_sums_over_other_rows_are_not_sent(tmp_path: Path) -> None:
    """Another place means other training rows, and the difference of two sums could be one row."""
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment(data={"standardise": True}))
    alfa = federation.clients["alfa"]
    asked = next(c for name, c in federation.link.down if name == "alfa" and b'"tell":"counts"' in c)
    assert b'"what":"counted"' in alfa.handle(asked)
    moved = asked.replace(b'"rows":153', b'"rows":154')
    assert moved != asked
    assert b"another position before" in alfa.handle(moved)


def test_what_was_not_agreed_to_is_not_shown(tmp_path: Path) -> None:
    """A server that said nothing of it cannot have a client's own model afterwards."""
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment(algorithm="local"))
    alfa = federation.clients["alfa"]
    run = unpack_body(federation.link.down[0][1]).run
    ready = next(c for name, c in federation.link.down if name == "alfa" and b'"tell":"ready"' in c)
    forged = ready.replace(b'"shares_models":false', b'"shares_models":true')
    assert forged != ready
    assert b'"what":"ready"' in alfa.handle(forged)
    assert b"personal models stay at the client" in alfa.handle(pack(run, 2, ModelRequest(memory="2.0")))


@pytest.mark.slow
def test_a_run_does_not_become_another_experiment(tmp_path: Path) -> None:
    """More rounds are asked for again; anything else is refused."""
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment())
    hello = next(c for name, c in federation.link.down if name == "alfa" and b'"what":"hello"' in c)
    federation.start("alfa")
    alfa = federation.clients["alfa"]
    assert b'"what":"described"' in alfa.handle(hello.replace(b"rounds = 3", b"rounds = 4"))
    assert b"another experiment before" in alfa.handle(hello.replace(b"split_seed = 0", b"split_seed = 1"))
    assert b"another experiment before" in alfa.handle(hello.replace(b'"shares_models":false', b'"shares_models":true'))


SENT = {  # every field that a client may send, by the words of docs/federation.md
    "names of columns, which of them hold words, number of rows; of a classification the labels that occur": (
        "described.columns described.label_kind described.classes described.rows described.test_rows "
        "counted.train counted.test"
    ),
    "a public key for one release of statistics": "statisticskey.key",
    "sha256 of the initial weights, torch's version": "ready.initial ready.torch",
    "loss on the training rows, steps, rows seen, seconds, whether all is finite": (
        "done.loss done.steps done.samples done.seconds done.finite done.weight done.sent done.sent_buffers "
        "trained.loss trained.steps trained.samples trained.seconds trained.finite trained.sent trained.sent_buffers"
    ),
    "the mean loss of a model over the training rows, before clients are selected": "lossresponse.loss",
    "the mean squared loss of the received model over the training rows": "done.squared_loss trained.squared_loss",
    "the server gets a ticket": "done.memory trained.memory",
    "public keys, and shares of secrets": "keyed.keys dealt.shares revealed.shares",
    "how many test rows (with several labels: how many labels of them) were right, of how many, and the sum of their": (
        "looked.right looked.count looked.loss looked.own_right looked.own_count"
    ),
    "how many test rows of each class the model takes for each class": "evaluationsums.histograms",
    "AUC and average precision of the client's own test rows (with several labels the means over labels), and how many": (
        "ownmetrics.values ownmetrics.count"
    ),
    "its description, without quoted values": (
        "skips.reason broke.error broke.place refused.why refused.kind "
        "unsendable.error unsendable.remedy unsendable.where"
    ),
    "a client is killed and started again": "described.session",
}
DOWN = {"hello", "agree", "work", "recompute", "look", "show", "train", "send", "keys", "deal", "reveal", "goodbye"}
DOWN |= {
    "lossrequest",
    "statisticskeyrequest",
    "statisticsrequest",
    "evaluationsumsrequest",
    "ownmetricsrequest",
    "final",
}


def test_everything_that_may_leave_is_on_the_page() -> None:
    """Words of a client cannot get a new field without a place in the table of what leaves."""
    server_messages = {
        f"{what}.{field}" for what, kind in KINDS.items() if what not in DOWN for field in kind.model_fields
    }
    assert server_messages == {field for fields in SENT.values() for field in fields.split()}
    page = " ".join((Path(__file__).parents[2] / "docs" / "federation.md").read_text(encoding="utf-8").split())
    assert [phrase for phrase in SENT if phrase not in page] == []
