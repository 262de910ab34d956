"""One of the two programs: its copies, and runs of them that leave nothing behind."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.base.dtypes import name_of
from ..._core.base.errors import CompareError
from ..._core.base.modules import root_of, unwrapped, walk
from ..._core.base.numbers import Numbers
from ..._core.base.progress import tell
from ..._core.contract.containers import tensors_in
from ..calls import check_call, widened
from ..compare.batches import Batch
from ..compare.draws import Draws, drawing
from ..compare.subject import Loss, compiling, copied
from .tape import Key, Named, Passage, Tape, Wires, is_dense
from .wide import Wide

Given = Callable[[Key], tuple[Named, Named] | None]
Values = dict[tuple[str, str], Tensor]  # by the path of a module, and the name of what it holds
ROOT: Key = ("", 0)
# What a GPU may compute in TF32, the modules that do so, and where `torch.backends` says it.
_TF32 = (
    ("convolutions", nn.modules.conv._ConvNd, "cudnn.conv"),
    ("recurrent layers", nn.RNNBase, "cudnn.rnn"),
    ("matrix products", nn.Module, "cuda.matmul"),
)


@dataclass(eq=False)
class Side:
    """A program to be compared.

    Attributes:
        name: "a" or "b", as messages have it.
        program: a model or a function.
        draws: the random numbers that all runs of both programs share.
        loss: of the output and the batch.
        runs: how often it ran.
        leaves: after a backward, the tensors of the batch that have gradients, as the caller would write them: where
            they require them, and all floating ones of a function.
        tool: what the user called.
        takes: the dtype to which the batch is cast for it; None where it gets the batch as it is.
        compiled: compiles a copy as the model is compiled; None where it is not.
        model: the model, without what wraps it; None for a function.
    """

    name: str
    program: Any
    batch: Batch
    draws: Draws
    loss: Loss | None = None
    runs: int = 0
    leaves: dict[str, Tensor] = field(default_factory=dict)
    tool: str = "diff"
    takes: torch.dtype | None = None
    compiled: Callable[[nn.Module], nn.Module] | None = field(init=False)
    model: nn.Module | None = field(init=False)

    def __post_init__(self) -> None:
        self.compiled = compiling(self.program) if isinstance(self.program, nn.Module) else None
        root = root_of(self.program)
        self.model = root if isinstance(root, nn.Module) else None
        held = (*self.model.parameters(), *self.model.buffers()) if self.model is not None else ()
        self.device: torch.device = next((t.device for t in held), torch.device("cpu"))
        if self.device.type == "meta":
            raise CompareError(
                f"{self.tool}: {self.name}, this {self.title}, is on meta, and has no values: pass it with its weights"
            )
        check_call(f"{self.tool}: {self.name}" if self.tool == "diff" else self.tool, root, self.batch.given)
        self._numbers = Numbers.taken(self.device)
        self._mark = self._numbers.mark()

    @property
    def title(self) -> str:
        if self.model is None:
            return str(getattr(self.program, "__name__", type(self.program).__name__))
        return type(self.model).__name__ + (" (compiled)" if self.compiled else "")

    @property
    def spacing(self) -> float:
        """That of its dtype at 1."""
        return 0.0 if self.dtype is None else torch.finfo(self.dtype).eps

    @property
    def dtype(self) -> torch.dtype | None:
        """In which it computes: the coarsest dtype of its parameters."""
        held = () if self.model is None else self.model.parameters()
        floating = (p.dtype.to_real() for p in held if p.is_floating_point() or p.is_complex())
        return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=None)

    def copy(self) -> Any:
        """A copy of the model as it is, not compiled; a function itself."""
        if self.model is None:
            return self.program
        model = copied(self.model, "diff runs copies of the models", f"{self.name}, this {self.title}")
        model._compiled_call_impl = None  # of `model.compile()`
        return model

    def wide(self, dtype: torch.dtype, values: Values) -> Any:
        """A copy in a wide dtype, with some values of the other program."""
        if self.model is None:
            return self.program
        model = widened(self.copy(), dtype)
        for path, module in walk(model):
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                other = values.get((unwrapped(path), name))
                if other is not None and tensor is not None:
                    tensor.data.copy_(other)
        return model

    def run(self, program: Any, tape: Tape, paths: Collection[str] | None = (),
            given: Given = lambda key: None, wide: Wide | None = None, backward: bool = False,
            dtype: torch.dtype | None = None, bare: bool = False) -> list[Tensor]:  # fmt: skip
        """What the program returns; the tape is filled with what its modules get and return.

        Args:
            program: what `copy` or `wide` gave.
            tape: to be filled.
            paths: the modules to listen to; None for all, nothing for the whole program only.
            given: what a call is to get and to return instead; None where it is its own.
            wide: the mode of a run in a wide dtype.
            bare: whether no mode may be on, as it would have what is compiled run uncompiled.
            dtype: of the batch, where it is not its own.
            backward: whether to run the backward of the loss, too.

        Raises:
            CompareError: it does not run as it is.
        """
        self.runs += 1
        tell(lambda: f"run {self.runs} of {self.name}")
        batch = self.batch.to((dtype or self.takes) if wide is None else wide.dtype)
        batch = batch.map(lambda t: t.detach().to(self.device))
        if backward:
            self.leaves = self._followed(batch)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(backward))
            if not bare:
                stack.enter_context(drawing(self._numbers, self._mark, self.draws))
                if self.model is not None and (paths is None or paths):
                    stack.enter_context(Wires(program, tape, paths, given, wide).on())
                if wide is not None:
                    stack.enter_context(wide.on())
            try:
                whole = program(*batch.args, **batch.kwargs)
                if backward and self.loss is not None:
                    inputs = None if self.model is not None else list(self.leaves.values())  # and of nothing outside
                    self._loss_of(whole, batch, wide).backward(inputs=inputs)
                out = [t for t in tensors_in(whole) if is_dense(t)]
            except Exception as error:
                if wide is not None or isinstance(error, CompareError):
                    raise
                raise CompareError._of(
                    f"{self.tool}: {self.name}, this {self.title}, does not run on the batch: "
                    f"{type(error).__name__}: {error}" + self._other_dtype()
                ) from error
        if ROOT not in tape.passages:
            tape.passages[ROOT] = self.whole(out, wide)
        return out

    def _followed(self, batch: Batch) -> dict[str, Tensor]:
        """The tensors of a copy of the batch that will have gradients."""
        found: dict[str, Tensor] = {}
        several = isinstance(self.batch.given, tuple | dict)
        for (name, own), (_, tensor) in zip(self.batch.tensors(), batch.tensors(), strict=True):
            if own.is_floating_point() and (own.requires_grad or self.model is None):
                told = f"batch[{name if name.isdecimal() else repr(name)}]" if several else "batch"
                found[f"{told}, tensor {len(found)}" if told in found else told] = tensor.requires_grad_()
        if self.model is None and not found:
            raise CompareError(
                f"{self.tool}: `loss` compares gradients, and {self.name}, this {self.title}, has none to compare: a "
                "function has no parameters, and nothing in the batch is floating: pass a module"
            )
        return found

    def _loss_of(self, whole: Any, batch: Batch, wide: Wide | None) -> Any:
        assert self.loss is not None
        try:
            return self.loss(whole, batch)
        except Exception as error:
            if wide is not None:
                raise
            raise CompareError._of(
                f"{self.tool}: the loss does not take what {self.name}, this {self.title}, returns: "
                f"{type(error).__name__}: {error}"
            ) from error

    def as_called(self) -> list[Tensor]:
        """What the program itself returns, with what is compiled in it; buffers and random numbers are put back."""
        buffers = () if self.model is None else tuple(self.model.buffers())
        held = [buffer.detach().clone() for buffer in buffers]
        try:
            with torch.random.fork_rng(devices=[]):
                return self.run(self.program, Tape(), bare=True)
        finally:
            with torch.no_grad():
                for buffer, value in zip(buffers, held, strict=True):
                    buffer.copy_(value)

    def _other_dtype(self) -> str:
        """What to do where the batch is of another dtype than the parameters."""
        given = {t.dtype for _, t in self.batch.tensors() if t.is_floating_point()}
        if self.dtype is None or not given or self.dtype in given:
            return ""
        dtype, other = name_of(self.dtype), " and ".join(sorted(map(name_of, given)))
        return (
            f"\nits parameters are {dtype}, and the batch is {other}. What {dtype} costs a model is measured by "
            f"dtypeguard.compare(model, batch, dtype=torch.{dtype}), which converts both"
        )

    def whole(self, out: list[Tensor], wide: Wide | None = None) -> Passage:
        """The passage of a program whose modules are not listened to."""
        made = (1.0, 0.0) if wide is None else (wide.ulps[-1], wide.narrow[-1])
        return Passage(ROOT, None, "", [], [(f"result[{n}]", t.detach()) for n, t in enumerate(out)], (made, made))


def in_tf32(side: Side) -> Iterator[str]:
    """Why a program in float32 rounds like one in half precision: on GPUs some of its products keep 10 bits of digits.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    """
    if side.model is None or side.device.type != "cuda" or torch.cuda.get_device_capability(side.device)[0] < 8:
        return
    if not any(parameter.dtype is torch.float32 for parameter in side.model.parameters()):
        return
    for what, kind, where in _TF32:
        if any(isinstance(module, kind) for _, module in walk(side.model)):
            setting = f"{where}.fp32_precision"
            if attrgetter(setting)(torch.backends) == "tf32":
                yield (
                    f"{side.name} computes float32 {what} in TF32 on {side.device}: "
                    f'`torch.backends.{setting} = "ieee"` computes them in float32'
                )
