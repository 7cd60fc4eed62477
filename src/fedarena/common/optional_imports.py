"""Import packages that only some installations have."""

from __future__ import annotations

import importlib
from typing import Any

from fedarena.config.errors import MissingDependency


def import_optional(module: str, *, needed_by: str, install: str, where: str = "", alternative: str = "") -> Any:
    """Return an optional module, or raise `MissingDependency` with the line that installs it.

    `install` is what follows `pip install`; `alternative` says how to do without the package.

    >>> import_optional("json", needed_by="this example", install="nothing").__name__
    'json'
    >>> import_optional("no_such_module", needed_by="the example", install="'fedarena[example]'")
    Traceback (most recent call last):
    fedarena.config.errors.MissingDependency: the example needs the package no_such_module
      -> pip install 'fedarena[example]'
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingDependency(
            f"{needed_by} needs the package {module.partition('.')[0]}",
            remedy=f"pip install {install}{f', or {alternative}' if alternative else ''}",
            where=where,
        ) from None
