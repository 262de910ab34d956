"""What libraries say of their models: the names in their files, and what must stay in float32."""

import re
import sys
from collections.abc import Mapping
from typing import Any

import torch

from ..._core.state.patterns import folded, kind_of, quoted
from ..._core.state.reading import Held, dtype_text


def as_saved(model: Any) -> dict[str, Held] | None:
    """What the files of a model hold that have other names; None if they have the model's.

    transformers 5 splits and renames tensors in `save_pretrained`, so that older versions can read the files.
    """
    loading: Any = sys.modules.get("transformers.core_model_loading")
    revert = getattr(loading, "revert_weight_conversion", None)
    if revert is None or not hasattr(model, "save_pretrained"):
        return None
    nothing: dict[str, Any] = {}
    try:
        if revert(model, nothing) is nothing:
            return None
        state = {name: torch.empty_like(tensor, device="meta") for name, tensor in model.state_dict().items()}
        saved = revert(model, state)
        found = {quoted(name): Held(dtype_text(tensor)) for name, tensor in saved.items()}
    except Exception:  # another library's own function, for a manifest that is right without it
        return None
    return found if found.keys() != set(map(quoted, state)) else None


def narrowed(model: Any, held: Mapping[str, Held]) -> str | None:
    """What is half although the model's class says that it stays in float32, in a line; None if nothing is.

    transformers keeps `_keep_in_fp32_modules_strict` in float32 beside either half dtype, `_keep_in_fp32_modules` only
    beside float16; diffusers keeps the latter beside both.
    """
    both = ("float16", "bfloat16")
    plain = both if type(model).__module__.startswith("diffusers") else ("float16",)
    for name, halves in (("_keep_in_fp32_modules_strict", both), ("_keep_in_fp32_modules", plain)):
        keys = [re.escape(str(key)).replace(r"\*", r"\d+") for key in getattr(model, name, None) or ()]
        kept = re.compile(rf"(^|\.)({'|'.join(keys)})(\.|$)") if keys else None
        found = [full for full, what in held.items() if kept and what.dtype in halves and kept.search(full)]
        if found:
            kinds = folded(set(map(kind_of, found)))
            shown = ", ".join(kinds[:3]) + (", ..." if len(kinds) > 3 else "")
            of = f"{type(model).__name__}.{name} says that they stay in float32"
            return f"{len(found)} tensors are {held[found[0]].dtype}, and {of}: {shown}"
    return None
