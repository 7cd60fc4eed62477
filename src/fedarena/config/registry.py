"""The registry of components. Registered names appear in `fedarena list`, in TOML files and on the command line.

A component is a frozen dataclass or a function; its keyword parameters are its settings. Add one in a file of your own:

    @register("partition", "halves")
    @dataclass(frozen=True)
    class Halves:
        "Two clients, one half each."
        ...

or, in a package, by an entry point in the group `fedarena.partitions`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_type_hints

from fedarena.config.errors import BadValue, UnknownName, check_known, quoted, repeated, suggest
from fedarena.config.limits import check_path, check_value

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Kind = Literal["algorithm", "partition", "model", "dataset", "selection", "attack"]

_BUILT_IN: dict[str, str] = {
    "algorithm": "fedarena.algorithms",
    "partition": "fedarena.data.partitions",
    "model": "fedarena.models.zoo",
    "dataset": "fedarena.data.sources",
    "selection": "fedarena.selection_rules",
    "attack": "fedarena.attacks",
}
_entries: dict[str, dict[str, Entry]] = {kind: {} for kind in _BUILT_IN}
T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Parameter:
    """A setting of a component: its type with its range, and its default (`required` where there is none)."""

    name: str
    type: str
    default: Any
    annotation: Any

    @property
    def is_required(self) -> bool:
        """Whether a value must be given."""
        return self.default is inspect.Parameter.empty

    @functools.cached_property
    def validator(self) -> TypeAdapter[Any]:
        """The check and conversion of values, which takes longer to build than to use."""
        from pydantic import ConfigDict, TypeAdapter

        return TypeAdapter(self.annotation, config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))


@dataclass(frozen=True)
class Entry:
    """A component under its registered name."""

    kind: Kind
    name: str
    make: Callable[..., Any]
    paper: str

    @property
    def summary(self) -> str:
        """Return the first paragraph of the docstring as one line."""
        return " ".join((inspect.getdoc(self.make) or "").split("\n\n")[0].split())

    @functools.cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Return the settings by name. The first two arguments of a model (shape, classes) come from the data."""
        hints = get_type_hints(self.make, include_extras=True)
        return {
            p.name: Parameter(p.name, _type_text(hints.get(p.name, Any)), p.default, hints.get(p.name, Any))
            for p in inspect.signature(self.make).parameters.values()
            if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
            and not (self.kind == "model" and p.name in ("shape", "classes"))
            and not dataclasses.is_dataclass(hints.get(p.name))  # the algorithm inside a companion, which `with` sets
        }

    @property
    def is_companion(self) -> bool:
        """Whether it wraps another component of its kind."""
        return inspect.isclass(self.make) and "base" in getattr(self.make, "__dataclass_fields__", {})

    def build(self, settings: Mapping[str, Any], where: str = "") -> Any:
        """Build the component with these settings; the name, type and range of each are checked."""
        values = self.check(settings, where)
        return functools.partial(self.make, **values) if self.kind == "model" else self.make(**values)

    def check(self, settings: Mapping[str, Any], where: str = "") -> dict[str, Any]:
        """Return the settings converted to their types; raise an error with the place for unknown, missing or wrong ones."""
        from pydantic import ValidationError

        values, renamed = {}, getattr(self.make, "renamed", {})
        for key, value in settings.items():
            key = renamed.get(key, key)
            key = f"{key}_" if f"{key}_" in self.parameters else key  # lambda is no name in Python
            at = f"{where}.{quoted(key)}" if where else quoted(key)
            what, known = f"{self.kind} '{self.name}' has no setting '{quoted(key)}'", ", ".join(self.parameters)
            check_known(key, self.parameters, what, f"it has: {known or 'none'}", at)
            annotation = self.parameters[key].annotation
            if annotation is not Any:  # arrays of the user have no limits
                check_value(key, value, at)
            if isinstance(value, str) and annotation in (tuple[str, ...], tuple[str, ...] | None):
                value = (value,)  # one name is a list of one
            try:
                values[key] = self.parameters[key].validator.validate_python(value)
            except ValidationError as error:
                problem = quoted(error.errors()[0]["msg"])
                raise BadValue(
                    f"{key} = {repeated(value)} does not fit {self.kind} '{self.name}': {problem}",
                    remedy=f"give {self.parameters[key].type}",
                    where=at,
                ) from None
        for parameter in self.parameters.values():
            if parameter.is_required and parameter.name not in values:
                raise BadValue(
                    f"{self.kind} '{self.name}' needs a value for '{parameter.name}'",
                    remedy=f"add {parameter.name} = ...  ({parameter.type})",
                    where=where,
                )
        return values

    def describe(self) -> dict[str, Any]:
        """Return the entry as `fedarena list --json` prints it."""
        return {
            "name": self.name,
            "summary": self.summary,
            "paper": self.paper,
            "parameters": [
                {"name": p.name, "type": p.type, "default": None if p.is_required else p.default}
                for p in self.parameters.values()
            ],
        }


def register(kind: Kind, name: str, *, paper: str = "") -> Callable[[T], T]:
    """Decorate a class or function to register it under a name. A second registration of a name replaces the first.

    >>> import fedarena as fa
    >>> @fa.register("model", "two_layers")
    ... def two_layers(shape, classes, width=8):
    ...     import torch
    ...     return torch.nn.Sequential(torch.nn.Linear(shape[0], width), torch.nn.ReLU(), torch.nn.Linear(width, classes))
    >>> fa.run("wine", model="two_layers", rounds=2, out=False).experiment.model.name
    'two_layers'
    """

    def add(make: T) -> T:
        _entries[kind][name] = Entry(kind, name, make, paper)
        make.registered_name = name  # type: ignore[attr-defined]
        return make

    return add


def register_variant(variant: type, registered: type) -> None:
    """Register a subclass under the name of the registered class whose constructor may create it."""
    variant.registered_name = name_of(registered)  # type: ignore[attr-defined]
    variant.registered_class = registered  # type: ignore[attr-defined]


def adopt(entries: Iterable[Entry]) -> None:
    """Add the components of another process that are not registered in this one."""
    for entry in entries:
        if entry.name not in components(entry.kind):
            _entries[entry.kind][entry.name] = entry


def components(kind: Kind) -> dict[str, Entry]:
    """Return all components of a kind by name: built in, registered by the user, and those of installed packages."""
    _load(kind)
    return dict(_entries[kind])


def find(kind: Kind, name: str, where: str = "") -> Entry:
    """Return the component of this name; raise `UnknownName` with the nearest name, or with all, if there is none."""
    known = components(kind)
    if name not in known:
        mine = "give --file FILE.py if it is yours"
        all_of_them = f"choose one of {', '.join(sorted(known))}; {mine}"
        near = suggest(name, known, "")
        remedy = f"{near}`fedarena list {kind}s` shows them all; {mine}" if near else all_of_them
        raise UnknownName(f"no {kind} is called '{quoted(name)}'", remedy=remedy, where=where)
    return known[name]


def name_of(component: object) -> str:
    """Return the name under which a component or its class was registered, else the name of the class."""
    target = component if inspect.isclass(component) or inspect.isroutine(component) else type(component)
    return str(getattr(target, "__dict__", {}).get("registered_name", getattr(target, "__name__", "?")))


def registered_class(component: object) -> type:
    """Return the class under which a component was registered, also where it is a variant of that class."""
    cls: type = vars(type(component)).get("registered_class", type(component))
    return cls


def load_file(file: Path) -> None:
    """Run a Python file of the user that registers components; worker processes receive them by value."""
    import cloudpickle

    check_path(file, "--file")
    name = f"_file_{file.stem}"  # not its own name, so that an `import` of the same file elsewhere loads it again
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.exists():
        raise BadValue(f"cannot import {file}", remedy="give a Python file that registers a component", where="--file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadValue(
            f"{file} fails: {type(error).__name__}: {quoted(str(error))}", remedy="fix the file", where="--file"
        ) from error
    cloudpickle.register_pickle_by_value(module)


@functools.cache
def _load(kind: Kind) -> None:
    package = importlib.import_module(_BUILT_IN[kind])
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    for point in entry_points(group=f"fedarena.{kind}s"):
        if point.name in _entries[kind]:
            warnings.warn(f"the {kind} '{point.name}' of {point.value} is not used: that name is taken", stacklevel=2)
            continue
        try:
            register(kind, point.name)(point.load())
        except Exception as error:  # a broken package must not prevent the use of the others
            warnings.warn(f"the {kind} '{point.name}' cannot be loaded from {point.value}: {error}", stacklevel=2)


def _type_text(annotation: Any) -> str:
    """Return a type for readers: `Annotated[float, Gt(0)]` as float > 0, `Literal["a", "b"]` as a | b."""
    import types
    import typing

    if typing.get_origin(annotation) is typing.Annotated:
        base, *marks = get_args(annotation)
        signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
        limits = [f"{signs[a]} {getattr(m, a)}" for m in marks for a in signs if getattr(m, a, None) is not None]
        return " ".join([_type_text(base), " and ".join(limits)]).strip()
    if typing.get_origin(annotation) is Literal:
        return " | ".join(str(a) for a in get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join("none" if a is type(None) else _type_text(a) for a in get_args(annotation))
    if typing.get_origin(annotation) is not None:
        return str(annotation).replace("typing.", "")
    return getattr(annotation, "__name__", str(annotation))
