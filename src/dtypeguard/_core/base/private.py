"""Every private name of torch and jaxtyping, once, each with what stands in its place where a version lacks it.

Contracts hold without any of them: what is lost is told beside each. An audit needs more of them, and says so.
"""

import contextlib
import functools
import importlib
import operator
import threading
from collections.abc import Callable
from types import NoneType
from typing import Any

import jaxtyping
import torch

MISSING: list[str] = []  # what this version of torch or jaxtyping lacks


def _find(path: str, otherwise: Any) -> Any:
    """What a path from `torch` or `jaxtyping` leads to."""
    root, _, rest = path.partition(".")
    try:
        return operator.attrgetter(rest)(torch if root == "torch" else jaxtyping)
    except AttributeError:
        MISSING.append(path)
        return otherwise


def _nothing(*args: Any) -> None:
    return None


def _zero(*args: Any) -> int:
    return 0


def _never(*args: Any) -> bool:
    return False


def _tracing() -> Any:
    jit: Any = torch.jit  # which torch leaves untyped
    return jit.is_tracing() or None


class _NoSuchClass:
    """Nothing is an instance of it."""


# ---------------------------------------------------------------- modes and transforms

# The state of `torch.jit.trace`, None outside; without: whether it runs.
tracing_state: Callable[[], Any] = _find("torch._C._get_tracing_state", _tracing)
# Dispatch and function modes of this thread; without: values are looked at below modes too.
dispatch_modes: Callable[[], int] = _find("torch._C._len_torch_dispatch_stack", _zero)
dispatch_mode_at: Callable[[int], Any] = _find("torch._C._get_dispatch_stack_at", _nothing)
function_modes: Callable[[], int] = _find("torch._C._len_torch_function_stack", _zero)
without_modes: Any = _find("torch.utils._python_dispatch._disable_current_modes", contextlib.nullcontext)
no_functions: Any = _find("torch._C.DisableTorchFunction", contextlib.nullcontext)
# Operations on plain tensors do not go through modes; without: they do, and modes that are paused let them pass.
no_dispatch: Any = _find("torch._C._DisableTorchDispatch", contextlib.nullcontext)
# The mode of a kind that is on, as of `FakeTensorMode`; without: fake tensors are taken for real ones.
infra_mode: Callable[[Any], Any] = _find("torch._C._get_dispatch_mode", _nothing)
FAKE: Any = _find("torch._C._TorchDispatchModeKey.FAKE", None)
PROXY: Any = _find("torch._C._TorchDispatchModeKey.PROXY", None)
if FAKE is None or PROXY is None:
    infra_mode = _nothing
# Whether a tensor is one of `vmap` or `grad`; without: its values are looked at, which those may refuse.
is_transformed: Callable[[torch.Tensor], bool] = _find("torch._C._functorch.is_functorch_wrapped_tensor", _never)
# Reads a tensor of a subclass without the subclass's own code; without: through that.
no_function: Any = _find("torch._C.DisableTorchFunctionSubclass", contextlib.nullcontext)
# What a class has in place of `__torch_function__` and `__torch_dispatch__` that has none; without: each has one.
NO_FUNCTION: Any = _find("torch._C._disabled_torch_function_impl", _NoSuchClass)
NO_DISPATCH: Any = _find("torch._C._disabled_torch_dispatch_impl", _NoSuchClass)


def _some_autocast() -> bool:
    return any(map(torch.is_autocast_enabled, ("cpu", "cuda", "xpu", "mps")))


# Whether any region of autocast is on; without: of the usual devices.
any_autocast: Callable[[], bool] = _find("torch._C._is_any_autocast_enabled", _some_autocast)

# ---------------------------------------------------------------- autograd

# The node of backward that runs; without: backward is taken for forward.
current_node: Callable[[], Any] = _find("torch._C._current_autograd_node", _nothing)
# The number of the next node; without: findings of backward have lines of torch's.
next_sequence: Callable[[], int] = _find("torch._C._autograd._get_sequence_nr", _zero)
# The backward that runs, -1 for none; without: a checkpointed module is checked as the model's own call was.
graph_task: Callable[[], int] = _find("torch._C._current_graph_task_id", lambda: -1)


def is_foreign_thread() -> bool:
    """Whether Python did not start this thread, as those of autograd and of process groups.

    Asked for the current one, `threading` would list such a thread from then on.
    """
    known: dict[int, Any] = threading._active  # type: ignore[attr-defined]  # by their numbers
    return isinstance(known.get(threading.get_ident()), NoneType | threading._DummyThread)


# What a thread of autograd has of the one that waits; without: a block of `mode` ends where backward on a GPU begins.
stash: Callable[[str, Any], None] = _find("torch._C._stash_obj_in_tls", _nothing)
is_stashed: Callable[[str], bool] = _find("torch._C._is_key_in_tls", _never)
stashed: Callable[[str], Any] = _find("torch._C._get_obj_in_tls", _nothing)

# Below a dispatch mode: dispatch as it is above it, without some keys; without: no operation records a graph there.
above_modes: Any = _find("torch._C._RestorePythonTLSSnapshot", contextlib.nullcontext)
without_keys: Any = _find("torch._C._ExcludeDispatchKeyGuard", contextlib.nullcontext)
_key: Any = _find("torch._C.DispatchKey", None)
_key_set: Any = _find("torch._C.DispatchKeySet", None)
MODES_AND_AUTOCAST: Any = None
AUTOCAST: Any = None
if _key is None or _key_set is None:
    without_keys = contextlib.nullcontext
else:

    def _keys(prefix: str) -> Any:
        return functools.reduce(
            operator.or_, (_key_set(key) for name, key in vars(_key).items() if name.startswith(prefix))
        )

    AUTOCAST = _keys("Autocast")
    MODES_AND_AUTOCAST = AUTOCAST | _keys("Python")

# ---------------------------------------------------------------- Dynamo

# Which frames Dynamo leaves alone; without: it traces dtypeguard's own.
eval_frame: Any = _find("torch._C._dynamo.eval_frame", None)

# ---------------------------------------------------------------- data, operators, conversions

# How registered containers are taken apart; without: what is in them is not checked.
PYTREES: dict[Any, Any] = _find("torch.utils._pytree.SUPPORTED_NODES", {})
# A function that `torch.library.custom_op` decorated; without: `mutates_args` of its schema is not known.
CustomOp: Any = _find("torch._library.custom_ops.CustomOpDef", _NoSuchClass)
# The sets of its functions that torch makes at first use; without: those made during an audit lack what is replaced.
_FUNCTION_SETS = (
    "utils._device._device_constructors",
    "overrides._get_overridable_functions",
    "overrides.get_ignored_functions",
)


def gather_functions() -> None:
    """Have torch make the sets of its functions, as `with torch.device(...)` looks its own up in one."""
    for path in _FUNCTION_SETS:
        with contextlib.suppress(ImportError, AttributeError):
            module, _, name = path.rpartition(".")
            getattr(importlib.import_module(f"torch.{module}"), name)()


# What `module.to(...)` converts to; without: an audit does not know.
parse_to: Callable[..., Any] = _find("torch._C._nn._parse_to", lambda *args, **kwargs: (None, None))

# Whether an operator has a kernel for a device; without: it is tried.
has_kernel: Callable[[str, str], bool] = _find("torch._C._dispatch_has_kernel_for_dispatch_key", lambda name, key: True)
# The key of a kernel that is made of other operations; without: inference mode hides these.
COMPOSITE: Any = _find("torch._C.DispatchKey.CompositeImplicitAutograd", None)


def has_parts(func: Any) -> bool:
    """Whether an operator is made of others for every device."""
    if COMPOSITE is None or not hasattr(func, "_op_dk"):
        return False
    name = func.name()
    own = ("CPU", "CUDA", "CompositeExplicitAutograd")
    try:
        return has_kernel(name, "CompositeImplicitAutograd") and not any(has_kernel(name, key) for key in own)
    except RuntimeError:  # one that is no operator to the dispatcher, as `prim.device`
        return False


# What a traced graph tells of tensors; without: DG802 finds nothing.
TensorType: Any = _find("torch._C.TensorType", _NoSuchClass)
parse_schema: Any = _find("torch._C.parse_schema", None)

# ---------------------------------------------------------------- jaxtyping

# The axes that `isinstance(y, Float[Tensor, "b c"])` sees; without: each such question stands alone.
get_memo: Callable[[], Any] = _find("jaxtyping._storage.get_shape_memo", None)
push_memo: Callable[[dict[str, Any]], Any] = _find("jaxtyping._storage.push_shape_memo", None)
pop_memo: Callable[[], None] = _find("jaxtyping._storage.pop_shape_memo", None)
if None in (get_memo, push_memo, pop_memo):
    get_memo, push_memo, pop_memo = lambda: ({}, {}), lambda arguments: ({}, {}), _nothing
