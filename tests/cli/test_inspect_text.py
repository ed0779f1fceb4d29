"""``torchfake inspect``: the tree and the totals, to the letter."""

# ruff: noqa: E501  (what is printed is as wide as it is)
from __future__ import annotations

import re
import textwrap

import pytest

from tests.cli.conftest import SMALL, check_output

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers warns on import
    pytest.mark.usefixtures("folder"),
]


def test_a_callable(run):
    check_output(
        run("inspect", "models_here:Net"),
        """\
108 params | 432 B of mixed dtypes

module                   parameters  % of total  bytes  buffer bytes  tensors
Net                             108       100.0  432 B          40 B
  (embedding) Embedding          40        37.0  160 B                weight [10, 4]
  (layers) 3 x Linear            60        55.6  240 B                weight [4, 4], bias [4]
  (norm) BatchNorm1d              8         7.4   32 B          40 B  weight [4] frozen, bias [4], running_mean [4] buffer, running_var [4] buffer, num_batches_tracked [] int64 buffer
  (head) Linear                                                       weight tied to embedding.weight

"n x" rows total n identical blocks; the rows beneath show one of them.

parameters   108, 432 B
trainable    104
frozen       4
buffers      9 values, 40 B
dtype        float32 464 B, int64 8 B
device       cpu
time         <time>
peak memory  <memory>""",
    )


def test_a_config_file(run):
    check_output(
        run("inspect", "llama.json", "--dtype", "bf16", "--device", "cuda:1"),
        """\
117K params | 235 kB (229 KiB) bf16

module                                         parameters  % of total    bytes  buffer bytes  tensors
LlamaForCausalLM                                  117,440       100.0   235 kB          32 B
  (model) LlamaModel                              117,440       100.0   235 kB          32 B
    (embed_tokens) Embedding                        6,400         5.4  12.8 kB                weight [100, 64]
    (layers) 3 x LlamaDecoderLayer                110,976        94.5   222 kB
      (self_attn) LlamaAttention                   12,288        10.5  24.6 kB
        (q_proj) Linear                             4,096         3.5  8.19 kB                weight [64, 64]
        (k_proj) Linear                             2,048         1.7  4.10 kB                weight [32, 64]
        (v_proj) Linear                             2,048         1.7  4.10 kB                weight [32, 64]
        (o_proj) Linear                             4,096         3.5  8.19 kB                weight [64, 64]
      (mlp) LlamaMLP                               24,576        20.9  49.2 kB
        (gate_proj) Linear                          8,192         7.0  16.4 kB                weight [128, 64]
        (up_proj) Linear                            8,192         7.0  16.4 kB                weight [128, 64]
        (down_proj) Linear                          8,192         7.0  16.4 kB                weight [64, 128]
        (act_fn) SiLUActivation
      (input_layernorm) LlamaRMSNorm                   64         0.1    128 B                weight [64]
      (post_attention_layernorm) LlamaRMSNorm          64         0.1    128 B                weight [64]
    (norm) LlamaRMSNorm                                64         0.1    128 B                weight [64]
    (rotary_emb) LlamaRotaryEmbedding                                                   32 B  inv_freq [8] non-persistent buffer, original_inv_freq [8] non-persistent buffer
  (lm_head) Linear                                                                            weight tied to model.embed_tokens.weight

"n x" rows total n identical blocks; the rows beneath show one of them.

parameters   117,440 (117K), 235 kB
buffers      16 values, 32 B
dtype        bfloat16
device       cuda:1
time         <time>
peak memory  <memory>""",
    )


def test_depth(run):
    check_output(
        run("inspect", "llama.json", "--depth", "2"),
        """\
117K params | 470 kB (459 KiB) fp32

module                                 parameters  % of total    bytes  buffer bytes  tensors
LlamaForCausalLM                          117,440       100.0   470 kB          64 B
  (model) LlamaModel                      117,440       100.0   470 kB          64 B
    (embed_tokens) Embedding                6,400         5.4  25.6 kB                weight [100, 64]
    (layers) 3 x LlamaDecoderLayer        110,976        94.5   444 kB
    (norm) LlamaRMSNorm                        64         0.1    256 B                weight [64]
    (rotary_emb) LlamaRotaryEmbedding                                           64 B  inv_freq [8] non-persistent buffer, original_inv_freq [8] non-persistent buffer
  (lm_head) Linear                                                                    weight tied to model.embed_tokens.weight

"n x" rows total n identical blocks; the rows beneath show one of them.

parameters   117,440 (117K), 470 kB
buffers      16 values, 64 B
dtype        float32
device       cpu
time         <time>
peak memory  <memory>""",
    )


def test_depth_0_is_the_totals(run):
    check_output(
        run("inspect", "llama.json", "--depth", "0"),
        """\
117K params | 470 kB (459 KiB) fp32

module            parameters  % of total   bytes  buffer bytes
LlamaForCausalLM     117,440       100.0  470 kB          64 B

parameters   117,440 (117K), 470 kB
buffers      16 values, 64 B
dtype        float32
device       cpu
time         <time>
peak memory  <memory>""",
    )


def test_a_transformers_class(run):
    result = run(
        "inspect",
        "transformers:BlenderbotModel",
        *("-c", "encoder_layers=24", "-c", "decoder_layers=24", "--depth", "2"),
    )
    check_output(
        result,
        """\
4.43B params | 17.7 GB (16.5 GiB) fp32 | smallest of 15 common GPUs for the weights: a10-24gb

module                                                         parameters  % of total    bytes  tensors
BlenderbotModel                                             4,427,151,360       100.0  17.7 GB
  (shared) BlenderbotScaledWordEmbedding                       20,500,480         0.5  82.0 MB  weight [8008, 2560]
  (encoder) BlenderbotEncoder                               1,888,568,320        42.7  7.55 GB
    (embed_tokens) BlenderbotScaledWordEmbedding                                                weight tied to shared.weight
    (embed_positions) BlenderbotLearnedPositionalEmbedding        327,680        <0.1  1.31 MB  weight [128, 2560]
    (layers) 24 x BlenderbotEncoderLayer                    1,888,235,520        42.7  7.55 GB
    (layer_norm) LayerNorm                                          5,120        <0.1  20.5 kB  weight [2560], bias [2560]
  (decoder) BlenderbotDecoder                               2,518,082,560        56.9  10.1 GB
    (embed_tokens) BlenderbotScaledWordEmbedding                                                weight tied to shared.weight
    (embed_positions) BlenderbotLearnedPositionalEmbedding        327,680        <0.1  1.31 MB  weight [128, 2560]
    (layers) 24 x BlenderbotDecoderLayer                    2,517,749,760        56.9  10.1 GB
    (layer_norm) LayerNorm                                          5,120        <0.1  20.5 kB  weight [2560], bias [2560]

"n x" rows total n identical blocks; the rows beneath show one of them.

parameters   4,427,151,360 (4.43B), 17.7 GB
dtype        float32
device       cpu
training     AdamW in mixed precision holds 70.8 GB, before activations
time         <time>
peak memory  <memory>
next         torchfake fit transformers:BlenderbotModel --config encoder_layers=24 --config decoder_layers=24
             torchfake fit transformers:BlenderbotModel --config encoder_layers=24 --config decoder_layers=24 --train""",
    )


def test_layers_that_alternate_and_modules_that_are_shared(run, folder):
    (folder / "models_here.py").write_text(
        textwrap.dedent(
            """
            from torch import nn

            def build():
                shared = nn.Linear(2, 2)
                return nn.ModuleDict({
                    "mixed": nn.ModuleList(
                        nn.Linear(4, 4) if i % 2 else nn.LayerNorm(4) for i in range(8)
                    ),
                    "shared": nn.ModuleList([shared] * 3),
                    "rows": nn.ModuleList(
                        nn.ModuleList(nn.Linear(1, 1) for _ in range(2)) for _ in range(5)
                    ),
                    "lazy": nn.LazyLinear(3),
                    "nothing": nn.ModuleList(),
                })
            """
        )
    )
    check_output(
        run("inspect", "models_here:build"),
        """\
138 params | 552 B fp32

module                           parameters  % of total  bytes  tensors
ModuleDict                              138       100.0  552 B
  (mixed) ModuleList                    112        81.2  448 B
    (0, 2, ... 6) 4 x LayerNorm          32        23.2  128 B  weight [4], bias [4]
    (1, 3, ... 7) 4 x Linear             80        58.0  320 B  weight [4, 4], bias [4]
  (shared) ModuleList                     6         4.3   24 B
    (0) Linear                            6         4.3   24 B  weight [2, 2], bias [2]
    (1-2) 2 x Linear                                            same module as shared.0
  (rows) 5 x 2 x Linear                  20        14.5   80 B  weight [1, 1], bias [1]
  (lazy) LazyLinear                                             weight lazy, bias lazy
  (nothing) ModuleList

"n x" rows total n identical blocks; the rows beneath show one of them.

parameters   138, 552 B
dtype        float32
device       cpu
time         <time>
peak memory  <memory>""",
    )


def test_a_module_without_tensors(run):
    check_output(
        run("inspect", "torch.nn:ReLU"),
        """\
0 params | 0 B

module
ReLU

parameters   0, 0 B
dtype        none
device       none
time         <time>
peak memory  <memory>""",
    )


def test_multiply_accumulates(run):
    code, out, _ = run("inspect", *SMALL, "--batch", "2", "--seq", "8", "--macs")
    assert code == 0
    assert "MACs forward" in out
    assert "FLOPs" not in out
    flops = run("inspect", *SMALL, "--batch", "2", "--seq", "8")[1]
    assert "MACs" not in flops
    pattern = re.compile(r"operations\s+([\d.]+) ([kMG]?)(?:FLOPs|MACs) forward")
    scale = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}
    found = [pattern.search(text).groups() for text in (out, flops)]
    macs, both = (float(number) * scale[prefix] for number, prefix in found)
    assert both == pytest.approx(2 * macs, rel=0.01)
