import torch
import torch.nn.functional as F

features = torch.zeros(2, 4).half()
features[0] = 1
unit = F.normalize(features, dim=-1, eps=1e-4)
