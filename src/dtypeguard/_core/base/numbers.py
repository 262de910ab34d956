"""Random numbers of a tool's own: torch, Python and NumPy have one generator for the whole process.

Operations that draw are given another generator, and functions that draw or seed past torch's dispatcher are replaced,
in one thread. So what other threads draw meanwhile is what they would have drawn.
"""

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from .modes import Mode
from .patches import Patches

Mark = tuple[Any, Any, dict[torch.device, Tensor]]
_aten: Any = torch.ops.aten
_STATES = ("manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state")
_current: ContextVar["Numbers | None"] = ContextVar("dtypeguard.numbers", default=None)


class Numbers:
    """Generators of one tool; in `here`, Python's and NumPy's functions draw from them, and torch's seed them."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._torch: dict[torch.device, torch.Generator | None] = {}
        self._python = random.Random(0)
        numpy: Any = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.RandomState(0)
        self._number = 0

    @classmethod
    def taken(cls, device: torch.device) -> "Numbers":
        """Numbers that go on from those of the process, which stay where they are."""
        numbers = cls()
        numbers._cpu.set_state(torch.get_rng_state())
        other = numbers.generator(device)
        if other is not None and device.type != "cpu":
            other.set_state(torch.get_device_module(device).get_rng_state(device))
        numbers._python.setstate(random.getstate())
        if numbers._numpy is not None:
            numbers._numpy.set_state(sys.modules["numpy"].random.get_state())
        return numbers

    def mark(self) -> Mark:
        """Where they are."""
        numpy = None if self._numpy is None else self._numpy.get_state()
        torchs = {device: one.get_state() for device, one in self._torch.items() if one is not None}
        return self._python.getstate(), numpy, torchs

    def back(self, mark: Mark) -> None:
        """Go back to where they were."""
        python, numpy, torchs = mark
        self._python.setstate(python)
        if numpy is not None and self._numpy is not None:
            self._numpy.set_state(numpy)
        for device, state in torchs.items():
            generator = self.generator(device)
            assert generator is not None
            generator.set_state(state)

    def seed(self, number: int) -> None:
        """The same numbers from here on."""
        self._number = number
        self._python.seed(number)
        if self._numpy is not None:
            self._numpy.seed(number)
        for generator in self._torch.values():
            if generator is not None:
                generator.manual_seed(number)

    def generator(self, device: torch.device) -> torch.Generator | None:
        """The one for a device; None where there is none, as on meta."""
        if device not in self._torch:
            try:
                self._torch[device] = torch.Generator(device).manual_seed(self._number)
            except RuntimeError:
                self._torch[device] = None
        return self._torch[device]

    @contextlib.contextmanager
    def here(self) -> Iterator[Patches]:
        """In here, and in this thread, these are drawn; by operations where `Seeded` or another mode asks `drawn`.

        It gives the patches, for others that are needed where the same is run.
        """
        before = _current.get()
        with self._patches.for_a_block() as patches:
            try:
                _current.set(self)
                for name in _STATES:
                    for owner in (torch, torch.random):
                        patches.instead(owner, name, getattr(self, f"_{name}"))
                generators: dict[str, Any] = {"random": self._python, "numpy.random": self._numpy}
                for module, own in generators.items():
                    if own is not None:
                        for name in _methods_of_generator(module):
                            patches.instead(sys.modules[module], name, _of(getattr(own, name)))
                patches.eager()
                patches.subclasses()
                patches.enter_thread()
                yield patches
            finally:
                _current.set(before)

    # ------------------------------------------------------------ functions of torch

    def _manual_seed(self, following: Any, seed: Any) -> torch.Generator:
        self.seed(int(seed) % (1 << 32))
        return self._cpu.manual_seed(int(seed))

    def _seed(self, following: Any) -> int:
        return self._cpu.seed()

    def _initial_seed(self, following: Any) -> int:
        return self._cpu.initial_seed()

    def _get_rng_state(self, following: Any) -> Tensor:
        return self._cpu.get_state()

    def _set_rng_state(self, following: Any, state: Tensor) -> None:
        self._cpu.set_state(state)

    @property
    def _cpu(self) -> torch.Generator:
        generator = self.generator(torch.device("cpu"))
        assert generator is not None
        return generator

    # ------------------------------------------------------------ operations

    def draw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an operation, which draws from these generators if it draws."""
        way = _way(func)
        if way is None:
            return func(*args, **kwargs)
        device = next((value.device for value in args if isinstance(value, Tensor)), None)
        generator = self.generator(torch.device(device or kwargs.get("device") or "cpu"))
        return func(*args, **kwargs) if generator is None else way(args, kwargs, generator)


def drawn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operation, which draws from the numbers of the tool that runs in this thread, if one does."""
    numbers = _current.get()
    return func(*args, **kwargs) if numbers is None else numbers.draw(func, args, kwargs)


def seed(number: int) -> None:
    """The numbers of the tool that runs in this thread begin anew."""
    numbers = _current.get()
    if numbers is not None:
        numbers.seed(number)


def _of(method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda following, *args, **kwargs: method(*args, **kwargs)


@functools.cache
def _methods_of_generator(module: str) -> tuple[str, ...]:
    """The functions of a module that are methods of its one generator."""
    owner: Any = sys.modules[module]
    kinds = owner.Random if module == "random" else owner.RandomState
    methods = (name for name in owner.__all__ if isinstance(getattr(getattr(owner, name), "__self__", None), kinds))
    return tuple(dict.fromkeys(("seed", *methods)))


# ---------------------------------------------------------------- operations that draw

_Way = Callable[[tuple[Any, ...], dict[str, Any], torch.Generator], Any]


@functools.cache
def _way(func: Any) -> _Way | None:
    """How an operation is called with a generator; None if it draws nothing, or takes none (fused kernels of CUDA)."""
    if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):  # operators of higher order have none
        return None
    for other in (func, *_with_generator(func)):
        names = [argument.name for argument in other._schema.arguments]
        if "generator" in names:
            place = names.index("generator")
            keyword = other._schema.arguments[place].kwarg_only
            return functools.partial(_give, other, None if keyword else place)
    return _WAYS.get(func.overloadpacket)


def _with_generator(func: Any) -> Iterator[Any]:
    """The overload of an operation that takes one more argument."""
    own = func._overloadname
    for name in ("generator" if own == "default" else f"{own}_generator", own.replace("out", "generator_out")):
        if name in func.overloadpacket.overloads():
            yield getattr(func.overloadpacket, name)


def _give(
    func: Any, place: int | None, args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator
) -> Any:
    if place is None or len(args) <= place:
        return func(*args, **{**kwargs, "generator": kwargs.get("generator") or generator})
    return func(*args[:place], args[place] or generator, *args[place + 1 :], **kwargs)


def _dropout(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> Any:
    """As torch's own kernel for the CPU computes it."""
    given: Any = (*args, None)
    source, share, train = given[:3]
    if train is False or not source.numel():
        return _aten.native_dropout.default(*args, **kwargs)
    mask = torch.empty(source.shape, dtype=torch.bool, device=source.device).bernoulli_(1 - share, generator=generator)
    return (source * mask).mul_(1 / (1 - share) if share < 1 else 0.0), mask


def _like(fill: Callable[..., Any]) -> _Way:
    def made(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> Any:
        return fill(torch.empty_like(args[0], **kwargs), *args[1:], generator=generator)

    return made


_WAYS: dict[Any, _Way] = {
    _aten.native_dropout: _dropout,
    _aten.rand_like: _like(Tensor.uniform_),
    _aten.randn_like: _like(Tensor.normal_),
    _aten.randint_like: _like(lambda out, *bounds, generator: out.random_(*(0, *bounds)[-2:], generator=generator)),
}


class Seeded(Mode):
    """Operations draw from the numbers of the tool that runs in this thread."""

    computes = True  # what a guard asks, which looks at values only where they are computed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return drawn(func, args, kwargs or {})
