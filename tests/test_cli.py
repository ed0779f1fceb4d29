"""The command line as a user meets it: what it prints, where, and the exit code."""

# ruff: noqa: E501  (what is printed is as wide as it is)
from __future__ import annotations

import builtins
import io
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

import torchfake

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns on import

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "tie_word_embeddings": True,
}

MODELS = """
    import sys
    import warnings

    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, width: int = 4, *, num_layers=3):
            super().__init__()
            self.embedding = nn.Embedding(10, width)
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))
            self.norm = nn.BatchNorm1d(width)
            self.norm.weight.requires_grad_(False)
            self.head = nn.Linear(width, 10, bias=False)
            self.head.weight = self.embedding.weight

    def needs(width):
        return Net(width)

    def noisy():
        print("noise")
        warnings.warn("noise")
        return Net()

    def fails():
        raise ValueError("no such\\n    thing")

    def leaves():
        sys.exit(0)

    def interrupted():
        raise KeyboardInterrupt

    def number():
        return 3

    instance = nn.Linear(1, 1)
    """


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current directory: with a module of models and config files."""
    (tmp_path / "models_here.py").write_text(textwrap.dedent(MODELS))
    (tmp_path / "exits_here.py").write_text("import sys\nsys.exit(1)\n")
    (tmp_path / "imports_here.py").write_text("import not_installed_here\n")
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    (tmp_path / "own.json").write_text('{"model_type": "lama", "auto_map": {}}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "none.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("models_here", "exits_here", "imports_here"):
        sys.modules.pop(name, None)


def masked(out):
    out = re.sub(r"time( +).*", r"time\1<time>", out)
    return re.sub(r"peak memory( +).*", r"peak memory\1<memory>", out).rstrip()


def check_output(result, expected):
    code, out, err = result
    assert (code, err) == (0, "")
    assert_expected_inline(masked(out), expected, skip=1)


def test_a_callable(run):
    check_output(
        run("inspect", "models_here:Net"),
        """\
module                   parameters  bytes  buffer bytes  tensors
Net                             108  432 B          40 B
  (embedding) Embedding          40  160 B                weight [10, 4]
  (layers) 3 x Linear            60  240 B                weight [4, 4], bias [4]
  (norm) BatchNorm1d              8   32 B          40 B  weight [4] frozen, bias [4], running_mean [4] buffer, running_var [4] buffer, num_batches_tracked [] int64 buffer
  (head) Linear                                           weight tied to embedding.weight

An `n x` row counts all n blocks; the rows below it are those of one.

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
module                                         parameters    bytes  buffer bytes  tensors
LlamaForCausalLM                                  117,440   235 kB          32 B
  (model) LlamaModel                              117,440   235 kB          32 B
    (embed_tokens) Embedding                        6,400  12.8 kB                weight [100, 64]
    (layers) 3 x LlamaDecoderLayer                110,976   222 kB
      (self_attn) LlamaAttention                   12,288  24.6 kB
        (q_proj) Linear                             4,096  8.19 kB                weight [64, 64]
        (k_proj) Linear                             2,048  4.10 kB                weight [32, 64]
        (v_proj) Linear                             2,048  4.10 kB                weight [32, 64]
        (o_proj) Linear                             4,096  8.19 kB                weight [64, 64]
      (mlp) LlamaMLP                               24,576  49.2 kB
        (gate_proj) Linear                          8,192  16.4 kB                weight [128, 64]
        (up_proj) Linear                            8,192  16.4 kB                weight [128, 64]
        (down_proj) Linear                          8,192  16.4 kB                weight [64, 128]
        (act_fn) SiLUActivation
      (input_layernorm) LlamaRMSNorm                   64    128 B                weight [64]
      (post_attention_layernorm) LlamaRMSNorm          64    128 B                weight [64]
    (norm) LlamaRMSNorm                                64    128 B                weight [64]
    (rotary_emb) LlamaRotaryEmbedding                                       32 B  inv_freq [8] unsaved buffer, original_inv_freq [8] unsaved buffer
  (lm_head) Linear                                                                weight tied to model.embed_tokens.weight

An `n x` row counts all n blocks; the rows below it are those of one.

parameters   117,440 (117 thousand), 235 kB
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
module                                 parameters    bytes  buffer bytes  tensors
LlamaForCausalLM                          117,440   470 kB          64 B
  (model) LlamaModel                      117,440   470 kB          64 B
    (embed_tokens) Embedding                6,400  25.6 kB                weight [100, 64]
    (layers) 3 x LlamaDecoderLayer        110,976   444 kB
    (norm) LlamaRMSNorm                        64    256 B                weight [64]
    (rotary_emb) LlamaRotaryEmbedding                               64 B  inv_freq [8] unsaved buffer, original_inv_freq [8] unsaved buffer
  (lm_head) Linear                                                        weight tied to model.embed_tokens.weight

An `n x` row counts all n blocks; the rows below it are those of one.

parameters   117,440 (117 thousand), 470 kB
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
module            parameters   bytes  buffer bytes
LlamaForCausalLM     117,440  470 kB          64 B

parameters   117,440 (117 thousand), 470 kB
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
module                                                         parameters    bytes  tensors
BlenderbotModel                                             4,427,151,360  17.7 GB
  (shared) BlenderbotScaledWordEmbedding                       20,500,480  82.0 MB  weight [8008, 2560]
  (encoder) BlenderbotEncoder                               1,888,568,320  7.55 GB
    (embed_tokens) BlenderbotScaledWordEmbedding                                    weight tied to shared.weight
    (embed_positions) BlenderbotLearnedPositionalEmbedding        327,680  1.31 MB  weight [128, 2560]
    (layers) 24 x BlenderbotEncoderLayer                    1,888,235,520  7.55 GB
    (layer_norm) LayerNorm                                          5,120  20.5 kB  weight [2560], bias [2560]
  (decoder) BlenderbotDecoder                               2,518,082,560  10.1 GB
    (embed_tokens) BlenderbotScaledWordEmbedding                                    weight tied to shared.weight
    (embed_positions) BlenderbotLearnedPositionalEmbedding        327,680  1.31 MB  weight [128, 2560]
    (layers) 24 x BlenderbotDecoderLayer                    2,517,749,760  10.1 GB
    (layer_norm) LayerNorm                                          5,120  20.5 kB  weight [2560], bias [2560]

An `n x` row counts all n blocks; the rows below it are those of one.

parameters   4,427,151,360 (4.43 billion), 17.7 GB
dtype        float32
device       cpu
time         <time>
peak memory  <memory>""",
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
module                           parameters  bytes  tensors
ModuleDict                              138  552 B
  (mixed) ModuleList                    112  448 B
    (0, 2, ... 6) 4 x LayerNorm          32  128 B  weight [4], bias [4]
    (1, 3, ... 7) 4 x Linear             80  320 B  weight [4, 4], bias [4]
  (shared) ModuleList                     6   24 B
    (0) Linear                            6   24 B  weight [2, 2], bias [2]
    (1-2) 2 x Linear                                same module as shared.0
  (rows) 5 x 2 x Linear                  20   80 B  weight [1, 1], bias [1]
  (lazy) LazyLinear                                 weight lazy, bias lazy
  (nothing) ModuleList

An `n x` row counts all n blocks; the rows below it are those of one.

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
module
ReLU

parameters   0, 0 B
dtype        none
device       none
time         <time>
peak memory  <memory>""",
    )


def test_json(run):
    code, out, err = run("inspect", "models_here:Net", "--json", "-c", "width=8")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert {key: type(value).__name__ for key, value in report.items()} == {
        "target": "str",
        "class_name": "str",
        "totals": "dict",
        "dtypes": "dict",
        "devices": "dict",
        "resolve_seconds": "float",
        "build_seconds": "float",
        "peak_rss_bytes": "int",
        "peak_rss_increase_bytes": "int",
        "notes": "list",
        "tree": "dict",
    }
    assert report["totals"] == {
        "num_parameters": 312,
        "num_trainable": 304,
        "num_frozen": 8,
        "parameter_bytes": 1248,
        "num_buffer_values": 17,
        "buffer_bytes": 72,
    }
    assert report["dtypes"]["int64"] == {"num_values": 1, "bytes": 8}
    layers = report["tree"]["children"][1]
    assert layers["name"] == "layers"
    (block,) = layers["children"]
    assert block["names"] == ["0", "1", "2"]
    assert block["repeat"] == 3
    assert block["size"]["num_parameters"] == 72
    assert block["tensors"][0] == {
        "name": "weight",
        "kind": "parameter",
        "shape": [8, 8],
        "dtype": "float32",
        "device": "cpu",
        "num_values": 64,
        "size_bytes": 256,
        "trainable": True,
        "persistent": True,
        "tied_to": None,
    }


def test_json_and_depth(run):
    _, out, _ = run("inspect", "models_here:Net", "--json", "--depth", "0")
    assert json.loads(out)["tree"]["children"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("transformers:LLamaModle", "has no 'LLamaModle'; did you mean LlamaModel, "),
        ("transformers:LlamaConfig", "LlamaConfig is not a model class of transformers; did you"),
        ("transformers:AutoModel", "AutoModel chooses a class by its config and has no default; "),
        ("transformers:PreTrainedModel", "PreTrainedModel is an abstract class: it has no config"),
        ("transformers:LlamaModel -c hiden_size=3", "has no key 'hiden_size'; did you mean hidden"),
        ("transformers:LlamaModel -c hidden_size.a=3", "'hidden_size' is 4096: it has no 'a'"),
        (
            "transformers:LlavaModel -c text_config.hiden_size=3",
            "LlamaConfig has no key 'hiden_size'; did you mean text_config.hidden_size",
        ),
        ("transformers:LlamaModel -c hidden_size=wide", "the config of LlamaModel could not be"),
        (
            "transformers:LlamaModel -c hidden_size",
            "--config 'hidden_size' is not of the form key=",
        ),
        ("LlamaModel", "'LlamaModel' is not a target; did you mean transformers:LlamaModel?"),
        ("meta-llama/Llama", "no such folder, and nothing is downloaded; give the path of its con"),
        (
            "what?",
            "'what?' is not a target: give transformers:ClassName, the path of a config.json",
        ),
        ("missing.json", "there is no file 'missing.json'; nothing is downloaded"),
        ("own.json", "does not know model_type 'lama' and code in the checkpoint is not run; did"),
        ("list.json", "list.json holds a JSON list, not the object of a config"),
        ("empty.json", "empty.json is not JSON: JSONDecodeError: "),
        ("none.json", "none.json has no `model_type`, so it is not a transformers config"),
        ("nowhere.at.all:f", "there is no module 'nowhere' in the current directory or installed"),
        ("imports_here:f", "imports_here could not be imported: ModuleNotFoundError: No module n"),
        ("exits_here:f", "exits_here could not be imported: SystemExit: 1"),
        ("models_here.py:Net", "'models_here.py' is a file, not a module; try models_here:Net"),
        ("models_here:net", "models_here has no 'net'; did you mean Net?"),
        ("models_here:__name__", "models_here:__name__ is a str, which cannot be called"),
        ("models_here:instance", "models_here:instance is a module already built; name a func"),
        ("models_here:needs", "needs needs more arguments: --config width=..."),
        ("models_here:Net -c widht=3", "Net takes no argument 'widht'; did you mean width?"),
        ("models_here:number", "number made a int, not a torch.nn.Module"),
        ("models_here:fails", "fails could not be built: ValueError: no such thing"),
        ("models_here:leaves", "leaves could not be built: SystemExit: 0"),
        ("models_here:Net -c width=-1", "Net could not be built: RuntimeError: "),
        ("models_here:Net --device tpu", "there is no device 'tpu'; give cpu, cuda or cuda:N"),
        ("models_here:Net --dtype int8", "a model cannot be built as int8: give a floating point"),
    ],
)
def test_one_line_and_exit_code_2(run, arguments, said):
    code, out, err = run("inspect", *arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err


def test_traceback(run):
    code, out, err = run("inspect", "models_here:fails", "--traceback")
    assert (code, out) == (2, "")
    assert 'raise ValueError("no such' in err
    assert err.endswith("\nerror: fails could not be built: ValueError: no such thing\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("inspect", "Missing argument 'TARGET'"),
        ("inspect models_here:Net --depht 1", "No such option"),
        ("inspect models_here:Net --depth -1", "Invalid value for '--depth'"),
        ("inspct models_here:Net", "No such command 'inspct'"),
    ],
)
def test_wrong_usage(run, arguments, said):
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert said in err


def test_interrupted(run):
    assert run("inspect", "models_here:interrupted") == (130, "", "error: interrupted\n")
    code, _, err = run("inspect", "models_here:interrupted", "--traceback")
    assert code == 130
    assert "raise KeyboardInterrupt" in err


def test_chatter_stays_out_of_the_answer(run):
    code, out, err = run("inspect", "models_here:noisy", "--json")
    assert (code, err) == (0, "noise\n")
    assert json.loads(out)["class_name"] == "Net"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run("inspect", "models_here:noisy", "--traceback")
    assert "noise" in [str(warning.message) for warning in caught]


def test_version_and_help(run):
    assert run("--version") == (0, f"torchfake {torchfake.__version__}\n", "")
    code, out, _ = run("inspect", "--help")
    assert code == 0
    for option in ("--config", "--dtype", "--device", "--depth", "--json", "--traceback"):
        assert option in out
    assert "inspect" in "".join(run()[1:])


def test_without_transformers(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for target in ("transformers:LlamaModel", "llama.json"):
        assert run("inspect", target) == (
            2,
            "",
            'error: this target needs transformers: pip install "torchfake[hf]"\n',
        )
    assert run("inspect", "models_here:Net")[0] == 0


@pytest.mark.parametrize("package", ["rich", "typer"])
def test_without_the_cli_extra(run, monkeypatch, package):
    real_import = builtins.__import__

    def no_package(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real_import(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "torchfake.cli", raising=False)
    monkeypatch.delattr(torchfake, "cli", raising=False)
    monkeypatch.setattr(builtins, "__import__", no_package)
    code, out, err = run("inspect", "models_here:Net")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: the command line needs {package}")
    assert err.endswith('pip install "torchfake[cli]"\n')
    assert err.count("\n") == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def on_terminal(run, monkeypatch):
    """Run the command on a terminal so many columns wide; what it shows, colours left out."""

    def on_terminal(width, *arguments):
        terminal = Terminal()
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stdout", terminal)
        code, _, err = run(*arguments)
        shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
        shown = shown.translate(str.maketrans("├└│─", "+`|-"))  # expecttest writes ASCII
        assert all(len(line) <= width for line in shown.splitlines())
        return code, "\n".join(line.rstrip() for line in shown.splitlines()), err

    return on_terminal


def test_a_wide_terminal(on_terminal):
    check_output(
        on_terminal(200, "inspect", "models_here:Net"),
        """\
module                    parameters  bytes  buffer bytes  tensors
Net                              108  432 B          40 B
+- (embedding) Embedding          40  160 B                weight [10, 4]
+- (layers) 3 x Linear            60  240 B                weight [4, 4], bias [4]
+- (norm) BatchNorm1d              8   32 B          40 B  weight [4] frozen, bias [4], running_mean [4] buffer, running_var [4] buffer, num_batches_tracked [] int64 buffer
`- (head) Linear                                           weight tied to embedding.weight

An `n x` row counts all n blocks; the rows below it are those of one.

parameters   108, 432 B
trainable    104
frozen       4
buffers      9 values, 40 B
dtype        float32 464 B, int64 8 B
device       cpu
time         <time>
peak memory  <memory>""",
    )


def test_a_narrow_terminal(on_terminal):
    check_output(
        on_terminal(60, "inspect", "models_here:Net"),
        """\
module                                     parameters  bytes
Net                                               108  432 B
+- (embedding) Embedding  weight [10, 4]           40  160 B
+- (layers) 3 x Linear                             60  240 B
|     weight [4, 4], bias [4]
+- (norm) BatchNorm1d                               8   32 B
|     weight [4] frozen
|     bias [4]
|     running_mean [4] buffer
|     running_var [4] buffer
|     num_batches_tracked [] int64 buffer
`- (head) Linear
      weight tied to embedding.weight

An `n x` row counts all n blocks; the rows below it are
those of one.

parameters   108, 432 B
trainable    104
frozen       4
buffers      9 values, 40 B
dtype        float32 464 B, int64 8 B
device       cpu
time         <time>
peak memory  <memory>""",
    )


def test_a_real_process(folder):
    """Plain ASCII when stdout is no terminal, whatever its encoding and width."""
    script = shutil.which("torchfake", path=str(Path(sys.executable).parent))
    assert script is not None, "the package is not installed"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "20"}
    asked = ["inspect", "models_here:Net", "--depth", "1"]
    first = subprocess.run([script, *asked], capture_output=True, text=True, env=environment)
    assert (first.returncode, first.stderr) == (0, "")
    assert "  (layers) 3 x Linear  " in first.stdout
    module = [sys.executable, "-m", "torchfake"]
    second = subprocess.run([*module, "inspect", "nowhere:f"], capture_output=True, text=True)
    assert (second.returncode, second.stdout) == (2, "")
    assert (
        second.stderr
        == "error: there is no module 'nowhere' in the current directory or installed\n"
    )
