"""Select a variant of an algorithm by a setting: a subclass of the paper's class in another file.

`FedProx(schedule="adaptive")` creates an `AdaptiveFedProx`, as `pathlib.Path()` creates a `PosixPath`. The paper's class
lists all settings; code for settings that are not part of the paper's algorithm stays out of its file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

from fedarena.config.errors import BadValue, quoted
from fedarena.config.registry import register_variant

Variant = TypeVar("Variant", bound=type)


class SelectsVariant:
    """A class whose constructor creates its variant where a setting has one of the values that select it."""

    _variant_class: ClassVar[type | None] = None
    _selected_by: ClassVar[dict[str, tuple[Any, ...]]] = {}

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Create an instance of the class, or of the variant that one of the settings selects."""
        variant = cls._variant_class
        if variant is None or issubclass(cls, variant):
            return super().__new__(cls)
        given = dict(zip(getattr(cls, "__match_args__", ()), args, strict=False)) | settings
        selecting = [key for key, values in cls._selected_by.items() if given.get(key, getattr(cls, key)) in values]
        if not selecting:
            return super().__new__(cls)
        if not issubclass(variant, cls):
            key = selecting[0]
            raise BadValue(
                f"{cls.__name__} has no code for {key} = {quoted(given.get(key, getattr(cls, key)))}",
                remedy=f"derive it from {variant.__module__}.{variant.__qualname__}",
                where=f"algorithm.{key}",
            )
        return super().__new__(variant)


def variant_of(paper: type[SelectsVariant], **selected_by: tuple[Any, ...]) -> Callable[[Variant], Variant]:
    """Decorate a subclass as the variant of `paper` that runs where a setting has one of these values.

    >>> from fedarena.algorithms import FedProx
    >>> type(FedProx(mu=0.1)).__name__, type(FedProx(mu=0.1, schedule="adaptive")).__name__
    ('FedProx', 'AdaptiveFedProx')
    """

    def select(variant: Variant) -> Variant:
        paper._variant_class, paper._selected_by = variant, selected_by
        register_variant(variant, paper)
        return variant

    return select


def variant_class(component: object) -> type | None:
    """Return the variant that the settings of a component may select, if its class has one."""
    return getattr(component, "_variant_class", None)
