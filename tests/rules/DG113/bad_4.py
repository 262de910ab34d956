import torch
import torch.nn.functional as F

features = torch.zeros(2, 4).half()
features[0] = 1
unit = F.normalize(features, dim=-1)  # expect: DG113 "`F.normalize(features, dim=-1)`: 1e-12 is 0 in float16, and `F.normalize(features, dim=-1)` gives 4 infinite or NaN values"
