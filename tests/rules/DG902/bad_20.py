import torch

reduce = "mean"
lengths = torch.tensor([20] * 290 + [8000] * 8)
features = torch.rand(int(lengths.sum()), 16, generator=torch.Generator().manual_seed(0)).half()
means = torch.segment_reduce(features, reduce, lengths=lengths)  # expect: DG902 "`torch.segment_reduce(features, reduce, lengths=lengths)`: an error of 0.049 % comes in, 49 % goes out: 0.2561 where float32 has 0.5096; it reaches values that the program reads; rounded in float16: ...half(...) at program.py:5, in <module>"
print(means.numpy()[-8:].mean())
