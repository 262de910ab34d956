"""Methods that may decline: upon NotImplemented Python, or torch, asks the other operand."""

from typing import Any

from ..contract.model import Contract

_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or".split()
_OTHERS = "lt le eq ne gt ge length_hint subclasshook torch_function torch_dispatch array_ufunc array_function".split()
# https://docs.python.org/3/library/constants.html#NotImplemented
_DECLINES = frozenset(
    [f"__{way}{name}__" for name in _BINARY for way in ("", "r", "i")] + [f"__{n}__" for n in _OTHERS]
)


def declines(contract: Contract, values: tuple[Any, ...], result: Any) -> bool:
    """Whether a method returned NotImplemented that may do so, by its own name or by one that its class gives it."""
    if result is not NotImplemented:
        return False
    owner, _, name = contract.function.rpartition(".")
    classes = type(values[0]).__mro__ if values else ()
    given = (vars(cls).get(name) for cls in classes for name in _DECLINES)
    return bool(owner and name in _DECLINES) or any(
        getattr(method, "__dtypeguard__", (None, None))[1] is contract for method in given
    )
