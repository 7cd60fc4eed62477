"""The clients of a run and what was agreed with them, saved in the run folder for a resumed run."""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path

from pydantic import BaseModel, Field

from fedarena.config.errors import DataBroken, ResumeMismatch
from fedarena.federation import messages
from fedarena.federation.agreement import client_order, table_differences
from fedarena.federation.client_data import MOST_ROWS
from fedarena.results.json_files import write_text
from fedarena.results.run_folder import FEDERATION
from fedarena.transport.certificates import write_secret

LOGGER = logging.getLogger(__name__)

SECRET = "secret"
LONGEST_NUMBER = 20  # digits of a label, its sign among them


class Roster(BaseModel):
    """The clients of a run; no more are admitted after the agreement."""

    run: str = Field(default_factory=lambda: uuid.uuid4().hex)
    shares_models: bool = False
    described: dict[str, messages.TableDescription] = {}
    counted: dict[str, messages.SampleCounts] = {}
    agreed: dict[str, messages.Agreement] = {}  # empty before the agreement
    wanted: int = Field(exclude=True)
    # The seed of the noise that the server adds.
    secret: int = Field(default_factory=lambda: uuid.uuid4().int, exclude=True)
    initial: str = Field(default="", exclude=True)  # sha256 of the server's initial weights

    @property
    def names(self) -> list[str]:
        """Return the names of clients in their order."""
        return client_order(list(self.agreed))

    def admit(self, name: str, described: messages.TableDescription) -> str:
        """Admit a client while there is room, if its table fits the others; later only with the same table."""
        if self.agreed:
            if name not in self.described:
                return "the run has started without it"
            before = self.described[name].model_copy(update={"session": described.session})
            return "" if described == before else "its table is not the one with which it joined"
        others = {other: table for other, table in self.described.items() if other != name}
        if len(others) >= self.wanted:
            return f"there are {self.wanted} clients already"
        problem = _odd(described)
        for other, table in others.items():
            problem = problem or table_differences(described, other, table)
        if not problem:
            self.described[name] = described
        return problem

    def is_ready(self, name: str, ready: messages.ReadyResponse) -> None:
        """Log a client with other initial weights, of another build of torch; the server's weights are used anyway."""
        if self.initial and ready.initial != self.initial:
            LOGGER.info(f"'{name}' draws other initial weights (torch {ready.torch}): its last digits may differ")

    # The run folder

    def save(self, folder: Path) -> None:
        """Save the roster in the run folder."""
        write_text(folder / FEDERATION, json.dumps(self.model_dump(), indent=1))
        (folder / SECRET).unlink(missing_ok=True)
        write_secret(folder / SECRET, f"{self.secret:x}".encode())

    def forget_secret(self, folder: Path) -> None:
        """Remove the secret, so that a run folder that is passed on does not allow to subtract the noise."""
        (folder / SECRET).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path) -> Roster:
        """Return the roster of a run that is resumed."""
        path = folder / FEDERATION
        if not path.exists():
            raise ResumeMismatch(
                f"{folder} holds no run of a federation",
                remedy="resume it with `fedarena run --resume`",
                where="--resume",
            )
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            counts = {name: {key: one[key] for key in ("train", "test")} for name, one in plain["counted"].items()}
            roster = cls(wanted=len(plain["agreed"]), **{**plain, "counted": counts})
            if (folder / SECRET).exists():
                roster.secret = int((folder / SECRET).read_text(encoding="utf-8"), 16)
            return roster
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataBroken(f"{path} is damaged: {error}", remedy="start a new run", where="--resume") from None


def _odd(described: messages.TableDescription) -> str:
    """Return why a description cannot be that of a table, or an empty text."""
    if described.rows < 1 or described.test_rows < 0:
        return "it has no rows"
    if described.rows + described.test_rows > MOST_ROWS:
        return f"it has {described.rows + described.test_rows} rows, and {MOST_ROWS} are allowed"
    if len({column.name for column in described.columns}) < len(described.columns):
        return "its table has a column twice"
    if (described.label_kind in ("numbers", "truths", "words")) != bool(described.classes):
        return f"its labels are described as {described.label_kind}, with {len(described.classes)} classes"
    whole = all(len(label) <= LONGEST_NUMBER and label.removeprefix("-").isdecimal() for label in described.classes)
    if described.label_kind == "numbers" and not whole:
        return "its labels are described as numbers, and are not"
    return ""
