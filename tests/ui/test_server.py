"""The server: this machine only, reading only, safe whatever a folder holds, and no burden to a run."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.ui_server import QUICK, Served, Stepped, a_comparison, served
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.common.formatting import format_size

EVIL = "<script>alert(1)</script>\"'&"
PAGES = ("/", "/page.css", "/page.js", "/charts.css", "/icon.svg")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of all kinds: finished, interrupted, with evil names, damaged in every file."""
    root = tmp_path_factory.mktemp("ui") / "runs"
    fa.run("digits", out=root / "good", rounds=3, **QUICK)
    a_comparison(root / "match")
    shutil.copytree(root / "match", root / "deep" / "er" / "half")
    (root / "deep" / "er" / "half" / "cells" / "fedavg" / "seed1" / "result.json").unlink()
    shutil.rmtree(root / "deep" / "er" / "half" / "cells" / "fedsgd" / "seed2")

    def copy(name: str) -> Path:
        return Path(shutil.copytree(root / "good", root / name))

    copy("i<i>nterrupted").joinpath("result.json").unlink()
    if sys.platform == "linux":
        shutil.copytree(root / "good", os.fsdecode(os.fsencode(root) + b"/no\xfftext"))
    evil = copy("evil")
    table = f'data = "{EVIL}"\nalgorithm = {{ name = "{EVIL}", x = "{EVIL}" }}\nmodel = ["{EVIL}"]\nrounds = "{EVIL}"'
    (evil / "experiment.toml").write_text(table.replace("\"'&", "'&"))
    (evil / "failure.txt").write_text(EVIL)
    (copy("bad-toml") / "experiment.toml").write_text("data = = 1")
    (copy("bad-result") / "result.json").write_text('{"diverged": fal')
    (copy("odd-result") / "result.json").write_text('{"diverged": 1, "rounds": "many", "final_accuracy": []}')
    (copy("list-result") / "result.json").write_text("[1, 2]")
    (copy("bad-clients") / "clients.parquet").write_bytes(b"PAR1 nothing")
    odd = copy("odd-log")
    (odd / "result.json").unlink()
    lines = ['{"round": 1, "accuracy": "high"}', "[]", "null", "\\x", '{"round": {}}', '{"round": 2, "accuracy": 0.5}']
    (odd / "checkpoint" / "rounds.jsonl").write_bytes("\n".join(lines).encode() + b'\xff\n{"round": 3, "accu')
    for name, text in {
        "no-plan": "{}", "odd-plan": '{"experiment": 3, "contestants": [], "notes": []}', "bad-plan": "{",
        "huge-plan": '{"experiment": {}, "contestants": {"a": {}}, "repeats": 1000000000000, "notes": []}',
    }.items():  # fmt: skip
        (root / name).mkdir()
        (root / name / "comparison.json").write_text(text)
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with served(folder) as there:
        yield there
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before  # nothing was written


@pytest.mark.slow
def test_the_first_page_lists_everything(server: Served) -> None:
    page = server.text()
    for name in ("good", "match", "deep/er/half", "bad-toml", "odd-log", "huge-plan"):
        assert f">{name}<" in page
    assert "good/checkpoint" not in page
    assert sys.platform != "linux" or "no?text" in page
    assert page.count('class="state damaged"') == 8  # bad-toml, three results, four plans


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_nothing_but_reading_is_allowed(server: Served, method: str) -> None:
    answer = server.ask("/", method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD"


def test_head_is_get_without_the_page(server: Served) -> None:
    get, head = server.ask("/page.css"), server.ask("/page.css", "HEAD")
    assert (head.status, head.text) == (200, "")
    assert head.headers["Content-Length"] == get.headers["Content-Length"] == str(len(get.text.encode()))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "127.0.0.1:1:2", ""])
def test_another_name_for_this_machine_is_refused(server: Served, host: str) -> None:
    answer = server.ask("/", Host=host)
    assert answer.status == 403
    assert "good" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:8765"])
def test_its_own_names_are_accepted(server: Served, host: str) -> None:
    assert server.ask("/", Host=host).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/run/../good", "/run/%2e%2e%2fgood", "/run/good", "/run/", "/run", "/comparison/match",
        "/page.css/../server.py", "/page.css/x", "/server.py", "//etc/passwd", "/report/good", "/run/" + "0" * 16, "/%00",
        "/run/" + "a" * 5000, "/report/..", "/?/../x/..", "//[", "/run/[::", "/runs/good/experiment.toml",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_listing(server: Served, path: str, folder: Path) -> None:
    answer = server.ask(path)
    assert answer.status == (200 if path.startswith("/?") else 404)
    assert "root:" not in answer.text
    assert "[project]" not in answer.text


def test_a_run_is_no_comparison_and_the_other_way_round(server: Served) -> None:
    assert server.ask(server.link("good").replace("run", "comparison")).status == 404
    assert server.ask(server.link("match").replace("comparison", "run")).status == 404


@pytest.mark.slow
def test_every_answer_says_what_a_page_may_load(server: Served) -> None:
    for path in (*PAGES, "/nowhere", server.link("good"), server.link("match")):
        headers = server.ask(path).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


def test_what_a_folder_says_is_text_and_nothing_else(server: Served) -> None:
    for path in ("/", server.link("evil"), server.link("match"), server.link("i&lt;i&gt;nterrupted")):
        page = server.text(path)
        assert "<script>alert" not in page
        assert "slow<b>" not in page
        assert "i<i>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in server.text(server.link("evil"))


@pytest.mark.slow
def test_damage_is_shown_and_stops_nothing(server: Served) -> None:
    for name in ("bad-toml", "bad-result", "odd-result", "list-result"):
        assert 'class="state damaged"' in server.text(server.link(name))
    page = server.text()
    assert "repeats" in page or "1000000000000 cells" in page
    assert "accuracy of each client" not in server.text(server.link("bad-clients"))
    assert "round 2" in server.text(server.link("odd-log"))


def test_a_page_that_has_not_changed_is_not_sent_again(server: Served) -> None:
    mark = server.ask(server.link("good")).headers["ETag"]
    again = server.ask(server.link("good"), If_None_Match=mark)
    assert (again.status, again.text) == (304, "")


def test_a_run_page_tells_its_numbers(server: Served, folder: Path) -> None:
    run = fa.load(folder / "good")
    page = server.text(server.link("good"))
    assert f"<dd>{100 * (run.final.accuracy or 0):.1f}%" in page
    assert format_size(run.bytes) in page  # kB: small models must not show 0.0 MB
    assert "accuracy of each client" in page
    assert f"fedarena verify {folder / 'good'}" in page
    over_time = server.text(server.link("good") + "?over=clock")
    assert "simulated seconds" in over_time
    assert server.text(server.link("good") + "?over=nothing") == page


@pytest.mark.slow
def test_a_finished_comparison_has_the_verdict_of_the_command(server: Served, folder: Path) -> None:
    page = server.text(server.link("match"))
    result = fa.Comparison.load(folder / "match")
    for sentence in result.words:
        assert sentence.replace("<", "&lt;").replace(">", "&gt;") in page
    assert "provisional" not in page
    assert page.count('class="duel ') == 6  # every ordered pair of three
    report = server.ask("/report/" + server.link("match").rpartition("/")[2])
    assert report.status == 200
    assert "Which algorithm for digits?" in report.text
    assert report.headers["Content-Security-Policy"].startswith("sandbox allow-scripts;")


def test_there_is_no_report_before_the_end(server: Served) -> None:
    answer = server.ask("/report/" + server.link("deep/er/half").rpartition("/")[2])
    assert answer.status == 409
    assert "are not finished" in answer.text


def test_a_comparison_under_way_has_a_provisional_verdict_from_common_splits(server: Served, folder: Path) -> None:
    page = server.text(server.link("deep/er/half"))
    assert "10 of 12 runs" in page  # with those of the baseline
    assert "provisional, from" in page
    # fedavg has splits 0 and 2, fedsgd has 0 and 1: one in common is too few for them, two are enough against the third
    assert page.count('class="duel ') == 4
    assert 'class="cell waiting"' in page
    assert 'class="cell interrupted"' in page


@pytest.mark.slow
def test_a_watched_run_keeps_its_lock_and_its_bits(tmp_path: Path) -> None:
    alone = fa.run("digits", out=False, rounds=60, **QUICK)
    with served(tmp_path) as server:
        assert "No runs yet" in server.text()
        run = Stepped(tmp_path / "live", 60)
        assert "<span>1 / 60</span>" in server.text()
        run.step(2)
        assert "<span>3 / 60</span>" in server.text()
        assert "1 running" in server.text(server.link("live"))
        with pytest.raises(fa.FedarenaError, match="another process is using"):
            fa.run(resume=tmp_path / "live", runtime="serial")
        run.kill()
        page = server.text(server.link("live"))
        assert 'class="state interrupted"' in page
        assert f"fedarena run --resume {tmp_path / 'live'}" in page
        going_on = threading.Thread(target=lambda: fa.run(resume=tmp_path / "live", runtime="serial"))
        going_on.start()
        while going_on.is_alive():  # look as often as can be
            server.text(server.link("live"))
        assert 'class="state finished"' in server.text()
    assert fa.load(tmp_path / "live").weights_sha256 == alone.weights_sha256


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["ui", "--no-open", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 2
    return result.stderr


def test_a_missing_folder_and_a_taken_port_are_refused(tmp_path: Path) -> None:
    assert "there is no folder" in refused(str(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    assert "is not a folder" in refused(str(tmp_path / "file"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port} cannot be used" in refused(str(tmp_path), "--port", port)


def test_without_a_port_the_next_free_one_is_taken(tmp_path: Path) -> None:
    from fedarena.ui.server import PORT, open_server

    with open_server(tmp_path, None) as first, open_server(tmp_path, None) as second:
        assert PORT <= first.server_port < second.server_port
        assert first.server_address[0] == "127.0.0.1"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are sent differently there")
def test_a_polite_kill_ends_it_as_ctrl_c_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedarena", "ui", str(tmp_path), "--port", "0", "--no-open", "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=30)
    assert (process.returncode, messages) == (0, "")
