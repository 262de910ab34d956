import torch

generator = torch.Generator().manual_seed(0)
pictures = torch.randint(0, 256, (8, 3, 224, 224), generator=generator, dtype=torch.uint8)  # more than are looked at
pictures += 60  # expect: DG109 "`pictures += 60`: about <...> of 1204224 results are outside of 0 to 255 and wrap around"
print(pictures.sum().item())
