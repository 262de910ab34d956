"""What hypothesis runs when it is imported: `st.from_type` and `st.builds` learn jaxtyping's annotations.

hypothesis loads it wherever it is used: neither torch nor more of dtypeguard is imported
before a test asks for an array.
"""

import contextlib
import importlib
import logging
import sys
from typing import Any


def register() -> None:
    """Give hypothesis a resolver for jaxtyping annotations, and a printer for tensors.

    The public `register_type_strategy` takes one class at a time, but each subscription makes a new one. So this is the
    one place that knows how hypothesis finds strategies for the types of other packages, and looks before it writes.
    """
    lookup = getattr(_module("hypothesis.strategies._internal.types"), "_global_extra_lookup", None)
    if isinstance(lookup, dict):
        lookup.update(jaxtyping=_strategy_for, torch=_strategy_for)  # asked for where that module is loaded
    else:  # said, but in no test's way
        logging.getLogger("dtypeguard").warning(
            "this version of hypothesis cannot be taught jaxtyping's annotations: "
            "write dtypeguard.testing.tensors(annotation) for st.from_type(annotation)"
        )
    by_name: Any = getattr(_module("hypothesis.vendor.pretty"), "for_type_by_name", lambda *printer: None)
    by_name("torch", "Tensor", _print)
    by_name("torch.nn.parameter", "Parameter", _print)
    by_name("inspect", "BoundArguments", _print_arguments)


def _module(name: str) -> Any:
    """A private module of hypothesis, or None: an error here would be one of `import hypothesis`."""
    with contextlib.suppress(ImportError):
        return importlib.import_module(name)
    return None


def _strategy_for(thing: Any) -> Any:
    """The strategy for an annotation of tensors or ndarrays, or for a class of torch; None for what is not ours."""
    if not isinstance(thing, type):
        return None
    arrays = getattr(sys.modules.get("jaxtyping"), "AbstractArray", ())
    ours = _name(thing) in _CLASSES
    if issubclass(thing, arrays):
        kind: Any = thing.array_type  # type: ignore[attr-defined]  # of jaxtyping's class
        ours = kind is Any or any(_name(base) in _ARRAYS for base in getattr(kind, "__mro__", ()))
    if not ours:
        return None
    from dtypeguard.testing._inputs import from_type

    return from_type(thing)


_ARRAYS = {"torch.Tensor", "numpy.ndarray"}
_CLASSES = {
    f"torch.{name}"
    for name in ("Tensor", "nn.parameter.Parameter", "dtype", "device", "layout", "memory_format", "Size", "Generator")
}


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _print(tensor: Any, printer: Any, cycle: bool) -> None:
    """As torch does, with the strides where they are odd; in short where torch cannot."""
    text, strides = None, ""
    with contextlib.suppress(Exception):  # of uninitialized parameters, of subclasses
        strides = "" if tensor.is_contiguous() else f"strides={tensor.stride()}"
    with contextlib.suppress(Exception):  # torch cannot read what is in the bits and some quantized dtypes
        text = repr(tensor)
    if text is None:
        from dtypeguard._core.base.errors import summary

        text = f"({summary(tensor)})"
    printer.text(f"{text.removesuffix(')')}, {strides})" if strides and text.endswith(")") else text)


def _print_arguments(bound: Any, printer: Any, cycle: bool) -> None:
    """As inspect does, but with its tensors as above."""
    printer.text("<BoundArguments (")
    for n, (name, value) in enumerate(bound.arguments.items()):
        printer.text(f"{', ' if n else ''}{name}=")
        printer.pretty(value)
    printer.text(")>")
