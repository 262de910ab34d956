import torch

torch.manual_seed(0)
packet = torch.randint(256, (20,), dtype=torch.uint8)
packet[-1] = -packet[:-1].sum(dtype=torch.uint8)
print(int(packet.sum(dtype=torch.uint8)) == 0)
numbers = (torch.arange(600) % 256).to(torch.uint8)  # of packets, which begin again at 0
numbers = numbers[torch.rand(600) > 0.1]
print(int((numbers[1:] - numbers[:-1] - 1).sum()), "lost")
