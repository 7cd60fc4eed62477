"""The page in a real browser: it grows by itself, requests nothing from elsewhere, and fits a telephone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.browser import asked_for, browser, complaints, overflow, prefer, resize
from tests.support.ui_server import Served, Stepped, a_comparison, served

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

PATIENCE = 30  # seconds; a page looks every 1.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison, one that was stopped with provisional scores, and a run."""
    root = tmp_path_factory.mktemp("page") / "runs"
    a_comparison(root / "match")
    shutil.copytree(root / "match", root / "half")
    (root / "half" / "cells" / "fedsgd" / "seed2" / "result.json").unlink()
    shutil.copytree(root / "match" / "cells" / "fedavg" / "seed0", root / "digits-fedavg-seed0")
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with served(folder) as there:
        yield there


@pytest.fixture(scope="module")
def page() -> Iterator[Chrome]:
    with browser() as there:
        yield there


def until(page: Chrome, script: str, patience: float = PATIENCE) -> Any:
    """Wait until the script says something true, and return it."""
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(page, patience).until(lambda page: page.execute_script(f"return {script}"))


def text_of(page: Chrome, selector: str) -> str:
    text: str = page.execute_script(f"return document.querySelector({selector!r})?.innerText ?? ''")
    return text


@pytest.mark.slow
def test_a_run_grows_without_a_reload(page: Chrome, server: Served, folder: Path) -> None:
    resize(page, 1280)
    page.get(server.address)
    page.execute_script("window.unchanged = true")
    run = Stepped(folder / "live", 9)
    row = "[...document.querySelectorAll('.runs tr')].find(r => r.innerText.includes('live'))?.innerText"
    until(page, f"{row}?.includes('1 / 9')")
    find = page.find_element("id", "find")
    find.send_keys("LIVE running")
    run.step(2)
    until(page, f"{row}?.includes('3 / 9')")
    assert "running" in page.execute_script(f"return {row}")
    assert page.title == "(1) fedarena"
    assert find.get_attribute("value") == "LIVE running"
    find.send_keys(" nothing like it")
    assert page.execute_script("return [...document.querySelectorAll('tr[data-text]')].every(r => r.hidden)")
    assert page.execute_script("return window.unchanged")

    page.get(server.address.rstrip("/") + server.link("live"))
    page.execute_script("window.unchanged = true; scrollTo(0, 300)")
    path = "document.querySelector('#curve .on-desk .line').getAttribute('d')"
    before = until(page, path)
    run.step(3)
    until(page, f"{path} !== {before!r}")
    assert "round 6 / 9" in text_of(page, ".rounds")
    assert page.execute_script("return scrollY") == 300
    page.execute_script("scrollTo(0, 0)")
    page.find_element("link text", "bytes sent").click()
    until(page, "document.querySelector('#curve .on-desk').textContent.includes('sent, up and down')")
    assert page.current_url.endswith("?over=sent")
    run.finish()
    until(page, "document.querySelector('.head .state').innerText === 'finished'")
    until(page, "document.querySelector('#clients').textContent.includes('accuracy of each client')")
    assert "kB sent, up and down" in page.execute_script("return document.querySelector('#curve').textContent")
    assert page.execute_script("return window.unchanged")
    assert complaints(page) == []
    assert {address.startswith(server.address) for address in asked_for(page)} == {True}
    shutil.rmtree(folder / "live")
    until(page, "document.querySelector('h1').innerText === 'There is no such page'")
    page.get("about:blank")  # it would go on asking
    complaints(page)  # the browser itself complains of the 404


@pytest.mark.slow
def test_a_comparison_page(page: Chrome, server: Served) -> None:
    resize(page, 1280)
    page.get(server.address.rstrip("/") + server.link("match"))
    assert "is the best choice" in text_of(page, "#verdict")
    assert page.execute_script("return document.querySelectorAll('#curves .on-desk .line').length") == 4
    page.find_element("css selector", "a.cell").click()
    until(page, "document.querySelector('#curve .on-desk .line')")
    assert "match" in text_of(page, ".path")
    page.get(server.address.rstrip("/") + server.link("half"))
    assert "provisional, from 2 of 3 splits" in text_of(page, "#verdict")
    page.get(server.address.rstrip("/") + server.link("match"))
    page.find_element("link text", "Report").click()
    until(page, "document.title.startsWith('Which algorithm')")
    assert complaints(page) == []
    assert {address.startswith(server.address) for address in asked_for(page)} == {True}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "match", "half", "cell"])
def test_nothing_is_wider_than_its_place(page: Chrome, server: Served, name: str) -> None:
    path = {"": "/", "cell": ""}.get(name) or server.link("match" if name == "cell" else name)
    page.get(server.address.rstrip("/") + path)
    if name == "cell":
        page.execute_script("document.querySelector('a.cell').click()")
        until(page, "document.querySelector('#curve')")
    for width in (390, 780, 1000, 1280):
        for scheme in ("light", "dark"):
            resize(page, width)
            prefer(page, scheme)
            assert overflow(page) == 0
            cells = (
                "[...document.querySelectorAll('.runs td, .runs th')].filter(c => c.scrollWidth > c.clientWidth + 1)"
            )
            assert page.execute_script(f"return {cells}.map(c => c.innerText)") == []  # none lies over its neighbour
    prefer(page, "light")
    assert complaints(page) == []


@pytest.mark.slow
def test_it_says_when_the_server_is_gone(page: Chrome, tmp_path: Path) -> None:
    with served(tmp_path) as there:
        page.get(there.address)
        assert page.execute_script("return document.getElementById('gone').hidden")
    until(page, "!document.getElementById('gone').hidden")
    assert "fedarena ui" in text_of(page, "#gone")
    complaints(page)  # the browser itself reports that there is no answer
