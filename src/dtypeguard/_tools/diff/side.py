"""One of the two programs: its copies, and runs of them that leave nothing behind."""

import contextlib
import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.base.errors import CompareError
from ..._core.base.modules import root_of, unwrapped, walk
from ..._core.base.numbers import Numbers
from ..._core.base.progress import tell
from ..._core.contract.containers import tensors_in
from ..calls import read_as
from ..compare.batches import Batch
from ..compare.draws import Draws, drawing
from ..compare.subject import compiling
from .tape import Key, Named, Passage, Tape, Wires
from .wide import Wide

Given = Callable[[Key], tuple[Named, Named] | None]
Values = dict[tuple[str, str], Tensor]  # by the path of a module, and the name of what it holds
ROOT: Key = ("", 0)


@dataclass(eq=False)
class Side:
    """A program to be compared.

    Attributes:
        name: "a" or "b", as messages have it.
        program: a model or a function.
        draws: the random numbers that all runs of both programs share.
        runs: how often it ran.
        compiled: compiles a copy as the model is compiled; None where it is not.
        model: the model, without what wraps it; None for a function.
    """

    name: str
    program: Any
    batch: Batch
    draws: Draws
    runs: int = 0
    compiled: Callable[[nn.Module], nn.Module] | None = field(init=False)
    model: nn.Module | None = field(init=False)

    def __post_init__(self) -> None:
        self.compiled = compiling(self.program) if isinstance(self.program, nn.Module) else None
        root = root_of(self.program)
        self.model = root if isinstance(root, nn.Module) else None
        held = (*self.model.parameters(), *self.model.buffers()) if self.model is not None else ()
        self.device = next((t.device for t in held), torch.device("cpu"))
        self._numbers = Numbers.taken(self.device)
        self._mark = self._numbers.mark()

    @property
    def title(self) -> str:
        if self.model is None:
            return str(getattr(self.program, "__name__", type(self.program).__name__))
        return type(self.model).__name__ + (" (compiled)" if self.compiled else "")

    @property
    def weights(self) -> list[Tensor]:
        """The floating parameters."""
        return [] if self.model is None else [p for p in self.model.parameters() if p.is_floating_point()]

    @property
    def hookable(self) -> bool:
        """Whether its modules can be listened to."""
        return self.model is not None and self.compiled is None

    def copy(self) -> Any:
        """A copy of the model as it is, compiled if it is; a function itself."""
        return self._compiled(self._copied()) if self.model is not None else self.program

    def _copied(self) -> nn.Module:
        try:
            return copy.deepcopy(self.model)  # type: ignore[return-value]  # asked for where there is one
        except Exception as error:
            raise CompareError(
                f"diff runs copies of the models, and copy.deepcopy cannot copy {self.name}, this {self.title}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _compiled(self, model: nn.Module) -> nn.Module:
        return model if self.compiled is None else self.compiled(model)

    def wide(self, dtype: torch.dtype, values: Values) -> Any:
        """A copy in a wide dtype, with some values of the other program."""
        if self.model is None:
            return self.program
        model = self._copied().to(dtype)
        for path, module in walk(model):
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                other = values.get((unwrapped(path), name))
                if other is not None and tensor is not None:
                    tensor.data.copy_(other)
        return self._compiled(model)

    def run(self, program: Any, tape: Tape, paths: Collection[str] | None = (),
            given: Given = lambda key: None, wide: Wide | None = None) -> list[Tensor]:  # fmt: skip
        """What the program returns; the tape is filled with what its modules get and return.

        Args:
            program: what `copy` or `wide` gave.
            tape: to be filled.
            paths: the modules to listen to; None for all, nothing for the whole program only.
            given: what a call is to get and to return instead; None where it is its own.
            wide: the mode of a run in a wide dtype.

        Raises:
            CompareError: it does not run as it is.
        """
        self.runs += 1
        tell(lambda: f"run {self.runs} of {self.name}")
        batch = self.batch.to(None if wide is None else wide.dtype)
        batch = batch.map(lambda t: t.to(self.device))
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if self.compiled is None:  # a mode would have it run uncompiled
                stack.enter_context(drawing(self._numbers, self._mark, self.draws))
                if self.model is not None and (paths is None or paths):
                    stack.enter_context(Wires(program, tape, paths, given, wide).on())
                if wide is not None:
                    stack.enter_context(wide.on())
            try:
                out = list(tensors_in(program(*batch.args, **batch.kwargs)))
            except Exception as error:
                if wide is not None:
                    raise
                raise CompareError(
                    f"diff: {self.name}, this {self.title}, does not run on the batch: {type(error).__name__}: {error}"
                    + (read_as(self.batch.given) if isinstance(error, TypeError) else "")
                ) from error
        if ROOT not in tape.passages:
            tape.passages[ROOT] = self.whole(out, wide)
        return out

    def whole(self, out: list[Tensor], wide: Wide | None = None) -> Passage:
        """The passage of a program whose modules are not listened to."""
        made = (1.0, 0.0) if wide is None else (wide.ulps[-1], wide.coarse[-1])
        return Passage(ROOT, None, "", [], [(f"result[{n}]", t.detach()) for n, t in enumerate(out)], (made, made))
