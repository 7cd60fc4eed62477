"""Align the rows of parties by private set intersection on ids, over the same channel as the training.

Both parties blind the ids with secret keys (`private_intersection.py`). The guest learns which of its ids a host has, and
sends every host the ids common to all parties, as salted hashes; apart from these, only the number of ids leaves a
party. All parties end with the same order, sorted by id, and compare its hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, FrameRefused, PartyLost
from fedarena.transport import fields as read
from fedarena.transport.channel import Channel
from fedarena.transport.frames import CHUNK, Fields, FrameKind, refused
from fedarena.vertical.private_intersection import POINT, BlindingKey, InvalidPoint

SMALLEST = 50  # common rows; with fewer, the sum of a bin is the sum of a few people
BATCH = 10_000  # ids in one request
HASH = 32  # bytes, as many as a point of the curve has
MOST_IDS = 50_000_000  # of one party
TIMES_OWN = 10  # ids that a guest may query by default, for each id of the host
METHODS = ("psi", "hashed", "same")
Rows = NDArray[np.int64]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Matching:
    """How the rows of several parties are matched."""

    insecure_hashed_ids: bool = False
    smallest: int = SMALLEST
    most_ids: int | None = None  # host: the most ids that a guest may query


BY_PSI = Matching()


@dataclass(frozen=True)
class Alignment:
    """The rows of a party's own table that all parties have, in the common order."""

    rows: Rows
    digest: str  # of the common order, the same at all parties
    counts: dict[str, int]  # rows of each party before, by name

    def summary(self) -> str:
        """Return the number of common rows and of each party's rows as text."""
        return f"{len(self.rows)} people in common: {_by_party(self.counts)}"


def _by_party(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def check_ids(ids: Sequence[str], smallest: int = SMALLEST) -> list[str]:
    """Return ids as text, and refuse empty or repeated ids with their number."""
    found = [str(i) for i in ids]
    empty = sum(not i for i in found)
    if empty:
        raise BadValue(f"{empty} of {len(found)} ids are empty", remedy="give every row an id, or delete those rows")
    repeated = {i: times for i, times in Counter(found).items() if times > 1}
    if repeated:
        rows = sum(repeated.values())
        raise BadValue(
            f"{len(repeated)} ids occur more than once, in {rows} of {len(found)} rows",
            remedy="leave one row for each id",
        )
    if len(found) < smallest:
        raise BadValue(f"there are only {len(found)} rows", remedy=f"at least {smallest} are needed")
    return found


def align(channels: Sequence[Channel], ids: Sequence[str], matching: Matching = BY_PSI) -> Alignment:
    """Find the ids that every host has, and send them to the hosts; the sessions must be open."""
    ours, smallest = check_ids(ids, matching.smallest), matching.smallest
    find = _by_hashes if matching.insecure_hashed_ids else _by_psi
    with ThreadPoolExecutor(len(channels)) as pool:
        found = list(pool.map(lambda channel: find(channel, ours), channels))
        common = set.intersection(*(known for _, known in found))
        counts = {"guest": len(ours), **{c.name: count for c, (count, _) in zip(channels, found, strict=True)}}
        if len(common) < smallest:
            _report_too_few(channels, len(common), smallest)
        _check_size(len(common), counts, smallest)
        order = sorted(common, key=lambda i: ours[i].encode())
        in_order = [ours[i] for i in order]
        digest = order_digest(in_order)
        list(pool.map(lambda channel: _send_order(channel, in_order, digest), channels))
    return Alignment(np.array(order, dtype=np.int64), digest, counts)


def order_digest(ids: Sequence[str]) -> str:
    """Return a hash of ids in their order."""
    whole = hashlib.sha256()
    for i in ids:
        whole.update(hashlib.sha256(i.encode()).digest())
    return whole.hexdigest()


def _check_size(common: int, counts: dict[str, int], smallest: int) -> None:
    if common < smallest:
        raise BadValue(
            f"only {common} ids are known to all parties ({_by_party(counts)}); at least {smallest} are needed"
            if common
            else f"no id is known to all parties ({_by_party(counts)})",
            remedy="check that all parties write ids in the same way ('007' is not '7')"
            + (", or lower --min-rows; sums over few rows reveal more" if common else ""),
        )


def _by_psi(channel: Channel, ids: list[str]) -> tuple[int, set[int]]:
    """Return how many ids a host has, and which of ours are among them; it must send its set before our requests."""
    count, points = _their_set(channel, "psi", FrameKind.ALIGN_SETUP, len(ids))
    key = BlindingKey()
    try:
        theirs = set(key.blind_again(points))
        known: set[int] = set()
        for start in range(0, len(ids), BATCH):
            request = key.blind(ids[start : start + BATCH])
            response = read.raw(channel.ask(FrameKind.ALIGN_REQUEST, {"request": b"".join(request)}), "response")
            if len(response) != POINT * len(request):
                raise damaged_set(channel)
            known |= {start + i for i, point in enumerate(pieces(response)) if point in theirs}
            log.info("aligning with %s: %d of %d ids", channel.name, min(start + BATCH, len(ids)), len(ids))
    except InvalidPoint:
        raise damaged_set(channel) from None
    return count, known


def _by_hashes(channel: Channel, ids: list[str]) -> tuple[int, set[int]]:
    """Do the same with plain hashes, which can be reversed by guessing ids."""
    count, theirs = _their_set(channel, "hashed", FrameKind.ALIGN_HASHES, len(ids))
    log.info("aligning with %s: %d of %d ids", channel.name, len(ids), len(ids))
    known = set(theirs)
    return count, {i for i, name in enumerate(ids) if salted(b"", name) in known}


def _their_set(channel: Channel, method: str, kind: FrameKind, ours: int) -> tuple[int, list[bytes]]:
    """Begin an alignment; return the number of a host's ids, and the points or hashes that stand for them."""
    count = _start(channel, method, ours)
    raw = _parts(channel, kind, count)
    if len(raw) != HASH * count:
        raise damaged_set(channel)
    return count, pieces(raw)


def damaged_set(channel: Channel) -> FrameRefused:
    """Return the error for a host whose points or hashes are damaged."""
    return refused(f"host '{channel.name}': its part of the intersection is damaged")


def pieces(raw: bytes) -> list[bytes]:
    """Return the points or hashes that stand one after the other."""
    return [raw[i : i + HASH] for i in range(0, len(raw), HASH)]


def _start(channel: Channel, method: str, count: int) -> int:
    return read.whole(channel.ask(FrameKind.ALIGN_START, {"method": method, "count": count}), "count", 1, MOST_IDS)


def _parts(channel: Channel, kind: FrameKind, count: int) -> bytes:
    """Receive a host's set, which may not be larger than its number of ids allows."""
    first = channel.ask(kind, {"part": 0})
    parts = read.whole(first, "parts", 1, 1 + HASH * count // CHUNK)
    rest = (read.raw(channel.ask(kind, {"part": i}), "data") for i in range(1, parts))
    found = []
    for data in (read.raw(first, "data"), *rest):
        if len(data) > CHUNK:
            raise refused(f"a part of an alignment has {len(data)} bytes, {CHUNK} at most")
        found.append(data)
    return b"".join(found)


def _report_too_few(channels: Sequence[Channel], common: int, needed: int) -> None:
    """Report to the hosts' administrators why the training does not start, without naming an id."""
    no_ids = {"salt": b"", "data": b"", "first": True, "last": True, "common": common, "needed": needed}
    for channel in channels:
        with contextlib.suppress(BadValue, PartyLost):  # the host responds with the same error
            channel.ask(FrameKind.ALIGN_ROWS, no_ids)


def _send_order(channel: Channel, ids: list[str], digest: str) -> None:
    """Send the common ids in their order to one host."""
    salt = secrets.token_bytes(16)
    step = CHUNK // HASH
    for start in range(0, len(ids), step):
        data = b"".join(salted(salt, i) for i in ids[start : start + step])
        last = start + step >= len(ids)
        response = channel.ask(FrameKind.ALIGN_ROWS, {"salt": salt, "data": data, "last": last, "first": start == 0})
    theirs = read.text(response, "digest")
    if theirs != digest:
        raise FrameRefused(
            f"host '{channel.name}' has a different order of rows: {theirs}, here it is {digest}",
            remedy="run the alignment again",
        )


def salted(salt: bytes, name: str) -> bytes:
    """Return the hash of an id with a salt."""
    return hashlib.sha256(salt + name.encode()).digest()


def align_same(channels: Sequence[Channel], rows: int) -> Alignment:
    """Compare the number of rows of tables without ids, whose rows must already be in the same order."""
    counts = {"guest": rows, **{channel.name: _start(channel, "same", rows) for channel in channels}}
    return same_rows(rows, counts)


def same_rows(rows: int, counts: dict[str, int]) -> Alignment:
    """Return the alignment that leaves all rows in place."""
    return Alignment(np.arange(rows), f"{rows} rows as they are", counts)


class SameRows:
    """The host's side of the alignment of a table without ids."""

    def __init__(self, rows: int, name: str = "host") -> None:
        self._rows, self._name = rows, name
        self.result: Alignment | None = None

    def answer(self, kind: FrameKind, fields: dict[str, Any]) -> Fields:
        """Return the number of rows, if the guest has as many."""
        if kind is not FrameKind.ALIGN_START or read.text(fields, "method") != "same":
            raise BadValue("this host was started without ids", remedy="start it with --id, or the guest without")
        count = read.whole(fields, "count")
        if count != self._rows:
            raise BadValue(
                f"this host has {self._rows} rows, the guest {count}",
                remedy="align by ids: start all parties with --id",
            )
        self.result = same_rows(self._rows, {"guest": self._rows, self._name: self._rows})
        return {"count": self._rows}


class HostAlignment:
    """The host's side of an alignment by ids: answer the ALIGN frames, and set `result` after the last one.

    A guest may query `most_ids` ids during the life of this process, however often it starts an alignment.
    """

    def __init__(self, ids: Sequence[str], name: str = "host", matching: Matching = BY_PSI) -> None:
        self._ids, self._name, self._matching = check_ids(ids, matching.smallest), name, matching
        self._left = TIMES_OWN * len(self._ids) if matching.most_ids is None else matching.most_ids
        self._key: BlindingKey | None = None
        self._setup = self._order = b""
        self._asked = self._allowed = 0
        self.result: Alignment | None = None

    def answer(self, kind: FrameKind, fields: dict[str, Any]) -> Fields:
        """Return the response to one ALIGN frame."""
        if kind is FrameKind.ALIGN_START:
            return self._begin(read.text(fields, "method"), read.whole(fields, "count", 1, MOST_IDS))
        if kind is FrameKind.ALIGN_REQUEST:
            return self._respond(read.raw(fields, "request"))
        if kind is FrameKind.ALIGN_ROWS:
            flags = read.whole(fields, "first", 0, 1), read.whole(fields, "last", 0, 1)
            if "needed" in fields:
                needed = read.whole(fields, "needed", 1, MOST_IDS)
                _check_size(read.whole(fields, "common", 0, needed - 1), self._counts, needed)
            return self._accept(read.raw(fields, "salt"), read.raw(fields, "data"), *flags)
        return self._part(read.whole(fields, "part"))

    @property
    def _counts(self) -> dict[str, int]:
        return {"guest": self._allowed, self._name: len(self._ids)}

    def _begin(self, method: str, count: int) -> Fields:
        if method not in METHODS:
            raise refused(f"there is no alignment method '{method}'")
        if method == "same":
            raise BadValue(
                "this host aligns by ids", remedy="start the guest with --id as well, or this host without it"
            )
        if method == "hashed" and not self._matching.insecure_hashed_ids:
            raise BadValue(
                "the guest wants to align by hashed ids, which can be reversed by guessing",
                remedy="let the guest align by private set intersection, or start this host with --insecure-hashed-ids",
            )
        if method == "psi" and count > self._left:
            raise BadValue(
                f"the guest wants to query {count} ids, and this host answers {self._left} more",
                remedy="start this host with a larger --most-ids, if the guest may query so many",
                where="--most-ids",
            )
        self.result, self._asked, self._allowed = None, 0, count
        self._key = BlindingKey() if method == "psi" else None
        theirs = [salted(b"", i) for i in self._ids] if self._key is None else self._key.blind(self._ids)
        self._setup = b"".join(sorted(theirs))  # sorted: the order of rows does not leave
        return {"count": len(self._ids)}

    def _part(self, part: int) -> Fields:
        parts = max(1, -(-len(self._setup) // CHUNK))
        if not self._setup or not 0 <= part < parts:
            raise refused("a part of an alignment was requested that does not exist")
        return {"data": self._setup[part * CHUNK : (part + 1) * CHUNK], "parts": parts}

    def _respond(self, raw: bytes) -> Fields:
        if self._key is None:
            raise refused("an ALIGN_REQUEST frame came before ALIGN_START")
        asked = len(raw) // POINT
        self._asked, self._left = self._asked + asked, self._left - asked
        if self._asked > self._allowed or self._left < 0:
            raise refused("the guest queries more ids than it has")
        try:
            return {"response": b"".join(self._key.blind_again(pieces(raw)))}
        except InvalidPoint:
            raise refused("an ALIGN_REQUEST frame is damaged") from None

    def _accept(self, salt: bytes, data: bytes, first: int, last: int) -> Fields:
        self._order = data if first else self._order + data
        if len(data) % HASH or len(self._order) > HASH * len(self._ids):
            raise refused("the guest names more common ids than this host has")
        if not last:
            return {}
        row_of = {salted(salt, name): row for row, name in enumerate(self._ids)}
        hashes = pieces(self._order)
        unknown = sum(h not in row_of for h in hashes)
        if unknown or len(set(hashes)) < len(hashes):
            raise refused(f"{unknown} of {len(hashes)} common ids are not known here, or are repeated")
        _check_size(len(hashes), self._counts, self._matching.smallest)
        rows = np.array([row_of[h] for h in hashes], dtype=np.int64)
        digest = order_digest([self._ids[row] for row in rows])
        self.result = Alignment(rows, digest, self._counts)
        return {"digest": digest}

