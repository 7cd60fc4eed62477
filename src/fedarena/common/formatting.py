"""How sizes and durations are written, everywhere: terminal, report, notebook and `fedarena ui`."""

from __future__ import annotations

import math

UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def format_size(size: float) -> str:
    """Write a number of bytes with its unit.

    >>> format_size(26_501_760), format_size(41_250), format_size(900), format_size(999_970)
    ('26.5 MB', '41.2 kB', '900 bytes', '1.0 MB')
    """
    for unit, name in UNITS:
        if size >= 0.99995 * unit:  # what would be rounded to 1000.0 is written in the next unit
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} byte{'s' * (round(size) != 1)}"


def format_duration(seconds: float) -> str:
    """Write a number of seconds with its unit.

    >>> format_duration(0.013), format_duration(0.61), format_duration(75), format_duration(7300)
    ('13 ms', '0.6 s', '1.2 min', '2.0 h')
    """
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3597 else f"{seconds / 3600:.1f} h"


def unit_of(largest: float) -> tuple[float, str]:
    """Return the unit in which sizes up to this one are drawn on an axis, in bytes, and its name."""
    if not math.isfinite(largest):
        return 1e9, "GB"
    return next(((unit, name) for unit, name in UNITS if largest >= unit), (1.0, "bytes"))
