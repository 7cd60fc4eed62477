"""The server's part of a masked release: collect keys of all clients, pass them on, and add the masked vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedarena.federation import messages
from fedarena.federation.requests import Answers
from fedarena.federation.secure_aggregation import is_public_key
from fedarena.federation.statistics_release import MASKED_FROM, STALE_KEY, Masked, is_vector, signed_total
from fedarena.federation.wire_format import NOTHING, Message, Payload, WireRefused, expect

Ask = Callable[..., Answers]  # `Coordinator.ask` with a rule and the name of the step

KEY_ATTEMPTS = 3  # how often keys are drawn, where a client is restarted in between


def masked_total(
    ask: Ask,
    clients: Mapping[str, int],
    request: Callable[[str, dict[int, str]], messages.MessageBody],
    answer: type[messages.MessageBody],
    size: int,
    payload: Payload = NOTHING,
) -> tuple[list[int], dict[str, str]]:
    """Return the total over all clients (names with their numbers), or why a client's vector is missing.

    A client that was restarted has lost its key: then all draw new ones. Fewer than three clients send no keys.
    """

    def vector(name: str, message: Message) -> Masked:
        expect(message, answer)
        if not is_vector(message.payload, size):
            raise WireRefused(f"it answered with '{message.body.what}'")
        integers: Masked = message.payload
        return integers

    for _ in range(KEY_ATTEMPTS):
        keys: dict[int, str] = {}
        if len(clients) >= MASKED_FROM:
            found, missing = ask(dict.fromkeys(clients, messages.StatisticsKeyRequest()), _key)
            if missing:
                return [], missing
            keys = {clients[name]: key for name, key in found.items()}
        vectors, missing = ask({name: request(name, keys) for name in clients}, vector, payload=payload)
        if {*missing.values()} != {STALE_KEY}:
            break
    return ([] if missing else signed_total(vectors.values(), size)), missing


def _key(name: str, message: Message) -> str:
    key = expect(message, messages.StatisticsKey).key
    if not is_public_key(key):
        raise WireRefused("it sent a public key that is not valid")
    return key
