"""Secure aggregation in a federation: exact sums, with and without clients that leave, and no other value can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federation.test_faults import SOON, After, happens
from tests.support.federation_clients import Federation, differences

import fedarena as fa
from fedarena.algorithms.base import Step
from fedarena.config.errors import BadValue
from fedarena.federation import coordinator, messages
from fedarena.federation.secure_aggregation import CURVE, ClientMasks, ServerMasks
from fedarena.federation.wire_format import unpack, unpack_body
from fedarena.privacy.secure_aggregation import ClientSecrets, MaskedExchange, secret_shares, share_ring, unmask_sum
from fedarena.privacy.uplink import MaskedVector

SECURE = {"uplink": {"secure": True}}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": SECURE,
    "scaffold": {**SECURE, "algorithm": "scaffold"},
    "two exchanges": {**SECURE, "algorithm": {"name": "fsvrg", "h": 0.5}},
    "clipped, with shares of noise": {"uplink": {"secure": True, "clip": 0.1, "noise": 0.3}},
    "few bits, rows held out": {"uplink": {"secure": True, "quantise": 10}, "validate_share": 0.25},
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "LOOK", 0.0)
    monkeypatch.setattr(coordinator, "PROBE", 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_sealed_federation_is_the_simulation(settings: dict[str, Any], tmp_path: Path) -> None:
    """Masks are others every time, and cancel to the bit."""
    federated, serial = Federation(tmp_path).both(**settings)
    assert differences(federated, serial) == []
    assert not any("masked" in note for note in federated.notes)


@pytest.mark.slow
def test_a_client_that_leaves_after_sharing_its_keys_is_taken_out_of_the_sum(tmp_path: Path) -> None:
    """It is killed when it should answer: its neighbours reveal the key to its pairs, and the sum is that of the others."""
    federation = Federation(tmp_path)
    federation.start()
    happens(federation, After("bravo", 2, lambda: federation.link.disconnect("bravo")))
    run = federation.serve(federation.experiment(**SECURE), rule=SOON)
    assert [record.answered for record in run.records] == [4, 3, 3]
    plain = Federation(_folder(tmp_path, "plain"))
    plain.start()
    happens(plain, After("bravo", 2, lambda: plain.link.disconnect("bravo")))
    other = plain.serve(plain.experiment(), rule=SOON)
    for name, weights in run.state.items():
        np.testing.assert_allclose(weights, other.state[name], atol=1e-6)  # fixed point of 30 bits within [-8, 8]


def _folder(path: Path, name: str) -> Path:
    (path / name).mkdir()
    return path / name


@pytest.mark.slow
def test_a_new_process_has_other_secrets_and_takes_part_in_the_next_round(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    happens(federation, After("bravo", 2, lambda: federation.start("bravo")))
    run = federation.serve(federation.experiment(**SECURE), rule=SOON)
    assert [record.answered for record in run.records] == [4, 3, 4]
    assert any("client 1 (bravo) in round 2: the secrets of this exchange are gone" in note for note in run.notes)


@pytest.mark.slow
def test_a_resumed_server_opens_the_same_sum_and_no_other(tmp_path: Path) -> None:
    """Killed after a sum was opened and before the round was saved: with the same answers the round is opened again; with
    one of them missing, the difference would be its answer, and the sum stays closed."""
    federation = Federation(tmp_path)
    experiment = federation.experiment(**SECURE)
    federation.start()
    opened = [0]

    def killed(name: str, content: bytes) -> None:
        if name == "alfa" and isinstance(unpack_body(content).body, messages.EvaluateRequest):
            opened[0] += 1
            if opened[0] == 2:
                raise KeyboardInterrupt

    federation.link.before = killed
    with pytest.raises(KeyboardInterrupt):
        federation.serve(experiment)
    happens(federation)
    again = federation.serve(experiment, resume=tmp_path / "run", on_round=lambda record: record.round == 2)
    assert differences(again, _after_two(experiment)) == []
    federation.link.before = killed
    opened[0] = 1
    with pytest.raises(KeyboardInterrupt):
        federation.serve(experiment, resume=tmp_path / "run")
    happens(federation)
    federation.link.disconnect("delta")
    last = federation.serve(experiment, resume=tmp_path / "run", rule=SOON, terms={"wait": 0.3})
    assert "1 sums stay masked, too few clients answered, the first: round 3" in last.notes
    assert any("shares were revealed for another sum of this exchange" in text for text in federation.server_messages)
    assert last.weights_sha256 == again.weights_sha256


def _after_two(experiment: Any) -> fa.Run:
    return fa.run(experiment, out=False, runtime="serial", on_round=lambda record: record.round == 2)


# What can be read


def asker(clients: dict[int, ClientMasks], turn: MaskedExchange, absent: tuple[int, ...] = ()) -> ServerMasks:
    """A server's half that speaks with these clients."""

    def ask(questions: Any, round: int, kind: Any, what: str, minimum: int | None = None) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for client, asked in questions.items():
            me = clients[client]
            if isinstance(asked, messages.KeysRequest):
                found[client] = me.public_keys()
            elif isinstance(asked, messages.SharesRequest):
                found[client] = me.encrypted_shares(asked.keys, turn)
            else:
                found[client] = me.revealed_shares(asked.answered)
        return found

    return ServerMasks(0, ask)


@pytest.mark.parametrize("missing", [(), (2,), (1, 4)])
def test_masks_of_a_curve_cancel_to_the_bit(missing: tuple[int, ...]) -> None:
    turn = MaskedExchange(3, 1, (0, 1, 2, 4, 7))
    clients = {k: ClientMasks(0, k, "place") for k in turn.asked}
    server = asker(clients, turn)
    shares, absent = server.exchange(3, 1, list(turn.asked))
    assert not absent
    rng, true, total = np.random.default_rng(0), np.zeros(40, np.uint32), np.zeros(40, np.uint32)
    answered = [k for k in turn.asked if k not in missing]
    for k in answered:
        clients[k].receive_shares(shares[k])
        own = rng.integers(0, 2**32, 40, dtype=np.uint32)
        mask = clients[k].mask(40, turn, k)
        assert len(np.unique(mask)) == 40
        true, total = true + own, total + own + mask
    assert np.array_equal(server.unmask(total, turn, answered), true)
    assert not np.array_equal(total, true)


def test_shares_are_for_their_holder_alone_and_for_this_exchange_alone() -> None:
    turn = MaskedExchange(0, 0, (0, 1, 2))
    clients = {k: ClientMasks(0, k, "round 0") for k in turn.asked}
    shares, _ = asker(clients, turn).exchange(0, 0, [0, 1, 2])
    with pytest.raises(BadValue, match="shares of client 0 cannot be opened"):
        clients[1].receive_shares({0: shares[2][0], 2: shares[1][2]})
    clients[1].exchange_id = "round 1"
    with pytest.raises(BadValue, match="cannot be opened"):
        clients[1].receive_shares(shares[1])
    assert not any(f"{clients[0].own_secrets.own:x}" in text for of in shares.values() for text in of.values())


def test_too_few_or_false_answers_reveal_nothing() -> None:
    turn = MaskedExchange(0, 0, (0, 1, 2, 3))
    clients = {k: ClientMasks(0, k, "p") for k in turn.asked}
    shares, _ = asker(clients, turn).exchange(0, 0, [0, 1, 2, 3])
    for k in turn.asked:
        clients[k].receive_shares(shares[k])
    for answered in ([0], [0, 1], [1, 2, 3]):  # one; fewer than half and one; without the one that is asked
        with pytest.raises(BadValue, match="too few to mask each other"):
            clients[0].revealed_shares(answered)
    revealed = clients[0].revealed_shares([0, 1, 2]).shares
    assert {*revealed} == {0, 1, 2, 3}


def test_an_answer_by_itself_is_noise_to_the_server(tmp_path: Path) -> None:
    """Not even with the experiment's seed, from which a simulation's masks follow; and no secret is in a file."""
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment(**SECURE, rounds=1))
    types = {kind.__qualname__: kind for kind in (Step, MaskedVector)}
    sent = [unpack(content, types) for name, content in federation.link.up if b'"what":"done"' in content]
    words = [message.payload["send"].words for message in sent]
    assert len(words) == 4
    for one in words:
        assert one.dtype == np.uint32
        assert one.max() > 2**31  # a sum of four has 30 bits each
    secret = federation.clients["alfa"]._joined.worker.masks.own_secrets  # type: ignore[union-attr]
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for number in (secret.own, secret.pairs):
        assert f"{number:x}".encode() not in files
        assert number.to_bytes(16, "big") not in files


def test_a_share_less_than_the_threshold_opens_nothing() -> None:
    ring = share_ring(0, MaskedExchange(0, 0, tuple(range(6))))
    secrets = {k: ClientSecrets(10 + k, 100 + k) for k in range(6)}
    publics = {k: CURVE.public(one.pairs) for k, one in secrets.items()}
    total = sum((one.mask(k, ring, publics, 8, CURVE) for k, one in secrets.items()), start=np.zeros(8, np.uint32))
    draw = iter(range(1000, 2000)).__next__
    revealed_shares = {k: secret_shares(one.own, k, ring, draw) for k, one in secrets.items()}
    assert np.array_equal(unmask_sum(total, ring, range(6), publics, revealed_shares, CURVE), np.zeros(8, np.uint32))
    fewer = {**revealed_shares, 3: dict(list(revealed_shares[3].items())[: ring.threshold - 1])}
    assert unmask_sum(total, ring, range(6), publics, fewer, CURVE) is None


def test_what_is_not_finite_is_not_sent_at_all(tmp_path: Path) -> None:
    """It could not be masked: then nothing goes up but that it was so."""
    federation = Federation(tmp_path)
    federation.start()
    run = federation.serve(federation.experiment(**SECURE, local={"lr": 1e38, "batch": 2, "epochs": 3}, rounds=2))
    assert run.final.non_finite > 0
    types = {kind.__qualname__: kind for kind in (Step, MaskedVector)}
    for _, content in federation.link.up:
        if b'"finite":false' in content:
            assert unpack(content, types).payload == {"send": None, "buffers": None}


def test_who_answered_is_counted_once_and_for_all() -> None:
    """Strangers and repeated names hide no client, and shares are revealed for one sum."""
    turn = MaskedExchange(0, 0, (0, 1, 2, 3))
    clients = {k: ClientMasks(0, k, "p") for k in turn.asked}
    shares, _ = asker(clients, turn).exchange(0, 0, [0, 1, 2, 3])
    clients[1].receive_shares(shares[1])
    with pytest.raises(BadValue, match="not in this exchange"):
        clients[1].revealed_shares((1, 90, 91, 92))
    with pytest.raises(BadValue, match="1 answers are too few"):
        clients[1].revealed_shares((1, 1, 1, 1))
    assert clients[1].revealed_shares((0, 1, 2)) == clients[1].revealed_shares((2, 1, 0))
    with pytest.raises(BadValue, match="another sum"):
        clients[1].revealed_shares((1, 2, 3))


def test_a_key_in_ones_own_name_must_be_ones_own() -> None:
    clients = {k: ClientMasks(0, k, "p") for k in range(3)}
    keys = {k: one.public_keys().keys for k, one in clients.items()}
    with pytest.raises(BadValue, match="not those of this exchange"):
        clients[0].encrypted_shares({**keys, 0: keys[1]}, MaskedExchange(0, 0, (0, 1, 2)))
