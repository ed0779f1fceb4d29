"""A training step of GPT-2 on a GPU that this machine does not have, and the memory it would use.

Run it: ``python examples/fake_cuda_training_step.py``. It needs transformers and no GPU.
"""

from collections.abc import Iterable

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from torchfake import fake_mode, is_fake

BATCH, LENGTH = 16, 1024


def num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of distinct storages on CUDA."""
    storages = (t.untyped_storage() for t in tensors if t.is_cuda)
    return sum({s._cdata: s.nbytes() for s in storages}.values())


def main() -> None:
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with fake_mode(fake_cuda="h100-80gb"):
        print(torch.cuda.get_device_name())
        model = GPT2LMHeadModel(GPT2Config(use_cache=False)).cuda().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        tokens = torch.randint(50257, (BATCH, LENGTH), device="cuda")
        # transformers checks whether any token is masked; small masks have known values.
        mask = torch.ones(BATCH, LENGTH, dtype=torch.bool, device="cuda")

        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cuda", dtype=torch.bfloat16),
        ):
            output = model(tokens, attention_mask=mask, labels=tokens)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    parameters = list(model.parameters())
    state = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    owned = {p.untyped_storage()._cdata for p in parameters}
    activations = [t for t in saved if t.untyped_storage()._cdata not in owned]
    sizes = {
        "parameters": num_bytes(parameters),
        "gradients": num_bytes(p.grad for p in parameters if p.grad is not None),
        "optimizer state": num_bytes(state),
        "saved for backward": num_bytes(activations),
    }
    for name, size in sizes.items():
        print(f"{name:20}{size / 1e9:8.3f} GB")

    assert is_fake(output.loss)
    assert output.logits.dtype == torch.bfloat16
    assert all(p.is_cuda and p.grad is not None and p.grad.is_cuda for p in parameters)
    assert model.lm_head.weight is model.transformer.wte.weight  # still tied after .cuda()
    assert sizes["parameters"] == sizes["gradients"] == 4 * sum(p.numel() for p in parameters)
    assert sizes["optimizer state"] >= 2 * sizes["parameters"]
    assert sizes["saved for backward"] > 10 * sizes["parameters"]


if __name__ == "__main__":
    main()
