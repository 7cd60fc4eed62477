"""The server's part of a masked release: collect keys of all clients, pass them on, and add the masked vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedarena.federation import messages
from fedarena.federation.requests import RequestDeclined
from fedarena.federation.secure_aggregation import is_public_key
from fedarena.federation.statistics_release import MASKED_FROM, STALE_KEY, Masked, Sized, is_vector, signed_total
from fedarena.federation.wire_format import Message

Read = Callable[[str, Message], Any]
AskAll = Callable[[Mapping[str, messages.MessageBody], Read], tuple[dict[str, Any], dict[str, str]]]

KEY_ATTEMPTS = 3  # how often keys are drawn, where a client is restarted in between


def masked_total(
    clients: Mapping[str, int],
    ask: AskAll,
    request: Callable[[str, dict[int, str]], messages.MessageBody],
    answer: type[messages.MessageBody],
    layout: Sized,
) -> tuple[list[int], dict[str, str]]:
    """Return the total over all clients (names with their numbers), or why a client's vector is missing.

    A client that was restarted has lost its key: then all draw new ones. Fewer than three clients send no keys.
    """

    def vector(name: str, message: Message) -> Masked:
        if not isinstance(message.body, answer) or not is_vector(message.payload, layout):
            raise RequestDeclined(f"it answered with '{message.body.what}'")
        integers: Masked = message.payload
        return integers

    for _ in range(KEY_ATTEMPTS):
        keys: dict[int, str] = {}
        if len(clients) >= MASKED_FROM:
            found, missing = ask(dict.fromkeys(clients, messages.StatisticsKeyRequest()), _key)
            if missing:
                return [], missing
            keys = {clients[name]: key for name, key in found.items()}
        vectors, missing = ask({name: request(name, keys) for name in clients}, vector)
        if {*missing.values()} != {STALE_KEY}:
            break
    return ([] if missing else signed_total(vectors.values(), layout.size)), missing


def _key(name: str, message: Message) -> str:
    if not isinstance(message.body, messages.StatisticsKey):
        raise RequestDeclined(f"it answered with '{message.body.what}'")
    if not is_public_key(message.body.key):
        raise RequestDeclined("it sent a public key that is not valid")
    return message.body.key
