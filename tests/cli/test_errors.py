"""What is wrong is one line on stderr, and an exit code."""

from __future__ import annotations

import builtins
import json
import sys
import warnings

import pytest

import torchfake

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers warns on import
    pytest.mark.usefixtures("folder"),
]


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
        (
            "meta-llama/Llama",
            "there is no folder 'meta-llama/Llama'; as a Hugging Face Hub id, it is not",
        ),
        (
            "gpt2",
            "'gpt2' is not a target; did you mean transformers:GPT2LMHeadModel? Or write organis",
        ),
        (
            "resnet9",
            "'resnet9' is not a target: there is no such file or folder; write organisation/resn",
        ),
        ("transformers:gpt2", "has no 'gpt2'; did you mean GPT2Model"),
        (
            "llama.json.bin",
            "'llama.json.bin' is not a target: there is no such file; for weights",
        ),
        (
            "models_here:Net --batch 1 --gpu 8xh100",
            "torchfake plan and torchfake serve take 8 of them: --gpus 8 --gpu h100-80gb.",
        ),
        ("a/b/c", "'a/b/c' is not a target: no such folder or file; give the path of a config.js"),
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
        ("nowhere.py:Net", "there is no file 'nowhere.py'"),
        ("models_here.py:net", "models_here.py has no 'net'; did you mean Net?"),
        ("imports_here.py:f", "imports_here.py could not be imported: ModuleNotFoundError: No mod"),
        ("exits_here.py:f", "exits_here.py could not be imported: SystemExit: 1"),
        ("timm_not:there", "there is no module 'timm_not' in the current directory or installed"),
        ("models_here:net", "models_here has no 'net'; did you mean Net?"),
        (
            "models_here:__name__",
            "models_here:__name__ is of type str: name a class, a function",
        ),
        ("models_here:instance -c width=3", "models_here:instance is already built, so --config"),
        ("models_here.py", "models_here.py is a file: name the model in it: models_here.py:Net, "),
        ("torch.nn.Linear", "'torch.nn.Linear' is not a target; did you mean torch.nn:Linear?"),
        ("models_here:needs", "needs needs more arguments: --config width=..."),
        ("models_here:Net -c widht=3", "Net takes no argument 'widht'; did you mean width?"),
        ("models_here:number", "number returned an object of type int, not a torch.nn.Module"),
        ("models_here:fails", "fails could not be built: ValueError: no such thing"),
        ("models_here:leaves", "leaves could not be built: SystemExit: 0"),
        ("models_here:Net -c width=-1", "Net could not be built: RuntimeError: "),
        ("models_here:Net --device tpu", "there is no device 'tpu'; give cpu, cuda or cuda:N"),
        (
            "models_here:Net --dtype int8",
            "a model cannot be built as int8: give a floating point dtype; on the command line --",
        ),
    ],
)
def test_one_line_and_exit_code_2(run, arguments, said, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
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
        ("inspect models_here:Net --depht 1", "No such option: --depht (Possible options: --dept"),
        (
            "fit models_here:Net --gpus 8",
            "No such option: --gpus of torchfake fit; torchfake plan and torchfake serve have it\n",
        ),
        (
            "plan models_here:Net --train",
            "--train of torchfake plan; torchfake inspect and torchfake fit have it\n",
        ),
        ("inspect models_here:Net --depth -1", "Invalid value for '--depth'"),
        ("inspct models_here:Net", "No such command 'inspct'. Did you mean 'inspect'"),
        ("models_here:Net", "No such command 'models_here:Net'."),
        ("init models_here:Net", "Missing option '--out'"),
        ("plan models_here:Net --gpus 8xh100", "Invalid value for '--gpus'"),
        ("fit models_here:Net h100", "Got unexpected extra argument"),
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

    for module in ("commands", "output", "plan"):
        monkeypatch.delitem(sys.modules, f"torchfake.cli.{module}", raising=False)
        monkeypatch.delattr(torchfake.cli, module, raising=False)
    monkeypatch.setattr(builtins, "__import__", no_package)
    code, out, err = run("inspect", "models_here:Net")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: the command line needs {package}")
    assert err.endswith('pip install "torchfake[cli]"\n')
    assert err.count("\n") == 1


def test_the_error_says_what_to_write(run):
    target = ("transformers:LlamaForCausalLM", "-c", "num_hidden_layers=1")
    _, _, err = run("fit", *target, "-c", "vocab_size=0", "--gpu", "t4")
    assert "index out of range in self" in err
    assert err.endswith("a larger vocabulary (--config vocab_size=...), or if it is a table of "
                        "positions, a shorter sequence (--seq)\n")  # fmt: skip
