import torch


def index_of(row, column, width):
    flat = row.float() * width + column.float()
    return flat.long()  # expect: DG904 "`flat.long()`: <...> of 64 come out otherwise than in float64: <...> instead of <...>; rounded in float32: row.float() * width at program.py:5, in index_of"


rows, columns = torch.arange(5000, 5064), torch.arange(64) * 2 + 1
print(index_of(rows, columns, 5001).sum().item())
# fix: compute in float64 what is cast, or make it of integers
