"""What goes wrong between organisations, with real processes: killed, stopped, restarted, and still the same model."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
from tests.support.vertical_parties import TREES, Site, ended
from typer.testing import CliRunner

from fedarena.cli.main import app
from fedarena.vertical.model import GuestModel, HostModel

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals")
KILLED = -9


Models = tuple[GuestModel, list[HostModel]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The model of a training in which nothing happens, without network and without alignment."""
    return Site(tmp_path_factory.mktemp("undisturbed")).simulated()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_a_host_killed_at_every_stage_of_a_tree(site: Site, undisturbed: Models) -> None:
    """While it aligns, sets up, reads the key, while rows come in, before it answers, after it wrote the tree."""
    guest = site.start(site.guest_training())
    for where in ("ALIGN_REQUEST 0 after", "SETUP 0 before", "PUBLIC_KEY 0 after", "ROWS 0 before", "LEVEL 1 before",
                  "SPLIT 1 after", "TREE_END 2 after"):  # fmt: skip
        host = site.start(site.command("bank"), f"host {where} SIGKILL")
        ended(host, KILLED)
    _, err = ended(site.start(site.command("bank"), "host LEVEL 2 before SIGTERM"), 130)
    assert "start this host again with the same command" in err
    ended(site.start(site.command("bank")))
    ended(guest)
    assert site.models() == undisturbed
    assert len(undisturbed[0].trees) == TREES
    assert undisturbed[1][0].records, "the host has splits of its own"


@pytest.mark.slow
def test_a_guest_killed_and_resumed(site: Site, undisturbed: Models) -> None:
    """In the first tree, by Ctrl-C, when a tree is written at the host only, before and after it sent DONE."""
    host = site.start(site.command("bank"))
    ended(site.start(site.guest_training(), "guest LEVEL 0 after SIGKILL"), KILLED)
    again = ["vertical", "train", "--resume", "guest-model"]
    _, err = ended(site.start(again, "guest LEVEL 1 before SIGINT"), 130)
    assert "resume with: fedarena vertical train --resume guest-model" in err
    for where in ("TREE_END 1 after", "DONE 0 before", "DONE 0 after"):
        ended(site.start(again, f"guest {where} SIGKILL"), KILLED)
    ended(host)
    assert not (site.folder / "guest-model" / "finished.json").exists()
    out, _ = ended(site.start([*again, "--json", "--patience", "1"]))
    assert (site.folder / "guest-model" / "finished.json").exists(), (
        "the host has stopped, and the training is complete"
    )
    assert json.loads(out)["rows"] == 220, "the common people, not the guest's table"
    assert site.models() == undisturbed


@pytest.mark.slow
def test_a_host_that_hangs_meets_the_deadline_and_may_come_back(site: Site, undisturbed: Models) -> None:
    host = site.start(site.command("bank"), "host LEVEL 1 before SIGSTOP")
    guest = site.start(site.guest_training("--deadline", "3"))
    while "waiting for host" not in guest.written("stderr").partition("tree 1")[2]:  # the first wait is for its start
        assert guest.poll() is None, "the guest ended"
        time.sleep(0.02)
    host.send_signal(signal.SIGCONT)
    ended(guest)
    ended(host)
    assert site.models() == undisturbed


@pytest.mark.slow
def test_a_guest_gives_up_when_its_patience_ends(site: Site) -> None:
    _, err = ended(site.start([*site.guest_training(), "--patience", "0.5"]), 2)
    assert "waiting for host 'bank'" in err
    assert "PartyLost: host 'bank' at 127.0.0.1" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_one_of_two_hosts_is_killed(tmp_path: Path) -> None:
    """And started again with the same command: it needs no --out to find its trees."""
    site = Site(tmp_path, ("bank", "shop"))
    bank, shop = (site.command(name, out=False) for name in ("bank", "shop"))
    try:
        hosts = [site.start(bank, "host LEVEL 1 before SIGKILL"), site.start(shop)]
        guest = site.start(site.guest_training())
        ended(hosts[0], KILLED)
        again = site.start(bank)
        for process in (guest, hosts[1], again):
            ended(process)
        found = site.models("runs/vertical-host-{}")
        assert found == site.simulated()
        assert all(host.records for host in found[1]), "both hosts have splits"
    finally:
        site.stop()


def in_this_process(site: Site, command: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the message of a command that is refused before it listens."""
    monkeypatch.chdir(site.folder)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


def test_a_finished_host_does_not_overwrite_its_model(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.folder / "bank-model").mkdir()
    (site.folder / "bank-model" / "finished.json").write_text("{}")
    assert "holds a finished training" in in_this_process(site, site.command("bank"), monkeypatch)


def test_ids_that_occur_twice_are_refused_by_a_host_before_it_listens(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = site.folder / "bank.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1]]) + "\n")
    message = in_this_process(site, site.command("bank"), monkeypatch)
    assert "1 ids occur more than once, in 2 of 241 rows" in message


@pytest.mark.slow
def test_a_guest_that_cannot_train_leaves_the_host_waiting_for_one_that_can(site: Site) -> None:
    """One that only aligns is refused; with too few common ids, guest and host report their number."""
    host = site.start(site.command("bank"))
    _, err = ended(site.start(site.command("guest", verb="align")), 2)
    assert "host 'bank': this host was started to train, the guest wants to align" in err
    own = site.folder / "guest.csv"
    right = own.read_text()
    own.write_text(right.replace("\np", "\nq"))
    _, err = ended(site.start(site.guest_training()), 2)
    assert "no id is known to all parties (guest 220, bank 240)" in err
    assert host.poll() is None, "the host still waits"
    assert not (site.folder / "bank-model" / "finished.json").exists()
    own.write_text(right)
    shutil.rmtree(site.folder / "guest-model")
    ended(site.start(site.command("guest", "--label", "paid", "--trees", "1", "--depth", "1")))
    out, err = ended(host)
    assert "1 tree, this host's part of the model is in bank-model" in out
    assert "no id is known to all parties (guest 220, bank 240)" in err
