"""Which parameter stands for a module: its live dtype and device.

Nothing is remembered about a module but where to look, so `.half()`,
`.to()`, `load_state_dict(assign=True)` and FSDP2 need no refresh.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ..base import private
from ..base.dtypes import FLOATING, HALF, NARROWER, TABLE, Kind

LAZY = (UninitializedParameter, UninitializedBuffer)
# Norms whose kernels take narrower input than their parameters (LayerNorm in float32 takes bfloat16).
NORMS: tuple[type[nn.Module], ...] = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# A loss's float64 class weight must not widen the logits: buffers of losses are no anchor.
LOSSES: tuple[type[nn.Module], ...] = (nn.modules.loss._Loss,)
# PyTorch's modules that compute with floating input wider than their parameters; all others with parameters refuse it.
WIDER: tuple[type[nn.Module], ...] = (nn.RMSNorm, *LOSSES)
# Those whose operation autocast leaves as it is on the CPU: within a region, too, they refuse what is not like their
# half parameters.
UNCAST: tuple[type[nn.Module], ...] = (
    nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase, nn.Bilinear,
)  # fmt: skip


@dataclass(slots=True, eq=False, repr=False)
class Anchor:
    """The dtype and device that a module's floating inputs must have; None where its parameters disagree."""

    dtype: torch.dtype | None
    device: torch.device | None
    name: str = ""
    tensor: Tensor | None = None
    accepts: frozenset[torch.dtype] = frozenset()
    reason: str = "the module's parameters are"

    @property
    def like(self) -> tuple[str, Tensor] | None:
        """The tensor that stands for the module, and its name, as messages show it."""
        return None if self.tensor is None else (self.name, self.tensor)


_TABLES = ("_parameters", "_buffers", "_modules")


def quiet(tensor: Tensor) -> bool:
    """Whether a tensor answers by itself; what a `__torch_function__` answers takes 2 us, and is the user's code."""
    kind = type(tensor)
    return kind is Tensor or kind is nn.Parameter or kind.__torch_function__ is private.NO_FUNCTION


@dataclass(slots=True, eq=False, repr=False)
class _Facts:
    """A tensor as a check sees it."""

    dtype: torch.dtype
    shape: torch.Size
    ndim: int
    device: torch.device
    is_cpu: bool


def facts(value: Any) -> Any:
    """The object to read a tensor's dtype and shape from: the tensor, or what it has without its `__torch_function__`.

    Raises:
        TypeError: what is no tensor has no facts.
    """
    if not isinstance(value, Tensor):
        raise TypeError
    if quiet(value) or torch.compiler.is_compiling():
        return value
    with private.no_function():
        return _Facts(value.dtype, value.shape, value.ndim, value.device, value.is_cpu)


def is_count(value: Tensor, dtype: torch.dtype | None) -> bool:
    """Whether an unannotated tensor is a plain number beside half parameters: a token count, a loss weight.

    A 0-dim float32 tensor widens nothing (https://docs.pytorch.org/docs/stable/tensor_attributes.html), and in
    half precision 4097 tokens would be 4096.
    """
    return not value.ndim and value.dtype is torch.float32 and dtype in HALF


def own_parameters(module: nn.Module) -> dict[str, Any]:
    """A module's own parameters; a DataParallel replica keeps them elsewhere."""
    former = module.__dict__.get("_former_parameters")
    return former if former else module._parameters


def floating(module: nn.Module) -> Iterator[tuple[tuple[str, ...], Tensor, torch.dtype | None]]:
    """Floating parameters of the subtree (floating buffers where there is none): path, tensor, asked dtype."""
    for tables in (own_parameters, lambda owner: owner._buffers):
        found = False
        for path, owner, group in _walk(module, (), None):
            table = tables(owner)
            stored = any(tensor is not None and TABLE[tensor.dtype].kind is Kind.STORAGE for tensor in table.values())
            for name, tensor in table.items():
                usable = isinstance(tensor, Tensor) and tensor.dtype in FLOATING and not isinstance(tensor, LAZY)
                # Beside float8 weights a scale is no parameter that anything computes in.
                if usable and not (stored and "scale" in name):
                    found = True
                    yield (*path, name), tensor, _asks(tensor, group, module)
        if found or isinstance(module, LOSSES):
            return


def owner_of(module: nn.Module, path: tuple[str, ...]) -> tuple[nn.Module, str]:
    """The module that owns the parameter (else buffer) at a path, and the table that it stands in."""
    *_, owner = module, *_modules_to(module, path)
    for table in ("_parameters", "_former_parameters"):
        if path[-1] in owner.__dict__.get(table, ()):
            return owner, table
    return owner, "_buffers"


def _modules_to(module: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """The modules below `module` that lead to a parameter; the last one owns it."""
    for name in path[:-1]:
        module = module._modules[name]
        yield module


def _walk(
    module: nn.Module, path: tuple[str, ...], group: nn.Module | None
) -> Iterator[tuple[tuple[str, ...], nn.Module, nn.Module | None]]:
    """The modules of a subtree, their paths, and the FSDP2 group that each belongs to."""
    if not is_ready(module):
        return
    group = group if _policy(module) is None else module
    yield path, module, group
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, (*path, name), group)


def is_ready(module: nn.Module) -> bool:
    """Whether a module has its tables; not so before `super().__init__()`, and in `__setstate__`.

    A `__getattr__` of the user's, which may be enforced itself, is not asked. A traced module has them elsewhere.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return all(hasattr(module, table) for table in _TABLES)
    return all(table in module.__dict__ for table in _TABLES)


def _policy(module: Any) -> Any:
    """The mixed-precision policy of an FSDP2 group."""
    get_state = getattr(type(module), "_get_fsdp_state", None)
    return None if get_state is None else getattr(get_state(module), "_mp_policy", None)


def _asks(tensor: Tensor, group: nn.Module | None, module: nn.Module) -> torch.dtype | None:
    """Which dtype a parameter asks of the module's input.

    Under FSDP2 it stays sharded in its own dtype, and its group's policy says in which one it computes. A group inside
    the module that casts its own inputs asks for none.
    """
    if group is None:
        return tensor.dtype
    policy = _policy(group)
    if group is not module and policy.param_dtype is not None and policy.cast_forward_inputs:
        return None
    dtype: torch.dtype = policy.param_dtype or tensor.dtype
    return dtype


def facts_for_wrapper(module: Any, tensor: Any) -> Any:
    """What a wrapper asks in place of an anchor that is no plain parameter: a sharded one, or a subclass."""
    dtype = None if torch.compiler.is_compiling() else getattr(_policy(module), "param_dtype", None)
    known = facts(tensor)
    return known if dtype is None else _Facts(dtype, known.shape, known.ndim, known.device, known.is_cpu)


def find(module: nn.Module) -> Tensor | None:
    """The first floating parameter (else buffer): what the fast path compares with."""
    return next((tensor for _, tensor, _ in floating(module)), None)


@dataclass(frozen=True, slots=True, repr=False)
class Slots:
    """Expressions, formats over the module's name, that read in 25 ns what `find` finds in 1,400.

    A module that does not agree with itself also has the first parameter of another dtype, and the first on another
    device: as long as those differ from `first`, there is no anchor.
    """

    first: str
    other: str | None = None
    elsewhere: str | None = None


def slots(module: nn.Module) -> Slots | None:
    """Where a module's anchor is read; None if it holds nothing floating."""
    found = [(path, tensor) for path, tensor, _ in floating(module)]
    if not found:
        return None
    first = found[0][1]
    other = next((_expression(*item) for item in found if item[1].dtype is not first.dtype), None)
    elsewhere = next((_expression(*item) for item in found if item[1].device != first.device), None)
    return Slots(_expression(*found[0]), other, elsewhere)


def _expression(path: tuple[str, ...], tensor: Tensor) -> str:
    names = [repr(name).replace("{", "{{").replace("}", "}}") for name in path]
    owner = "{self}" + "".join(f"._modules[{name}]" for name in names[:-1])
    return f"{owner}.{'_parameters' if isinstance(tensor, nn.Parameter) else '_buffers'}[{names[-1]}]"


def anchor_of(module: Any) -> Anchor | None:
    """The anchor of a module, agreement derived anew; None for what is no module or holds nothing floating."""
    if not isinstance(module, nn.Module):
        return None
    found = list(floating(module))
    if not found:
        return None
    path, first, _ = found[0]
    dtypes = [dtype for _, _, dtype in found if dtype is not None]
    dtype: torch.dtype | None = dtypes[0] if dtypes else getattr(_policy(module), "param_dtype", None)
    if any(other is not dtype for other in dtypes):
        dtype = None
    together = all(tensor.device == first.device for _, tensor, _ in found) and not _is_offloaded(module, path, first)
    accepts = NARROWER.get(first.dtype, frozenset()) if isinstance(module, NORMS) else frozenset()
    # By the table, not by the type: under functional_call, and in a replica, parameters are plain tensors.
    owned = "buffers are" if owner_of(module, path)[1] == "_buffers" else "parameters are"
    return Anchor(
        dtype, first.device if together else None, ".".join(path), first, accepts, reason=f"the module's {owned}"
    )


def _is_offloaded(module: Any, path: tuple[str, ...], tensor: Tensor) -> bool:
    """Whether one of accelerate's hooks keeps a parameter on meta until the call that needs it."""
    return tensor.is_meta and any("_hf_hook" in owner.__dict__ for owner in (module, *_modules_to(module, path)))
