"""Which dtype of an annotation is meant, where it names a family."""

import torch

from ..base.dtypes import TABLE, Kind, may_cast
from ..contract.spec import TensorSpec
from .state import CallState


def within(dtype: torch.dtype, spec: TensorSpec) -> bool:
    return spec.dtypes is None or dtype in spec.dtypes


def prefer(
    spec: TensorSpec, source: torch.dtype | None, wanted: torch.dtype | None, call: CallState
) -> torch.dtype | None:
    """The member of a family that another dtype is cast to: the anchor's, the default, the usual ones, the widest."""
    if spec.dtypes is None:
        return None
    default = torch.get_default_dtype()
    usual = [wanted, default, torch.complex64 if default is torch.float32 else torch.complex128, torch.int64]
    rest = sorted(spec.dtypes, key=lambda d: (TABLE[d].kind is Kind.STORAGE, -TABLE[d].digits, TABLE[d].name))
    members = [d for d in (*usual, *rest) if d is not None and d in spec.dtypes]
    if source is None or not members:
        return members[0] if members else None
    allowed = (d for d in members if may_cast(source, d, call.casting))
    return next(allowed, members[0])
