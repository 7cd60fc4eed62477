"""Every mistake a user can make, each with its remedy.

A mistake is found before work starts, is told in one message (what, where, what to do) and ends a command with exit code 2.

>>> raise UnknownName("no algorithm is called 'scafold'", remedy="did you mean 'scaffold'?", where="exp.toml, algorithm.name")
Traceback (most recent call last):
    ...
fedarena.config.errors.UnknownName: no algorithm is called 'scafold'  (exp.toml, algorithm.name)
  -> did you mean 'scaffold'?
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

MOST_QUOTED = 200  # characters of a cell or value of the user's that a message repeats


class FedarenaError(Exception):
    """What went wrong, where, and what to do about it."""

    def __init__(self, what: str, *, remedy: str, where: str = "") -> None:
        super().__init__(what, remedy, where)
        self.what, self.remedy, self.where = what, remedy, where

    def __str__(self) -> str:
        place = f"  ({self.where})" if self.where else ""
        return f"{self.what}{place}\n  -> {self.remedy}"

    def __reduce__(
        self,
    ) -> tuple[object, ...]:  # errors cross process borders; keyword arguments do not survive by default
        return (_rebuild, (type(self), self.what, self.remedy, self.where))


def _rebuild(kind: type[FedarenaError], what: str, remedy: str, where: str) -> FedarenaError:
    return kind(what, remedy=remedy, where=where)


class UnknownName(FedarenaError):
    """A component, key or column that does not exist."""


class BadValue(FedarenaError):
    """A value of the wrong type or out of range."""


class DataMissing(FedarenaError):
    """A data set that is not on this machine."""


class MissingDependency(FedarenaError):
    """An optional package that is not installed."""


class DataBroken(FedarenaError):
    """A data file that is damaged or does not hold what it should."""


class PartitionImpossible(FedarenaError):
    """A partition that these rows and clients cannot give."""


class ModelMismatch(FedarenaError):
    """A model that does not fit the data."""


class ResumeMismatch(FedarenaError):
    """A run folder that belongs to another experiment."""


class CannotWrite(FedarenaError):
    """An output folder that cannot be written, or a full disk."""


class ClientFailed(FedarenaError):
    """A client whose training raised an error or gave a non-finite update."""


class Deadlock(FedarenaError):
    """Every client waits for the others."""


class FrameRefused(FedarenaError):
    """A frame between parties that is damaged, repeated, or of another session, key or protocol version."""


class TranscriptDiffers(FedarenaError):
    """Two parties that did not see the same frames: something on the line changed them."""


class PartyLost(FedarenaError):
    """A party that cannot be reached or did not answer in time; the tree under way can be grown anew."""


class PartyFailed(FedarenaError):
    """A party that answered with an error, or broke off."""


@contextmanager
def located_at(where: str) -> Iterator[None]:
    """Mistakes found inside say that they were found here.

    >>> with told_at("exp.toml"):
    ...     raise BadValue("rounds = 0", remedy="give 1 or more", where="rounds")
    Traceback (most recent call last):
        ...
    fedarena.config.errors.BadValue: rounds = 0  (exp.toml, rounds)
      -> give 1 or more
    """
    try:
        yield
    except FedarenaError as error:
        error.where = ", ".join(filter(None, (where, error.where)))
        raise


def quoted(value: object) -> str:
    """Return what a message repeats of a user's value: one line, without control characters, at most 200 characters.

    >>> quoted(["a", 1]), len(quoted("z" * 1000))
    ("['a', 1]", 200)
    """
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists in lists in lists
        text = f"a very long {type(value).__name__}"
    start = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: MOST_QUOTED + 1])
    return start if len(start) <= MOST_QUOTED else f"{start[: MOST_QUOTED - 4]} ..."


def repeated(value: object) -> str:
    """Return a user's value as it would be written, shortened: texts in quotes."""
    return f"'{quoted(value)}'" if isinstance(value, str) else quoted(value)


def quoted_list(values: Iterable[object], most: int = 20) -> str:
    """Return the first few of a user's names, one after the other, for a message."""
    return quoted(", ".join(str(value)[:MOST_QUOTED] for value in itertools.islice(values, most)))


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Return words as a sentence lists them.

    >>> join_words(["fedavg", "fedprox", "scaffold"]), join_words(["fedavg", "fedprox"], "or")
    ('fedavg, fedprox and scaffold', 'fedavg or fedprox')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def suggest(name: object, known: Iterable[str], otherwise: str) -> str:
    """Return the remedy for a misspelt name: the nearest known one, or `otherwise`."""
    near = difflib.get_close_matches(str(name)[:MOST_QUOTED], list(known), n=1, cutoff=0.5)
    return f"did you mean '{quoted(near[0])}'?  {otherwise}" if near else otherwise
