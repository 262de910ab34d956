import torch

items = 2**28
generator = torch.Generator().manual_seed(0)
draws = torch.rand(512, generator=generator)
ids = (draws * items).long()  # expect: DG116 "`(draws * items).long()` takes uniform numbers that were drawn in float32 at program.py:5, in <module>: of 2.68e+08 whole numbers no more than 16,777,216 are ever drawn"
print((ids % 16).unique().numel())
# fix: draw integers: `torch.randint(n, size)`; or in float64: `torch.rand(..., dtype=torch.float64)`
