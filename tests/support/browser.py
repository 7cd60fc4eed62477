"""Headless Chromium, for tests that look at pages. Where there is none, a test that asks for it skips and says so.

with browser() as page:                    # a Selenium driver
    page.get(path.as_uri())
    resize(page, 390)
    assert complaints(page) == [] and asked_for(page) == [path.as_uri()] and overflow(page) == 0
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # as root, in a container, there is none to be had
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
OWN = ("data:", "about:", "chrome:", "blob:")  # addresses that leave nothing


@contextlib.contextmanager
def browser() -> Iterator[Chrome]:
    """A fresh Chromium with an empty profile, ended afterwards."""
    programs = shutil.which("chromium"), shutil.which("chromedriver")
    if None in programs:
        pytest.skip("no Chromium here: Debian's packages chromium and chromium-driver bring it")
    webdriver = pytest.importorskip("selenium.webdriver", reason="no Selenium here: pip install selenium")
    with tempfile.TemporaryDirectory(prefix="fedarena-browser-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = str(programs[0])
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        quiet = webdriver.ChromeService(executable_path=str(programs[1]), log_output=os.devnull)
        driver = webdriver.Chrome(options=options, service=quiet)
        try:
            yield driver
        finally:
            driver.quit()


def resize(page: Chrome, width: int, height: int = 900, *, scale: float = 1) -> None:
    """A screen of this size in CSS pixels; a window itself cannot be as narrow as a telephone."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(page: Chrome, scheme: str = "light", media: str = "screen") -> None:
    """What the reader's system asks for: light or dark; and screen or print."""
    parameters = {"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", parameters)


def complaints(page: Chrome) -> list[str]:
    """What the page wrote to the console since the last look: errors and warnings."""
    entries: list[dict[str, Any]] = page.get_log("browser")
    return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]


def asked_for(page: Chrome) -> list[str]:
    """Every address that was asked for since the last look, its own inline data aside."""
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [address for address in sent if not address.startswith(OWN)]


def overflow(page: Chrome) -> int:
    """By how many pixels the page is wider than the screen."""
    wider: int = page.execute_script(
        "const d = document.documentElement; return Math.max(d.scrollWidth, document.body.scrollWidth) - d.clientWidth"
    )
    return wider


def picture(page: Chrome, *, whole: bool = True) -> bytes:
    """A PNG of the page, or of what the screen shows."""
    import base64

    parameters = {"format": "png", "captureBeyondViewport": whole}
    return base64.b64decode(page.execute_cdp_cmd("Page.captureScreenshot", parameters)["data"])
