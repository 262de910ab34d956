"""What dtypeguard is measured against, each used as its own documentation says."""

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import jaxtyping
import torch
from torch import Tensor

import dtypeguard

Function = Callable[..., Any]
OURS = "dtypeguard"
BEARTYPE = "jaxtyping + beartype"


@dataclass(frozen=True)
class Peer:
    """How a library writes `this dtype with these axes`, and its decorators, innermost first."""

    name: str
    annotation: Callable[..., Any]  # the axes, and a dtype by jaxtyping's name: Float32, Float
    decorators: tuple[Callable[[Function], Function], ...]
    top_level: bool = False  # it reads the source, and of that only functions and names of a module

    def decorate(self, function: Function) -> Function:
        for decorator in self.decorators:
            function = decorator(function)
        return function


def _jaxtyped(axes: str, dtype: str = "Float32") -> Any:
    return getattr(jaxtyping, dtype)[Tensor, axes]


def _dtypeguard() -> Peer:
    return Peer(OURS, _jaxtyped, (dtypeguard.enforce,))


def _beartype() -> Peer:
    from beartype import beartype
    from jaxtyping import jaxtyped

    return Peer(BEARTYPE, _jaxtyped, (jaxtyped(typechecker=beartype),))


def _typeguard() -> Peer:
    from jaxtyping import jaxtyped
    from typeguard import typechecked

    return Peer("jaxtyping + typeguard", _jaxtyped, (typechecked, jaxtyped(typechecker=None)), top_level=True)


def _dltype() -> Peer:
    import dltype  # type: ignore[import-untyped]

    def annotation(axes: str, dtype: str = "Float32") -> Any:
        return Annotated[Tensor, getattr(dltype, f"{dtype}Tensor")[axes]]

    return Peer("dltype", annotation, (dltype.dltyped(),))


def _tensor_shape_assert() -> Peer:
    _array_api_stand_in()
    import tensor_shape_assert as tsa  # type: ignore[import-untyped]

    def annotation(axes: str, dtype: str = "Float32") -> Any:
        return tsa.ShapedTensor[f"{dtype.lower()} {axes}"]

    return Peer("tensor-shape-assert", annotation, (tsa.check_tensor_shapes(),))


def _array_api_stand_in() -> None:
    """tensor-shape-assert annotates with `types-array-api`, whose syntax needs Python 3.12; a name is enough."""
    if sys.version_info < (3, 12):
        stand_in = types.ModuleType("array_api._2024_12")
        stand_in.Array = type("Array", (), {})  # type: ignore[attr-defined]
        sys.modules.setdefault("array_api", types.ModuleType("array_api"))
        sys.modules.setdefault("array_api._2024_12", stand_in)


_LOADERS = {
    OURS: _dtypeguard,
    BEARTYPE: _beartype,
    "jaxtyping + typeguard": _typeguard,
    "dltype": _dltype,
    "tensor-shape-assert": _tensor_shape_assert,
}
PACKAGES = ("torch", "dtypeguard", "jaxtyping", "beartype", "typeguard", "dltype", "tensor-shape-assert")


def load() -> tuple[list[Peer], dict[str, str]]:
    """The peers that import here, and why the others do not."""
    peers, absent = [], {}
    for name, loader in _LOADERS.items():
        try:
            peers.append(loader())
        except (ImportError, SyntaxError) as error:
            absent[name] = f"{type(error).__name__}: {error}"
    return peers, absent


# ---------------------------------------------------------------- the function that all of them check

B, T, S, D = 2, 3, 4, 5
QUERY, KEY, RESULT = torch.zeros(B, T, D), torch.zeros(B, S, D), torch.zeros(B, T, S)
AXES = ("b t d", "b s d", "b t s")
WRONG = {
    "dtype": (QUERY, KEY.double()),
    "rank": (QUERY, KEY[0]),
    "axes": (QUERY, torch.zeros(B, S, D + 1)),
}


def plain(q: Tensor, k: Tensor) -> Tensor:
    """A body that costs nothing."""
    return RESULT


def asserted(q: Tensor, k: Tensor) -> Tensor:
    """The same with the checks written by hand."""
    assert isinstance(q, Tensor)
    assert isinstance(k, Tensor)
    assert q.dtype is torch.float32
    assert k.dtype is torch.float32
    b, t, d = q.shape
    batch, s, depth = k.shape
    assert batch == b
    assert depth == d
    result = RESULT
    assert isinstance(result, Tensor)
    assert result.dtype is torch.float32
    batch, rows, columns = result.shape
    assert batch == b
    assert rows == t
    assert columns == s
    return result


def _computed(value: Any) -> Any:
    """Something for a compiler, which takes what the checks should refuse."""
    return (RESULT + value.sum()).sin()


_Query, _Key, _Result = (_jaxtyped(axes) for axes in AXES)


def _attend(q: _Query, k: _Key) -> _Result:  # type: ignore[valid-type]
    return RESULT


def _work(q: _Query, k: _Key) -> _Result:  # type: ignore[valid-type]
    return _computed(q)  # type: ignore[no-any-return]


def checked(peer: Peer) -> tuple[Function, Function]:
    """The same with annotations, which a peer checks; and one that computes something, for the compiler."""
    if peer.top_level:
        return peer.decorate(_attend), peer.decorate(_work)
    Query, Key, Result = (peer.annotation(axes) for axes in AXES)

    def attend(q: Query, k: Key) -> Result:  # type: ignore[valid-type]
        return RESULT

    def work(q: Query, k: Key) -> Result:  # type: ignore[valid-type]
        return _computed(q)  # type: ignore[no-any-return]

    return peer.decorate(attend), peer.decorate(work)


def overlooked(function: Function) -> list[str]:
    """Which wrong arguments a checked function lets pass in strict mode."""
    passed = []
    for fault, args in WRONG.items():
        try:
            with dtypeguard.mode("strict"):
                function(*args)
        except Exception:
            continue
        passed.append(fault)
    return passed


def many(peer: Peer, count: int, forms: int = 100) -> list[Function]:
    """Distinct undecorated functions; their annotations come in `forms` different spellings."""
    functions = []
    for n in range(count):
        axes = [text.replace("t", f"t{n % forms}") for text in AXES]
        q, k, r = (f"annotation({text!r})" for text in axes)
        namespace: dict[str, Any] = {"annotation": peer.annotation}
        exec(f"def attend_{n}(q: {q}, k: {k}) -> {r}:\n    return q\n", namespace)
        functions.append(namespace[f"attend_{n}"])
    return functions
