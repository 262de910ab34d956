"""A copy that a function divides and forgets."""

import torch


def apply_temperatures(logits, temperatures):
    logits = logits.to(torch.float)  # expect: DG103 "`logits.to(torch.float)` gives a new float32 tensor, and `div_` writes to that one, which is thrown away: `logits` stays as it was"
    logits.div_(temperatures[:, None])


def penalize(logits, seen):
    for row in logits:
        row.float().sub_(1.0)  # so is this
        wide: torch.Tensor = row.float()  # so is this
        wide.sub_(1.0)
        wide.clamp_(min=-10.0)


logits = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).half()
apply_temperatures(logits, torch.tensor([0.5, 0.7, 1.0, 2.0]))
penalize(logits, None)
print(logits.float().softmax(-1).max())
# fix: return `logits` and use that, or give `div_` the tensor itself: `logits`
