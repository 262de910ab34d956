import torch
from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN

model = ECAPA_TDNN(80, channels=[64, 64, 64, 64, 96], lin_neurons=32).eval()
features = torch.randn(2, 300, 80)
model(features)
model.bfloat16()(features.bfloat16())
