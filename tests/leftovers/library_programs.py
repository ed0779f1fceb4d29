"""Programs of other libraries, of those that are installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from tests.leftovers.torch_programs import Program

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = (
    "bert", "roberta", "gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gemma", "phi",
    "electra", "distilbert", "t5", "bart", "opt", "bloom", "mamba", "olmo", "starcoder2",
)  # fmt: skip


def run_family(family: str) -> Any:
    import transformers

    config = transformers.AutoConfig.for_model(family, **SIZES)
    model = transformers.AutoModel.from_config(config)
    tokens = torch.ones(1, 6, dtype=torch.long)
    more = {"decoder_input_ids": tokens} if config.is_encoder_decoder else {}
    hidden = model(input_ids=tokens, **more)[0]
    hidden.sum().backward()
    return hidden, list(model.parameters())


def run_dinov3() -> Any:
    """A model with tables that functions of its module cache."""
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 32, "image_size": 32, "patch_size": 16}
    config = transformers.DINOv3ViTConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    return transformers.AutoModel.from_config(config).eval()(torch.randn(1, 3, 32, 32))[0]


def run_image_model(module: str, make: str, size: int, **options: Any) -> Any:
    model = getattr(importlib.import_module(module), make)(**options)
    found = model.eval()(torch.randn(1, 3, size, size))
    return found, list(model.parameters())


def run_timm(name: str) -> Any:
    import timm

    model = timm.create_model(name, num_classes=4)
    return model.eval()(torch.randn(1, 3, 224, 224))


def run_kornia(name: str) -> Any:
    import kornia

    image = torch.rand(1, 3, 16, 16)
    found: dict[str, Program] = {
        "gaussian_blur2d": lambda: kornia.filters.gaussian_blur2d(image, (3, 3), (1.0, 1.0)),
        "sobel": lambda: kornia.filters.sobel(image),
        "rgb_to_lab": lambda: kornia.color.rgb_to_lab(image),
        "rgb_to_ycbcr": lambda: kornia.color.rgb_to_ycbcr(image),
        "ssim": lambda: kornia.metrics.ssim(image, image, 5),
        "rotate": lambda: kornia.geometry.transform.rotate(image, torch.tensor([30.0])),
        "grid": lambda: kornia.geometry.create_meshgrid(4, 4),
        "canny": lambda: kornia.filters.canny(image),
    }
    return found[name]()


def run_snntorch() -> Any:
    import snntorch

    neuron = snntorch.Leaky(beta=0.9)
    memory = neuron.init_leaky()
    spikes = torch.zeros(4)
    for _ in range(3):
        spikes, memory = neuron(torch.randn(4, requires_grad=True), memory)
    return spikes, memory


def run_spikingjelly(name: str) -> Any:
    from spikingjelly.activation_based import neuron

    x = torch.randn(3, 4, requires_grad=True)
    spikes = getattr(neuron, name)(step_mode="m")(x)
    spikes.sum().backward()
    return spikes, x.grad


def run_mixture_of_experts() -> Any:
    from mixture_of_experts import MoE

    output, loss = MoE(dim=16, num_experts=4)(torch.randn(2, 12, 16, requires_grad=True))
    (output.sum() + loss).backward()
    return output, loss


def run_botorch() -> Any:
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    x = torch.rand(8, 2, dtype=torch.float64)
    model = SingleTaskGP(x, x.sum(-1, keepdim=True), outcome_transform=None)
    likelihood = ExactMarginalLogLikelihood(model.likelihood, model)
    loss = likelihood(model(*model.train_inputs), model.train_targets)
    loss.backward()
    return loss, list(model.parameters())


def run_torchrl() -> Any:
    from tensordict import TensorDict
    from torchrl.modules import Actor, ValueOperator
    from torchrl.objectives import DDPGLoss

    value = ValueOperator(torch.nn.Bilinear(4, 4, 1), in_keys=["observation", "action"])
    loss = DDPGLoss(Actor(torch.nn.Linear(4, 4)), value)
    seen, ended = torch.randn(5, 4), torch.zeros(5, 1, dtype=torch.bool)
    after = {"observation": seen, "reward": seen[:, :1], "done": ended, "terminated": ended}
    after = TensorDict(after, [5])
    found = loss(TensorDict({"observation": seen, "action": seen, "next": after}, [5]))
    (found["loss_actor"] + found["loss_value"]).backward()
    return found["loss_actor"], list(loss.parameters())


LIBRARIES: dict[str, dict[str, Program]] = {
    "mixture_of_experts": {"MoE": run_mixture_of_experts},
    "botorch": {"SingleTaskGP": run_botorch},
    "torchrl": {"DDPGLoss": run_torchrl},
    "transformers": {
        **{n: partial(run_family, n) for n in FAMILIES},
        "dinov3_vit": run_dinov3,
    },
    "diffusers": {
        "AutoencoderKL": lambda: _run_diffusers("AutoencoderKL", (1, 3, 16, 16)),
        "UNet2DModel": lambda: _run_diffusers("UNet2DModel", (1, 3, 16, 16), 1),
    },
    "torchvision": {
        n: partial(run_image_model, "torchvision.models", n, 224)
        for n in ("resnet18", "vit_b_32", "swin_t", "convnext_tiny", "mobilenet_v3_small")
    },
    "timm": {
        n: partial(run_timm, n)
        for n in ("resnet18", "vit_tiny_patch16_224", "convnext_atto", "efficientnet_b0")
    },
    "kornia": {
        n: partial(run_kornia, n)
        for n in ("gaussian_blur2d", "sobel", "rgb_to_lab", "rgb_to_ycbcr", "ssim", "rotate",
                  "grid", "canny")
    },
    "snntorch": {"Leaky": run_snntorch},
    "spikingjelly": {
        name: partial(run_spikingjelly, name)
        for name in ("IFNode", "LIFNode", "ParametricLIFNode")
    },
}  # fmt: skip


def _run_diffusers(name: str, size: tuple[int, ...], *more: Any) -> Any:
    import diffusers

    options: dict[str, Any] = {"block_out_channels": (32, 32), "norm_num_groups": 8}
    if name == "AutoencoderKL":
        kinds = "DownEncoderBlock2D", "UpDecoderBlock2D"
    else:
        kinds = "DownBlock2D", "UpBlock2D"
    options |= {"down_block_types": (kinds[0],) * 2, "up_block_types": (kinds[1],) * 2}
    return getattr(diffusers, name)(**options)(torch.randn(size), *more).sample


def programs() -> Iterator[tuple[str, Program]]:
    """Names and programs of the libraries that are installed. Nothing is run or imported before, so
    that caches are empty, and what is imported lazily is imported in a mode.
    """
    for library, found in LIBRARIES.items():
        if library not in not_installed():
            for name, program in found.items():
                yield f"{library}.{name}", program


def not_installed() -> list[str]:
    """The libraries whose programs are left out."""
    found = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    return [*found, "timm"] if "torchvision" in found and "timm" not in found else found
