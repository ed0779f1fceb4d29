"""What a module is: sizes as eager counts them, operations as torch's own counter does."""

from __future__ import annotations

import html
import io
import json
from functools import partial
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline as expect
from rich.console import Console
from small_models import MODELS, made
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from torchfake import deferred_init, fake_like, fake_mode
from torchfake.inspect import summary
from torchfake.inspect.specs import described
from torchfake.inspect.table import rows


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_of_torchs_counter(name: str) -> None:
    """On the fake CUDA device too, whose attention runs other kernels."""
    model, inputs = made(name)
    for device in ("cpu", "cuda"):
        found = summary(model, inputs, device=device)
        twin = fake_like(model, device=device)
        with fake_mode(fake_cuda=True), FlopCounterMode(display=False) as counter:
            output = twin(**{k: fake_like(v, device=device) for k, v in inputs.items()})
            forward = counter.get_total_flops()
            loss = output.sum() if torch.is_tensor(output) else output.loss
            loss.backward()
        backward = counter.get_total_flops() - forward
        attention = {} if device == "cuda" else uncounted(model, inputs)
        assert found.flops[""].forward == forward + attention.get("forward", 0)
        assert found.flops[""].backward == backward + attention.get("backward", 0)


def uncounted(model: nn.Module, inputs: Any) -> dict[str, int]:
    """What attention on the CPU does, which torch before 2.15 does not count."""
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if op in flop_registry:
        return {}
    seen = {"forward": 0, "backward": 0}

    class Attention(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            phase = "backward" if "backward" in str(func) else "forward"
            if "flash_attention_for_cpu" in str(func):
                q, k = args[1:3] if phase == "backward" else args[:2]
                batch, heads, length, width = q.shape
                products = 5 if phase == "backward" else 2
                seen[phase] += products * 2 * batch * heads * length * k.shape[2] * width
            return func(*args, **(kwargs or {}))

    with Attention():
        output = model(**inputs)
        (output.sum() if torch.is_tensor(output) else output.loss).backward()
    model.zero_grad()
    return seen


@pytest.mark.parametrize("name", MODELS)
def test_operations_of_modules_add_up(name: str) -> None:
    model, inputs = made(name)
    found = summary(model, inputs)
    for path, module in model.named_modules():
        inside = [f"{path}.{n}".strip(".") for n, _ in module.named_children()]
        parts = found.flops_of(inside)
        own = found.flops.get(path)
        if own is not None:
            assert own.forward >= parts.forward
            assert own.backward >= parts.backward


def test_a_linear_layers_operations() -> None:
    found = summary(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7)), torch.ones(2, 3))
    assert found.flops["0"] == (2 * 2 * 3 * 5, 2 * 2 * 3 * 5)  # its input needs no gradient
    assert found.flops["1"] == (2 * 2 * 5 * 7, 2 * 2 * 2 * 5 * 7)


def test_experts_count_as_what_each_token_meets() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, vocab_size=50,
    )  # fmt: skip
    with fake_mode():
        model = MixtralForCausalLM(config)
        tokens = torch.zeros(3, 8, dtype=torch.long)
    found = summary(model, tokens).flops["model.layers.1.mlp.experts"]
    each = 2 * 24 * 2 * (3 * 32 * 64)  # tokens, experts of each, its three matrices
    assert found.forward == each
    assert found.backward == 2 * each


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_a_real_run(name: str) -> None:
    model, inputs = made(name)
    found = summary(model, inputs)
    real: dict[str, Any] = {}

    def note(path: str, module: nn.Module, args: Any, output: Any) -> None:
        real.setdefault(path, described(output))

    for path, module in model.named_modules():
        module.register_forward_hook(partial(note, path))
    model(**inputs)
    assert found.outputs == real


@pytest.mark.parametrize("name", MODELS)
def test_sizes_are_those_of_the_module(name: str) -> None:
    model, _ = made(name)
    next(iter(model.parameters())).requires_grad_(False)
    found = summary(model)
    size = found.tree.size
    parameters = list(model.parameters())
    assert size.num_parameters == sum(p.numel() for p in parameters)
    assert size.num_frozen == parameters[0].numel()
    assert size.parameter_bytes == sum(p.nbytes for p in parameters)
    assert size.buffer_bytes == sum(b.nbytes for b in model.buffers())
    assert found.inputs is None
    assert not found.flops


def test_fake_deferred_and_real_say_the_same() -> None:
    def build() -> nn.Module:
        return nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16), 3, enable_nested_tensor=False
        )

    with fake_mode():
        fake = build()
    said = {str(summary(m, torch.ones(5, 2, 8))) for m in (fake, build(), deferred_init(build))}
    assert len(said) == 1


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), *(nn.Linear(8, 8) for _ in range(3)), nn.BatchNorm1d(8))


def test_as_text() -> None:
    text = str(summary(small(), torch.ones(2, 4)))
    assert text.isascii()
    expect(
        text,
        """\
module              output  parameters    bytes  buffer bytes  FLOPs forward  FLOPs backward  tensors
Sequential          [2, 8]         272  1.09 kB          72 B            896          1.66 k
  (0) Linear        [2, 8]          40    160 B                          128             128  weight [8, 4], bias [8]
  (1-3) 3 x Linear  [2, 8]         216    864 B                          768          1.54 k  weight [8, 8], bias [8]
  (4) BatchNorm1d   [2, 8]          16     64 B          72 B                                 weight [8], bias [8], running_mean [8] buffer, running_var [8] buffer, num_batches_tracked [] int64 buffer

An `n x` row counts all n blocks; the rows below it are those of one.

parameters  272, 1.09 kB
buffers     17 values, 72 B
dtype       float32 1.15 kB, int64 8 B
device      cpu
input       0 float32[2, 4] on cpu
operations  896 FLOPs forward, 1.66 kFLOPs backward""",
    )


class _Tags(HTMLParser):
    """Checks that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("name", MODELS)
def test_html_is_the_same_tree(name: str) -> None:
    model, inputs = made(name)
    found = summary(model, inputs)
    tags = _Tags()
    tags.feed(found._repr_html_())
    assert not tags.open
    shown = "".join(tags.text)
    for row in rows(found):
        assert row.label in shown
        for cell in row.cells:
            assert cell in shown


def test_html_escapes() -> None:
    class Odd(nn.Module):
        pass

    Odd.__name__ = "<script>alert(1)</script>"
    shown = summary(Odd())._repr_html_()
    assert "<script>" not in shown
    assert html.escape(Odd.__name__) in shown


def test_in_a_terminal() -> None:
    model, inputs = made("llama")
    found = summary(model, inputs)
    for width in (200, 60):
        console = Console(width=width, file=io.StringIO())
        console.print(found)
        shown = console.file.getvalue()
        assert "3 x LlamaDecoderLayer" in shown
        assert all(len(line) <= width for line in shown.splitlines())


def test_json_and_pandas() -> None:
    model, inputs = made("vit")
    found = summary(model, inputs)
    said = json.loads(json.dumps(found.to_dict()))
    assert said["totals"]["num_parameters"] == found.tree.size.num_parameters
    assert said["flops"][""]["forward"] == found.flops[""].forward
    pytest.importorskip("pandas")
    frame = found.to_pandas().set_index("name")
    assert frame.loc["", "num_parameters"] == found.tree.size.num_parameters
    assert frame.loc["", "flops_backward"] == found.flops[""].backward
    assert (frame.repeat > 1).any()


def test_a_module_without_gradients_has_no_backward() -> None:
    layer = nn.Linear(3, 4).requires_grad_(False)
    assert summary(layer, torch.ones(2, 3)).flops[""] == (48, 0)


def test_inference_mode_inside_a_module() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                encoded = self.encoder(x)
            return self.head(encoded.clone())

    found = summary(Frozen(), torch.ones(2, 8)).flops
    assert found[""] == (512, 256)
    assert found["encoder"] == (256, 0)
