"""Format sizes, durations, percentages and JSON in the same way in the terminal, reports, notebooks and `fedarena ui`."""

from __future__ import annotations

import json
import math
from typing import Any

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

    >>> format_duration(0.013), format_duration(0.61), format_duration(75), format_duration(7300), format_duration(2e5)
    ('13 ms', '0.6 s', '1.2 min', '2.0 h', '2.3 days')
    """
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 3597:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"


def format_clock(seconds: float) -> str:
    """Write a number of seconds as a clock shows it, for remaining times that are updated in place.

    >>> format_clock(75), format_clock(7300)
    ('1:15', '2:01:40')
    """
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def format_percent(share: float) -> str:
    """Write a share as a percentage with one decimal.

    >>> format_percent(0.9314)
    '93.1%'
    """
    return f"{100 * share:.1f}%"


def as_json(value: Any) -> str:
    """Write a value as JSON that every reader accepts: NaN and infinities, which JSON does not have, become null.

    >>> print(as_json({"loss": float("nan")}))
    {
     "loss": null
    }
    """

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(k): finite(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [finite(v) for v in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(value), indent=1, default=str, allow_nan=False)


def unit_of(largest: float) -> tuple[float, str]:
    """Return the unit in which sizes up to this one are drawn on an axis, in bytes, and its name."""
    if not math.isfinite(largest):
        return 1e9, "GB"
    return next(((unit, name) for unit, name in UNITS if largest >= unit), (1.0, "bytes"))
