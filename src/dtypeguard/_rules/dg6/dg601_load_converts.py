"""DG601 load-converts."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..._engine.watch.events import Loading
from .._kit import LARGEST, Recorder, Rule, Severity, human, listed, name_of, on, size_of

RULE = Rule(
    "DG601",
    "load-converts",
    Severity.INFO,
    summary="Loading a checkpoint converts it to the model's dtypes.",
    says=("`load_state_dict` converts {share} of {module} from {was} in the checkpoint to {dtype}: {names}{effect}"),
    fix="{advice}",
    why=(
        "Loading copies into the tensors that the model has, and casts without a word: a bfloat16 "
        "checkpoint takes twice its memory in a float32 model, a float32 one loses its digits in a "
        "bfloat16 model."
    ),
    unsafe=("assign_on_load",),
    sources=(
        "https://github.com/huggingface/transformers/issues/24976",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict",
    ),
)

_GONE = 0.01  # of the values of one entry: a few weights of any model are as small


@on("loading", RULE)
def converts(event: Loading, audit: Recorder) -> None:
    was, dtype, names, own = event.was, event.dtype, event.names, event.own
    if not was.is_floating_point or not dtype.is_floating_point:
        return
    grown = sum(size_of(own[name]) - size_of(event.state[name]) for name in names)
    severity = None
    if grown > 0:
        effect = f"{human(grown)} more than the file holds"
        held, file = name_of(dtype), name_of(was)
        advice = f"leave it to train in {held}; to run in {file}, `.to(torch.{file})` before loading"
    else:
        fates = {name: _fate(event.state[name], dtype) for name in names}
        burst, lost = [name for name in names if fates[name].burst], any(fate.lost for fate in fates.values())
        effect = "digits are lost" if lost else "no value is changed"
        gone, most = max((fate.gone, name) for name, fate in fates.items())
        if burst:
            effect, severity = f"{listed(burst)} overflow", Severity.ERROR
        elif gone > _GONE:
            effect, severity = f"{100 * gone:.0f} % of the values of `{most}` become 0", Severity.WARNING
        advice = f"load into a {name_of(was)} model and convert it then, or load with `assign=True`"
    facts = {
        "share": f"{len(names)} of {len(own)} entries", "module": event.path, "was": name_of(was),
        "dtype": name_of(dtype), "effect": f"; {effect}", "advice": advice,
    }  # fmt: skip
    audit.find(RULE, event.site, facts=facts, severity=severity, **event.fields)


class Fate(NamedTuple):
    """What narrowing does to a tensor."""

    burst: bool  # finite values become infinite
    lost: bool  # values change
    gone: float  # the share of the values other than 0 that become 0


def _fate(source: Tensor, dtype: torch.dtype) -> Fate:
    """A checkpoint may fill the memory: of the copies to compare, one small part is alive at a time."""
    burst = lost = False
    gone = some = 0
    for part in torch.split(source.detach().reshape(-1), LARGEST) if source.layout is torch.strided else (source,):
        after = part.to(dtype).to(part.dtype)
        burst = burst or bool((~after.isfinite() & part.isfinite()).any())
        lost = burst or lost or not torch.equal(after.nan_to_num(), part.nan_to_num())
        some += int((part != 0).sum())
        gone += int(((part != 0) & (after == 0)).sum())
    return Fate(burst, lost, gone / max(1, some))
