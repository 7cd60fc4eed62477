"""Secure aggregation in a federation: the server can unmask the sum of the updates, and no single update.

The protocol and the arithmetic are those of privacy/secure_aggregation.py (SecAgg+: Bonawitz et al. 2017, Bell et al.
2020). Here every client draws its own secrets for each exchange. Masks in pairs follow from X25519 keys, of which the
server passes on the public halves; masks are ChaCha20 streams; shares of secrets travel through the server encrypted for
their holders. An exchange has four steps: keys, shares, masked updates, and revealed shares.

It protects against an honest but curious server, also together with some clients. A server that hands out false public
keys, or names to each client another list of answers, is not detected: that would need signatures that the clients can
check among themselves.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedarena.common.optional_imports import import_optional
from fedarena.engine.tasks import AbsentClient
from fedarena.federation import messages
from fedarena.federation.redaction import ShareableError
from fedarena.privacy.secure_aggregation import (
    PRIME,
    ClientSecrets,
    MaskedExchange,
    MaskProvider,
    ShareRing,
    Shares,
    Word,
    Words,
    secret_shares,
    share_ring,
    unmask_sum,
)

SHARE = 16  # bytes of a share
NONCE = 12


def cryptography_module(name: str) -> Any:
    """Return a module of the package `cryptography`, which secure aggregation needs."""
    path = f"cryptography.hazmat.primitives.{name}"
    return import_optional(path, needed_by="uplink.secure", install="'fedarena[flower]'")


def draw_key() -> Any:
    """Return a new private key of the curve X25519."""
    return cryptography_module("asymmetric.x25519").X25519PrivateKey.generate()


def public_half(private: Any) -> bytes:
    """Return the public key of a private key."""
    key: bytes = private.public_key().public_bytes_raw()
    return key


def _derived(material: bytes, purpose: str) -> bytes:
    """Derive 32 bytes for one purpose."""
    hkdf, sha256 = cryptography_module("kdf.hkdf").HKDF, cryptography_module("hashes").SHA256()
    key: bytes = hkdf(sha256, 32, None, f"fedarena {purpose}".encode()).derive(material)
    return key


def agreed_key(private: Any, public: bytes, purpose: str) -> bytes:
    """Return the key that only the owners of two key pairs can compute."""
    x25519 = cryptography_module("asymmetric.x25519")
    try:
        return _derived(private.exchange(x25519.X25519PublicKey.from_public_bytes(public)), purpose)
    except ValueError:
        raise ShareableError("a public key that is not valid") from None


def key_stream(key: bytes, size: int) -> Words:
    ciphers = cryptography_module("ciphers")
    encryptor = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(4 * size)), "<u4").astype(np.uint32)


class CurveGroup:
    """The group (privacy/secure_aggregation.py) of real federations: secrets are numbers that can be shared, and keys follow
    from them."""

    def _private(self, secret: int) -> Any:
        x25519 = cryptography_module("asymmetric.x25519")
        return x25519.X25519PrivateKey.from_private_bytes(_derived(secret.to_bytes(SHARE, "big"), "pair key"))

    def public(self, secret: int) -> bytes:
        """Return the public key of a secret."""
        return public_half(self._private(secret))

    def of_pair(self, secret: int, public: bytes, size: int) -> Words:
        """Return the mask of a pair, from their Diffie-Hellman key."""
        return key_stream(agreed_key(self._private(secret), public, "pair mask"), size)

    def of_own(self, secret: int, size: int) -> Words:
        """Return the mask that follows from an own secret."""
        return key_stream(_derived(secret.to_bytes(SHARE, "big"), "own mask"), size)


CURVE = CurveGroup()


def _draw() -> int:
    return secrets.randbelow(PRIME - 1) + 1


@dataclass
class ClientMasks(MaskProvider):
    """A client's part of one exchange. Its secrets are never written to a file."""

    seed: int
    client: int
    exchange_id: str  # run, round and exchange, which shares are bound to
    own_secrets: ClientSecrets = field(default_factory=lambda: ClientSecrets(_draw(), _draw()))
    _channel: Any = field(default_factory=draw_key)
    _ring: ShareRing | None = None
    _keys: dict[int, messages.KeyPair] = field(default_factory=dict)
    _held: dict[int, tuple[int, int]] = field(default_factory=dict)  # of each client: shares of its pairs, of its own
    _request: str = ""  # sha256 of the request whose answer is masked
    _revealed_for: frozenset[int] | None = None  # the clients whose sum shares were revealed for

    def public_keys(self) -> messages.KeysResponse:
        """Return the public keys (step 1)."""
        mask, channel = CURVE.public(self.own_secrets.pairs).hex(), public_half(self._channel).hex()
        return messages.KeysResponse(keys=messages.KeyPair(mask=mask, channel=channel))

    def encrypted_shares(self, keys: Mapping[int, messages.KeyPair], turn: MaskedExchange) -> messages.SharesResponse:
        """Return shares of both secrets, each encrypted for its holder (step 2)."""
        if self.client not in keys or len(keys) < 2:
            raise ShareableError(
                "an update cannot be masked among fewer than two clients", remedy="at least two clients are needed"
            )
        if keys[self.client] != self.public_keys().keys or (self._keys and self._keys != dict(keys)):
            raise ShareableError("keys that are not those of this exchange")
        self._keys = dict(keys)
        self._ring = share_ring(self.seed, MaskedExchange(turn.round, turn.number, tuple(sorted(keys))))
        pairs = secret_shares(self.own_secrets.pairs, self.client, self._ring, _draw)
        own = secret_shares(self.own_secrets.own, self.client, self._ring, _draw)
        self._held = {self.client: (pairs.pop(self.client), own.pop(self.client))}
        return messages.SharesResponse(
            shares={holder: self._encrypt(holder, pairs[holder], own[holder]) for holder in pairs}
        )

    def _cipher(self, other: int) -> Any:
        key = agreed_key(self._channel, bytes.fromhex(self._keys[other].channel), "shares")
        return cryptography_module("ciphers.aead").ChaCha20Poly1305(key)

    def _encrypt(self, holder: int, *shares: int) -> str:
        nonce = secrets.token_bytes(NONCE)
        content = b"".join(share.to_bytes(SHARE, "big") for share in shares)
        about = f"{self.exchange_id} {self.client} {holder}".encode()
        sealed: bytes = self._cipher(holder).encrypt(nonce, content, about)
        return (nonce + sealed).hex()

    def receive_shares(self, shares: Mapping[int, str]) -> None:
        """Decrypt the shares of neighbours, before step 3."""
        assert self._ring is not None
        if {*shares} != {*self._ring.neighbours(self.client)}:
            raise ShareableError("shares of a neighbour are missing")
        for other, text in shares.items():
            raw, about = bytes.fromhex(text), f"{self.exchange_id} {other} {self.client}".encode()
            try:
                opened = self._cipher(other).decrypt(raw[:NONCE], raw[NONCE:], about)
            except Exception as error:  # of the library's own kinds: the shares were changed on the way
                raise ShareableError(
                    f"shares of client {other} cannot be opened: {type(error).__name__}",
                    remedy="check the connection and the server",
                ) from None
            self._held[other] = (int.from_bytes(opened[:SHARE], "big"), int.from_bytes(opened[SHARE:], "big"))

    @property
    def clients(self) -> Collection[int]:
        """Return the clients among which an update is masked."""
        return self._keys.keys()

    def bind(self, request: bytes) -> None:
        """Bind the masks to one request: two updates under the same mask would reveal their difference."""
        now = hashlib.sha256(request).hexdigest()
        if self._request not in ("", now):
            raise ShareableError(
                "secrets of this exchange have masked another answer", remedy="the server must ask for new keys"
            )
        self._request = now

    def mask(self, size: int, turn: MaskedExchange, client: int, word: Word = np.uint32) -> Words:
        """Return the mask of this client's update (step 3)."""
        if self._ring is None or len(self._held) != self._ring.holders:
            raise ShareableError("keys have not been exchanged")
        publics = {other: bytes.fromhex(pair.mask) for other, pair in self._keys.items()}
        return self.own_secrets.mask(self.client, self._ring, publics, size, CURVE, word)

    def revealed_shares(self, answered: Collection[int]) -> messages.RevealResponse:
        """Return the shares of own masks of clients that answered, and of pair keys of the others (step 4)."""
        if self._ring is None:
            raise ShareableError("keys have not been exchanged")
        people = frozenset(answered)
        if not people <= {*self._ring.order}:
            raise ShareableError("answers of clients that are not in this exchange")
        if len(people) < max(2, self._ring.threshold) or self.client not in people:
            raise ShareableError(
                f"{len(people)} answers are too few to mask each other",
                remedy="ask for the round again, with more answers",
            )
        if self._revealed_for not in (None, people):
            raise ShareableError(
                "shares were revealed for another sum of this exchange",
                remedy="the round must continue without this sum",
            )
        self._revealed_for = people
        return messages.RevealResponse(
            shares={other: f"{own if other in people else pairs:x}" for other, (pairs, own) in self._held.items()}
        )


# Sends requests to clients, given by number, in a round; the kind of the response, the name of the step, and how many
# responses are enough (as many as the server's rule says, unless given). It returns responses and absent clients.
KeyRequests = Callable[..., dict[int, Any]]
Kind = type[messages.MessageBody]


def is_public_key(public: str) -> bool:
    """Return whether others can agree on a key with its owner: one that is not valid would make all of them fail."""
    try:
        agreed_key(draw_key(), bytes.fromhex(public), "trial")
    except ShareableError:
        return False
    return True


class ServerMasks(MaskProvider):
    """The server's part: pass on keys and shares, and unmask sums."""

    def __init__(self, seed: int, ask: KeyRequests) -> None:
        self.seed, self._ask = seed, ask
        self._exchange = 0
        self._keys: dict[int, messages.KeyPair] = {}
        self._ring: ShareRing | None = None

    def exchange(
        self, round: int, exchange: int, clients: list[int]
    ) -> tuple[dict[int, dict[int, str]], dict[int, AbsentClient]]:
        """Return the shares for each client and the absent clients, after steps 1 and 2.

        A client that fails is left out, and the others draw new keys."""
        absent: dict[int, AbsentClient] = {}
        self._exchange, left = exchange, clients
        while True:
            public_keys = self._all(left, messages.KeysRequest(exchange=exchange), round, messages.KeysResponse, absent)
            self._keys = {}
            for client, response in sorted(public_keys.items()):
                if is_public_key(response.keys.mask) and is_public_key(response.keys.channel):
                    self._keys[client] = response.keys
                else:
                    absent[client] = AbsentClient(client, "it sent a public key that is not valid")
            left = list(self._keys)
            request = messages.SharesRequest(exchange=exchange, keys=self._keys)
            encrypted_shares = self._all(left, request, round, messages.SharesResponse, absent)
            if len(encrypted_shares) == len(left):
                break
            left = sorted(encrypted_shares)
        self._ring = share_ring(self.seed, MaskedExchange(round, exchange, tuple(left)))
        to_each = {
            k: {other: encrypted_shares[other].shares.get(k, "") for other in self._ring.neighbours(k)} for k in left
        }
        return to_each, absent

    def _all(
        self, clients: list[int], request: messages.MessageBody, round: int, kind: Kind, absent: dict[int, AbsentClient]
    ) -> dict[int, Any]:
        found = self._ask(dict.fromkeys(clients, request), round, kind, f"round {round + 1}, keys")
        absent |= {k: one for k, one in found.items() if isinstance(one, AbsentClient)}
        return {k: one for k, one in found.items() if not isinstance(one, AbsentClient)}

    def unmask(self, total: Words, turn: MaskedExchange, answered: Collection[int]) -> Words | None:
        """Collect the shares of the clients that answered, and unmask the sum (step 4)."""
        if self._ring is None or len(answered) < 2:
            return None
        request = messages.RevealRequest(exchange=self._exchange, answered=tuple(sorted(answered)))
        what = f"round {turn.round + 1}, opening"
        responses = self._ask(
            dict.fromkeys(sorted(answered), request), turn.round, messages.RevealResponse, what, minimum=0
        )
        revealed_shares: dict[int, Shares] = {client: {} for client in self._ring.order}
        for holder, one in responses.items():
            if isinstance(one, AbsentClient):
                continue
            for client, share in one.shares.items():
                if client in revealed_shares and holder in self._ring.holders_of(client):
                    revealed_shares[client][holder] = int(share, 16) % PRIME
        publics = {k: bytes.fromhex(pair.mask) for k, pair in self._keys.items()}
        return unmask_sum(total, self._ring, answered, publics, revealed_shares, CURVE)
