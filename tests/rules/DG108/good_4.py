import torch

angles = torch.linspace(-3.0, 3.0, 50).half()
waves = angles.sin(), angles.cos()
