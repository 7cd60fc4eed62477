"""What goes wrong between organisations, with real processes: killed, stopped, restarted, and still the same model."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
pytest.importorskip("private_set_intersection")
from tests.vertical.parties import TREES, Site, ended
from tests.vertical.small_host import wait_for

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


def test_a_host_killed_at_every_stage_of_a_tree(site: Site, undisturbed: Models) -> None:
    """While it aligns, while rows come in, before it answers, after it wrote the tree but could not say so."""
    guest = site.start(site.guest_training())
    for where in ("ALIGN_REQUEST 0 after", "ROWS 0 before", "LEVEL 1 before", "SPLIT 1 after", "TREE_END 2 after"):
        host = site.start(site.command("bank"), f"host {where} SIGKILL")
        ended(host, KILLED)
    _, err = ended(site.start(site.command("bank"), "host LEVEL 2 before SIGTERM"), 130)
    assert "start this host again with the same command" in err
    ended(site.start(site.command("bank")))
    ended(guest)
    assert site.models() == undisturbed
    assert len(undisturbed[0].trees) == TREES
    assert undisturbed[1][0].records, "the host has splits of its own"


def test_a_guest_killed_and_resumed(site: Site, undisturbed: Models) -> None:
    """In the first tree, by Ctrl-C, when a tree is written at the host only, and before it could say goodbye."""
    host = site.start(site.command("bank"))
    ended(site.start(site.guest_training(), "guest LEVEL 0 after SIGKILL"), KILLED)
    again = ["vertical", "train", "--resume", "guest-model"]
    _, err = ended(site.start(again, "guest LEVEL 1 before SIGINT"), 130)
    assert "go on with: fedarena vertical train --resume guest-model" in err
    for where in ("TREE_END 1 after", "DONE 0 before"):
        ended(site.start(again, f"guest {where} SIGKILL"), KILLED)
    ended(site.start(again))
    ended(host)
    assert site.models() == undisturbed
    out, _ = ended(site.start(again))
    assert "3 trees of depth 3" in out, "a finished training is told again, and nobody is asked"


def test_a_host_that_hangs_meets_the_deadline_and_may_come_back(site: Site, undisturbed: Models) -> None:
    host = site.start(site.command("bank"), "host LEVEL 1 before SIGSTOP")
    guest = site.start(site.guest_training("--deadline", "3"))
    assert guest.stderr is not None
    line = ""
    seen = []
    while "waiting for host" not in line or "tree 1" not in "".join(seen):  # the first wait is for its start
        line = guest.stderr.readline()
        assert line, "the guest ended"
        seen.append(line)
    host.send_signal(signal.SIGCONT)
    ended(guest)
    ended(host)
    assert site.models() == undisturbed


def test_a_guest_gives_up_when_its_patience_ends(site: Site) -> None:
    _, err = ended(site.start([*site.guest_training(), "--patience", "0.5"]), 2)
    assert "waiting for host 'bank'" in err
    assert "PartyLost: host 'bank' at 127.0.0.1" in err
    assert "Traceback" not in err


def test_one_of_two_hosts_is_killed(tmp_path: Path) -> None:
    site = Site(tmp_path, ("bank", "shop"))
    try:
        hosts = [site.start(site.command("bank"), "host LEVEL 1 before SIGKILL"), site.start(site.command("shop"))]
        guest = site.start(site.guest_training())
        ended(hosts[0], KILLED)
        again = site.start(site.command("bank"))
        for process in (guest, hosts[1], again):
            ended(process)
        assert site.models() == site.simulated()
        assert all(host.records for host in site.models()[1]), "both hosts have splits"
    finally:
        site.stop()


def test_a_finished_host_does_not_overwrite_its_model(site: Site) -> None:
    (site.folder / "bank-model").mkdir()
    (site.folder / "bank-model" / "finished.json").write_text("{}")
    _, err = ended(site.start(site.command("bank")), 2)
    assert "holds a finished training" in err


def test_ids_that_occur_twice_are_refused_by_a_host_before_it_listens(site: Site) -> None:
    path = site.folder / "bank.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1]]) + "\n")
    _, err = ended(site.start(site.command("bank")), 2)
    assert "1 ids occur more than once, in 2 of 241 rows" in err


def test_too_few_common_people_end_both_parties_with_their_number(site: Site) -> None:
    path = site.folder / "bank.csv"
    path.write_text(path.read_text().replace("\np", "\nq"))
    host, guest = site.start(site.command("bank")), site.start(site.guest_training())
    _, err = ended(guest, 2)
    assert "no id is known to all parties (guest 220, bank 240)" in err
    wait_for(lambda: host.poll() is None)
