"""What the running code calls its scaler and its optimizer: fixes say it with the program's own names."""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ..._core.base.frames import user

# The field in a rule's fix: what it names, and what is written where nobody knows the name.
_FIELDS: dict[str, tuple[type, str]] = {
    "scaler_code": (GradScaler, "scaler"),
    "optimizer_code": (Optimizer, "optimizer"),
}


def called(fix: str, held: Any) -> dict[str, str]:
    """The names that a fix asks for: of the optimizer that is `held`, or of the one object of its class there is."""
    asked = {field: facts for field, facts in _FIELDS.items() if f"{{{field}}}" in fix}
    if not asked:
        return {}
    found = list(_objects(user(sys._getframe(1))))
    names = {}
    for field, (kind, default) in asked.items():
        objects = {name: value for name, value in found if isinstance(value, kind)}
        named = [name for name, value in objects.items() if value is held]
        only = {id(value) for value in objects.values()}
        names[field] = next(iter(named or (objects if len(only) == 1 and not isinstance(held, kind) else ())), default)
    return names


def _objects(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """What a frame can name: its variables, the attributes of `self`, and the module's variables."""
    if frame is not None:
        yield from dict(frame.f_locals).items()
        own = getattr(frame.f_locals.get("self"), "__dict__", {})
        yield from ((f"self.{name}", value) for name, value in dict(own).items())
        yield from dict(frame.f_globals).items()
