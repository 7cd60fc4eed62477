"""Who is who: each party has what it needs and no more, and mistakes are found before anything is started."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
from fedarena.config.errors import BadValue, CannotWrite, DataMissing
from fedarena.transport.certificates import ClientKeys, ServerKeys, make_federation_keys, names_of, number


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_each_party_gets_what_it_needs_and_no_more(tmp_path: Path) -> None:
    made = make_federation_keys(tmp_path, ["ash", "birch"], hosts=["arena.example.org", "10.1.2.3"])
    assert set(made) == {"organiser", "ash", "birch"}
    assert files(made["ash"]) == {"ca.pem", "node.key", "node.pub"}
    public = {"participants/ash.pub", "participants/birch.pub"}
    assert files(made["organiser"]) == {"ca.pem", "cert.pem", "key.pem", *public}
    for secret in (tmp_path / "ca.key", made["organiser"] / "key.pem", made["ash"] / "node.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    names = names_of((made["organiser"] / "cert.pem").read_bytes())
    assert names[0] == "DNSName:organiser"
    assert {"DNSName:arena.example.org", "IPAddress:10.1.2.3", "DNSName:localhost"} < set(names)


def test_the_server_knows_its_clients_by_name(tmp_path: Path) -> None:
    made = make_federation_keys(tmp_path, ["ash", "birch"])
    make_federation_keys(tmp_path, ["elm"])
    organiser = ServerKeys.load(made["organiser"])
    assert list(organiser.clients) == ["ash", "birch", "elm"]
    for name in organiser.clients:
        keys = ClientKeys.load(tmp_path / name)
        assert (keys.name, keys.public, keys.ca) == (name, organiser.clients[name], organiser.ca)
        assert repr(keys) == f"ClientKeys('{name}')"
    assert len({number(key) for key in organiser.clients.values()}) == 3


@pytest.mark.parametrize("names", [[], ["ash", "ash"], ["organiser"], ["Ash"], ["../ash"], [""]])
def test_names_are_checked(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(BadValue):
        make_federation_keys(tmp_path / "new", names)
    assert not (tmp_path / "new").exists()


def test_keys_are_never_replaced(tmp_path: Path) -> None:
    made = make_federation_keys(tmp_path, ["ash"])
    before = (made["ash"] / "node.key").read_bytes()
    with pytest.raises(CannotWrite, match="is already there"):
        make_federation_keys(tmp_path, ["birch", "ash"])
    assert (made["ash"] / "node.key").read_bytes() == before
    assert not (tmp_path / "birch").exists()


def test_missing_and_swapped_files_are_reported(tmp_path: Path) -> None:
    made = make_federation_keys(tmp_path, ["ash", "birch"])
    organiser, ash = made["organiser"], made["ash"]
    shutil.copy(made["birch"] / "node.key", ash / "node.key")
    with pytest.raises(BadValue, match=r"node\.key in .* does not belong to node\.pub"):
        ClientKeys.load(ash)
    (ash / "node.key").write_bytes(b"garbage")
    with pytest.raises(BadValue, match="is not a private key"):
        ClientKeys.load(ash)
    (ash / "node.key").unlink()
    with pytest.raises(DataMissing, match="cannot read"):
        ClientKeys.load(ash)
    shutil.copy(organiser / "participants/ash.pub", organiser / "participants/twin.pub")
    with pytest.raises(BadValue, match="the same key"):
        ServerKeys.load(organiser)
    (organiser / "participants/twin.pub").write_bytes(b"garbage")
    with pytest.raises(BadValue, match="is not a public key"):
        ServerKeys.load(organiser)
    shutil.rmtree(organiser / "participants")
    with pytest.raises(DataMissing, match="no public key"):
        ServerKeys.load(organiser)
    shutil.copy(tmp_path / "ca.key", organiser / "key.pem")
    with pytest.raises(BadValue, match=r"does not belong to cert\.pem"):
        ServerKeys.load(organiser)


def test_a_key_that_ssh_made_will_do(tmp_path: Path) -> None:
    """As Flower's own documentation makes them; its name is in the comment, or the folder's."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    made = make_federation_keys(tmp_path, ["ash"])
    own = ec.generate_private_key(ec.SECP384R1())
    pem = own.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public = own.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    (made["ash"] / "node.key").write_bytes(pem)
    (made["ash"] / "node.pub").write_bytes(public)
    assert ClientKeys.load(made["ash"]).name == "ash"
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    text = other.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    (made["organiser"] / "participants/ash.pub").write_bytes(text)
    with pytest.raises(BadValue, match="not a key on an elliptic curve"):
        ServerKeys.load(made["organiser"])
