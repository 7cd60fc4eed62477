"""Who takes part in a run, with what was agreed: kept in the run's folder, so that a resumed run knows its participants."""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from fedarena.config.errors import DataBroken, ResumeMismatch
from fedarena.federation import messages
from fedarena.federation.agreement import client_order, table_differences
from fedarena.federation.client_data import MOST_ROWS
from fedarena.results.run_folder import write_text
from fedarena.transport.certificates import write_secret

LOGGER = logging.getLogger(__name__)

FILE, SECRET = "federation.json", "secret"
LONGEST_NUMBER = 20  # digits of a label, its sign among them


@dataclass
class Roster:
    """The participants; open until all have come, then closed."""

    wanted: int
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    secret: int = field(default_factory=lambda: uuid.uuid4().int)  # seeds noise that the organiser adds
    shares_models: bool = False
    described: dict[str, messages.TableDescription] = field(default_factory=dict)
    counted: dict[str, messages.SampleCounts] = field(default_factory=dict)
    agreed: dict[str, messages.Agreement] = field(default_factory=dict)  # empty while open
    initial: str = ""  # sha256 of the organiser's initial weights

    @property
    def names(self) -> list[str]:
        """In the order of clients."""
        return client_order(list(self.agreed))

    # As the host of the switchboard

    def admit(self, name: str, described: messages.TableDescription) -> str:
        """Admit it while there is room, if its table goes with the others; later only as it was."""
        if self.agreed:
            if name not in self.described:
                return "the run has begun without it"
            before = self.described[name].model_copy(update={"session": described.session})
            return "" if described == before else "its table is not the one with which it joined"
        others = {other: table for other, table in self.described.items() if other != name}
        if len(others) >= self.wanted:
            return f"there are {self.wanted} participants already"
        problem = _odd(described)
        for other, table in others.items():
            problem = problem or table_differences(described, other, table)
        if not problem:
            self.described[name] = described
        return problem

    def agreement(self, name: str) -> messages.Agreement | None:
        """What was agreed with it."""
        return self.agreed.get(name)

    def is_ready(self, name: str, ready: messages.ReadyResponse) -> None:
        """Weights that begin otherwise come from another build of torch; the organiser's are sent anyway."""
        if self.initial and ready.initial != self.initial:
            LOGGER.info(f"'{name}' draws other initial weights (torch {ready.torch}): its last digits may differ")

    # In the run's folder

    def save(self, folder: Path) -> None:
        """Write it down."""
        parts = {
            key: {name: one.model_dump() for name, one in getattr(self, key).items()}
            for key in ("described", "counted", "agreed")
        }
        write_text(folder / FILE, json.dumps({"run": self.run, "shares_models": self.shares_models, **parts}, indent=1))
        (folder / SECRET).unlink(missing_ok=True)
        write_secret(folder / SECRET, f"{self.secret:x}".encode())

    def forget_secret(self, folder: Path) -> None:
        """A run folder may be shown around; without the secret nobody can take the noise away again."""
        (folder / SECRET).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path) -> Roster:
        """Of a run that goes on."""
        path = folder / FILE
        if not path.exists():
            raise ResumeMismatch(
                f"{folder} holds no run of a federation",
                remedy="go on with it by `fedarena run --resume`",
                where="--resume",
            )
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            roster = cls(
                len(plain["agreed"]),
                run=plain["run"],
                shares_models=plain["shares_models"],
                described={
                    name: messages.TableDescription.model_validate(one) for name, one in plain["described"].items()
                },
                counted={
                    name: messages.SampleCounts(train=one["train"], test=one["test"])
                    for name, one in plain["counted"].items()
                },
                agreed={name: messages.Agreement.model_validate(one) for name, one in plain["agreed"].items()},
            )
            if (folder / SECRET).exists():
                roster.secret = int((folder / SECRET).read_text(encoding="utf-8"), 16)
            return roster
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            raise DataBroken(f"{path} is damaged: {error}", remedy="start a new run", where="--resume") from None


def _odd(described: messages.TableDescription) -> str:
    """What no table can be."""
    if described.rows < 1 or described.test_rows < 0:
        return "it has no rows"
    if described.rows + described.test_rows > MOST_ROWS:
        return f"it has {described.rows + described.test_rows} rows, and {MOST_ROWS} are allowed"
    if len({column.name for column in described.columns}) < len(described.columns):
        return "its table has a column twice"
    whole = all(len(label) <= LONGEST_NUMBER and label.removeprefix("-").isdecimal() for label in described.classes)
    if described.label_kind == "numbers" and not whole:
        return "its labels are said to be numbers, and are not"
    return ""
