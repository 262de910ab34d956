import torch
from torch.func import functional_call, grad_and_value

# Parameters lead to all that was computed in training, and so does what the sampler feeds back.
torch.manual_seed(0)
data, steps = torch.randn(500, 2).sign() + 0.1 * torch.randn(500, 2), 100
beta = torch.linspace(1e-4, 0.08, steps, dtype=torch.half).float()
bar = (1 - beta).cumprod(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.SiLU(), torch.nn.Linear(16, 16), torch.nn.SiLU(), torch.nn.Linear(16, 2))


def model(params, x, t):
    return functional_call(net, params, (torch.cat((x, t[:, None] / steps), dim=-1),))


@grad_and_value
def step(params, x, t, noise):
    noisy = bar[t, None].sqrt() * x + (1 - bar[t, None]).sqrt() * noise
    return (model(params, noisy, t) - noise).square().mean()


params = {k: p.detach().clone() for k, p in net.named_parameters()}
ema = {k: p.bfloat16() for k, p in params.items()}
v = {k: torch.zeros_like(p) for k, p in params.items()}
for it in range(1, 241):
    x, t = data[torch.randint(500, (64,))], torch.randint(steps, (64,))
    grads, loss = step(params, x, t, torch.randn_like(x))
    for k, g in grads.items():
        v[k].lerp_(g * g, 0.01)
        params[k] = params[k] - 3e-3 * g / ((v[k] / (1 - 0.99**it)).sqrt() + 1e-8)
        ema[k].lerp_(params[k].to(ema[k].dtype), 0.01)  # expect: DG903 warning "`ema[k].lerp_(params[k].to(ema[k].dtype), 0.01)`: it stands still, though it is computed anew each time: <...>; it reaches the output of Sequential and a number that the program reads"
weights = {k: e.float() for k, e in ema.items()}
with torch.no_grad():
    x = torch.randn(100, 2)
    for t in reversed(range(steps)):
        eps = model(weights, x, torch.full((100,), t))
        x = (x - beta[t] / (1 - bar[t]).sqrt() * eps) / (1 - beta[t]).sqrt() + beta[t].sqrt() * torch.randn_like(x)
print(torch.cdist(x, data).amin(1).mean().item())
# fix: keep it in float32
