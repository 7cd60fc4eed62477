"""The component that an experiment selects, from a name with settings or from an object, and its text form."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar, Literal

import numpy as np

from fedarena.config.errors import BadValue, quoted
from fedarena.config.limits import check_path
from fedarena.config.registry import Entry, Kind, components, find, name_of, registered_class

Part = Kind | Literal["loss"]  # a part of an experiment that may be an object from Python
NEEDED: dict[Kind, str] = {  # the method that an object of each kind must have
    "dataset": "load",
    "partition": "split",
    "algorithm": "client",
    "model": "__call__",
    "selection": "select",
    "attack": "updates",
}
PATHS = ("path", "test_path", "table")  # settings that are paths of files


@dataclass(frozen=True)
class Component:
    """A selected component: its name and settings, which can be written as text, and the object itself."""

    kind: Part
    name: str
    settings: dict[str, Any]
    made: Any = dataclasses.field(compare=False, repr=False)
    own: bool = False  # an object from Python that cannot be written as text

    @classmethod
    def choose(cls, kind: Kind, choice: Any, where: str) -> Component:
        """Make a component from a name, from a table with a name, or from the object itself."""
        if isinstance(choice, cls):
            return choice
        if isinstance(choice, str):
            choice = {"name": choice}
        if isinstance(choice, Mapping):
            apart = ("name", "with") if kind == "algorithm" else ("name",)
            settings = {str(k): v for k, v in choice.items() if k not in apart}
            name = choice.get("name")
            if not isinstance(name, str):
                raise BadValue(
                    f"{kind} without a name", remedy=f'write name = "..."; see `fedarena list {kind}s`', where=where
                )
            entry = find(kind, name, f"{where}.name")
            made = entry.build(settings, where)
            if kind == "dataset" and not all(map(_plain, settings.values())):  # a DataFrame
                return cls._own(kind, made)
            chosen = cls(kind, name, _anchored(_complete(entry, made, settings), where), made)
            return chosen._with(choice.get("with", ()), where) if kind == "algorithm" else chosen
        return cls._own(kind, choice)

    @classmethod
    def of_loss(cls, function: Any) -> Component:
        """Make the loss of an experiment from a function of (module, batch, context)."""
        try:
            inspect.signature(getattr(function, "forward", function)).bind(None, None, None)  # of a module, its forward
        except (TypeError, ValueError):
            raise BadValue(
                f"the loss {quoted(name_of(function))} does not take three arguments",
                remedy="give a function of (module, batch, context) that returns the mean loss of the batch",
                where="loss",
            ) from None
        return cls("loss", name_of(function), {}, function, own=True)

    @classmethod
    def not_given(cls, kind: Part, table: Mapping[str, Any], **traits: bool) -> Component:
        """Return a component that came from Python and is known by its name and settings only, so results can be shown."""
        settings = {key: value for key, value in table.items() if key not in ("name", "own")}
        return cls(kind, str(table["name"]), settings, NotGiven(kind, str(table["name"]), **traits), own=True)

    @property
    def title(self) -> str:
        """Return the name for readers; for a data set that is read from a file, the name of the file."""
        return title_of(self.name, self.settings)

    def _with(self, companions: Any, where: str) -> Component:
        """Return the algorithm inside its companions: `with = ["fedir", { name = "fedvc", n_vc = 64 }]`."""
        made, settings = self.made, []
        listed = [companions] if isinstance(companions, str | Mapping) else companions
        if not isinstance(listed, list | tuple) or not all(isinstance(one, str | Mapping) for one in listed):
            raise BadValue(
                f"with = {quoted(companions)}",
                remedy='give names or tables with a name: with = ["fedir", { name = "fedvc", n_vc = 64 }]',
                where=f"{where}.with",
            )
        for companion in listed:
            table = {"name": companion} if isinstance(companion, str) else dict(companion)
            entry = find("algorithm", str(table.pop("name", "")), f"{where}.with")
            if not entry.is_companion:
                raise BadValue(
                    f"'{entry.name}' is an algorithm by itself, not a companion of '{self.name}'",
                    remedy="companions are: "
                    + ", ".join(n for n, e in components("algorithm").items() if e.is_companion),
                    where=f"{where}.with",
                )
            made = dataclasses.replace(entry.build(table, f"{where}.with"), base=made)
            settings.append({"name": entry.name, **{k: v for k, v in _fields(made).items() if k != "base"}})
        return dataclasses.replace(
            self, settings={**self.settings, **({"with": settings} if settings else {})}, made=made
        )

    @classmethod
    def _own(cls, kind: Kind, made: Any) -> Component:
        needed = NEEDED[kind]
        if not callable(getattr(made, needed, None)) or (isinstance(made, type) and kind != "model"):
            shown = f"the class {made.__name__}" if isinstance(made, type) else quoted(made)
            raise BadValue(
                f"{shown} is not a valid {kind}",
                remedy=f"give a name of `fedarena list {kind}s`, a table with a name, or an object with a method {needed}",
                where=kind,
            )
        if kind == "algorithm" and getattr(made, "base", None) is not None:
            inside = cls._own(kind, made.base)
            around = {"name": name_of(made), **{k: v for k, v in _fields(made).items() if k != "base"}}
            settings = {**inside.settings, "with": [*inside.settings.get("with", []), around]}
            return dataclasses.replace(inside, settings=settings, made=made)
        name = name_of(made)
        registered = components(kind).get(name)
        is_registered = registered is not None and registered.make in (made, registered_class(made))
        settings = _fields(made)
        if registered is not None and is_registered and settings:
            registered.check(settings, kind)  # an object's values have the same ranges as a file's
        printable = all(_plain(v) for v in settings.values())
        return cls(
            kind,
            name,
            _anchored({k: v for k, v in settings.items() if _plain(v)}, "data" if kind == "dataset" else kind),
            made,
            not (is_registered and printable),
        )


@dataclass(frozen=True)
class NotGiven:
    """The object of a component that came from Python, where only its results are known; using it raises an error."""

    kind: Part
    name: str
    communicates: bool = True  # of an algorithm, as for the next ones
    personal: bool = False
    pooled: bool = False
    own_rounds: int | None = None
    defaults: ClassVar[dict[str, Any]] = {}  # of a data set

    def __call__(self, *arguments: Any) -> Any:
        raise self._error

    def settled(self, setting: Any) -> NotGiven:
        """Return an algorithm as it is: a trained model can be opened without the one that trained it."""
        return self

    def check(self, setting: Any) -> None:
        """Accept every setting: the run has ended."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "base":
            raise AttributeError(name)
        raise self._error

    @property
    def _error(self) -> BadValue:
        key = "data" if self.kind == "dataset" else self.kind
        return BadValue(
            f"the {key} of this run ('{quoted(self.name)}') came from Python, and no file can restore it",
            remedy=f"give it again: fa.load(..., {key}=...), fa.verify(..., {key}=...) or fa.run(..., resume=...)",
        )


def is_from_python(table: Any) -> bool:
    """Return whether the recorded table of a component marks one that came from Python, which no file can bring back.

    >>> is_from_python({"name": "mine", "own": True}), is_from_python({"name": "fedper", "own": ["head"]})
    (True, False)
    """
    return isinstance(table, Mapping) and table.get("own") is True


def _anchored(settings: dict[str, Any], where: str) -> dict[str, Any]:
    """Make paths absolute: a run may be repeated from another folder."""

    def absolute(path: str) -> str:
        return str(check_path(path, f"{where}.path").absolute())

    return {k: each_path(v, absolute) if k in PATHS else v for k, v in settings.items()}


def each_path(value: Any, change: Callable[[str], str]) -> Any:
    """Return a setting that is one path or a list of paths with each path changed; other values stay as they are."""
    if isinstance(value, list | tuple):
        return tuple(each_path(one, change) for one in value)
    return change(value) if isinstance(value, str) else value


def _complete(entry: Entry, made: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    if dataclasses.is_dataclass(made):
        return {k: v for k, v in _fields(made).items() if k != "base"}
    defaults = {p.name: p.default for p in entry.parameters.values()}
    return {**defaults, **entry.check(settings)}


def component_settings(made: Any) -> dict[str, Any]:
    """Return the settings of a component that can be written as text."""
    return {k: v for k, v in _fields(made).items() if _plain(v)}


def _fields(made: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(made) or isinstance(made, type):
        return {}
    values = {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in values.items()}  # np.float64(0.1) prints as 0.1


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_plain(v) for v in value)
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _plain(v) for k, v in value.items())
    return value is None or isinstance(value, str | bool | int | float)


def title_of(name: str, settings: Mapping[str, Any]) -> str:
    """Return the name of a component for readers; of a file, its name without folders.

    >>> title_of("csv", {"path": "/home/me/patients.csv"}), title_of("digits", {})
    ('patients.csv', 'digits')
    >>> title_of("csv", {"path": ("a.csv", "b.csv", "c.csv")})
    'a.csv and 2 more files'
    """
    path = settings.get("path")
    if isinstance(path, list | tuple) and path:
        more = len(path) - 1
        return PurePath(path[0]).name + (f" and {more} more file{'s' * (more > 1)}" if more else "")
    file = PurePath(str(path or ""))
    return file.name if file.suffix else name


def without_folders(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with file names in place of paths: a shared page must not reveal folders of this machine."""
    return {k: each_path(v, lambda path: PurePath(path).name) if k in PATHS else v for k, v in settings.items()}
