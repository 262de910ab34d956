import torch


class Adam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["m"] = 0, torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                state["step"] += 1
                state["m"].mul_(first).add_(p.grad, alpha=1 - first)
                state["v"].mul_(second).add_(p.grad.square(), alpha=1 - second)
                m = state["m"] / (1 - first ** state["step"])
                v = state["v"].float() / (1 - second ** state["step"])
                p.addcdiv_(m, v.sqrt() + group["eps"], value=-group["lr"])


torch.manual_seed(0)
model, x = torch.nn.Linear(8, 1), torch.randn(64, 8)
optimizer = Adam(model.parameters())
for step in range(300):
    optimizer.zero_grad()
    scale = 100.0 if step < 20 else 1.0  # the first gradients are large, and v is to forget them
    torch.nn.functional.mse_loss(model(x), scale * x[:, :1]).backward()
    optimizer.step()
print(optimizer.state[model.weight]["v"].float().mean().item())
