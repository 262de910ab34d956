"""`describe`: what a guard holds a model to, read from the contracts that a guard makes."""

import contextlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, Unpack

import torch
from torch import nn

from ..._core.base.dtypes import FLOATING, TABLE, Kind
from ..._core.base.modules import root_of
from ..._core.base.options import misspelt
from ..._core.check.accepted import accepted, arrays
from ..._core.check.names import is_ids, keeps_digits
from ..._core.check.reference import find_anchor
from ..._core.contract.anchor import LOSSES, Anchor, floating
from ..._core.contract.hints import show
from ..._core.contract.model import Contract, Param
from ..._core.contract.spec import OtherSpec, Spec
from ..._core.doors.card import inner
from ..._core.doors.choose import choices, owners, refuse, refuses_wider, shallow_by
from ..._core.doors.forward import Key, Options, check_names, check_patterns
from ..._core.doors.guard import contract_for, is_held
from ..._core.doors.options import GuardOptions, read_options
from ..._core.wrap.build import signed
from .description import Description
from .held import HeldArgument, HeldModule


def describe(model: nn.Module, /, **options: Unpack[GuardOptions]) -> Description:
    """What a guard holds a model to. The model is not guarded by it, and nothing of it changes.

    For each module that `guard(model, **options)` checks, the description has the parameter that stands for the module,
    its dtype and device, and what each argument of its forward must be. Modules inside whose forward `enforce`
    checks are in it too. A model that is guarded already is described with the guard that it has, unless there are
    options.

    Args:
        model: any nn.Module that is called; it may be on meta.
        options: those of `guard`.

    Returns:
        The description. `print` shows it; its attributes, and `to_dict()`, are the same as data.

    Raises:
        TypeError, ValueError: what `guard` raises for the same model and options.

    >>> import torch, dtypeguard
    >>> print(dtypeguard.describe(torch.nn.Linear(3, 1).to(torch.bfloat16)))
    Linear is not guarded. guard(model) checks its forward.
      parameters  bfloat16 (2)
      options     mode lenient, casting precision, autocast follow, depth auto
    <BLANKLINE>
    Linear.forward
      like weight: bfloat16 on cpu
      input  floats: bfloat16; within autocast also float16, float32
    <BLANKLINE>
    Unannotated integer and bool tensors, and 0-dim float32 numbers beside half
    parameters, keep their dtype.
    """
    for name in options.keys() - GuardOptions.__annotations__.keys():
        raise TypeError(f"describe: {misspelt(name, GuardOptions.__annotations__)}")
    told, skip = read_options(**options)
    root = root_of(model)
    refuse(root, "describe")
    check_patterns(root, skip)
    held, reader = is_held(root), _Reader(root)
    cards = {path: card for path, module in root.named_modules() if (card := module.__dict__.get("_dtypeguard"))}
    if cards and not options:  # what is there
        if held:
            told, skip = cards[""].key.options, cards[""].skip
        modules = [reader.guarded(path, root.get_submodule(path), card.key.options) for path, card in cards.items()]
    else:
        chosen = [(path, module) for path, module, why in choices(root, told, skip) if why is None]
        modules = [reader.guarded(path, module, told if not path else inner(told)) for path, module in chosen]
        check_names(root, told, reader.contracts)
    own = len(modules) == 1 and not modules[0].path
    later = [path for path, module in owners(root, skip) if own and told.depth == "auto" and refuses_wider(module)]
    modules += reader.enforced({module.path for module in modules})
    left: dict[str, tuple[str, ...]] = {}
    if not modules[0].path:
        there = {module.path for module in modules}
        for path, _, why in choices(root, told, skip):
            if path not in there:
                why = why or "was added after guard"
                left[why] = (*left.get(why, ()), path)
    return Description(
        model=type(root).__name__,
        guarded=held,
        enforced=signed(type(root).forward) is not None and not held,
        shallow=shallow_by(root, told),
        parameters=_parameters_by_dtype(root),
        options=told,
        modules=modules,
        later=tuple(later),
        skipped=left,
    )


def _parameters_by_dtype(root: nn.Module) -> dict[torch.dtype, tuple[str, ...]]:
    """The names of parameters by their dtype, the dtype of most of them first."""
    names: dict[torch.dtype, tuple[str, ...]] = {}
    for name, tensor in root.named_parameters():
        names[tensor.dtype] = (*names.get(tensor.dtype, ()), name)
    return dict(sorted(names.items(), key=lambda item: -len(item[1])))


_STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


class _Reader:
    """Reads contracts of the modules of one model, those that are alike only once."""

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._names: dict[int, tuple[str, ...]] = {}
        for path, module in root.named_modules(remove_duplicate=False):
            self._names[id(module)] = (*self._names.get(id(module), ()), path)
        self._known: dict[Any, tuple[HeldArgument, ...]] = {}
        self.contracts: list[Contract] = []

    def guarded(self, path: str, module: nn.Module, options: Options) -> HeldModule:
        """A module that a guard with these options checks."""
        contract = contract_for(module, Key(options, None))
        self.contracts.append(contract)
        return self._describe_module(path, module, contract, "border" if options.border else "guard")

    def enforced(self, there: set[str]) -> Iterator[HeldModule]:
        """The modules whose forward `enforce` checks, with a guard or without."""
        for path, module in self._root.named_modules():
            found = signed(type(module).forward) if path not in there else None
            if found is not None and not found[1].guarded:
                yield self._describe_module(path, module, found[1], "enforce")

    def _describe_module(self, path: str, module: nn.Module, contract: Contract, by: str) -> HeldModule:
        anchor = find_anchor(contract, (module,))
        device = None if anchor is None else anchor.device
        facts = None if anchor is None else (anchor.dtype, device, anchor.accepts)
        alike = (type(module), contract.key, facts)
        # A forward of an instance's own may be another than that of its class.
        if "forward" in module.__dict__ or alike not in self._known:
            self._known[alike] = tuple(_arguments(contract, module, device))
        return HeldModule(
            path=path,
            kind=type(module).__name__,
            by=by,
            anchor=None if anchor is None or anchor.tensor is None else anchor.name,
            dtype=None if anchor is None else anchor.dtype,
            device=device,
            reason=_why_none(module, anchor),
            arguments=self._known[alike],
            result=_result(contract),
            sides=contract.sides and anchor is not None and anchor.dtype is not None,
            autocast=contract.autocast.value,
            also=tuple(name for name in self._names[id(module)] if name != path),
        )


def _why_none(module: nn.Module, anchor: Anchor | None) -> str | None:
    """Why a module's inputs have no dtype to follow; None if they have."""
    if anchor is not None and anchor.dtype is not None:
        return None
    dtypes: dict[torch.dtype, int] = {}
    for _, tensor, _ in floating(module):
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + 1
    if dtypes:
        return "its parameters differ in dtype"
    if isinstance(module, LOSSES) and any(buffer.dtype in FLOATING for buffer in module.buffers()):
        return "the buffers of a loss hold no input to their dtype"
    stored = any(TABLE[tensor.dtype].kind is Kind.STORAGE for tensor in module.parameters())
    if stored:
        return "its parameters are stored in a dtype that it does not compute in"
    return "it has no floating parameters or buffers"


def _result(contract: Contract) -> str | None:
    """What comes out, if that is checked."""
    if contract.output_dtype is not None:
        return f"{contract.output_dtype}".removeprefix("torch.")
    return None if contract.returns is None else contract.returns.hint


def _arguments(contract: Contract, module: nn.Module, device: torch.device | None) -> Iterator[HeldArgument]:
    """What each argument must be, one row for each array in an annotation."""
    hints = _hints(module)
    named: set[str] = set()
    unannotated: dict[bool, Any] = {}  # they are all alike, but for masks
    for place, param in enumerate(contract.params):
        if place == 0:
            continue
        if param.spec is not None and not param.skip:
            yield from _annotated(contract, module, param, param.spec, device)
            continue
        # A decorator's `*args` stand for the arguments of the function inside.
        for name in getattr(param.name, "labels", ()) or (_STARS.get(param.kind, "") + param.name,):
            if name in named:  # by keyword, too
                continue
            named.add(name)
            if param.skip or name in contract.skip_args:
                yield HeldArgument(name, None, None, None, None, False, "is named in skip_args")
            elif not contract.guarded:
                yield HeldArgument(name, None, None, None, None, False, "has no annotation")
            else:
                mask = name in contract.masks
                if mask not in unannotated:
                    unannotated[mask] = accepted(contract, module, param, None, device)
                outside, within = unannotated[mask]
                holds = _holds(name, hints.get(name), module, outside)
                yield HeldArgument(name, None, outside, within, device, name in contract.move_args, None, holds)


_NUMBERS = frozenset({"bool", "int", "float", "str", "None"})


def _hints(module: nn.Module) -> dict[str, str]:
    """The hints of a forward as they are written, through its decorators."""
    with contextlib.suppress(TypeError, ValueError, NameError):
        parameters = inspect.signature(module.forward).parameters
        return {
            name: hint if isinstance(hint, str) else show(hint)
            for name, parameter in parameters.items()
            if (hint := parameter.annotation) is not inspect.Parameter.empty
        }
    return {}


def _holds(name: str, hint: str | None, module: nn.Module, dtypes: tuple[torch.dtype, ...]) -> str:
    """What an argument holds by its name and its hint, as `HeldArgument.holds` has it."""
    if is_ids((name,), torch.zeros(1), module):
        return "ids"
    words = set(re.findall(r"[A-Za-z]+", re.sub(r"\b(typing|torch)\.|\bOptional\b|\bUnion\b", "", hint or "")))
    if words and words <= _NUMBERS:
        return "numbers"
    if name.endswith("mask") or words & {"LongTensor", "IntTensor", "BoolTensor"}:
        return "integers"
    return "labels" if dtypes and all(keeps_digits((name,), dtype) for dtype in dtypes) else "values"


def _annotated(
    contract: Contract, module: nn.Module, param: Param, spec: Spec, device: torch.device | None
) -> Iterator[HeldArgument]:
    found = arrays(spec)
    for array in found:
        outside, within = accepted(contract, module, param, array, device)
        yield HeldArgument(str(param.name), array.hint, outside, within, device, True, None)
    if not found and isinstance(spec, OtherSpec):
        yield HeldArgument(str(param.name), spec.hint, None, None, None, False, None)
