"""DG605 scale-ignored."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._kit import Op, Recorder, Rule, Severity, Suspect, around, listed, name_of, on

RULE = Rule(
    "DG605",
    "scale-ignored",
    Severity.WARNING,
    summary="Quantized weights are loaded, and their scales are left out.",
    says="`load_state_dict` loads {names} of {module} from {dtype} without {scales}",
    fix="multiply by the scale first, `weight.float() * scale`; or load the file with the library that wrote it",
    why=(
        "Weights of 8 bits are codes: the file keeps a scale beside each, and the weight is their product. A model "
        "without a place for the scales loads the codes alone with `strict=False`, and computes with weights that are "
        "wrong by orders of magnitude."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict",
        "https://github.com/Lightricks/LTX-2/issues/172",
        "https://github.com/1038lab/ComfyUI-JoyCaption/issues/50",
    ),
)

_SCALE = re.compile(r"(.+?)[._](?:scale(?:_inv|_2)?|absmax)|(.+\.)SCB")  # `to_q.weight_scale`, `to_q.SCB`
_CODES = frozenset([torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2])
_APPLY = "mul mul_ div div_ _foreach_mul_ reciprocal".split()
_PLAIN = frozenset("_to_copy copy_ clone detach view reshape alias".split())


@dataclass
class Loads:
    """By the address of a scale that no module has, the weight that was loaded without it."""

    scales: dict[int, tuple[str, str, Suspect]] = field(default_factory=dict)


@around(nn.Module, "load_state_dict", rule=RULE)
def _loads(audit: Recorder, original: Callable[..., Any], self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    result = original(self, *args, **kwargs)
    state = args[0] if args else kwargs.get("state_dict")
    if isinstance(state, Mapping):
        audit.guarded(_remember, audit, self, state)
    return result


def _remember(audit: Recorder, model: nn.Module, state: Mapping[str, Any]) -> None:
    own, site = model.state_dict(keep_vars=True), audit.user()
    for scale, weight in _left_out(state, own):
        source, target = state[weight], own[weight]
        dtype = _codes_of(source, audit)
        if dtype is not None and target.dtype not in _CODES:
            facts = {"module": audit.path_of(model), "dtype": name_of(dtype)}
            fields = {"module": audit.path_of(model), "op": "Module.load_state_dict", "from_dtype": dtype}
            suspect = Suspect(RULE, site, facts, fields | {"to_dtype": target.dtype})
            audit.state(Loads).scales[state[scale].data_ptr()] = scale, weight, suspect


def _left_out(state: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Scales that the model has no place for, with the weights that it has."""
    for name, value in state.items():
        found = _SCALE.fullmatch(name) if name not in own and isinstance(value, Tensor) else None
        weight = "" if found is None else found[1] or f"{found[2]}weight"
        if isinstance(own.get(weight), Tensor) and isinstance(state.get(weight), Tensor):
            yield name, weight


def _codes_of(loaded: Tensor, audit: Recorder) -> torch.dtype | None:
    """The dtype of the codes that a tensor was loaded from, if nothing but casts was done to them."""
    node = audit.lineage.get(loaded)
    while node is not None and node.dtype not in _CODES and node.op in _PLAIN and node.parents:
        node = node.parents[0]
    dtype = loaded.dtype if node is None else node.dtype
    return dtype if dtype in _CODES else None


@on("after", RULE, ops=_APPLY)
def applied(event: Op, audit: Recorder) -> None:
    scales = audit.state(Loads).scales
    for tensor in event.inputs if scales else ():
        scales.pop(tensor.data_ptr(), None)


@on("end", RULE)
def tell(audit: Recorder) -> None:
    groups: dict[Any, list[tuple[str, str, Suspect]]] = {}
    for row in audit.state(Loads).scales.values():
        groups.setdefault((row[2].site, row[2].facts["dtype"]), []).append(row)
    for rows in groups.values():
        scales, weights = listed([scale for scale, _, _ in rows]), listed([weight for _, weight, _ in rows])
        rows[0][2].find(audit, names=weights, scales=scales)
