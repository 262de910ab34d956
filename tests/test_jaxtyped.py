"""`enforce` as the checker of jaxtyping's own decorator and import hook, which give the body what the caller passed."""

import sys
import textwrap

import pytest
import torch
from jaxtyping import Float32, TypeCheckError, install_import_hook, jaxtyped
from torch import Tensor

import dtypeguard
from dtypeguard import CastError, ContractWarning, DtypeError, ShapeError, enforce

Row = Float32[Tensor, "n"]
ours = jaxtyped(typechecker=enforce)


@ours
def add(x: Row, y: Row, dtype: torch.dtype = torch.float32) -> Row:
    return (x + y).to(dtype)


def f64(n=3):
    return torch.zeros(n, dtype=torch.float64)


def f32(n=3):
    return torch.zeros(n)


@pytest.mark.parametrize("wrong", [(f64(), f32()), (f32(), f64()), (f32(), f32(), torch.float64)])
@pytest.mark.parametrize(("mode", "error"), [("lenient", CastError), ("strict", DtypeError)])
def test_nothing_is_said_to_be_cast_that_the_body_would_not_get(wrong, mode, error):
    assert add(f32(), f32()).dtype is torch.float32
    with dtypeguard.mode(mode), pytest.raises(TypeCheckError) as caught:
        add(*wrong)
    cause = caught.value.__cause__
    while not isinstance(cause, dtypeguard.DtypeGuardError):
        cause = cause.__cause__
    assert type(cause) is error
    assert "test_jaxtyped.py" in cause.call_site
    assert 'mode="lenient"' not in str(cause)
    if mode == "lenient":
        assert "under jaxtyping's decorator nothing can be cast: put @dtypeguard.enforce on the function" in str(cause)


def test_the_other_modes_change_nothing_there():
    with dtypeguard.mode("warn"), pytest.warns(ContractWarning, match="is float64"):
        assert add(f64(), f64(), torch.float32).dtype is torch.float32
    with dtypeguard.mode("off"):
        assert add(f64(2), f64(1), torch.float64).dtype is torch.float64


@pytest.mark.parametrize("checker", [enforce, enforce(mode="strict"), lambda fn: enforce(fn, casting="safe")])
def test_axes_go_from_the_arguments_to_the_body_and_from_there_to_the_result(checker):
    @jaxtyped(typechecker=checker)
    def f(x: Row, y: Tensor, size: int) -> Float32[Tensor, "m"]:
        assert isinstance(y, Row)
        assert isinstance(torch.zeros(7), Float32[Tensor, "m"])
        return torch.zeros(size)

    assert len(f(f32(), f32(), 7)) == 7
    with pytest.raises(AssertionError):
        f(f32(), f32(4), 7)
    with pytest.raises(TypeCheckError) as caught:
        f(f32(), f32(), 6)
    assert isinstance(caught.value.__cause__, ShapeError)
    assert isinstance(f32(9), Row)


def test_an_enforced_function_below_the_decorator_is_repaired():
    @jaxtyped(typechecker=None)
    @enforce
    def f(x: Row) -> Row:
        assert isinstance(x, Row)
        return x

    with pytest.warns(dtypeguard.CastWarning):
        assert f(f64()).dtype is torch.float32


def test_the_import_hook_checks_a_package_and_is_silent_about_what_has_no_annotations(tmp_path, monkeypatch):
    source = """
        from dataclasses import dataclass
        import torch
        from jaxtyping import Float, Float32
        from torch import Tensor, nn

        def plain(x): return x
        def none() -> None: pass
        def count(n: int) -> int: return n

        @dataclass
        class Pair:
            x: Float32[Tensor, "n"]
            y: Float32[Tensor, "n"]

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(3, 1)
            def forward(self, x: Float[Tensor, "b 3"]) -> Float[Tensor, "b 1"]:
                assert isinstance(x, Float[Tensor, "b c"])
                return self.fc(x)
        """
    (tmp_path / "hooked.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    with install_import_hook("hooked", "dtypeguard.enforce"):
        import hooked

    try:
        assert (hooked.plain(1), hooked.none(), hooked.count(2)) == (1, None, 2)
        assert hooked.Pair(f32(), f32()).x.dtype is torch.float32
        net = hooked.Net()
        assert net(torch.zeros(2, 3)).shape == (2, 1)
        for wrong in (
            lambda: hooked.count("two"), lambda: hooked.Pair(f32(), f32(4)), lambda: hooked.Pair(f64(), f32()),
            lambda: net(torch.zeros(2, 3, dtype=torch.float64)), lambda: net(torch.zeros(2, 4)),
        ):  # fmt: skip
            with pytest.raises(TypeCheckError):
                wrong()
    finally:
        del sys.modules["hooked"]
