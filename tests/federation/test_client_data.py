"""Each client splits, numbers and scales its own rows as a table of all rows would, from sums alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.federation_clients import Federation, differences, write

import fedarena as fa
from fedarena.config.errors import BadValue, FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.data.sources.class_codes import split_rows
from fedarena.data.sources.table_files import Csv
from fedarena.federation.agreement import client_order, first_agreement, with_statistics, without_rows
from fedarena.federation.client_data import AgreedSamples, ClientFile, features_of, split_samples, statistics_layout
from fedarena.federation.messages import Agreement, TableDescription
from fedarena.federation.statistics_release import StatisticsMask, Totals, signed_total

DEEP = settings(max_examples=60)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.floats(0.01, 0.9), st.integers(0, 5))
@DEEP
def test_own_rows_are_split_as_in_a_table_of_all(sizes: list[int], share: float, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 3, sum(sizes))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    try:
        _, test = split_rows(codes, owner, share, seed)
    except BadValue:  # nothing to test on
        test = np.empty(0, np.int64)
    before = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    found = []
    for k, size in enumerate(sizes):
        agreed = Agreement(
            client=k, clients=len(sizes), rows_before=before[k], rows=before[-1], classes=("0", "1", "2"), columns=()
        )
        own = split_samples(codes[before[k] : before[k] + size], agreed, share, seed)
        assert sorted(np.concatenate(own).tolist()) == list(range(size))
        found.append(own[1] + before[k])
    assert np.array_equal(np.concatenate(found), test)


@pytest.mark.parametrize("names", [["b", "a", "c-2", "c-10"], ["10", "9", "1"], ["B", "a"]])
def test_clients_are_numbered_as_a_column_of_their_names_would_be(names: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [[name, 1.0 * i, i % 2] for i, name in enumerate(names * 3)], ["who", "x", "y"])
    assert tuple(client_order(names)) == Csv(str(path), "y", "who").load(0).owner_names


def agreed_rows(
    experiment: Experiment, files: dict[str, Path]
) -> tuple[dict[str, Agreement], dict[str, AgreedSamples], Any]:
    """Return the result of the enrollment, without messages."""
    tables = {name: ClientFile(path).read_table(experiment.data.made) for name, path in files.items()}
    agreed = first_agreement({name: table.describe("") for name, table in tables.items()})
    rows = {name: table.to_samples(agreed[name]) for name, table in tables.items()}
    counted = {name: own.sample_counts() for name, own in rows.items()}
    layout = statistics_layout(experiment, next(iter(agreed.values())))
    masks = {name: StatisticsMask() for name in rows}
    keys = {agreed[name].client: mask.public for name, mask in masks.items()}
    vectors = {
        name: masks[name].masked(own.statistics(layout, 1).integers, agreed[name].client, keys)
        for name, own in rows.items()
    }
    totals = Totals.of(signed_total(vectors.values(), layout.size), layout)
    return with_statistics(agreed, counted, totals), rows, counted


def odd_table(folder: Path) -> tuple[Path, dict[str, Path]]:
    """Words, gaps, a constant, whole numbers here and broken ones there, labels that only some clients have."""
    rng = np.random.default_rng(4)
    head = ["who", "size", "colour", "same", "gaps", "y"]
    colours = {"x": ["red", "green"], "y": ["blue", "green"], "z": ["red"]}
    labels = {"x": [2, 10], "y": [10, 3], "z": [3]}
    clients = {
        name: [
            [
                name,
                i if name == "x" else round(rng.normal(), 3),
                rng.choice(colours[name]),
                7,
                "" if i % 5 == 0 else 1000 + i / 7,
                rng.choice(labels[name]),
            ]
            for i in range(20)
        ]
        for name in "xyz"
    }
    whole = write(folder / "all.csv", [row for rows in clients.values() for row in rows], head)
    return whole, {name: write(folder / f"{name}.csv", rows, head) for name, rows in clients.items()}


@pytest.mark.parametrize("standardise", [False, True])
def test_rows_are_those_of_the_table_of_all(standardise: bool, tmp_path: Path) -> None:
    """Words encoded alike, labels numbered alike, and features with the same bits: both sums are exact."""
    whole, files = odd_table(tmp_path)
    table = {"missing": "mean", "one_hot": True, "standardise": standardise, "label": "y", "client": "who"}
    experiment = Experiment.make({"data": {"name": "csv", "path": str(whole), **table}, "rounds": 1})
    pooled = experiment.data.made.load(0)
    agreed, rows, counted = agreed_rows(experiment, files)
    data, partition = without_rows(experiment, agreed, counted)
    assert (data.n_train, data.classes, data.shape) == (pooled.n_train, pooled.classes, pooled.shape)
    assert data.class_names == pooled.class_names == ("2", "3", "10")
    assert features_of(agreed["x"].columns) == 6
    simulated = experiment.partition.made.split(pooled, 0, np.random.default_rng(0))
    assert partition.fingerprint() == simulated.fingerprint()
    for k, (name, own) in enumerate(rows.items()):
        mine, _ = own.to_dataset(agreed[name], experiment)
        at = np.concatenate([simulated.clients[k], simulated.client_tests[k]])
        assert np.array_equal(mine.y, pooled.y[at])
        assert np.array_equal(mine.x, pooled.x[at])
        assert mine.encoding is not None
        assert mine.encoding == pooled.encoding


@pytest.mark.slow
def test_a_standardised_federation_is_that_of_the_table_of_all(tmp_path: Path) -> None:
    federated, serial = Federation(tmp_path).both(data={"standardise": True})
    assert differences(federated, serial) == []


@pytest.mark.slow
def test_samples_held_out_for_tuning_are_in_no_sum(tmp_path: Path) -> None:
    federated, serial = Federation(tmp_path).both(data={"standardise": True}, validate_share=0.25)
    assert differences(federated, serial) == []


@pytest.mark.slow
def test_rows_to_test_on_in_files_of_their_own(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    tests = {name: write(tmp_path / f"{name}-test.csv", rows[::3]) for name, rows in federation.rows.items()}
    whole = write(tmp_path / "test.csv", [row for rows in federation.rows.values() for row in rows[::3]])
    experiment = federation.experiment(data={"test_path": str(whole)})
    for name in federation.rows:
        federation.start(name, file=ClientFile(federation.files[name], tests[name]))
    assert differences(federation.serve(experiment), fa.run(experiment, out=False, runtime="serial")) == []


def describe(**settings: Any) -> TableDescription:
    columns = [{"name": name, "kind": "numbers"} for name in settings.pop("columns", "ab")]
    table = {
        "session": "s",
        "rows": 5,
        "test_rows": 0,
        "label_kind": "words",
        "classes": ("n", "y"),
        "columns": columns,
    }
    return TableDescription.model_validate({**table, **settings})


def test_a_column_of_words_of_all_must_stay_small() -> None:
    def words(first: int) -> TableDescription:
        column = {"name": "c", "kind": "words", "words": [str(i) for i in range(first, first + 15)]}
        return TableDescription.model_validate({**describe().model_dump(), "columns": [column]})

    with pytest.raises(BadValue, match="'c' holds 30 distinct words"):
        first_agreement({"a": words(0), "b": words(15)})


def test_one_label_at_all_is_refused() -> None:
    with pytest.raises(BadValue, match="1 labels together"):
        first_agreement({"a": describe(classes=("y",)), "b": describe(classes=("y",))})


MISTAKES = {
    "label": (ClientFile(Path("alfa.csv"), label="lable"), "has no column 'lable'.*did you mean 'label'"),
    "test file": (ClientFile(Path("alfa.csv"), test=Path("bravo.csv")), "takes 0.2 of the rows to test on"),
    "fractions": (ClientFile(Path("alfa.csv"), label="a"), "holds fractions"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_a_clients_file_are_reported(mistake: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    file, problem = MISTAKES[mistake]
    test = None if file.test is None else tmp_path / file.test
    own = ClientFile(tmp_path / file.path, test, file.label)
    with pytest.raises(FedarenaError, match="(?s)" + problem):
        own.read_table(federation.experiment().data.made).describe("")


def test_sums_over_few_rows_are_not_sent(tmp_path: Path) -> None:
    federation = Federation(tmp_path, {"alfa": 30, "bravo": 6})
    federation.start()
    with pytest.raises(FedarenaError, match=r"'bravo': sums over 5 training rows would reveal too much"):
        federation.serve(federation.experiment(data={"standardise": True}))
