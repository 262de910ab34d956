"""What an argument is by its name, where no annotation says it: names that models share, whoever wrote them."""

from typing import Any

import torch
from torch import nn

from .._base.dtypes import HALF
from .._contract.model import Contract, Path, argument_of

_LABELS = frozenset(["label", "labels", "target", "targets"])
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def is_ids(path: Path, module: Any) -> bool:
    """Whether a value goes into an embedding, as `input_ids` or `batch['token_type_ids']`: such are integers."""
    if _last(path) != "ids" or not isinstance(module, nn.Module):
        return False
    return any(isinstance(part, _EMBEDDINGS) for part in module.modules())


def is_label(path: Path) -> bool:
    """Whether a value is what a loss compares with: it has the digits that it needs."""
    return _last(path) in _LABELS


def is_mask(contract: Contract, path: Path, dtype: Any, anchor: Any, values: tuple[Any, ...]) -> bool:
    """Whether a float32 value is an attention mask of a half module of PyTorch's own.

    `F.scaled_dot_product_attention` takes it, the formula that returns the weights does not.
    """
    if path[0] not in contract.masks or dtype is not torch.float32 or anchor not in HALF:
        return False
    return not any(param.name == "need_weights" and value for param, value in zip(contract.params, values, strict=True))


def _last(path: Path) -> str:
    """The last word of the last name on a path."""
    names = [argument_of(path), *(step[1] for step in path[1:] if not isinstance(step, str))]
    return next(name for name in reversed(names) if isinstance(name, str)).rpartition("_")[2]
