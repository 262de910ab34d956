"""Autocast regions, asked by type of device."""

import torch
from torch import Tensor, nn

from ..base.config import Autocast
from ..base.dtypes import AUTOCAST, HALF
from ..contract.model import Path
from .state import CallState


def autocast_enabled(device_type: str) -> bool:
    """Whether an autocast region is active for a device type; False for one that autocast does not know."""
    try:
        return torch.is_autocast_enabled(device_type)
    except (RuntimeError, TypeError):
        return False


def region_of(device_type: str) -> torch.dtype | None:
    """What autocast computes in on a device type; None outside of a region."""
    return torch.get_autocast_dtype(device_type) if autocast_enabled(device_type) else None


def autocast_casts(
    value: Tensor, path: Path, target: torch.dtype | None, wanted: torch.dtype | None, call: CallState
) -> bool:  # fmt: skip
    """Whether autocast itself makes the difference of dtypes harmless inside the body.

    On the CPU it leaves some of PyTorch's modules alone: for half parameters the value is noted as a side input of the
    call, so that these are looked at.
    """
    contract, place = call.contract, _device_in_body(value, call).type
    left = contract.guarded and wanted in HALF and place == "cpu"
    casts = (
        contract.autocast is Autocast.FOLLOW
        and not (left and contract.uncast)
        and (not contract.modules_only or isinstance(call.values[0], nn.Module))
        and value.dtype in AUTOCAST
        and target in AUTOCAST
        and (target is torch.float32 or target is wanted)
        and autocast_enabled(place)
    )
    if casts and left and contract.sides and not call.leaving:
        call.sides.append((path, value))
    return casts


def _device_in_body(value: Tensor, call: CallState) -> torch.device:
    """Where a floating tensor will be when the body gets it: what autocast does depends on that."""
    anchor = call.anchor
    if anchor is None or anchor.device is None or (value.is_cpu and value.dim() == 0):
        return value.device
    return anchor.device
