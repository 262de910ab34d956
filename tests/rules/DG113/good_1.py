import torch

scores = torch.tensor([[0.5, 0.5, 0.5], [0.1, 0.2, 0.4]])
least, most = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
scaled = ((scores - least) / (most - least + 1e-8)).half()
