"""Takes the pictures of docs/ui.md: `python -m tests.support.ui_pictures docs/images`. Two minutes on two cores, needs
Chromium."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

import fedarena as fa
from tests.support.browser import browser, picture, resize
from tests.support.ui_server import served
from tests.ui.test_page import until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

RUNS = ({"algorithm": "fedavg"}, {"algorithm": "scaffold"}, {"algorithm": {"name": "fedprox", "mu": 0.1}})
COMPARE = "digits -a fedavg -a fedprox:mu=0.1 -a scaffold -a fedavgm --folds 5 --repeats 2 --set rounds=40 -q".split()


def keep(page: Chrome, file: Path) -> None:
    """What the screen shows, in 128 colours: a page has few, and the file is a third as large."""
    shown = Image.open(io.BytesIO(picture(page, whole=False))).convert("RGB")
    shown.quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)


def main(target: Path) -> None:
    """Some runs, and a comparison under way."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "runs"
        for settings in RUNS:
            algorithm = settings["algorithm"]
            name = algorithm if isinstance(algorithm, str) else algorithm["name"]
            fa.run("digits", out=root / f"digits-{name}", **settings)
        command = [sys.executable, "-m", "fedarena", "compare", *COMPARE, "--out", str(root / "which-one")]
        comparison = subprocess.Popen(command)
        try:
            with served(Path("runs"), Path(place)) as server, browser() as page:
                resize(page, 1000, 800)
                page.get(server.address)
                until(page, "document.querySelector('.card')?.innerText.match(/2\\d of 50/)", patience=300)
                keep(page, target / "ui.png")
                page.find_element("link text", "which-one").click()
                until(page, "document.querySelector('.duel') && document.readyState === 'complete'")
                resize(page, 1000, 1370)
                keep(page, target / "ui-comparison.png")
        finally:
            comparison.terminate()
            comparison.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
