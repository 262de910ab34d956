import torch

image = torch.randint(256, (4, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
residual = image - torch.nn.functional.pad(image, (1, 0))[:, :-1]  # modulo 256, as PNG has it
coded = residual.view(torch.int8).to(torch.int16)
restored = coded.to(torch.int8).view(torch.uint8)
for x in range(1, 32):
    restored[:, x] += restored[:, x - 1]
print(torch.equal(restored, image))
