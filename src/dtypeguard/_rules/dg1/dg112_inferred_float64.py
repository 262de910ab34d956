"""DG112 inferred-float64."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from .._kit import Recorder, Rule, Severity, around, name_of, size_of

RULE = Rule(
    "DG112",
    "inferred-float64",
    Severity.INFO,
    summary="A tensor is float64 only because NumPy scalars are.",
    says="{what} is float64 since it holds NumPy scalars; with {others} it would be {other}",
    fix="{advice}",
    why=(
        "`torch.tensor` infers the dtype from its elements, and a `numpy.float64` looks and prints like a "
        "Python float. What depends on such a chance differs from run to run, and from rank to rank."
        " The `default_collate` of a DataLoader makes float64 of Python floats, too, and float32 of `numpy.float32`."
    ),
    sources=("https://github.com/modelscope/ms-swift/issues/9550",),
)

_ELEMENTS = 1000


@around(torch, "tensor", "as_tensor", "asarray", rule=RULE)
def _making(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    made = original(*args, **kwargs)
    asked = len(args) > 1 or kwargs.get("dtype") is not None
    if made.dtype is torch.float64 and not asked:
        data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        audit.guarded(_look_at_elements, audit, original.__name__, data, made)
    return made


def _look_at_elements(audit: Recorder, function: str, data: Any, made: Tensor) -> None:
    default = torch.get_default_dtype()
    if default is not torch.float64 and any(map(_is_scalar, islice(_elements(data), _ELEMENTS))):
        site, name = audit.here(), name_of(default)
        what, others, other = f"`{site.expression or f'torch.{function}'}`", "Python numbers", name
        advice = f"say which dtype is meant: `torch.tensor(..., dtype=torch.{name})`"
        if site.loop:  # a loader collates: it asks for float64 where it gets Python's numbers
            what, others, other = f"a tensor of `{site.loop}`", "`numpy.float32`", "float32"
            advice = "give `np.float32(...)` in the data set (of Python numbers `default_collate` makes float64, too)"
        facts = {"what": what, "others": others, "other": other, "advice": advice}
        fields = {"module": audit.module(), "op": function, "to_dtype": torch.float64, "bytes": size_of(made)}
        audit.find(RULE, site, facts=facts, **fields)


def _elements(data: Any) -> Any:
    if isinstance(data, (list, tuple)):
        for part in data:
            yield from _elements(part)
    else:
        yield data


def _is_scalar(value: Any) -> bool:
    return type(value).__module__ == "numpy" and not hasattr(value, "__len__")
