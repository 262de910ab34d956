import torch

labels = torch.tensor([0, 1, 20, 255], dtype=torch.uint8)
known = labels.int() > -1
ignored = labels == 255
