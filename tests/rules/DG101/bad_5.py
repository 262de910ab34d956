import numpy as np
import torch

canvas, index = torch.zeros(6), torch.tensor([0, 2, 5])
depth = torch.from_numpy(np.linspace(1.0, 4.0, 3))
with torch.autocast("cpu", dtype=torch.bfloat16):
    canvas[index] = depth  # expect: DG101 error "`canvas[index] = depth` was refused: it mixes float64 and float32"
