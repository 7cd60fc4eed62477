"""Draw the badges of the README from what pyproject.toml says: `python docs/images/draw_badges.py`."""

from __future__ import annotations

import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text("utf-8"))
FACTS = {
    "python": PROJECT["project"]["requires-python"].replace(">=", "≥ "),
    "licence": PROJECT["project"]["license"],
    "types": "mypy strict" if PROJECT["tool"]["mypy"]["strict"] else "mypy",
}


def draw(name: str, fact: str) -> str:
    """Return a badge as SVG: a name on grey, and a fact on green."""
    left, right = 7 * len(name) + 10, 7 * len(fact) + 10
    font = 'fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">\n'
        f"<title>{name}: {fact}</title>\n"
        f'<rect width="{left + right}" height="20" rx="3" fill="#00796b"/>\n'
        f'<path d="M3 0h{left - 3}v20h-{left - 3}a3 3 0 0 1-3-3v-14a3 3 0 0 1 3-3z" fill="#444d56"/>\n'
        f'<text x="{left / 2}" y="14" {font}>{name}</text>\n'
        f'<text x="{left + right / 2}" y="14" {font}>{fact}</text>\n'
        "</svg>\n"
    )


BADGES = {f"badge-{name}.svg": draw(name, fact) for name, fact in FACTS.items()}

if __name__ == "__main__":
    for file, drawn in BADGES.items():
        (HERE / file).write_text(drawn, encoding="utf-8")
