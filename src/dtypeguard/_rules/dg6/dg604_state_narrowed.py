"""DG604 state-narrowed."""

import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..._engine.watch.events import tensors_in
from .._kit import HALF, LARGEST, Recorder, Rule, Severity, Site, around, listed, name_of, on, readable, size_of

RULE = Rule(
    "DG604",
    "state-narrowed",
    Severity.WARNING,
    summary="Optimizer state is loaded in too narrow a dtype.",
    says="`{optimizer}.load_state_dict` {what}",
    fix="{advice}",
    why=(
        "`Optimizer.load_state_dict` assumes that state has the dtype of its parameter, and casts without a word. "
        "A run that kept its moments in float32 beside half parameters goes on with others than it had; in float16 "
        "small second moments become 0."
    ),
    unsafe=("float32_parameters", "state_as_it_is"),
    sources=(
        "https://github.com/pytorch/pytorch/issues/43706",
        "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.load_state_dict.html",
    ),
)


_CASTS = "casts {names} from {was} to {dtype}, the dtype of the parameters: {before} is {after} now"
_RESUME = (
    "resume with {was} parameters; where the optimizer itself keeps its state in {was}, put the saved tensors back "
    "after loading: `optimizer.state[parameter][key] = saved`"
)
_COUNTER = "step"  # which is loaded in the dtype that it was saved in
_COUNTS = "takes {names} in {dtype}, as saved, which counts to {most} and no further: it is {value:g}"
_MEAN, _SQUARE = "exp_avg", "exp_avg_sq"  # of Adam and those like it
_GONE = 0.01  # of them
_ZEROS = "takes {names} in {dtype}, as saved: {share:.0f} % of it is 0 where gradients are not, so that steps explode"
_SAVE = "save it as the optimizer has it, in float32: leave the optimizer out where a state dict is cast"


class Narrowed:
    """One tensor of state that was cast. Whether it stays is known at the next step, or when one of the two is gone."""

    def __init__(self, name: str, saved: Tensor, loaded: Tensor, example: tuple[float, float], optimizer: Any) -> None:
        self.name, self.example, self.size = name, example, size_of(loaded)
        self.dtypes = saved.dtype, loaded.dtype
        self.stays: bool | None = None
        self.tensor = weakref.ref(loaded, lambda _: self.gone(optimizer))

    def gone(self, optimizer: "weakref.ref[Optimizer]") -> None:
        """Without its optimizer it was replaced; with it, it was what the optimizer had to the end."""
        if self.stays is None:
            self.stays = optimizer() is None


@dataclass(eq=False)
class Loaded:
    """One call of `load_state_dict`."""

    optimizer: "weakref.ref[Optimizer]"
    title: str
    site: Site
    tensors: list[Narrowed]

    def judge(self) -> None:
        """Whether the optimizer still has them."""
        optimizer = self.optimizer()
        held = None if optimizer is None else {id(t) for state in optimizer.state.values() for t in _tensors(state)}
        for one in self.tensors:
            if one.stays is None:
                tensor = one.tensor()
                one.stays = tensor is None or tensor.dtype is one.dtypes[1]
                one.stays = one.stays and (held is None or id(tensor) in held)


@dataclass
class Loads:
    all: list[Loaded] = field(default_factory=list)


@on("start", RULE)
def listen(audit: Recorder) -> None:
    audit.handles.append(register_optimizer_step_pre_hook(functools.partial(_stepping, audit)))


def _stepping(audit: Recorder, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    loads = audit.state(Loads).all if audit.running else []
    for loaded in [loaded for loaded in loads if loaded.optimizer() is optimizer]:
        audit.guarded(loaded.judge)


@around(Optimizer, "load_state_dict", rule=RULE)
def _loading(audit: Recorder, original: Callable[..., Any], self: Optimizer, state_dict: Any) -> Any:
    own = {id(tensor) for state in self.state.values() for tensor in _tensors(state)}
    result = original(self, state_dict)
    audit.guarded(_compare_state, audit, self, state_dict, own, audit.user())
    return result


def _compare_state(audit: Recorder, optimizer: Optimizer, state_dict: Any, own: set[int], site: Site) -> None:
    """What is there now, with what was saved: an optimizer, or a hook of it, may keep the dtype by itself.

    To load its own state is how a program asks for the dtype of parameters that were converted.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    ref, narrowed = weakref.ref(optimizer), list[Narrowed]()
    counters: dict[torch.dtype, list[tuple[str, Tensor]]] = {}
    gone: dict[torch.dtype, list[tuple[str, Tensor, float]]] = {}
    for parameter, number in zip(parameters, numbers, strict=False):
        now = optimizer.state.get(parameter, {})
        counter = now.get(_COUNTER)
        if isinstance(counter, Tensor) and counter.dtype in HALF and counter.numel() == 1 and readable(counter):
            counters.setdefault(counter.dtype, []).append((f"{_COUNTER} of parameter {number}", counter))
        square, share = _vanished(state_dict["state"].get(number, {}))
        if square is not None and share > _GONE:
            gone.setdefault(square.dtype, []).append((f"{_SQUARE} of parameter {number}", square, share))
        for key, value in state_dict["state"].get(number, {}).items():
            loaded = dict(tensors_in(now.get(key), str(key)))
            for path, saved in tensors_in(value, str(key)):
                example = _worst_number(saved, loaded[path]) if path in loaded and id(saved) not in own else None
                if example is not None:
                    name = f"{path} of parameter {number}"
                    narrowed.append(Narrowed(name, saved, loaded[path], example, ref))
    if narrowed:
        audit.state(Loads).all.append(Loaded(ref, type(optimizer).__name__, site, narrowed))
    title = type(optimizer).__name__
    for dtype, held in counters.items():
        most = round(2 / torch.finfo(dtype).eps)
        what = _COUNTS.format(dtype=name_of(dtype), value=float(held[0][1]), most=most, names="{names}")
        _find_saved(audit, site, title, what, dtype, held)
    for dtype, lost in gone.items():
        what = _ZEROS.format(dtype=name_of(dtype), share=100 * lost[0][2], names="{names}")
        _find_saved(audit, site, title, what, dtype, [(name, tensor) for name, tensor, _ in lost])


def _find_saved(
    audit: Recorder, site: Site, title: str, what: str, dtype: torch.dtype, held: list[tuple[str, Tensor]]
) -> None:
    """State that was saved in too narrow a dtype."""
    names = [name for name, _ in held]
    facts = {"optimizer": title, "what": what.format(names=listed(names)), "advice": _SAVE}
    audit.find(
        RULE, site, facts=facts, op=f"{title}.load_state_dict", from_dtype=torch.float32, to_dtype=dtype,
        bytes=sum(size_of(one) for _, one in held), parameters=names, about=what,
    )  # fmt: skip


def _vanished(state: Any) -> tuple[Tensor | None, float]:
    """Second moments as they were saved, and the share of zeros where there are gradients on average."""
    mean, square = state.get(_MEAN), state.get(_SQUARE)
    if not isinstance(mean, Tensor) or not isinstance(square, Tensor) or square.dtype not in HALF:
        return None, 0.0
    if square.shape != mean.shape or not readable(mean, square) or not 0 < square.numel() <= LARGEST:
        return None, 0.0
    some = mean != 0
    return square, int((some & (square == 0)).sum()) / max(1, int(some.sum()))


def _worst_number(saved: Tensor, loaded: Tensor) -> tuple[float, float] | None:
    """The number that suffers most, before and after. One small part of the tensors is looked at at a time."""
    floats = saved.dtype.is_floating_point and loaded.dtype.is_floating_point and saved.dtype is not loaded.dtype
    if not floats or saved.shape != loaded.shape or not readable(saved, loaded):
        return None
    worst, example = 0.0, None
    parts = (torch.split(tensor.detach().reshape(-1), LARGEST) for tensor in (saved, loaded))
    for before, part in zip(*parts, strict=True):
        after = part.to(before)
        finite = before.isfinite() & (after != before)
        if bool(finite.any()):
            before, after = before[finite].double(), after[finite].double()
            errors = (after - before).abs() / before.abs()
            number = int(errors.argmax())
            if float(errors[number]) > worst:
                worst, example = float(errors[number]), (float(before[number]), float(after[number]))
    return example


def _texts(before: float, after: float) -> dict[str, str]:
    """With as many digits as it takes to see the difference."""
    texts = [(f"{before:.{digits}g}", f"{after:.{digits}g}") for digits in (7, 10, 17)]
    return dict(zip(("before", "after"), next((pair for pair in texts if pair[0] != pair[1]), texts[-1]), strict=True))


def _tensors(state: Any) -> Iterator[Tensor]:
    for key, value in state.items():
        yield from (tensor for _, tensor in tensors_in(value, str(key)))


@on("end", RULE)
def tell(audit: Recorder) -> None:
    for loaded in audit.state(Loads).all:
        loaded.judge()
        groups: dict[tuple[torch.dtype, torch.dtype], list[Narrowed]] = {}
        for one in loaded.tensors:
            if one.stays:
                groups.setdefault(one.dtypes, []).append(one)
        for (was, dtype), group in groups.items():
            names, title = [one.name for one in group], loaded.title
            words = {"names": listed(names), "was": name_of(was), "dtype": name_of(dtype), **_texts(*group[0].example)}
            facts = {"optimizer": title, "what": _CASTS.format(**words), "advice": _RESUME.format(**words)}
            audit.find(
                RULE, loaded.site, facts=facts, op=f"{title}.load_state_dict", from_dtype=was, to_dtype=dtype,
                bytes=sum(one.size for one in group), parameters=names,
                severity=Severity.INFO if dtype.itemsize >= torch.float32.itemsize else None,
            )  # fmt: skip
