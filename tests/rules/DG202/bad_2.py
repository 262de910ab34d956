import torch
import torch.nn.functional as F
from torch.autograd import Function


class FusedLoss(Function):
    @staticmethod
    def forward(ctx, hidden, head, target):
        logits = hidden @ head.t()
        ctx.save_for_backward(hidden, head, target, logits)
        return F.cross_entropy(logits.float(), target)

    @staticmethod
    def backward(ctx, grad):
        hidden, head, target, logits = ctx.saved_tensors
        d = logits.softmax(-1) - F.one_hot(target, 3)
        return d @ head, d.t() @ hidden, None


hidden, head = torch.randn(2, 4), torch.randn(3, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = FusedLoss.apply(hidden, head, torch.tensor([0, 2]))  # expect: DG202 "autograd.Function `FusedLoss` ran under autocast without `custom_fwd`; its backward failed at program.py:17, in backward: expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != float"
loss.backward()
