import torch

milliseconds = torch.tensor([1_700_000_000_000, 1_700_000_001_000])
stamps = milliseconds.int()  # expect: DG109 info "`milliseconds.int()`: 2 of 2 values are outside of -2147483648 to 2147483647 and wrap around"
