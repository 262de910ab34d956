"""Adopting dtypeguard in a code base that already runs: one broken call, and what each mode makes of it.

    python examples/adopting.py

The call is wrong and works all the same: PyTorch promotes the loss, and all that follows from it, to float64.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

import dtypeguard


@dtypeguard.enforce
def error_rate(predicted: Float32[Tensor, "batch"], measured: Float32[Tensor, "batch"]) -> Float32[Tensor, ""]:
    """A function that has been there for years; the decorator and the annotations are new."""
    return ((predicted - measured).abs() / measured).mean()


def broken_call() -> Tensor:
    """It has been there for years too: NumPy's float64 meets the model's float32."""
    measured = torch.from_numpy(np.linspace(1.0, 2.0, 5))
    predicted = torch.linspace(1.1, 2.2, 5)
    return error_rate(predicted, measured)


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


@contextmanager
def printed() -> Iterator[None]:
    """Print dtypeguard's warnings here; a real program would leave them to `warnings` or `logging`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", dtypeguard.DtypeGuardWarning)
        yield
    for warning in caught:
        print(f"{warning.category.__name__}: {warning.message}")


def test_error_rate() -> None:
    """What stands in the test suite: the same call, with no excuse accepted."""
    with dtypeguard.mode("strict"):
        broken_call()


def main() -> None:
    heading('1. Look first: set_mode("warn")')
    dtypeguard.set_mode("warn")
    with printed():
        result = broken_call()
        broken_call()  # the second time nothing more is said
    assert result.dtype is torch.float64
    print(f"\nNothing was changed: the result is {result.dtype}, as it always was.")

    heading('2. In tests: with dtypeguard.mode("strict")')
    try:
        test_error_rate()
    except dtypeguard.DtypeError as error:
        print(f"DtypeError: {error}")
    else:
        raise AssertionError("strict mode should have raised")

    heading('3. In production: set_mode("lenient"), which is also the default')
    dtypeguard.set_mode("lenient")
    with printed():
        result = broken_call()
        broken_call()
    assert result.dtype is torch.float32
    (cast,) = dtypeguard.casts()
    print(f"\nThe result is {result.dtype}. casts() has counted {cast.count} repairs of `{cast.argument}`,")
    print(f"{cast.bytes} bytes, at {cast.site}: that is the line to mend.")

    heading('4. Kill switch: set_mode("off"), or DTYPEGUARD_MODE=off in the environment')
    dtypeguard.set_mode("off")
    with dtypeguard.mode("strict"):  # even this
        result = broken_call()
    assert result.dtype is torch.float64
    print(f"Nothing is checked, whatever else asks for it: the result is {result.dtype} again.")

    dtypeguard.set_mode(None)


if __name__ == "__main__":
    main()
