"""What a model, its gradients and its optimizer hold, by name."""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..base.dtypes import name_of
from ..base.errors import shape_of
from ..base.modules import inside, tensors_of, unwrapped, walk
from ..base.options import kind_of, refuse_maker
from .patterns import quoted

SECTIONS = ("tensors", "gradients", "optimizer", "computes", "files")
NOT_SAVED, ATTRIBUTE = "not saved", "attribute"  # what a `state_dict` does not have
_REWRITTEN = ("_g", "_v", "_orig")  # hooks of weight_norm, spectral_norm and pruning make `weight` from these
_PARAMETRIZED = re.compile(r"(?<![^.])parametrizations\.([^.]+)\.original\d*$")
_OWN = frozenset(vars(nn.Module()))  # the attributes that every module has
_HELD = re.compile(r"(.+?)(?: (\[[^\]]*\]))?(?: on ([\w:]+))?(?:, (not saved|attribute))?")


class Held(NamedTuple):
    """What a tensor is.

    Attributes:
        dtype: `bfloat16`; of a tensor of a subclass what it stands for and what it keeps:
            `bfloat16 as Int8Tensor(qdata int8, scale bfloat16)`.
        mark: `not saved` for a buffer that is not persistent, `attribute` for a plain tensor; else nothing.
        shape, device: None if nobody asked.
    """

    dtype: str
    mark: str = ""
    shape: str | None = None
    device: str | None = None

    def __str__(self) -> str:
        shape = "" if self.shape is None else f" {self.shape}"
        device = "" if self.device is None else f" on {self.device}"
        return f"{self.dtype}{shape}{device}{self.mark and ', '}{self.mark}"

    @classmethod
    def read(cls, text: str) -> "Held":
        """The same from its text."""
        found = _HELD.fullmatch(text)
        assert found is not None, text  # any text that is not empty fits
        dtype, shape, device, mark = found.groups()
        return cls(dtype, mark or "", shape, device)


@dataclass
class Reading:
    """What is held, by section and name, as patterns have names.

    Attributes:
        title: what was read: the class of a model, the name of a file.
        sections: `tensors`, `gradients`, `optimizer`, `computes` for the dtypes in which modules compute, and `files`
            for the tensors in a file, where their names are not the model's.
        tied: names of a tensor that has another name already, and that name.
        alive: the tensors themselves, of a model.
        saved: whether it is a checkpoint, which has only what a `state_dict` has.
        unit: what is counted: `tensor`, or `name` of a manifest, whose names have no numbers.
    """

    title: str
    sections: dict[str, dict[str, Held]] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    alive: dict[str, Tensor] = field(default_factory=dict, repr=False)
    saved: bool = False
    unit: str = "tensor"


def refuse_no_state(subject: Any) -> None:
    """A clear TypeError for what cannot be read."""
    refuse_maker("manifest", subject)
    if not isinstance(subject, nn.Module | Mapping):
        raise TypeError(f"manifest takes a model or a mapping of tensors, as a state_dict is, not {kind_of(subject)}")


def read(subject: Any, optimizer: Any = None, shapes: bool = False, devices: bool = False) -> Reading:
    """What a model holds; or a mapping of tensors, models and other mappings, such as a checkpoint.

    Raises:
        TypeError: for anything else.
    """
    refuse_no_state(subject)
    model = isinstance(subject, nn.Module)
    found = Reading(type(subject).__name__, saved=not model)
    held, names, gradients = found.sections.setdefault("tensors", {}), dict[int, str](), dict[str, Held]()
    for full, mark, tensor in _tensors(subject, "", ()):
        name = quoted(full)
        shown = _held_by(tensor, mark, shapes, devices)
        first = names.setdefault(id(tensor), name)
        if first is not name and model:
            found.tied[name] = first
        if name in held and held[name] != shown:  # the two originals of a parametrization
            shown = held[name]._replace(dtype=f"{held[name].dtype} + {shown.dtype}")
        held[name], found.alive[name] = shown, tensor
        gradient = tensor.grad if model and not mark and tensor.is_leaf else None
        if gradient is not None and name not in found.tied:
            gradients[name] = _held_by(gradient, "", shapes, devices)
    if gradients:
        found.sections["gradients"] = gradients
    states = {quoted(name): state for name, state in _states(optimizer, names)}
    if states:
        found.sections["optimizer"] = {name: _held_by(state, "", shapes, devices) for name, state in states.items()}
        found.alive |= states
    return found


def _tensors(subject: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, str, Tensor]]:
    """Names, marks, tensors."""
    if isinstance(subject, nn.Module):
        for name, mark, tensor in _of_model(subject):
            yield inside(path, name), mark, tensor
        return
    if isinstance(subject, Tensor):
        yield path, "", subject
        return
    if not isinstance(subject, Mapping | list | tuple) and callable(getattr(subject, "state_dict", None)):
        subject = subject.state_dict()
    if id(subject) in above:
        return
    items: Iterable[Any] = ()
    if isinstance(subject, Mapping):
        items = subject.items()
    elif isinstance(subject, list | tuple):
        items = enumerate(subject)
    for key, value in items:
        yield from _tensors(value, author_name(inside(path, str(key))), (*above, id(subject)))


def author_name(name: str) -> str:
    """A name without what wrappers and parametrizations put into it."""
    return _PARAMETRIZED.sub(r"\1", unwrapped(name))


def _of_model(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    for path, module in walk(model, again=True):
        own = vars(module)
        plain = [name for name in own.keys() - _OWN if isinstance(own[name], Tensor)]
        if not (plain or own.get("_parameters") or own.get("_buffers")):
            continue
        path, passing = path and unwrapped(f"{path}."), own.get("_non_persistent_buffers_set")
        made = {name for name in plain if any(f"{name}{end}" in own["_parameters"] for end in _REWRITTEN)}
        for kind, name, tensor in tensors_of(module):
            mark = NOT_SAVED if kind == "buffer" and passing and name in passing else ""
            if made:
                name = next((name.removesuffix(end) for end in _REWRITTEN if name.removesuffix(end) in made), name)
            full = path + name
            if "parametrizations." in full:
                full = author_name(full)
                if "parametrizations." in full:  # what a parametrization has for itself
                    continue
            yield full, mark, tensor
        for name in sorted(set(plain) - made):
            yield path + name, ATTRIBUTE, own[name]


def _states(optimizer: Any, names: Mapping[int, str]) -> Iterator[tuple[str, Tensor]]:
    """The tensors that optimizers keep for parameters, by the names of these and their own."""
    several = optimizer if isinstance(optimizer, list | tuple) else () if optimizer is None else (optimizer,)
    for one in several:
        state = getattr(one, "state", None)
        if not isinstance(state, Mapping) or not hasattr(one, "param_groups"):
            meant = ": pass a batch as batch=" if isinstance(one, Tensor | Mapping) else ""
            raise TypeError(f"optimizer is {kind_of(one)}, which has no state and no param_groups{meant}")
        order = {id(p): f"{n}.{k}" for n, g in enumerate(one.param_groups) for k, p in enumerate(g["params"])}
        for parameter, kept in state.items():
            name = names.get(id(parameter)) or order.get(id(parameter))
            if name is not None and isinstance(kept, Mapping):
                for key, value in kept.items():
                    if isinstance(value, Tensor):
                        yield f"{name}.{key}", value


def _held_by(tensor: Tensor, mark: str, shapes: bool, devices: bool) -> Held:
    if type(tensor) in _PLAIN and not (shapes or devices):
        return _plain_held(tensor.dtype, mark)
    shape = f"[{','.join(map(str, shape_of(tensor)))}]" if shapes else None
    return Held(dtype_text(tensor), mark, shape, str(tensor.device) if devices else None)


@functools.cache
def _plain_held(dtype: torch.dtype, mark: str) -> Held:
    return Held(name_of(dtype), mark)


def dtype_text(tensor: Tensor) -> str:
    """A dtype by name; of a subclass that keeps other tensors, its class and what it keeps."""
    if type(tensor) in _PLAIN:
        return name_of(tensor.dtype)
    local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor, the part that this rank has
    flatten = getattr(type(local), "__tensor_flatten__", None)
    if flatten is None or type(local) in _PLAIN:
        return name_of(tensor.dtype)
    kept = ((name, getattr(local, name, None)) for name in flatten(local)[0])
    parts = ", ".join(f"{name} {dtype_text(part)}" for name, part in kept if isinstance(part, Tensor))
    return f"{name_of(tensor.dtype)} as {type(local).__name__}({parts})"


_PLAIN = (Tensor, nn.Parameter)
