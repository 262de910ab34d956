import torch
from torchvision.models.optical_flow import raft_small

model, frames = raft_small().eval(), torch.rand(2, 1, 3, 128, 128)
with torch.no_grad():
    model(*frames)
    model.bfloat16()(*frames.bfloat16())
