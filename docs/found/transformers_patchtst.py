import torch
from transformers import PatchTSTConfig, PatchTSTModel

config = PatchTSTConfig(num_input_channels=2, context_length=32, patch_length=8, patch_stride=8, d_model=16)
model, values, mask = PatchTSTModel(config).eval(), torch.randn(1, 32, 2), torch.ones(1, 32, 2, dtype=torch.bool)
model(values, past_observed_mask=mask)
model.bfloat16()(values.bfloat16(), past_observed_mask=mask)
