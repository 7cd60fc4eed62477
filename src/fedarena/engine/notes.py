"""Notes: what went wrong in a run without stopping it, each kind of problem counted and shown with its first case."""

from __future__ import annotations

from typing import Any

from fedarena.config.errors import ClientFailed
from fedarena.engine.context import ExperimentContext
from fedarena.engine.tasks import AbsentClient, ClientReport, FailedTask, SkippedClient


class RunNotes:
    """The problems of a run, each kind with its count and its first case."""

    def __init__(self, context: ExperimentContext) -> None:
        self.experiment, self.names = context.experiment, context.partition.names
        self._found: dict[str, tuple[int, str]] = {}  # kind -> count, first case

    def add(self, kind: str, case: str = "") -> None:
        """Count one problem of a kind; only the first case of each kind is kept."""
        count, first = self._found.get(kind, (0, case))
        self._found[kind] = (count + 1, first)

    def report_failure(self, client: int, round: int, answer: ClientReport | SkippedClient | FailedTask) -> None:
        """Raise an error for a client without a usable response, or note it, as the experiment's settings say."""
        name = f"{self.client_label(client)} in round {round + 1}"
        if isinstance(answer, AbsentClient):
            self.add("answers were missing", f"{name}: {answer.reason}")
        elif isinstance(answer, SkippedClient):
            self.add(f"client {client} cannot take part: {answer.reason}")
        elif isinstance(answer, FailedTask):
            if self.experiment.on_error == "stop":
                raise ClientFailed(
                    f"{name} failed: {answer.error}",
                    remedy='fix the cause, or set on_error = "drop" to continue without failing clients',
                    where=answer.place,
                )
            self.add("clients failed and were dropped", f"{name}: {answer.error}")
        elif self.experiment.on_nan == "raise":
            raise ClientFailed(
                f"{name} sent a non-finite update",
                remedy='lower local.lr, or set on_nan = "drop" to leave such updates out',
            )
        else:
            self.add("updates were not finite and left out", name)

    def client_label(self, client: int) -> str:
        """Return a client's number for messages, with its name where it has one."""
        name = self.names[client] if self.names else str(client)
        return f"client {client}" + ("" if name == str(client) else f" ({name})")

    @property
    def lines(self) -> list[str]:
        """Return one line for each kind of problem, in the order of their first cases."""
        found = self._found.items()
        return [f"{n} {kind}, the first: {first}" if first else kind for kind, (n, first) in found]

    @property
    def snapshot(self) -> dict[str, list[Any]]:
        """Return all notes as a checkpoint stores them."""
        return {kind: list(seen) for kind, seen in self._found.items()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue with the notes of a checkpoint."""
        self._found = {kind: (int(n), str(first)) for kind, (n, first) in snapshot.items()}
