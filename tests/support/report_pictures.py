"""Takes the pictures of docs/report.md: `python tests/support/report_pictures.py docs/images`. A minute, needs Chromium."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.browser import browser, picture, prefer, resize

COMPARE = """
digits -a fedavg -a fedprox:mu=0.1 -a scaffold -a fednova -a fedavgm -a fedadam:server_lr=0.01 --folds 5
--set clients=8 --set partition.beta=0.2 --set share=0.5 --set local.epochs=2 --set rounds=30 -q
"""
SIZES = {"report": (1000, 1000, "light", "#verdict"), "report-curves": (1000, 1200, "dark", "#sure")}


def main(target: Path) -> None:
    """A comparison, its report, and what two screens show of it."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "match"
        for words in (["compare", *COMPARE.split(), "--out", str(root)], ["report", str(root), "-q"]):
            subprocess.run([sys.executable, "-m", "fedarena", *words], check=True)
        with browser() as page:
            for name, (width, height, scheme, part) in SIZES.items():
                resize(page, width, height)
                prefer(page, scheme)
                page.get((root / "report.html").as_uri() + part)
                (target / f"{name}.png").write_bytes(small(picture(page, whole=False)))


def small(png: bytes) -> bytes:
    """The same picture with a palette of its own: a third of the bytes."""
    from PIL import Image

    kept = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(128).save(kept, "png", optimize=True)
    return kept.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
