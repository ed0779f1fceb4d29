"""A step of DINO (Caron et al. 2021) as facebookresearch/dino trains a ViT-S/16, in torch 1.7.

Student and teacher have a head of 65,536 outputs. Two crops of 224 pixels, and eight of 96, are
passed through the student, those of one size together; the teacher sees the large ones. Norms of
gradients are read one by one to clip them, and the teacher is a moving average of the student.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

LARGE, SMALL = 2, 8
_OUT = 65536


class _Net(nn.Module):
    """The backbone and the head."""

    def __init__(self, drop_path: float) -> None:
        from timm import create_model
        from timm.layers import set_fused_attn

        super().__init__()
        set_fused_attn(False)
        options = {"num_classes": 0, "dynamic_img_size": True, "drop_path_rate": drop_path}
        self.backbone = create_model("vit_small_patch16_224", **options)
        self.head = nn.Sequential(
            nn.Linear(384, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 256)
        )
        self.last = nn.utils.weight_norm(nn.Linear(256, _OUT, bias=False))
        self.last.weight_g.requires_grad = False

    def forward(self, *groups: torch.Tensor) -> torch.Tensor:
        found = torch.cat([self.backbone(crops) for crops in groups])
        return self.last(F.normalize(self.head(found), dim=-1))


def step_of(batch: int) -> tuple[Callable[..., None], tuple[torch.Tensor, ...]]:
    """A step, and the crops of `batch` images. To be called in fake mode."""
    student, teacher = _Net(0.1), _Net(0.0).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), foreach=False)
    scaler = torch.amp.GradScaler("cuda")

    def step(large: torch.Tensor, small: torch.Tensor) -> None:
        with torch.autocast("cuda", torch.float16):
            target = teacher(large)
            loss = _loss(student(large, small), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        _clip(student)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            pairs = zip(student.parameters(), teacher.parameters(), strict=True)
            for ours, its in pairs:
                its.mul_(0.996).add_(0.004 * ours)

    large = torch.empty(LARGE * batch, 3, 224, 224)
    return step, (large, torch.empty(SMALL * batch, 3, 96, 96))


def _loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    outputs = (student / 0.1).chunk(LARGE + SMALL)
    targets = F.softmax(teacher / 0.04, dim=-1).detach().chunk(LARGE)
    pairs = [(t, o) for i, t in enumerate(targets) for j, o in enumerate(outputs) if i != j]
    terms = [torch.sum(-t * F.log_softmax(o, dim=-1), dim=-1).mean() for t, o in pairs]
    return sum(terms[1:], start=terms[0]) / len(terms)


def _clip(model: Any) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            norm = parameter.grad.norm(2)
            norm.item()
            parameter.grad.mul_(3.0 / (norm + 1e-6))
