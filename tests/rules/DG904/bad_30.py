import torch

SCALE, OFFSET, FILL = 0.0016, 273.15, -32768
codes = torch.arange(-450, 450, dtype=torch.int16)
codes[::3] = FILL
kelvin = codes.float() * SCALE + OFFSET
known = kelvin != FILL * SCALE + OFFSET  # expect: DG904 "`kelvin != FILL * SCALE + OFFSET`: 300 of 300 equal values are not found: 220.721191 for 220.721207; rounded in float32: codes.float() * SCALE at program.py:6, in <module>"
print(kelvin[known].mean())
# fix: round both sides to one dtype, or look for the nearest: `(table - value).abs().argmin()`
