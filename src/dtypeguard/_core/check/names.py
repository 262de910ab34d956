"""What an argument is by its name, where no annotation says it: names that models share, whoever wrote them."""

import functools
import inspect
import re
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from ..base.dtypes import HALF
from ..contract.model import Contract, Path, argument_of
from .values import has_fraction, readable

_LABELS = frozenset(["label", "labels", "target", "targets"])
_TOKENS = frozenset(["input", "token", "type"])  # before `ids`: of these no number lies between two
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def is_ids(path: Path, value: Tensor, module: Any) -> bool:
    """Whether a value goes into an embedding: such are integers.

    PyTorch's own modules say where, and a forward that hands it on as it is: `self.embed(tokens)`. In other models it
    is a name, as `ids`, `input_ids` or `batch['token_type_ids']`; other ids (`position_ids`, `img_ids`) may have
    fractions, and go elsewhere then.
    """
    while isinstance(module, nn.Sequential) and len(module) and path == ("input",):
        module = module[0]
    if isinstance(module, _EMBEDDINGS):
        return path in (("input",), ("offsets",))
    if len(path) == 1 and _embeds(path[0], module):
        return True
    *before, last = _words(path)
    if last != "ids" or not _rows(module):
        return False
    return _TOKENS.issuperset(before[-1:]) or not (_is_readable(value) and has_fraction(value.detach()))


def keeps_digits(path: Path, dtype: Any) -> bool:
    """Whether a value is what a loss compares with, and would have few digits in a dtype."""
    return dtype in HALF and are_labels(path)


def are_labels(path: Path) -> bool:
    """Whether a value is what a loss compares with, by its name."""
    return _words(path)[-1] in _LABELS


def instead(path: Path, value: Tensor, dtype: torch.dtype | None, module: Any) -> tuple[str, ...]:
    """What to write where a cast to the model's dtype may be wrong: text around the argument, as a fix has it."""
    if keeps_digits(path, dtype):
        return f"keep it out with skip_args={argument_of(path)!r}, or write ", f".to({dtype})"
    if _is_readable(value) and (rows := _rows(module)) and _are_rows(value.detach(), rows):
        return "", f".to({dtype}), or, if an embedding gets it, ", ".long()"
    return ()


def caster_of(name: str, module: Any) -> str:
    """The class, in a model, whose forward casts an argument of this name itself; "" if none does."""
    for cls in dict.fromkeys(type(part) for part in module.modules()) if isinstance(module, nn.Module) else ():
        if re.search(rf"\b{name}\.to\([^()]*dtype", _written(cls)):
            return str(cls.__name__)
    return ""


def _embeds(name: Any, module: Any) -> bool:
    """Whether a forward hands an argument to an embedding of its own, without a change before that."""
    if torch.compiler.is_compiling() or not isinstance(module, nn.Module):
        return False
    own = "|".join(name for name, part in module.named_children() if isinstance(part, _EMBEDDINGS))
    source = _written(type(module)) if own else ""
    return bool(re.search(rf"\bself\.(?:{own})\({name}[,)]", source)) and not re.search(rf"\b{name}\s*=[^=]", source)


def _written(cls: type) -> str:
    """The forward that somebody wrote for a class, behind the one that a guard made; "" if there is no source."""
    for base in cls.__mro__:
        code = getattr(inspect.unwrap(base.__dict__.get("forward", None)), "__code__", None)
        if code is not None and not code.co_filename.startswith("<dtypeguard"):
            return _source(code)
    return ""


@functools.lru_cache(256)
def _source(code: CodeType) -> str:
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return ""


def _rows(module: Any) -> int:
    """The rows of a model's largest embedding; 0 if it has none."""
    rows = 0  # a loop, which Dynamo follows
    for part in module.modules() if isinstance(module, nn.Module) else ():
        if isinstance(part, _EMBEDDINGS):
            rows = max(rows, int(part.num_embeddings))
    return rows


def _are_rows(value: Tensor, rows: int) -> bool:
    """Whether numbers may be rows of an embedding; zeros and ones may as well be a mask."""
    if not value.numel() or has_fraction(value):
        return False
    least, most = value.aminmax()
    return bool(least >= 0) and 1 < float(most) < rows


def _is_readable(value: Tensor) -> bool:
    return not torch.compiler.is_compiling() and readable(value)


def is_mask(contract: Contract, path: Path, dtype: Any, anchor: Any, values: tuple[Any, ...]) -> bool:
    """Whether a float32 value is an attention mask of a half module of PyTorch's own.

    `F.scaled_dot_product_attention` takes it, the formula that returns the weights does not.
    """
    if path[0] not in contract.masks or dtype is not torch.float32 or anchor not in HALF:
        return False
    return not any(param.name == "need_weights" and value for param, value in zip(contract.params, values, strict=True))


def is_called_mask(path: Path) -> bool:
    """Whether a value is a mask by its name: `attention_mask`, `batch['mask']`, `masks[0]`."""
    return _words(path)[-1] in ("mask", "masks")


def _words(path: Path) -> list[str]:
    """The words of the last name on a path."""
    names = [argument_of(path), *(step[1] for step in path[1:] if not isinstance(step, str))]
    return next(name for name in reversed(names) if isinstance(name, str)).split("_")
