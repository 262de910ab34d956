import torch
from torch import nn

weight = nn.Parameter(torch.ones(64).half())
weight.grad = torch.full_like(weight, 2e4)
nn.utils.clip_grad_norm_([weight], 1.0)  # expect: DG105 "`nn.utils.clip_grad_norm_([weight], 1.0)` makes 64 of 64 finite values infinite in float16, whose largest value is 65504"
gradient = weight.grad
