"""How a federation comes together: all arrive, tell what their tables look like, agree, and build the same model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fedarena.errors import BadValue
from fedarena.federation import words as say
from fedarena.federation.agreement import check_counted, check_squares, first_agreement, with_counts, with_squares
from fedarena.federation.asking import Declined, Rule, TooFewAnswers
from fedarena.federation.roster import Roster
from fedarena.federation.switchboard import Switchboard
from fedarena.federation.wire import Message, pack
from fedarena.spec import Experiment

Speak = Callable[[str], None]
TELLING = 300.0  # seconds for sums over a table


def gather(board: Switchboard, roster: Roster, seconds: float, speak: Speak) -> None:
    """Wait until as many have come as are wanted, and their tables go together."""
    until = time.monotonic() + seconds
    speak(f"waiting for {roster.wanted} participants")
    while True:
        here = [name for name in board.those("known", "ready") if name in roster.described]
        if len(here) >= roster.wanted:
            return
        for name in [name for name in roster.described if name not in here]:
            del roster.described[name]  # it came, and left again: its place is free
        if time.monotonic() > until:
            told = ", ".join(f"'{name}'" for name in here) or "nobody"
            raise TooFewAnswers(
                f"{len(here)} of {roster.wanted} participants came within {seconds:g} s: {told}",
                remedy="start the others with `fedarena join`, and wait longer with --wait",
            )
        board.turn(1.0)


def agree(board: Switchboard, roster: Roster, experiment: Experiment) -> None:
    """Columns, classes, places; then sums, where the experiment needs any; then everybody is told."""
    agreed = {
        name: one.model_copy(update={"shares_models": roster.shares_models})
        for name, one in first_agreement(roster.described).items()
    }
    check = lambda name, told: check_counted(told, roster.described[name], agreed[name], experiment)
    counted = _told(board, agreed, "counts", say.Counted, check)
    agreed = with_counts(agreed, counted, experiment)
    if experiment.data.made.standardise:
        check = lambda name, told: check_squares(told, agreed[name])
        agreed = with_squares(agreed, counted, _told(board, agreed, "squares", say.Squares, check))
    roster.counted, roster.agreed = counted, agreed


def _told(
    board: Switchboard,
    agreed: dict[str, say.Agreement],
    what: Any,
    kind: type[say.Words],
    check: Callable[[str, Any], None],
) -> dict[str, Any]:
    """All must tell: one missing would change what the others train on."""

    def read(name: str, message: Message) -> say.Words:
        if not isinstance(message.words, kind):
            raise Declined(f"it answered with '{message.words.what}'")
        check(name, message.words)
        return message.words

    questions = {name: pack(board.run, 0, say.Agree(agreement=one, tell=what)) for name, one in agreed.items()}
    rule = Rule(TELLING, minimum=len(questions), attempts=1)
    found, missing = board.ask(questions, read, rule, "agreeing", ("known", "ready"))
    if missing:
        raise BadValue(
            "; ".join(f"'{name}': {why}" for name, why in missing.items()), remedy="see to it, and start anew"
        )
    return found


def assemble(board: Switchboard, roster: Roster, rule: Rule, seconds: float, speak: Speak) -> None:
    """Wait until everybody is ready; after a while as many are enough as a round needs."""
    until = time.monotonic() + seconds
    board.tell_all()
    while True:
        ready = [name for name in board.those("ready") if name in roster.agreed]
        missing = [name for name in roster.names if name not in ready]
        if not missing:
            break
        if time.monotonic() > until:
            told = ", ".join(f"'{name}'" for name in missing)
            if len(ready) < rule.needed(len(roster.agreed)):
                raise TooFewAnswers(
                    f"{len(ready)} of {len(roster.agreed)} participants are ready after {seconds:g} s; missing: {told}",
                    remedy="start them with `fedarena join`, then go on with --resume; nothing is lost",
                )
            for name in missing:
                board.give_up(name)
            speak(f"going on without {told}")
            break
        board.turn(1.0)
    speak(f"{len(ready)} of {len(roster.agreed)} participants are ready: {', '.join(ready)}")
