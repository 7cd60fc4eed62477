"""The frame of every page and the small pieces it is made of. Whatever comes from a folder goes through `escape`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedarena.common.formatting import format_duration, format_percent, format_size
from fedarena.reports.charts import NARROW, escape
from fedarena.reports.charts.svg import path
from fedarena.ui.catalogue import RunSummary
from fedarena.ui.safe_files import reason

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    '<g stroke="#0b6bb0" stroke-width="2"><path d="M16 16L6 7M16 16L27 10M16 16L9 27M16 16L25 25"/></g>'
    '<g fill="#0b6bb0"><circle cx="16" cy="16" r="5.5"/><circle cx="6" cy="7" r="3.5"/><circle cx="27" cy="10" r="3"/>'
    '<circle cx="9" cy="27" r="3"/><circle cx="25" cy="25" r="3.8"/></g></svg>'
)
HINT = '<p class="hint" aria-hidden="true">Scroll sideways for more columns \N{RIGHTWARDS ARROW}</p>'
BUSY, IDLE = 1500, 3000  # milliseconds between two looks
FULL, HALF = 1100, 540  # widths of a chart on a desk, in pixels: all of the page, and beside another
SPARK = 96, 26  # its size


def frame(title: str, body: Iterable[str], *, running: int = 0, folder: str = "") -> str:
    """A whole page. The script looks again after `data-every` milliseconds and changes what has changed."""
    every = BUSY if running else IDLE
    told = f"{running} running" if running else "nothing is running"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>"
        '<link rel="icon" href="/icon.svg"><link rel="stylesheet" href="/charts.css">'
        '<link rel="stylesheet" href="/page.css"><script src="/page.js" defer></script></head><body>'
        '<header class="top"><a class="home" href="/"><img src="/icon.svg" alt="" width="26" height="26">fedarena</a>'
        f'<span class="folder"><bdi>{escape(folder)}</bdi></span>'
        f'<span id="live" class="{"on" if running else ""}" role="status">{told}</span></header>'
        '<p id="gone" role="alert" hidden>The server has stopped. Start it again with <code>fedarena ui</code>; '
        "this page goes on by itself.</p>"
        f'<main id="page" data-every="{every}">{"".join(body)}</main></body></html>\n'
    )


def problem(what: str, remedy: str) -> str:
    """A page that says what is wrong."""
    text = f'<section class="empty"><h1>{escape(what)}</h1><p>{escape(remedy)}</p><p><a href="/">All runs</a></p></section>'
    return frame(what, [text])


def unreadable(name: str, error: Exception) -> str:
    """The body of a page about a folder that cannot be shown, with the reason."""
    return (
        f'<nav class="path"><a href="/">All runs</a> / <span>{escape(name)}</span></nav>'
        f'<div class="head"><h1>{escape(name)}</h1>{badge("damaged")}</div><p class="why">{escape(reason(error))}</p>'
    )


def section(id: str, heading: str, *body: str, note: str = "") -> str:
    """A part of a page."""
    aside = f' <span class="note">{escape(note)}</span>' if note else ""
    return f'<section id="{id}"><h2>{escape(heading)}{aside}</h2>{"".join(body)}</section>'


def badge(state: str) -> str:
    """A state, as a word with a dot."""
    return f'<span class="state {escape(state)}">{escape(state)}</span>'


def bar(share: float, state: str, label: str) -> str:
    """How much is done."""
    return f'<progress class="{escape(state)}" value="{share:.4f}" max="1" aria-label="{escape(label)}"></progress>'


def tiles(facts: Mapping[str, str], notes: Mapping[str, str] | None = None) -> str:
    """Numbers with their names; a note is the small print below one."""
    below = {key: f"<small>{escape(text)}</small>" for key, text in (notes or {}).items()}
    cells = (f"<div><dt>{escape(k)}</dt><dd>{escape(v)}{below.get(k, '')}</dd></div>" for k, v in facts.items())
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def both(draw: Callable[[float], str], wide: float = FULL) -> str:
    """A chart twice, for a desk and for a telephone; the style sheet shows one of them."""
    return f'<div class="on-desk">{draw(wide)}</div><div class="on-phone">{draw(NARROW)}</div>'


def tabs(choices: Mapping[str, str], chosen: str, key: str) -> str:
    """Links to the same page with another choice."""
    links = (
        f'<a href="?{key}={k}"{" aria-current=true" if k == chosen else ""}>{escape(name)}</a>'
        for k, name in choices.items()
    )
    return f'<nav class="tabs">{"".join(links)}</nav>'


def spark(points: Iterable[tuple[float, float]], index: int = 0) -> str:
    """A curve the size of a word."""
    width, height = SPARK
    known = list(points)
    if len(known) < 2:
        return f'<svg class="spark" width="{width}" height="{height}" aria-hidden="true"></svg>'
    xs, ys = zip(*known, strict=True)
    across, up = (max(xs) - min(xs)) or 1.0, (max(ys) - min(ys)) or 1.0
    at = [(2 + (x - xs[0]) / across * (width - 8), height - 4 - (y - min(ys)) / up * (height - 8)) for x, y in known]
    dot = f'<circle cx="{at[-1][0]:.1f}" cy="{at[-1][1]:.1f}" r="2.4"/>'
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg class="spark s{index % 8}" {size} aria-hidden="true">{path(at, "")}{dot}</svg>'


def table(head: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "") -> str:
    """Cells are HTML already; the first of a row is its heading. What is too wide scrolls, and a hint says so."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(_cell(k, cell) for k, cell in enumerate(row))}</tr>" for row in rows)
    inner = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll" tabindex="0">{inner}</div>{HINT}'


def _cell(k: int, cell: str) -> str:
    return f"<td>{cell}</td>" if k else f'<th scope="row">{cell}</th>'


def settings(values: Mapping[str, Any]) -> str:
    """mu=0.1, steps=3."""
    return ", ".join(f"{key}={_plain(value)}" for key, value in values.items())


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def percent(value: float | None) -> str:
    """93.1%, or a dash where nothing is known."""
    return "–" if value is None or not math.isfinite(value) else format_percent(value)


def decimal(value: float | None) -> str:
    """A number in short, or a dash."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.4g}"


def size(number: float | None) -> str:
    """Bytes with their unit, or a dash where nothing is known or sent."""
    return "–" if number is None or not math.isfinite(number) or number <= 0 else format_size(number)


def duration(seconds: float | None) -> str:
    """Return a duration with its unit, or a dash where it is not known."""
    return "–" if seconds is None or not math.isfinite(seconds) else format_duration(seconds)


def when(moment: float, now: float | None = None) -> str:
    """just now, 3 min ago, 15 Nov 22:31; coarse, so that a page does not change by itself."""
    if not moment:
        return ""
    past = (time.time() if now is None else now) - moment
    if past < 60:
        return "just now"
    if past < 3600:
        return f"{past // 60:.0f} min ago"
    if past < 86400:
        return f"{past // 3600:.0f} h ago"
    return time.strftime("%d %b %Y", time.localtime(moment)).lstrip("0")


def progress(sight: RunSummary) -> str:
    """12 / 30, or just 12 where nobody knows of how many."""
    if sight.state == "damaged":
        return ""
    return f"{sight.round} / {sight.rounds}" if sight.rounds else str(sight.round)
