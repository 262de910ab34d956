"""The program is float64, and what sets float32 for a while is left by an exception."""

from contextlib import contextmanager

import torch


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # expect: DG602 "the default dtype is float32 since this line (float64 before), and an exception left `default_dtype` before it was set back: `torch.linspace(1.0 - 1e-4, 1.0 + 1e-4, 3)` at program.py:28, in main is float32"
    yield
    torch.set_default_dtype(before)


def energy(positions, name):
    with default_dtype(torch.float32):
        return torch.tensor(positions).norm() * {"H": 1.0, "O": 8.0}[name]


def main():
    torch.set_default_dtype(torch.float64)
    for name in ("H", "C", "O"):
        try:
            print(energy([0.0, 0.6, 0.8], name).item())
        except KeyError:
            print("skipped")
    r = torch.linspace(1.0 - 1e-4, 1.0 + 1e-4, 3)
    print((r[0] ** -6 - 2 * r[1] ** -6 + r[2] ** -6).item())


try:
    main()
finally:
    torch.set_default_dtype(torch.float32)
