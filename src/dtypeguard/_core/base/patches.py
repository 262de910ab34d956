"""Functions that are replaced while anybody listens.

At each place stands one replacement, however many listen: the first listener sets it, the last one puts back what was
there. It asks whether anybody listens in this thread, and otherwise calls the original: other threads notice nothing.
"""

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ClassMethodDescriptorType, ModuleType
from typing import Any, Self

import torch

from . import private, warned
from .compiler import seen_through, unseen

_jit: Any = torch.jit  # which torch leaves untyped
_builtins: Any = _jit._builtins
_lock = threading.RLock()
# `warnings.warn(stacklevel=2)` does not count frames of files with both words in their names.
_FILE = "<dtypeguard hands on, as importlib _bootstrap>"
Make = Callable[[Any], Any]  # of what is called next, what is called before it
# What is not known of a thread that Python did not start (those of autograd, of process groups): each listener decides.
_FOREIGN: list["Patches | None"] = [None]


def to_the_end(*steps: Callable[[], object]) -> None:
    """Run each step, and once more one that Ctrl-C came into; what was raised first is raised after the last."""
    left, first = list(reversed(steps)), None
    while left:
        try:
            while left:
                left[-1]()
                left.pop()
        except BaseException as error:
            first = first or error
            if isinstance(error, Exception):
                left.pop()
    if first is not None:
        raise first


class Here(threading.local):
    """Who listens in this thread."""

    def __init__(self) -> None:
        self.foreign = private.is_foreign_thread()
        self.listeners: list[Patches | None] = _FOREIGN if self.foreign else []


here = Here()


@dataclass(eq=False)
class _Place:
    """An attribute that is replaced, or several that are one function.

    Attributes:
        homes: owner and name of each, and whether the owner inherits it.
        original: what stood there.
        inner: the same as a function.
        links: who listens, and how; the first is the innermost.
        chain: all of them around the original.
    """

    original: Any
    inner: Any
    replacement: Any = None
    chain: Any = None
    homes: list[tuple[Any, str, bool]] = field(default_factory=list)
    links: list[tuple["Patches", Make]] = field(default_factory=list)

    def join(self) -> None:
        chain = self.inner
        for _, make in self.links:
            chain = make(chain)
            unseen(chain)
        self.chain = chain

    def put_back(self) -> None:
        """Where somebody else replaced it meanwhile, and holds ours, ours stays and only hands on."""
        for home in list(self.homes):
            owner, name, inherited = home
            if vars(owner).get(name) is self.replacement:
                if inherited:
                    delattr(owner, name)
                else:
                    setattr(owner, name, self.original)
            if vars(owner).get(name) is (None if inherited else self.original):
                self.homes.remove(home)
        if not self.homes:
            _builtins._get_builtin_table().pop(id(self.replacement), None)
            for key in (id(self.replacement), id(self.original)):
                if _places.get(key) is self:
                    del _places[key]


_places: dict[int, _Place] = {}  # where ours stands, or is held; by ids of ours and of the original


def _replacement(place: _Place) -> Any:
    inner, threads = place.inner, here

    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if threads.listeners:
            return place.chain(*args, **kwargs)
        return inner(*args, **kwargs)

    # TorchScript compiles the source of what is wrapped, and looks for its names among the globals of what wraps.
    names = getattr(inner, "__globals__", globals())
    code = call.__code__.replace(co_name=getattr(inner, "__name__", "call"), co_filename=_FILE)
    made = functools.update_wrapper(types.FunctionType(code, names, None, None, call.__closure__), inner)
    unseen(made)
    seen_through(made, inner)
    if isinstance(place.original, classmethod | ClassMethodDescriptorType):  # C's, from torch 2.15 on
        return classmethod(made)
    unbound = isinstance(place.original, staticmethod) or getattr(inner, "__name__", "") == "__new__"
    return staticmethod(made) if unbound else made


def _place_of(owner: Any, name: str) -> _Place:
    """What stands at an attribute: ours, or from now on ours."""
    own = vars(owner)
    inherited = name not in own
    original = getattr(owner, name) if inherited else own[name]
    if not _places:
        private.gather_functions()
    place = _places.get(id(original))
    if place is not None and place.replacement is original:
        return place
    if place is None or not isinstance(owner, ModuleType):  # torch.from_dlpack stands in two places
        bare = isinstance(original, classmethod | staticmethod)
        place = _Place(original, original.__func__ if bare else original)
        place.replacement, place.chain = _replacement(place), place.inner
        _places[id(place.replacement)] = _places[id(original)] = place
        _pass_for(owner, name, place)
    place.homes.append((owner, name, inherited))
    setattr(owner, name, place.replacement)
    return place


def _pass_for(owner: Any, name: str, place: _Place) -> None:
    """A function written in C is found by TorchScript by its identity, and pickled by its name."""
    op = _builtins._find_builtin(place.original)
    if op is not None and isinstance(owner, ModuleType):
        _builtins._register_builtin(place.replacement, op)
        place.replacement.__module__, place.replacement.__qualname__ = owner.__name__, name


class Patches:
    """What one listener has replaced, and the threads in which it listens."""

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._threads: list[list[Patches | None]] = []
        self._eager = False
        self._warns = False

    def replace(self, owner: Any, name: str, make: Make) -> None:
        """Call `make(following)` in place of `owner.name`, where `following` is the original or another listener's."""
        with _lock:
            if not self._warns:
                self._warns = True
                warned.begin(self)
            place = _place_of(owner, name)
            if (self, make) not in place.links:
                self._places.append(place)
                place.links.append((self, make))
                place.join()

    def undo(self) -> None:
        """Listen no more, in no thread; the last one who listens at a place puts back what was there."""
        to_the_end(self._undo)

    def _undo(self) -> None:
        with _lock:
            for listeners in self._threads:
                while self in listeners:
                    listeners.remove(self)
            self._threads.clear()
            for place in reversed(self._places):
                place.links = [link for link in place.links if link[0] is not self]
                place.join()
            if self._warns:
                warned.end(self)
                self._warns = False
            self._places.clear()
            self._eager = False
            for place in [place for place in reversed(_places.values()) if not place.links]:
                place.put_back()

    @contextlib.contextmanager
    def for_a_block(self) -> Iterator[Self]:
        """What is replaced in here is put back at the end, even if Ctrl-C comes between two lines of that."""
        try:
            try:
                yield self
            finally:
                self.undo()
        finally:
            self.undo()

    # ------------------------------------------------------------ threads

    def enter_thread(self) -> None:
        """Listen in this thread."""
        if not here.foreign:
            with _lock:
                self._threads.append(here.listeners)
                here.listeners.append(self)

    def leave_thread(self) -> None:
        with _lock:
            if any(listeners is here.listeners for listeners in self._threads):
                while self in here.listeners:
                    here.listeners.remove(self)
                self._threads = [listeners for listeners in self._threads if listeners is not here.listeners]

    @property
    def listens_here(self) -> bool:
        """Whether the listener listens in this thread."""
        return self in here.listeners

    def instead(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """In threads in which the listener listens, call `function(following, ...)` in place of `owner.name`."""

        def make(following: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                return function(following, *args, **kwargs) if self.listens_here else following(*args, **kwargs)

            call.__name__ = getattr(following, "__name__", name)  # by which the next listener knows it
            return call

        self.replace(owner, name, make)

    def eager(self) -> None:
        """Let compiled functions run as written where a dispatch mode is on, in these threads.

        There torch compiles nothing, but refuses `fullgraph=True`, and it goes by flags of the process. Its stance
        "force_eager" does the same for all threads.
        """
        owner = None if self._eager else sys.modules.get("torch._dynamo.eval_frame")
        if owner is not None:  # once the program has imported it
            self._eager = True
            for name, function in _EAGER.items():
                if hasattr(owner, name):
                    self.instead(owner, name, function)

    def subclasses(self) -> None:
        """Let subclasses of Tensor be called where a dispatch mode is on, in these threads: `Labelled(x)`.

        Of a tensor that a mode has seen torch makes no subclass.
        """

        def new(following: Callable[..., Any], kind: type[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            with contextlib.nullcontext() if kind is torch.Tensor else private.no_dispatch():
                return following(kind, *args, **kwargs)

        self.instead(torch.Tensor, "__new__", new)


# Private functions of Dynamo's. Without the first, compiled functions are compiled; without the second, torch has none.
_EAGER: dict[str, Callable[..., Any]] = {
    "_callback_from_stance": lambda following, callback: None if private.dispatch_modes() else following(callback),
    # With `fullgraph=True` torch counts what it has compiled, and refuses if that is nothing.
    "set_fullgraph_compiled_frame_count": lambda following, count: (
        max(count, 0) if private.dispatch_modes() else following(count)
    ),
}
