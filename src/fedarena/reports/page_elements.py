"""Tables and sections of a page as plain values. The macros of templates/macros.html turn them, and the rest, into HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedarena.reports.charts.lines import Series


@dataclass(frozen=True)
class Section:
    """A section of a page; one without a body is left out."""

    id: str
    heading: str
    body: Markup
    note: str = ""  # beside the heading


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, a smaller text after it, and how it is set off."""

    text: str
    small: str = ""
    best: bool = False
    kind: str = ""  # its class


@dataclass(frozen=True)
class Row:
    """A row of a table, with its name; an algorithm has the key of its colour and mark."""

    name: str
    cells: Sequence[Cell | str]
    key: Series | None = None
    is_reference: bool = False  # shown for comparison only: grey
    badge: str = ""  # a state after the name


@dataclass(frozen=True)
class Table:
    """A table that scrolls sideways where it is wider than the screen."""

    caption: str  # what a screen reader says of it
    head: Sequence[Cell | str]
    rows: Sequence[Row]
    kind: str = "rows"
    row_head: str = ""  # above the names of the rows
    groups: Sequence[tuple[str, int]] = ()  # headings above the heads, each with the columns that it spans
    has_caption: bool = False  # the caption is visible
    is_wide: bool = False  # it may be wider than the text
    is_shaded: bool = False  # a shadow marks the edge behind which more columns follow
