"""Which parameters a model has, and what they are called."""

import weakref
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from .._core.base.modules import root_of, unwrapped


class Names:
    """The parameters of models by name. A model is not kept alive, nor are parameters that it replaced."""

    def __init__(self, models: Sequence[nn.Module], titles: Sequence[str] = ()) -> None:
        """Names begin with the model's title where there are several, or where titles are given."""
        self._here: dict[int, str] = {}
        self._once: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._hold(models, titles)
        self.refresh()

    def _hold(self, models: Sequence[nn.Module], titles: Sequence[str] = ()) -> None:
        models = [root_of(model) for model in models]
        self._models = [weakref.ref(model) for model in models]
        kinds = [type(model).__name__ for model in models]
        own = [f"{kind}[{n}]" if kinds.count(kind) > 1 else kind for n, kind in enumerate(kinds)]
        self._titles = list(titles) or own
        self._long = bool(titles) or len(models) > 1
        self.title: str = ", ".join(self._titles)

    def refresh(self) -> None:
        """Look again at what the model has."""
        self._here = {}
        for parameter, name in self.named():
            self._here[id(parameter)] = name
            if not self.had(parameter):
                self._once[id(parameter)] = (weakref.ref(parameter), name)

    def models(self) -> list[nn.Module]:
        """The models that still live."""
        return [model for ref in self._models if (model := ref()) is not None]

    @property
    def gone(self) -> bool:
        """Whether one of the models no longer lives."""
        return len(self.models()) < len(self._models)

    def named(self) -> Iterator[tuple[Tensor, str]]:
        for ref, title in zip(self._models, self._titles, strict=True):
            model = ref()
            if model is not None:
                for parameter, name in named(model):
                    yield parameter, f"{title}.{name}" if self._long else name

    def has(self, parameter: Tensor) -> bool:
        return id(parameter) in self._here

    def had(self, parameter: Tensor) -> bool:
        """Whether the model has it, or had it when it was looked at before."""
        known = self._once.get(id(parameter))
        return known is not None and known[0]() is parameter

    def of(self, parameter: Tensor) -> str:
        """The name of a parameter; for one that the model never had, what it looks like."""
        if self.has(parameter):
            return self._here[id(parameter)]
        if self.had(parameter):
            return self._once[id(parameter)][1]
        return f"a parameter of shape {list(parameter.shape)}"


def named(model: nn.Module) -> Iterator[tuple[Tensor, str]]:
    """The parameters of a module, with the names that its author gave them."""
    for name, parameter in model.named_parameters():
        yield parameter, unwrapped(name)
