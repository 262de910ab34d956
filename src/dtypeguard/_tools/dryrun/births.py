"""Where a second dtype is born inside a model."""

import torch

from ..._core.base.dtypes import name_of
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.sites import here


class Births:
    """Where floating dtypes are born that the parameters of a cell do not have."""

    def __init__(self, usual: torch.dtype | None) -> None:
        self._usual = usual
        self._found: dict[str, None] = {}

    def born(self, dtype: torch.dtype) -> None:
        """A tensor of that dtype was made of nothing."""
        if dtype is not self._usual:
            site = here()
            self._found[f"{site.expression} at {site}: {name_of(dtype)}"] = None

    def lines(self, recorder: Recorder) -> tuple[str, ...]:
        """These, and where the program casts, or operands promote each other."""
        rows = [(cast, site) for cast, site in recorder.findings.casts() if cast.kind in ("explicit", "promotion")]
        for cast, site in rows:
            if cast.to_dtype is not self._usual and cast.to_dtype.is_floating_point:
                what = site.expression or f"{cast.op} of {name_of(cast.from_dtype)}"  # without the program's source
                self._found[f"{what} at {cast.site}: {name_of(cast.to_dtype)}"] = None
        return tuple(self._found)
