import torch
from torchvision.models import swin_v2_t

torch.manual_seed(0)
model, image = swin_v2_t().eval(), torch.rand(1, 3, 64, 64)
with torch.no_grad():
    print("not finite:", model(image).isnan().sum().item(), "in float32")
    print("not finite:", model.half()(image.half()).isnan().sum().item(), "in float16")
