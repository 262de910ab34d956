import torch

scores = torch.tensor([[0.5, 0.5, 0.5], [0.1, 0.2, 0.4]]).half()
least, most = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
scaled = (scores - least) / (most - least + 1e-8)  # expect: DG113 "`most - least + 1e-8`: 1e-08 is 0 in float16, and `(scores - least) / (most - least + 1e-8)` gives 3 infinite or NaN values"
# fix: use an eps that float16 has, 1e-4 and up, or compute it in float32
