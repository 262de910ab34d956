import torch


class Pool(torch.nn.Module):
    def forward(self, x, mask):
        scores = x @ x.transpose(1, 2) / 4
        scores = scores + (1.0 - mask[:, None, :]) * -1e9  # expect: DG901 "`(1.0 - mask[:, None, :]) * -1e9`: 9 of 24 values become infinite or NaN in float16, where float32 has -1000000000; it reaches the output of Pool and a number that the program reads"
        return (torch.softmax(scores, -1) @ x).mean((1, 2))


torch.manual_seed(0)
kept = (torch.arange(6)[None] < torch.tensor([0, 4, 5, 6])[:, None]).half()
print(Pool()(torch.randn(4, 6, 16).half(), kept).sum().item())
# fix: -1e9 is infinite in float16: use `torch.finfo(x.dtype).min`, or compute it in float32
