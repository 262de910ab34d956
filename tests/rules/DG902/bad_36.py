import torch


def group_advantages(rewards, samples):
    rewards = rewards.reshape(-1, samples)
    baseline = rewards.mean(-1, keepdim=True)
    advantages = (rewards - baseline) / (rewards.std(-1, keepdim=True) + 1e-9)  # expect: DG902 "`rewards - baseline`: an error of 0.39 % comes in, 73 % goes out: 0 where float32 has -0.003906; it reaches a loss and a number that the program reads; rounded in bfloat16: rewards.mean(-1, keepdim=True) at program.py:6, in group_advantages"
    return advantages.reshape(-1)


rewards = torch.tensor([1, 1, 1, 1.0078125, 2.0, 2.015625, 2.0, 2.0]).bfloat16()
advantages = group_advantages(rewards, 4)
logits = torch.zeros(8, 3, requires_grad=True)
loss = -(advantages * logits.log_softmax(-1)[:, 0]).mean()
loss.backward()
print(logits.grad.norm().item())
# fix: compute `rewards - baseline` and what it is computed from in float32
