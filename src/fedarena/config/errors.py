"""Errors that a user can cause or meet, each with its remedy.

They are raised before work starts where possible. The message says what is wrong, where, and what to do; a command ends with
exit code 2.

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

MOST_QUOTED = 200  # characters of a user's value that a message repeats


class FedarenaError(Exception):
    """An error with three parts: what is wrong, where, and the remedy.

    >>> import fedarena as fa
    >>> try:
    ...     fa.run("digits", algorithm="scafold")
    ... except fa.FedarenaError as error:
    ...     print(error.what, "|", error.where)
    no algorithm is called 'scafold' | algorithm.name
    """

    def __init__(self, what: str, *, remedy: str, where: str = "") -> None:
        super().__init__(what, remedy, where)
        self.what, self.remedy, self.where = what, remedy, where

    def __str__(self) -> str:
        place = f"  ({self.where})" if self.where else ""
        return f"{self.what}{place}\n  -> {self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:  # pickle does not restore keyword arguments by itself
        return (_rebuild, (type(self), self.what, self.remedy, self.where))


def _rebuild(kind: type[FedarenaError], what: str, remedy: str, where: str) -> FedarenaError:
    return kind(what, remedy=remedy, where=where)


class UnknownName(FedarenaError):
    """A component, key or column does not exist."""


class BadValue(FedarenaError):
    """A value has the wrong type or is out of range."""


class DataMissing(FedarenaError):
    """A data set or file is not on this machine."""


class MissingDependency(FedarenaError):
    """An optional package is not installed."""


class DataBroken(FedarenaError):
    """A data file is damaged or does not contain what it should."""


class PartitionImpossible(FedarenaError):
    """A partition is not possible for this number of samples and clients."""


class ModelMismatch(FedarenaError):
    """A model does not accept the samples of the data set."""


class ResumeMismatch(FedarenaError):
    """A run folder belongs to another experiment."""


class CannotWrite(FedarenaError):
    """An output folder cannot be written, or the disk is full."""


class ClientFailed(FedarenaError):
    """The training of a client raised an error or gave a non-finite update."""


class ContractBroken(FedarenaError):
    """A component does not do what the contract of its kind requires."""


class Deadlock(FedarenaError):
    """All clients wait for each other."""


class FrameRefused(FedarenaError):
    """A message between parties is damaged, repeated, or belongs to another session, key or protocol version."""


class TranscriptDiffers(FedarenaError):
    """Two parties did not see the same messages: they were changed on the way."""


class PartyLost(FedarenaError):
    """A party cannot be reached or did not answer in time; the current tree can be trained again."""


class PartyFailed(FedarenaError):
    """A party answered with an error, or ended the connection."""


@contextmanager
def located_at(where: str) -> Iterator[None]:
    """Add a place, such as the name of a file, to errors that are raised inside the block.

    >>> with located_at("exp.toml"):
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
    """Return a user's value as a message repeats it: one line, without control characters, at most 200 characters.

    >>> quoted(["a", 1]), len(quoted("z" * 1000))
    ("['a', 1]", 200)
    """
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or deeply nested lists
        text = f"a very long {type(value).__name__}"
    start = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: MOST_QUOTED + 1])
    return start if len(start) <= MOST_QUOTED else f"{start[: MOST_QUOTED - 4]} ..."


def repeated(value: object) -> str:
    """Return a user's value as it would be written in a file, shortened; texts are in quotes."""
    return f"'{quoted(value)}'" if isinstance(value, str) else quoted(value)


def quoted_list(values: Iterable[object], most: int = 20) -> str:
    """Return the first few of a user's names for a message, separated by commas."""
    return quoted(", ".join(str(value)[:MOST_QUOTED] for value in itertools.islice(values, most)))


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Return words as a sentence lists them.

    >>> join_words(["fedavg", "fedprox", "scaffold"]), join_words(["fedavg", "fedprox"], "or")
    ('fedavg, fedprox and scaffold', 'fedavg or fedprox')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def check_known(name: object, known: Iterable[object], what: str, otherwise: str, where: str = "") -> None:
    """Raise `UnknownName` with the nearest known name, or `otherwise` as the remedy, if a name is not a known one."""
    if name not in known:
        raise UnknownName(what, remedy=suggest(name, map(str, known), otherwise), where=where)


def suggest(name: object, known: Iterable[str], otherwise: str) -> str:
    """Return the remedy for a misspelt name: the nearest known one, or `otherwise`."""
    near = difflib.get_close_matches(str(name)[:MOST_QUOTED], list(known), n=1, cutoff=0.5)
    return f"did you mean '{quoted(near[0])}'?  {otherwise}" if near else otherwise
