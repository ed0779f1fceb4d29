"""The activations of an existing module, on a device and at a batch size that this machine lacks.

Run it: ``python examples/study_an_existing_model.py``. It only needs torch.
"""

import torch
from torch import nn

from torchfake import fake_like, fake_mode, is_fake

BATCH = 8192


def main() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 256, 3, stride=2, padding=1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 1000),
    )
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    fake = fake_like(model, device="cuda:3")
    sizes: list[tuple[str, int]] = []
    for module in fake:
        module.register_forward_hook(
            lambda module, _, output: sizes.append(
                (type(module).__name__, output.numel() * output.element_size())
            )
        )

    with fake_mode(fake_cuda=4):
        images = torch.empty(BATCH, 3, 224, 224, device="cuda:3")
        scores = fake(images)
        scores.sum().backward()

    for name, size in sizes:
        print(f"{name:20}{size / 1e9:10.2f} GB")

    assert scores.shape == (BATCH, 1000)
    assert scores.device == torch.device("cuda:3")
    assert fake[0].weight.grad.device == torch.device("cuda:3")
    assert max(size for _, size in sizes) == BATCH * 64 * 112 * 112 * 4  # 26 GB
    # The real model is unchanged.
    assert not is_fake(model)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


if __name__ == "__main__":
    main()
