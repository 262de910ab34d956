"""Containers are rebuilt for casts; what the body changes in one is changed in the caller's too: all or nothing."""

import copy
import dataclasses
import functools
from collections import OrderedDict, UserDict, deque
from typing import Any

import torch

from ..check.state import CallState
from ..contract.containers import children
from ..contract.model import Path, PathStep, written

Items = list[tuple[Any, Any]]


class Rebuilt:
    """A container that was rebuilt for a cast: the caller's own, the copy that the body got, and what was in both."""

    def __init__(self, path: Path, kind: Path, original: Any, twin: Any) -> None:
        self.argument, self.kind, self.original, self.twin = written(path), kind, original, twin
        self._items, self._attributes = _items(twin), _attributes(twin)
        items, attributes = dict(_items(original)), _attributes(original)
        pairs = [(ours, items.get(key, ours)) for key, ours in self._items]
        pairs += [(ours, attributes.get(name, ours)) for name, ours in self._attributes.items()]
        self._own = {id(ours): theirs for ours, theirs in pairs if ours is not theirs}

    def changed(self) -> bool:
        """Whether the body has changed the copy."""
        items, attributes = _items(self.twin), _attributes(self.twin)
        now, then = [*items, *attributes.items()], [*self._items, *self._attributes.items()]
        same = len(items) == len(self._items) and len(now) == len(then)
        return not same or any(a != b or x is not y for (a, x), (b, y) in zip(now, then, strict=True))

    def replay(self) -> Exception | None:
        """Do the same to the caller's own; what stands where our copy of something stood is the caller's again.

        Only what differs is touched. A class that refuses any of it (a Hugging Face `ModelOutput` deletes nothing)
        has refused it of a copy, so the caller's own is as it was; its exception is returned.
        """
        try:
            for value in (_copied(self.original), self.original):
                self._change(value)
        except Exception as error:
            return error
        return None

    def _change(self, value: Any) -> None:
        own = self._own
        _store(value, [(key, own.get(id(item), item)) for key, item in _items(self.twin)])
        attributes = _attributes(self.twin)
        for name in self._attributes.keys() - attributes.keys():
            object.__delattr__(value, name)
        for name, item in attributes.items():  # of frozen dataclasses too
            if name not in self._attributes or item is not self._attributes[name]:
                object.__setattr__(value, name, own.get(id(item), item))


def _items(value: Any) -> Items:
    if isinstance(value, (dict, UserDict)):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, (list, deque)) else []


def _attributes(value: Any) -> dict[str, Any]:
    cached = functools.cached_property  # what it leaves behind is no change
    names: Any = getattr(value, "__dict__", {})
    attributes = {n: item for n, item in names.items() if not isinstance(getattr(type(value), n, None), cached)}
    if isinstance(value, UserDict):
        attributes.pop("data", None)  # the items
    if dataclasses.is_dataclass(value):  # it may have slots
        attributes |= {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)}
    return attributes


def _store(original: Any, new: Items) -> None:
    old, stay = _items(original), 0
    if isinstance(original, (dict, UserDict)):
        while stay < min(len(old), len(new)) and old[stay][0] == new[stay][0]:
            stay += 1
        for key, _ in old[stay:]:  # from the first key on that has another place they are put in anew
            del original[key]
    elif isinstance(original, (list, deque)):
        stay = min(len(old), len(new))
        while len(original) > stay:
            original.pop()
        original.extend(item for _, item in new[stay:])
        new = new[:stay]
    for n, (key, item) in enumerate(new):
        if n >= stay or item is not old[n][1]:
            original[key] = item


# What a class of the user's may derive from: the methods of these put things in, whatever the class itself forbids.
_KINDS: tuple[Any, ...] = (OrderedDict, dict, list, deque, object)


def _kind(value: Any) -> Any:
    return next(kind for kind in _KINDS if isinstance(value, kind))


def rebuild(value: Any, new: dict[PathStep, Any]) -> Any:
    """A container of the same class with other items or fields."""
    changes: dict[Any, Any] = {key: item for (_, key), item in new.items()}
    if hasattr(value, "_fields"):
        return value._replace(**changes)
    if isinstance(value, tuple):
        items = [changes.get(i, item) for i, item in enumerate(value)]
        return tuple(items) if type(value) is tuple else type(value)(items)
    if type(value) in (dict, list):  # a copy of these is C code, which Dynamo cannot trace
        rebuilt: Any = {**value} if type(value) is dict else [*value]
    else:
        rebuilt = _copied(value)
    for (kind, key), item in new.items():
        if kind == "item" or isinstance(rebuilt, dict):
            _set_item(rebuilt, key, item)
        if kind == "attr":  # frozen dataclasses too, and no __init__ or __post_init__ a second time
            object.__setattr__(rebuilt, key, item)
    return rebuilt


def _copied(value: Any) -> Any:
    """A shallow copy, of a class too that forbids what `copy.copy` does, or gives itself for a copy."""
    try:
        twin = copy.copy(value)
        if twin is not value:
            return twin
    except Exception:
        twin = value
    kind = _kind(value)
    twin = kind.__new__(type(value))
    for name, item in {**_attributes(value), **getattr(value, "__dict__", {})}.items():
        object.__setattr__(twin, name, copy.copy(item) if isinstance(value, UserDict) and name == "data" else item)
    for key, item in [] if isinstance(value, UserDict) else _items(value):
        if issubclass(kind, dict):
            kind.__setitem__(twin, key, item)
        else:
            kind.append(twin, item)
    return twin


def _set_item(twin: Any, key: Any, item: Any) -> None:
    """Set an item of a copy that is ours, whose class may be frozen."""
    try:
        twin[key] = item
    except Exception:
        store = twin.data if isinstance(twin, UserDict) else twin
        _kind(store).__setitem__(store, key, item)


# ---------------------------------------------------------------- of one call


def with_leaves(call: CallState, value: Any, path: Path, replaced: dict[Path, Any], ways: dict[Path, Path]) -> Any:
    """The value with its repaired leaves; a container is rebuilt only if something in it was."""
    if path in replaced:
        return replaced[path]
    new = {
        step: with_leaves(call, child, (*path, step), replaced, ways)
        for step, child in children(value) or ()
        if (*path, step) in ways
    }
    if not new:
        return value
    # One container passed twice is rebuilt once; Dynamo knows no identity of containers.
    for original, known, twin in () if torch.compiler.is_compiling() else call.twins:
        if original is value and list(known) == list(new) and all(known[step] is new[step] for step in new):
            return twin
    rebuilt = rebuild(value, new)
    call.twins.append((value, new, rebuilt))
    if not isinstance(rebuilt, tuple) and not torch.compiler.is_compiling():
        call.rebuilt.append(Rebuilt(path, ways[path], value, rebuilt))
    return rebuilt
