"""Fused attention in the wider dtype: by the operations that it stands for, where its kernel has no way there."""

from typing import Any

import torch
from torch import Tensor

from ..ops import Operator


def composite(op: Operator, args: Any, kwargs: Any) -> Any:
    """The result of fused attention; None where the kernel itself does it.

    The kernel for the CPU has a derivative for all but its mask. Those for GPUs take no wider dtype, or keep what
    their backward needs only where they are told to.
    """
    query, key, value = args[:3]
    mask = op.argument(args, kwargs, "attn_mask", op.argument(args, kwargs, "attn_bias"))
    if query.is_cpu and not (isinstance(mask, Tensor) and mask.requires_grad):
        return None
    math: Any = torch.ops.aten._scaled_dot_product_attention_math
    causal, scale = op.argument(args, kwargs, "is_causal", False), op.argument(args, kwargs, "scale")
    return math(query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=query.shape[-3] != key.shape[-3])[:1]
