"""`torch.jit.script` reads an enforced forward as its author wrote it, and jaxtyping's annotations as `Tensor`."""

import gc
import inspect
import linecache
import pickle
import traceback

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dtypeguard import DtypeError, DtypeGuardWarning, GuardedModule, enforce, guard

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
Rows = Float[Tensor, "b 3"]


class Enforced(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)

    @enforce(mode="strict")
    def forward(self, x: Rows, n: int = 2, bias: Float[Tensor, "b"] | None = None) -> "Float[Tensor, 'b 1']":
        y = self.fc(x) * n
        if bias is not None:
            y = y + bias.unsqueeze(1)
        return y


class Derived(GuardedModule):
    def __init__(self):
        super().__init__()
        self.fc = Enforced()

    def forward(self, x: Rows) -> Float[Tensor, "b 1"]:
        return self.fc(x)


class Untyped(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)

    @enforce
    @torch.no_grad()
    def forward(self, x: Tensor):  # a comment that stays
        return self.fc(x)


@enforce
class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, x: Rows) -> Rows:
        return self.fc(x).expand(-1, 3)


BARE = [Enforced, Untyped, Decorated, lambda: nn.Sequential(Enforced(), nn.Identity())]
GUARDED = [Derived, lambda: guard(Enforced()), lambda: guard(Derived()), lambda: nn.Sequential(Derived())]


@pytest.mark.parametrize("make", BARE + GUARDED)
def test_a_script_is_the_model_without_its_checks(make):
    model, x = make(), torch.randn(2, 3)
    expected = model(x)
    if make in GUARDED:
        with pytest.warns(DtypeGuardWarning, match="without its guard"):
            scripted = torch.jit.script(model)
    else:
        scripted = torch.jit.script(model)
    assert torch.equal(scripted(x), expected)
    with pytest.raises(RuntimeError, match="dtype"):  # torch's own
        scripted(x.double())


def test_what_stands_behind_wrapped_still_checks():
    model = pickle.loads(pickle.dumps(Enforced()))
    forward = model.forward.__wrapped__
    assert inspect.signature(forward) == inspect.signature(Enforced.forward)
    assert forward(model, torch.ones(2, 3)).shape == (2, 1)
    with pytest.raises(DtypeError) as caught:
        forward(model, torch.ones(2, 3, dtype=torch.float64))
    assert caught.value.call_site.startswith("tests/test_script.py") or __file__ in caught.value.call_site


def test_the_source_of_a_forward_is_not_what_was_generated():
    assert "a comment that stays" in inspect.getsource(Untyped.forward)
    assert "_dg_" not in inspect.getsource(Enforced.forward)


def test_a_forward_without_a_source_has_none():
    names = {"enforce": enforce, "Rows": Rows}
    text = "@enforce\ndef forward(self, x: Rows) -> Rows:\n    raise KeyError(x)"
    exec(compile(text, "<nowhere>", "exec"), names)  # Python 3.13 knows the text of `-c` as that of "<string>"
    with pytest.raises(OSError, match="could not get source code"):
        inspect.getsource(names["forward"])
    with pytest.raises(KeyError) as caught:
        names["forward"].__wrapped__(None, torch.ones(2, 3))
    assert "KeyError" in "".join(traceback.format_exception(caught.value))


def test_a_forward_that_is_gone_leaves_no_source_behind():
    before = len(linecache.cache)

    def make():
        class Net(nn.Module):
            @enforce(mode="strict")
            def forward(self, x: Rows) -> Rows:
                return super().forward(x)

    for _ in range(3):
        make()
    gc.collect()
    assert len(linecache.cache) <= before + 1  # generated code is shared
