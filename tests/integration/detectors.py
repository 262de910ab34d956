"""torchvision's detectors in bfloat16 with float32 boxes, bare and guarded; prints what each came to, as JSON.

    python tests/integration/detectors.py

It is a program of its own: the torchvision of the package index is built for CUDA, and where CUDA's libraries are
missing it cannot load its operations. The one that training needs, `nms`, is written here in Python; the models,
their losses and `roi_align` are torchvision's.
"""

import json
import warnings

import torch
from torch import Tensor

import dtypeguard

torch.set_num_threads(1)
_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@torch.library.impl(_LIBRARY, "nms", "CPU")
def _nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Which boxes stay, best first, when those that overlap a better one by more than the threshold go."""
    boxes, order, kept = dets.float(), scores.argsort(descending=True, stable=True), []
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    while len(order):
        best, order = order[0], order[1:]
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[order, :2])
        high = torch.minimum(boxes[best, 2:], boxes[order, 2:])
        both = (high - low).clamp(min=0).prod(1)
        order = order[both / (area[best] + area[order] - both) <= iou_threshold]
    return torch.stack(kept) if kept else torch.empty(0, dtype=torch.int64)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torchvision's own, at import
    from torchvision.models import detection
    from torchvision.ops import boxes

boxes._assert_has_ops = lambda: None

SMALL = {"num_classes": 4, "min_size": 64, "max_size": 96}
FEW = {"rpn_pre_nms_top_n_train": 40, "rpn_post_nms_top_n_train": 40, "box_batch_size_per_image": 8}


def body() -> torch.nn.Module:
    return detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None)


MODELS = {
    "Faster R-CNN": lambda: detection.FasterRCNN(body(), **SMALL, **FEW),
    "Mask R-CNN": lambda: detection.MaskRCNN(body(), **SMALL, **FEW),
    "RetinaNet": lambda: detection.RetinaNet(body(), **SMALL, anchor_generator=anchors(3)),
    "FCOS": lambda: detection.FCOS(body(), **SMALL, anchor_generator=anchors(1)),
    "SSD": lambda: detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4),
}


def anchors(each: int) -> torch.nn.Module:
    """Anchors of a size for each of the body's five levels."""
    sizes = tuple((8 * 2**level,) for level in range(5))
    return detection.anchor_utils.AnchorGenerator(sizes, ((0.5, 1.0, 2.0)[:each],) * 5)


def losses(model: torch.nn.Module) -> dict[str, float]:
    torch.manual_seed(1)
    images = [torch.rand(3, 64, 96, dtype=torch.bfloat16) for _ in range(2)]
    corners = [torch.rand(3, 2) * 30 for _ in images]
    targets = [
        {
            "boxes": torch.cat([corner, corner + 8.3 + torch.rand(3, 2) * 20], 1),
            "labels": torch.tensor([1, 2, 3]),
            "masks": (torch.rand(3, 64, 96) > 0.5).to(torch.uint8),
        }
        for corner in corners
    ]
    found: dict[str, Tensor] = model(images, targets)
    return {name: loss.item() for name, loss in found.items()}


@torch.compiler.set_stance("force_eager")  # torchvision's `roi_align` compiles itself
def main() -> None:
    report = {}
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model = make().to(torch.bfloat16).train()
        for module in model.modules():  # running statistics would tell one pass from the next
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 0.0
        bare = losses(model)
        outcomes = [losses(dtypeguard.guard(model, mode=mode)) for mode in ("strict", "lenient")]
        outcomes.append(losses(model))  # once more: the side inputs are known by now
        report[name] = {
            "bare": bare,
            "same": all(outcome == bare for outcome in outcomes),
            "repairs": len(dtypeguard.casts()),
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
