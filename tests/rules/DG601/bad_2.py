import torch
from torch import nn


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("correction_bias", torch.zeros(3))

    def forward(self, scores):
        return (scores + self.correction_bias).argmax(-1)


router = Router().to(torch.bfloat16)
router.load_state_dict({"correction_bias": torch.tensor([8.001, 8.0125, 8.010])})  # expect: DG601 "`load_state_dict` converts 1 of 1 entries of Router from float32 in the checkpoint to bfloat16: `correction_bias`; digits are lost"
expert = router(torch.zeros(1, 3).bfloat16())
