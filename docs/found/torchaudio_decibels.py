import torch
from torchaudio.transforms import AmplitudeToDB

power = torch.tensor([0.0, 0.25, 0.5])
for dtype in (torch.float32, torch.float16):
    print(dtype, AmplitudeToDB()(power.to(dtype)).tolist())
