"""The options of `guard`, read and checked once for all that take them."""

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

import torch
from torch import nn

from ..base.config import AutocastName, CastingName, ModeName, VerifyName, read
from ..base.dtypes import FLOATING, FloatName, dtype_of
from ..base.options import argument_names, device_of, one_of, several, switch
from .forward import Options
from .state import State

Depth = Literal["auto", "all", "boundary"]


class GuardOptions(TypedDict, total=False):
    """The options of `guard`, for functions that take the same."""

    mode: ModeName | None
    casting: CastingName | None
    depth: Depth
    dtype: torch.dtype | FloatName | None
    device: torch.device | str | None
    autocast: AutocastName | None
    skip_args: str | Iterable[str]
    skip_modules: str | type[nn.Module] | Iterable[str | type[nn.Module]]
    move_args: str | Iterable[str]
    verify: VerifyName
    non_blocking: bool
    output_dtype: torch.dtype | FloatName | None
    state: State | None


def read_options(
    *,
    mode: ModeName | None = None,
    casting: CastingName | None = None,
    depth: Depth = "auto",
    dtype: torch.dtype | FloatName | None = None,
    device: torch.device | str | None = None,
    autocast: AutocastName | None = None,
    skip_args: str | Iterable[str] = (),
    skip_modules: str | type[nn.Module] | Iterable[str | type[nn.Module]] = (),
    move_args: str | Iterable[str] = (),
    verify: VerifyName = "first",
    non_blocking: bool = False,
    output_dtype: torch.dtype | FloatName | None = None,
    state: State | None = None,
) -> tuple[Options, tuple[Any, ...]]:
    """The options as a contract has them, and the submodules to skip; `state` is no matter of a call's contract.

    Raises:
        TypeError, ValueError: for what is no option.
    """
    deep: Any = one_of("depth", depth, ("auto", "all", "boundary"))
    asked: dict[str, torch.dtype | None] = {}
    for name, wanted in (("dtype", dtype), ("output_dtype", output_dtype)):
        asked[name] = None if wanted is None else dtype_of(wanted, name, legal=FLOATING)
        if wanted is not None and asked[name] not in FLOATING:
            raise ValueError(f"{name}={wanted!r} is no floating dtype such as torch.bfloat16")
    options = Options(
        **read(mode=mode, casting=casting, autocast=autocast, verify=verify),
        depth=deep,
        dtype=asked["dtype"],
        device=None if device is None else device_of(device),
        output_dtype=asked["output_dtype"],
        skip_args=argument_names("skip_args", skip_args),
        move_args=argument_names("move_args", move_args),
        non_blocking=switch("non_blocking", non_blocking),
    )
    skipped = several("skip_modules", skip_modules, str | type, "names, patterns of names, and classes of submodules")
    return options, skipped
