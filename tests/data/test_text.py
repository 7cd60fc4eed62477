"""Lines become windows of characters and the characters that follow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedarena.config.errors import BadValue, DataBroken, DataMissing
from fedarena.data import published_files
from fedarena.data.dataset import PADDING, Dataset
from fedarena.data.sources.text import Lines, TinyShakespeare


def spoken(data: Dataset, row: int) -> tuple[str, str]:
    """Inputs and targets of a row as text."""
    x, y = data.x[row], data.y[row]
    return "".join(data.class_names[s] for s in x[x > 0]), "".join(data.class_names[s] for s in y[y != PADDING])


def write(folder: Path, text: str) -> str:
    (folder / "talk.txt").write_text(text, encoding="utf-8")
    return str(folder / "talk.txt")


def test_windows_predict_the_next_character(tmp_path: Path) -> None:
    data = Lines(write(tmp_path, "Ann: abcdefg\n\nBob: xy\nAnn: ab\nBob: zz\n"), length=3, test=0.5).load(0)
    assert (data.name, data.n_train) == ("talk", 4)
    assert [spoken(data, i) for i in range(3)] == [("abc", "bcd"), ("def", "efg"), ("g", "\n")]
    assert spoken(data, 3) == ("xy", "y\n")
    assert data.x[2].tolist()[1:] == [0, 0]
    assert data.y[2].tolist()[1:] == [PADDING, PADDING]
    assert data.owner is not None
    assert data.owner.tolist() == [0, 0, 0, 1, 0, 1]
    assert data.owner_names == ("Ann", "Bob")


def test_the_vocabulary_is_that_of_the_training_lines(tmp_path: Path) -> None:
    data = Lines(write(tmp_path, "Ann: ba\nAnn: aé\n"), test=0.5).load(0)
    assert data.class_names == ("<end>", "<unknown>", "\n", "a", "b")
    assert data.classes == 5
    assert data.x[1, :3].tolist() == [3, 1, 0]
    assert data.y[1, :3].tolist() == [1, 2, PADDING]


@pytest.mark.parametrize(("lines", "train"), [(1, 1), (2, 1), (4, 3), (5, 4), (10, 8), (11, 8)])
def test_the_first_four_fifths_of_each_speaker_are_for_training(tmp_path: Path, lines: int, train: int) -> None:
    words = [f"Ann: {chr(97 + i)}" for i in range(lines)]
    data = Lines(write(tmp_path, "\n".join(["Bob: a", "Bob: a", *words]))).load(0)
    assert data.owner is not None
    assert (data.owner[: data.n_train] == 0).sum() == train
    assert (data.owner[data.n_train :] == 0).sum() == lines - train
    said = [spoken(data, i)[0] for i in np.flatnonzero(data.owner == 0)[:train]]
    assert said == [chr(97 + i) for i in range(train)]


def test_columns_and_separators_are_settings(tmp_path: Path) -> None:
    path = write(tmp_path, "1\tone: two\tAnn\n2\tthree\tAnn\n")
    data = Lines(path, separator="\t", speaker=2, text=1).load(0)
    assert data.owner_names == ("Ann",)
    assert spoken(data, 0)[0] == "one: two"


def test_a_text_that_does_not_fit_says_where(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"none\.txt"):
        Lines(str(tmp_path / "none.txt")).load(0)
    with pytest.raises(BadValue, match=r"line 2 of .*talk\.txt has no speaker: 'nobody'"):
        Lines(write(tmp_path, "Ann: hello\nnobody\n")).load(0)
    for text in ("", "Ann: hello\nBob: hello\n"):
        with pytest.raises(BadValue, match="no line to test on"):
            Lines(write(tmp_path, text)).load(0)
    (tmp_path / "talk.txt").write_bytes(b"Ann: \xff\xfe\n")
    with pytest.raises(DataBroken, match=r"talk\.txt"):
        Lines(str(tmp_path / "talk.txt")).load(0)


def test_roles_of_shakespeare_are_clients() -> None:
    try:
        play = published_files.load_published("tiny_shakespeare")
    except DataMissing:
        pytest.skip("tiny_shakespeare is not on this machine")
    data = TinyShakespeare().load(0)
    assert data.owner is not None
    assert len(data.owner_names) == len(set(data.owner[: data.n_train])) == 303
    assert spoken(data, 0) == (
        "Before we proceed any further, hear me speak.",
        "efore we proceed any further, hear me speak.\n",
    )
    assert (data.y != PADDING).sum() == (play["speech_end"] - play["speech_start"]).sum()
    assert (data.x > 0).sum() == (data.y != PADDING).sum()
    assert data.x.max() < data.classes
