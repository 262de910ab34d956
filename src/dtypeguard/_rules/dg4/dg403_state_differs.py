"""DG403 state-differs."""

from torch import Tensor

from ..._core.base.dtypes import FLOATING
from ..._core.base.errors import plain
from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._optimizer import Group, is_torchs

RULE = Rule(
    "DG403",
    "state-differs",
    Severity.ERROR,
    summary="Optimizer state differs from its parameter in dtype or device.",
    says="state {keys} of {names} is {found}, the parameters are {expected}",
    fix=(
        "convert or move the model before the optimizer is built; after a change build it anew, or "
        "`optimizer.load_state_dict(optimizer.state_dict())` to cast its state"
    ),
    why=(
        "`model.half()` and `model.to()` change parameters in place and leave the optimizer's state as it "
        'was. The next step fails with "expected dtype float for `end` but got dtype c10::Half", or mixes '
        "dtypes in silence."
    ),
    at_birth=True,
    unsafe=("optimizer_last", "state_like_parameters"),
    sampled=True,
    sources=("https://github.com/pytorch/pytorch/issues/7844",),
)


@on("look", RULE)
def compare(group: Group) -> None:
    watched = group.watched
    own = is_torchs(watched.optimizer)
    wrong: dict[tuple[str, str], list[tuple[Tensor, str, Tensor]]] = {}
    for parameter in group.parameters():
        for key, value in watched.state_of(parameter).items():
            if not isinstance(value, Tensor) or not value.ndim or value.shape != parameter.shape:
                continue
            was = watched.was(parameter)
            # An optimizer of somebody else may keep wider state: a fault only if the parameter was like it once.
            if value.dtype is not parameter.dtype and value.dtype in FLOATING and (own or value.dtype is was):
                if own or was is not parameter.dtype:
                    pair = plain(value.dtype), plain(parameter.dtype)
                    wrong.setdefault(pair, []).append((parameter, key, value))
            elif own and value.device != parameter.device:
                pair = f"on {value.device}", f"on {parameter.device}"
                wrong.setdefault(pair, []).append((parameter, key, value))
    for (found, expected), entries in wrong.items():
        parameters, names, values = zip(*entries, strict=True)
        keys = ", ".join(dict.fromkeys(f"`{key}`" for key in names))
        facts = {"keys": keys, "found": found, "expected": expected}
        was, now = values[0].dtype, parameters[0].dtype
        origin = watched.since(parameters[0]) if was is not now else ()
        group.add(
            RULE, facts, parameters, kind=f"{found} {expected}", from_dtype=was, to_dtype=now, origin=origin
        )  # fmt: skip
