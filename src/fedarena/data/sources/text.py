"""Texts by speaker, for the prediction of the next character.

A line becomes windows of `length` characters: x are the characters, y the next ones, and a newline ends the line. Symbol 0
fills x after the end (y is PADDING there), symbol 1 stands for characters that are in no training line (no model can learn
to predict it), and the characters of the training lines follow in the order of their codes.
After McMahan et al. 2017, arXiv:1602.05629.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le, MinLen
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, DataMissing, quoted
from fedarena.config.registry import register
from fedarena.data import published_files
from fedarena.data.dataset import PADDING, Dataset, Rows
from fedarena.data.sources.class_codes import TestShare, numbered

Length = Annotated[int, Ge(1), Le(100_000)]
DEFAULTS: dict[str, Any] = {
    "model": "char_lstm",
    "share": 0.06,
    "rounds": 50,
    "partition": {"name": "natural", "min_samples": 10},
    "local": {"lr": 1.5, "epochs": 1, "batch": 10},
    "evaluate": {"every": 5},
}


@register("dataset", "tiny_shakespeare", paper="Karpathy 2015, char-rnn; partition by role after arXiv:1602.05629")
@dataclass(frozen=True)
class TinyShakespeare:
    """7,110 speeches of 303 roles in Shakespeare's plays; every role is a client."""

    length: Length = 80

    defaults: ClassVar[dict[str, Any]] = DEFAULTS

    def load(self, seed: int) -> Dataset:
        """Return the first four fifths of each role's speeches, at least one, for training and the rest for testing."""
        play = published_files.load_published("tiny_shakespeare")
        text = np.append(play["text"], ord("\n")).astype(np.uint32)
        start, end, role = (play[f"speech_{k}"].astype(np.int64) for k in ("start", "end", "role"))
        names = tuple(str(name) for name in play["role_names"])
        return windows("tiny_shakespeare", text, start, end, role, names, self.length, 0.2)


@register("dataset", "lines", paper="after McMahan et al. 2017, arXiv:1602.05629")
@dataclass(frozen=True)
class Lines:
    """A text file of yours with lines `SPEAKER: TEXT`; every speaker is a client.

    Set `separator` (for example a tab) and the columns `speaker` and `text` for other formats.

    >>> import fedarena as fa
    >>> from pathlib import Path
    >>> text = "".join(f"{who}: to be or not to be, that is the question\\n" for who in ("A", "B") * 20)
    >>> Path("play.txt").write_text(text)
    1760
    >>> fa.lines("play.txt", length=20).load(seed=0).owner_names
    ('A', 'B')
    """

    path: str
    separator: Annotated[str, MinLen(1)] = ":"
    speaker: Annotated[int, Ge(0)] = 0
    text: Annotated[int, Ge(0)] = 1
    length: Length = 80
    test: TestShare = 0.2

    defaults: ClassVar[dict[str, Any]] = {**DEFAULTS, "share": 1.0, "partition": {"name": "natural", "min_samples": 1}}

    def load(self, seed: int) -> Dataset:
        """Return the first lines of each speaker for training, and the last share `test` of them for testing."""
        pairs = self._pairs()
        joined = "".join(f"{said}\n" for _, said in pairs)
        text = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
        ends = np.cumsum([len(said) + 1 for _, said in pairs]) - 1
        starts = np.append(0, ends[:-1] + 1)
        owner, names = numbered(np.array([speaker for speaker, _ in pairs]))
        return windows(Path(self.path).stem, text, starts, ends, owner, names, self.length, self.test)

    def _pairs(self) -> list[tuple[str, str]]:
        if not Path(self.path).is_file():
            raise DataMissing(f"there is no file {self.path}", remedy="check the path", where="data.path")
        with published_files.reading(self.path, remedy="save it as UTF-8 text"):
            lines = Path(self.path).read_text(encoding="utf-8-sig").split("\n")
        last = max(self.speaker, self.text)
        pairs = []
        for number, line in enumerate(lines, 1):
            parts = line.split(self.separator, last)
            if line.strip() and len(parts) <= last:
                raise BadValue(
                    f"line {number} of {self.path} has no speaker: '{quoted(line[:40])}'",
                    remedy=f"write SPEAKER{self.separator}TEXT, or set separator, speaker and text",
                    where="data.separator",
                )
            if line.strip() and parts[self.text].strip():
                pairs.append((parts[self.speaker].strip(), parts[self.text].strip()))
        return pairs


def windows(
    name: str,
    text: NDArray[np.uint32],
    start: Rows,
    end: Rows,
    owner: Rows,
    owner_names: tuple[str, ...],
    length: int,
    test: float,
) -> Dataset:
    """Return the lines text[start:end], with a newline after each, as windows of `length` characters and their successors."""
    train = _first_lines(owner, test)
    if train.all():
        raise BadValue(
            f"'{name}' leaves no line to test on", remedy="give at least two lines of a speaker", where="data.test"
        )
    order = np.argsort(~train, kind="stable")  # training lines first
    train, start, end, owner = train[order], start[order], end[order], owner[order]
    amount = -(-(end - start) // length)
    line = np.repeat(np.arange(len(start)), amount)
    at = (start[line] + _count(amount) * length)[:, None] + np.arange(length)
    spoken = at < end[line][:, None]
    at = np.where(spoken, at, 0)
    n_train = int(train[line].sum())
    in_training = at[:n_train][spoken[:n_train]]
    known = np.unique(np.concatenate([text[in_training], text[in_training + 1]]))
    place = np.minimum(np.searchsorted(known, text), len(known) - 1)
    symbols = np.where(known[place] == text, place + 2, 1)
    return Dataset(
        name,
        x=np.where(spoken, symbols[at], 0),
        y=np.where(spoken, symbols[at + 1], PADDING),
        n_train=n_train,
        classes=len(known) + 2,
        owner=owner[line],
        owner_names=owner_names,
        class_names=("<end>", "<unknown>", *(chr(c) for c in known)),
    )


def _first_lines(owner: Rows, test: float) -> NDArray[np.bool_]:
    """True for the first 1 - test of each owner's lines, at least one, in the order of the text.

    See docs/reference/partitions.md#natural-clients.
    """
    counts = np.bincount(owner)
    nth = np.empty_like(owner)
    nth[np.argsort(owner, kind="stable")] = _count(counts)
    keep = np.maximum(1, np.floor((1 - test) * counts + 1e-9))
    first: NDArray[np.bool_] = nth < keep[owner]
    return first


def _count(amounts: Rows) -> Rows:
    """Return 0, 1, .. amounts[0] - 1, 0, 1, .. amounts[1] - 1, and so on."""
    return np.arange(amounts.sum()) - np.repeat(np.cumsum(amounts) - amounts, amounts)
