"""Introduce dtypeguard into code that already runs: one wrong call, and what each mode does with it.

    python examples/adopting.py

The call is wrong but runs: PyTorch promotes the loss, and all results that use it, to float64.
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
    """An old function. Only the decorator and the annotations are new."""
    return ((predicted - measured).abs() / measured).mean()


def broken_call() -> Tensor:
    """An old call: it mixes float64 from NumPy with the float32 of the model."""
    measured = torch.from_numpy(np.linspace(1.0, 2.0, 5))
    predicted = torch.linspace(1.1, 2.2, 5)
    return error_rate(predicted, measured)


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


@contextmanager
def printed() -> Iterator[None]:
    """Print dtypeguard's warnings. A real program would leave them to `warnings` or `logging`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", dtypeguard.DtypeGuardWarning)
        yield
    for warning in caught:
        print(f"{warning.category.__name__}: {warning.message}")


def test_error_rate() -> None:
    """A test of the same call, in strict mode."""
    with dtypeguard.mode("strict"):
        broken_call()


def main() -> None:
    heading('1. Look first: set_mode("warn")')
    dtypeguard.set_mode("warn")
    with printed():
        result = broken_call()
        broken_call()  # does not warn again
    assert result.dtype is torch.float64
    print(f"\nNothing was changed: the result is {result.dtype}, as before.")

    heading('2. In tests: with dtypeguard.mode("strict")')
    try:
        test_error_rate()
    except dtypeguard.DtypeError as error:
        print(f"DtypeError: {error}")
    else:
        raise AssertionError("strict mode should have raised")

    heading('3. In production: set_mode("lenient"), the default')
    dtypeguard.set_mode("lenient")
    with printed():
        result = broken_call()
        broken_call()
    assert result.dtype is torch.float32
    (cast,) = dtypeguard.casts()
    print(f"\nThe result is {result.dtype}. casts() has counted {cast.count} repairs of `{cast.argument}`,")
    print(f"{cast.bytes} bytes, at {cast.site}: fix that line.")

    heading('4. Switch off all checks: set_mode("off"), or DTYPEGUARD_MODE=off in the environment')
    dtypeguard.set_mode("off")
    with dtypeguard.mode("strict"):  # has no effect now
        result = broken_call()
    assert result.dtype is torch.float64
    print(f"Nothing is checked, whatever mode the code asks for: the result is {result.dtype} again.")

    dtypeguard.set_mode(None)


if __name__ == "__main__":
    main()
