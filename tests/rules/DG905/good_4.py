"""Fixed point: whole numbers of 1e-7 degree, which float32 rounds, are scaled to what is measured."""
import torch

fixes = torch.arange(470_000_000, 470_000_640, 5, dtype=torch.int32)
latitude = fixes.float() * 1.7453292519943295e-09
print(latitude.cos().tolist()[0])
