"""The log of everything that a client has released, and the samples to which all its releases are bound.

Sums or updates over two selections of samples that differ in one sample give that sample away by their difference. So the
first release of a folder binds it to one table, one selection of samples and one set of columns. Every later run, under
any name, must use the same, or the client's owner allows a new binding explicitly.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.common.files import make_folder, writing
from fedarena.config.errors import DataBroken
from fedarena.data.dataset import Rows
from fedarena.federation.messages import Agreement
from fedarena.federation.redaction import ShareableError
from fedarena.results.json_files import write_text

LOG, BINDING = "releases.jsonl", "binding.json"
RELEASED, REFUSED, ALLOWED = "released", "refused", "allowed"


@dataclass(frozen=True)
class Binding:
    """Hashes of what releases are computed from."""

    table: str  # the files
    samples: str  # which of them are for training, and which are held out for validation
    columns: str  # names, kinds, levels and labels

    @classmethod
    def of(cls, files: Iterable[Path], training: Rows, held_out: str, agreed: Agreement, source: str) -> Binding:
        """Hash the files, the training samples and the columns."""
        columns = agreed.model_dump_json(include={"columns", "classes"})
        return cls(
            table=_hash(*(path.read_bytes() for path in files)),
            samples=_hash(np.ascontiguousarray(training, "<i8").tobytes(), held_out.encode()),
            columns=_hash(columns.encode(), source.encode()),
        )

    def differences(self, other: Binding) -> str:
        """Describe the parts in which two bindings differ."""
        parts = {"table": "another table", "samples": "other training samples", "columns": "other columns or labels"}
        return ", ".join(said for name, said in parts.items() if getattr(self, name) != getattr(other, name))


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


class ReleaseLog:
    """The log and the binding of one client, in its folder; both outlive its processes."""

    def __init__(self, folder: Path, server: str = "", allow_new: bool = False) -> None:
        self.folder, self.server = folder, server
        self._may_replace = allow_new  # once: one process may replace the binding of the folder by one other

    def bind(self, binding: Binding, run: str) -> None:
        """Bind the folder at its first release; refuse any other binding later."""
        known = self._known()
        if known == binding:
            return
        if known is not None:
            what = known.differences(binding)
            if not self._may_replace:
                raise ShareableError(
                    f"releases of this client are bound to what its first run used, and this run asks for {what}",
                    remedy="two releases that differ in one sample reveal that sample: ask the server for the same "
                    "federation, or start with --new-release if you accept that",
                    where="--new-release",
                )
            self.record(ALLOWED, run, f"a new binding: {what}")
        self._may_replace = False
        text = json.dumps({**asdict(binding), "run": run, "time": _now()}, indent=1)
        make_folder(self.folder)
        write_text(self.folder / BINDING, text)

    def _known(self) -> Binding | None:
        path = self.folder / BINDING
        if not path.exists():
            return None
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            return Binding(**{field.name: str(plain[field.name]) for field in fields(Binding)})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataBroken(
                f"{path} is damaged: {type(error).__name__}",
                remedy="restore it; without it nothing says which samples this client has released sums of",
                where="--folder",
            ) from None

    def record(self, event: str, run: str, what: str, **details: Any) -> None:
        """Append one line to the log of releases."""
        path = self.folder / LOG
        line = {"time": _now(), "server": self.server, "run": run, "event": event, "what": what, **details}
        append_line(path, line)

    def summary(self, runs: Iterable[str]) -> list[str]:
        """Return one line for each kind of release and refusal in these runs, with its number."""
        counts = Counter(
            f"{line['event']}: {line['what']}"
            for line in read_lines(self.folder / LOG)
            if line.get("run") in {*runs} and "what" in line
        )
        return [f"{text} ({count} times)" if count > 1 else text for text, count in counts.items()]


def append_line(path: Path, line: Any) -> None:
    """Append a value to a file of JSON lines."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> Iterator[Any]:
    """Return the values in a file of JSON lines; what a crash cut off is left out."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            yield json.loads(line)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
