"""The share of each client of a federated round, counted in the dtype of the wire."""
import torch

counts = [torch.tensor(20_000, dtype=torch.int16), torch.tensor(16_000, dtype=torch.int16)]
total = sum(count for count in counts)  # expect: DG109 "`sum(count for count in counts)`: 1 of 1 results are outside of -32768 to 32767 and wrap around"
print([(count / total).item() for count in counts])
# fix: take a wider dtype: `.int()` or `.float()` first
