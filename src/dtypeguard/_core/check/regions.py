"""Autocast regions, asked by type of device."""

import torch


def autocast_enabled(device_type: str) -> bool:
    """Whether an autocast region is active for a device type; False for one that autocast does not know."""
    try:
        return torch.is_autocast_enabled(device_type)
    except (RuntimeError, TypeError):
        return False


def region_of(device_type: str) -> torch.dtype | None:
    """What autocast computes in on a device type; None outside of a region."""
    return torch.get_autocast_dtype(device_type) if autocast_enabled(device_type) else None
