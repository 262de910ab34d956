"""What tools that check the arguments of functions do: each function of `ROWS` is a row of a table in the docs.

A row's docstring is its title. Its program is the same for each tool; `by_hand` is what an author writes without one.
"""

import contextlib
import importlib
import importlib.metadata
import inspect
import re
import sys
import tempfile
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jaxtyping
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import dtypeguard

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import peers  # noqa: E402

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
DLTYPE, TSA, BY_HAND = "dltype", "tensor-shape-assert", "asserts by hand"
Function = Callable[..., Any]
Answer = bool | str


@dataclass(frozen=True)
class Checker:
    """A tool that checks the arguments of functions."""

    name: str
    peer: peers.Peer | None = None  # None: asserts

    @property
    def packages(self) -> tuple[str, ...]:
        """What of it is installed by name."""
        return () if self.peer is None else tuple(self.name.split(" + "))

    @property
    def module(self) -> Any:
        return importlib.import_module(self.name.replace("-", "_"))

    def f32(self, axes: str) -> Any:
        return self.peer.annotation(axes) if self.peer else Tensor

    def floating(self, axes: str) -> Any:
        return self.peer.annotation(axes, "Float") if self.peer else Tensor

    def checked(self, function: Function, by_hand: Function) -> Function:
        """The function with the tool's decorator, or with the asserts before it."""
        if self.peer:
            return self.peer.decorate(function)

        def asserted(*args: Any) -> Any:
            by_hand(*args)
            return function(*args)

        return asserted


def refuses(function: Function, *args: Any) -> bool:
    try:
        function(*args)
    except Exception:
        return True
    return False


def verdict(function: Function, right: tuple[Any, ...], *wrong: tuple[Any, ...]) -> Answer:
    """Whether a function takes what is right, and refuses all that is wrong."""
    return not refuses(function, *right) and all(refuses(function, *args) for args in wrong)


def dtype(tool: Checker) -> Answer:
    """refuses a wrong dtype"""

    def mean(x: tool.f32("n")):
        return x.mean()

    def by_hand(x):
        assert x.dtype is F32

    return verdict(tool.checked(mean, by_hand), (torch.ones(2),), (torch.ones(2, dtype=F64),))


def sizes(tool: Checker) -> Answer:
    """refuses a wrong rank, and sizes of two arguments that differ"""

    def add(x: tool.f32("n d"), y: tool.f32("n")):
        return x, y

    def by_hand(x, y):
        assert x.ndim == 2
        assert x.shape[:1] == y.shape

    x = torch.ones(2, 3)
    return verdict(tool.checked(add, by_hand), (x, torch.ones(2)), (x[0], torch.ones(3)), (x, torch.ones(3)))


def result(tool: Checker) -> Answer:
    """refuses a wrong result"""

    def widen(x: tool.f32("n"), wide: bool) -> tool.f32("n"):
        out = x.double() if wide else x
        assert tool.peer or out.dtype is F32
        return out

    function = tool.checked(widen, lambda x, wide: None)
    return verdict(function, (torch.ones(2), False), (torch.ones(2), True))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


def module(tool: Checker, axes: str = "b 2", *, own: bool = False) -> nn.Module:
    """A module whose forward takes any floating dtype, as far as its annotation says."""

    def forward(self, x: tool.floating(axes)):
        return x

    def work(self, x: tool.floating(axes)):
        return self.layer(x)

    def by_hand(self, x):
        assert x.dtype is self.layer.weight.dtype
        assert x.device == self.layer.weight.device

    body = work if own else forward
    return type("Checked", (Net,), {"forward": tool.checked(body, by_hand)})()


def live(tool: Checker) -> Answer:
    """checks that a floating input has the dtype that the module's parameters have now"""
    model, x = module(tool), torch.ones(1, 2)
    before = verdict(model, (x,), (x.to(BF16),))
    return before and verdict(model.to(BF16), (x.to(BF16),), (x,))


def device(tool: Checker) -> Answer:
    """checks that an input is on the module's device"""
    return verdict(module(tool), (torch.ones(1, 2),), (torch.ones(1, 2, device="meta"),))


def casts(tool: Checker) -> Answer:
    """can cast a wrong argument instead of raising"""

    def same(x: tool.f32("n")):
        return x

    def by_hand(x):
        assert x.dtype is F32

    with dtypeguard.mode("lenient"):
        try:
            return tool.checked(same, by_hand)(torch.ones(2, dtype=F64)).dtype is F32
        except Exception:
            return False


def autocast(tool: Checker) -> Answer:
    """in an autocast region, takes half where float32 is annotated, and refuses float64"""

    def forward(self, x: tool.f32("b 2")):
        return x

    def by_hand(self, x):
        assert x.dtype is F32 or (torch.is_autocast_enabled("cpu") and x.dtype in (torch.float16, BF16))

    model, x = type("Checked", (Net,), {"forward": tool.checked(forward, by_hand)})(), torch.ones(1, 2)
    with torch.autocast("cpu", BF16):
        inside = verdict(model, (x.to(BF16),), (x.double(),))
    return inside and verdict(model, (x,), (x.to(BF16),))


def compiled(tool: Checker) -> Answer:
    """still checks in `torch.compile(fullgraph=True)`"""

    def mean(x: tool.f32("n")):
        return x.sum().sin()

    def by_hand(x):
        assert x.dtype is F32

    def run(fullgraph: bool) -> tuple[bool, bool]:
        torch.compiler.reset()
        function = torch.compile(tool.checked(mean, by_hand), backend="eager", fullgraph=fullgraph)
        return not refuses(function, torch.ones(2)), refuses(function, torch.ones(2, dtype=F64))

    try:
        if run(True) == (True, True):
            return True
        right, wrong = run(False)
    finally:
        torch.compiler.reset()
    if not right:
        return "no: refuses right input, with and without `fullgraph`"
    return "partly: without `fullgraph`" if wrong else "no: runs without `fullgraph`, and checks nothing"


def exported(tool: Checker) -> Answer:
    """lets `torch.export` export the module"""
    try:
        program = torch.export.export(module(tool, own=True), (torch.ones(1, 2),))
    except Exception:
        return False
    return program.module()(torch.ones(1, 2)).shape == (1, 2)


@contextmanager
def world() -> Iterator[Any]:
    """A group of one process."""
    hook = sys.excepthook  # which a group replaces
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def sharded(tool: Checker) -> Answer:
    """takes right input in DDP, and in FSDP2 with a bfloat16 policy"""
    x = torch.ones(1, 2)
    with world() as mesh:
        passes = not refuses(nn.parallel.DistributedDataParallel(module(tool, own=True)), x)
        model = module(tool, own=True)
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=BF16))
        return passes and not refuses(model, x)


def unannotated(tool: Checker) -> Answer:
    """checks the inputs of a model that has no annotations"""
    model = nn.Identity()
    model.weight = nn.Parameter(torch.ones(2))

    def by_hand(module, args):
        assert args[0].dtype is module.weight.dtype

    if tool.name == peers.OURS:
        model = dtypeguard.guard(model)
    elif tool.peer:
        model.forward = tool.peer.decorate(model.forward)
    else:
        model.register_forward_pre_hook(by_hand)
    return verdict(model, (torch.ones(2),), (torch.ones(2, dtype=F64),))


def elements(tool: Checker) -> Answer:
    """checks each element of a list"""

    def stack(x: list[tool.f32("n")]):
        return x

    def by_hand(x):
        assert all(item.dtype is F32 for item in x)

    right, wrong = [torch.ones(2)] * 100, [*[torch.ones(2)] * 99, torch.ones(2, dtype=F64)]
    try:
        function = tool.checked(stack, by_hand)
    except Exception:
        return False
    if refuses(function, right):
        return False
    alone = refuses(function, [torch.ones(2, dtype=F64)])
    caught = sum(refuses(function, wrong) for _ in range(200))
    return caught == 200 or ("partly: one element of each list, at random" if alone else False)


def message(tool: Checker) -> Answer:
    """names in its message the argument, both dtypes, and the line of the call"""

    def mean(mask: tool.f32("n")):
        return mask.mean()

    def by_hand(mask):
        assert mask.dtype is F32

    function, line = tool.checked(mean, by_hand), 0
    try:
        line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
        function(torch.ones(2, dtype=F64))
    except Exception as error:
        text = str(error)
    named = {
        "the argument": "mask" in text,
        "the dtype that came": bool(re.search("float64|f64|Float64", text)),
        "the dtype that should": bool(re.search("float32|f32|Float32", text)),
        "the line": f"{Path(__file__).name}:{line}" in text,
    }
    missing = [what for what, is_named in named.items() if not is_named]
    return not missing or (f"partly: not {', '.join(missing)}" if len(missing) < len(named) else False)


def arrays(tool: Checker) -> Answer:
    """checks NumPy arrays"""
    kinds = {
        DLTYPE: lambda: typing.Annotated[np.ndarray, tool.module.Float32Tensor["n"]],
        TSA: lambda: tool.f32("n"),
        BY_HAND: lambda: np.ndarray,
    }
    kind = kinds.get(tool.name, lambda: jaxtyping.Float32[np.ndarray, "n"])()

    def mean(x: kind):
        return x.mean()

    def by_hand(x):
        assert x.dtype == np.float32

    return verdict(tool.checked(mean, by_hand), (np.ones(2, np.float32),), (np.ones(2),))


def dataclasses_(tool: Checker) -> Answer:
    """checks the fields of a dataclass when it is made"""

    @dataclass
    class Batch:
        x: tool.f32("n")

    def by_hand(self):
        assert self.x.dtype is F32

    decorate = {
        DLTYPE: lambda: tool.module.dltyped_dataclass()(Batch),
        BY_HAND: lambda: dataclass(type("Batch", (Batch,), {"__post_init__": by_hand})),
    }
    made = decorate.get(tool.name, lambda: tool.checked(Batch, by_hand))()
    return verdict(made, (torch.ones(2),), (torch.ones(2, dtype=F64),))


def named_tuples(tool: Checker) -> Answer:
    """checks the fields of a NamedTuple when it is made"""

    class Batch(NamedTuple):
        x: tool.f32("n")

    def by_hand(x):
        assert x.dtype is F32

    decorate = {DLTYPE: lambda: tool.module.dltyped_namedtuple()(Batch)}
    try:
        made = decorate.get(tool.name, lambda: tool.checked(Batch, by_hand))()
    except Exception:
        return False
    return verdict(made, (torch.ones(2),), (torch.ones(2, dtype=F64),))


def pydantic(tool: Checker) -> Answer:
    """checks the fields of a pydantic model, and their sizes with each other"""
    from pydantic import BaseModel, ConfigDict, model_validator

    kind = typing.Annotated[Tensor, tool.module.Float32Tensor("n")] if tool.name == DLTYPE else tool.f32("n")

    class Batch(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        x: kind
        y: kind

        if tool.name == BY_HAND:

            @model_validator(mode="after")
            def by_hand(self):
                assert self.x.dtype is self.y.dtype is F32
                assert self.x.shape == self.y.shape
                return self

    def make(x, y):
        return Batch(x=x, y=y)

    right, wrong, longer = torch.ones(2), torch.ones(2, dtype=F64), torch.ones(3)
    if not verdict(make, (right, right), (right, wrong)):
        return False
    return refuses(make, right, longer) or "partly: not the sizes with each other"


def hints(tool: Checker) -> Answer:
    """checks arguments without tensors, such as `n: int`"""

    def repeat(x: tool.f32("n"), n: int):
        return x

    def by_hand(x, n):
        assert isinstance(n, int)

    return verdict(tool.checked(repeat, by_hand), (torch.ones(2), 3), (torch.ones(2), "3"))


def body(tool: Checker) -> Answer:
    """checks a value in the body against the sizes of the call"""
    kind = tool.f32("n")

    def inside(x: kind, y):
        if tool.name == TSA:
            tool.module.assert_shape_here(y, "n")
        else:
            assert isinstance(y, kind)
            assert tool.peer or y.shape == x.shape

    return verdict(
        tool.checked(inside, lambda x, y: None), (torch.ones(2), torch.ones(2)), (torch.ones(2), torch.ones(3))
    )


def hook(tool: Checker) -> Answer:
    """checks all annotated functions of a package, without a decorator on each"""
    hooks = {
        peers.BEARTYPE: lambda package: jaxtyping.install_import_hook(package, "beartype.beartype"),
        peers.OURS: lambda package: dtypeguard.install_import_hook(package, mode="strict"),
    }
    if tool.name not in hooks:
        return any("hook" in name for name in dir(tool.module)) if tool.peer else False
    name = f"hooked_by_{'dtypeguard' if tool.name == peers.OURS else 'jaxtyping'}"
    text = (
        'from jaxtyping import Float32\nfrom torch import Tensor\ndef mean(x: Float32[Tensor, "n"]): return x.mean()\n'
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{name}.py").write_text(text)
        sys.path.append(folder)
        try:
            with hooks[tool.name](name):
                hooked = importlib.import_module(name)
        finally:
            sys.path.remove(folder)
            sys.modules.pop(name, None)
    return verdict(hooked.mean, (torch.ones(2),), (torch.ones(2, dtype=F64),))


def off(tool: Checker) -> Answer:
    """can be switched off while the program runs"""

    def mean(x: tool.f32("n")):
        return x.mean()

    def by_hand(x):
        assert x.dtype is F32

    @contextmanager
    def without_jaxtyping():
        jaxtyping.config.update("jaxtyping_disable", True)
        yield
        jaxtyping.config.update("jaxtyping_disable", False)

    @contextmanager
    def without_tsa():
        tool.module.set_global_check_mode("never")
        yield
        tool.module.set_global_check_mode("always")

    switches = {peers.OURS: lambda: dtypeguard.mode("off"), peers.BEARTYPE: without_jaxtyping, TSA: without_tsa}
    function = tool.checked(mean, by_hand)
    with switches.get(tool.name, contextlib.nullcontext)():
        return not refuses(function, torch.ones(2, dtype=F64))


def strategies(tool: Checker) -> Answer:
    """brings test data for its annotations (a plugin of hypothesis)"""
    plugins = importlib.metadata.entry_points(group="hypothesis")
    return any(plugin.dist is not None and plugin.dist.name in tool.packages for plugin in plugins)


ROWS = (
    dtype, sizes, result, device, live, casts, autocast, unannotated,
    elements, hints, dataclasses_, named_tuples, pydantic, arrays, body,
    compiled, exported, sharded, message, hook, off, strategies,
)  # fmt: skip
