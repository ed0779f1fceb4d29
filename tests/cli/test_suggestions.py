"""What is suggested where the answer is no: it was run, and fits."""

from __future__ import annotations

import re
import shlex
import time

import pytest

from torchfake.cli import suggestions
from torchfake.cli.options import parse_serve
from torchfake.inspect.serve import Serve

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("folder")]

LLAMA = (
    "transformers:LlamaForCausalLM", "-c", "num_hidden_layers=2", "-c", "hidden_size=2048", "-c",
    "max_position_embeddings=1048576",
)  # fmt: skip


def suggested(out):
    """The commands below the verdict, as words."""
    found = re.search(r"\nnext +((?:torchfake .*\n +)*torchfake .*)\n", out)
    return [shlex.split(line.strip())[1:] for line in found[1].splitlines()]


def test_training_takes_micro_batches_for_the_same_global_batch(run):
    options = ("--train", "--gpu", "t4", "--batch", "8192", "--seq", "64")
    code, out, _ = run("fit", *LLAMA, "-c", "vocab_size=500", *options)
    assert code == 1
    words = suggested(out)[0]
    batch, number = (int(words[words.index(n) + 1]) for n in ("--batch", "--accumulate"))
    assert batch * number == 8192
    assert run(*words)[0] == 0
    assert not any("nf4" in words for words in suggested(out))  # activations are the reason


def test_a_batch_of_inference_is_the_largest_that_fits(run):
    options = ("--gpu", "t4", "--batch", "65536", "--seq", "64")
    code, out, _ = run("fit", *LLAMA, *options)
    assert code == 1
    words = suggested(out)[0]
    assert run(*words)[0] == 0
    i = words.index("--batch") + 1
    words[i] = str(int(words[i]) + 1)
    assert run(*words)[0] == 1


def test_without_a_search_a_batch_that_was_run_is_suggested(run):
    options = ("--gpu", "t4", "--batch", "65536", "--seq", "64", "--vary", "none")
    code, out, _ = run("fit", *LLAMA, *options)
    assert code == 1
    words = suggested(out)[0]
    assert int(words[words.index("--batch") + 1]) > 100
    assert run(*words, "--vary", "none")[0] == 0


def test_a_server_takes_fewer_users_or_shorter_contexts(run):
    code, out, _ = run("fit", *LLAMA, "--gpu", "t4", "--serve", "30000,users=64")
    assert code == 1
    found = suggested(out)
    workloads = [parse_serve(words[words.index("--serve") + 1]) for words in found]
    assert any(serve.users < 64 and serve.context == 30_000 for serve in workloads)
    assert any(serve.users == 64 and serve.context < 30_000 for serve in workloads)
    assert all(run(*words)[0] == 0 for words in found)


def test_long_prompts_are_read_in_pieces(run):
    code, out, _ = run("fit", *LLAMA, "--gpu", "t4", "--serve", "200000", "--vary", "none")
    assert code == 1
    assert any("200000,prefill=2048" in words for words in suggested(out))


@pytest.mark.parametrize(
    "serve",
    [
        Serve(9),
        Serve(9, users=3, prompt=4, cache="static"),
        Serve(99, cache_dtype="fp8", prefill=7),
    ],
)
def test_the_text_of_a_workload_is_read_back(serve):
    assert parse_serve(serve.text) == serve


def test_what_the_search_has_run_is_not_run_again(run, monkeypatch):
    tried = []
    monkeypatch.setattr(suggestions, "_tried", lambda words, _: (tried.append(words) or 1, ""))
    code, out, _ = run("fit", *LLAMA, "--gpu", "t4", "--serve", "30000,users=64")
    assert code == 1
    found = [words[words.index("--serve") + 1] for words in suggested(out)]
    assert [text.partition(",")[2] for text in found] == ["users=7", "users=64"]
    assert tried
    assert not {*found} & {words[words.index("--serve") + 1] for words in tried}


def test_a_command_without_gpus_is_tried_on_the_largest(run):
    seen = []
    code, _ = suggestions._tried(["fit", "models_here:Net"], lambda words: seen.append(words))
    assert code == 0
    assert seen[0][-4:] == ["--vary", "none", "--gpu", "b300-288gb"]


def test_smaller_weights_run_a_step_as_the_question_does(run):
    options = ("--gpu", "a10-24gb", "--dtype", "bf16", "-c", "num_hidden_layers=200")
    code, out, _ = run("fit", *LLAMA, *options)
    assert code == 1
    quantized = next(words for words in suggested(out) if "--weights" in words)
    assert quantized[quantized.index("--batch") + 1] == "1"


@pytest.mark.parametrize(("least", "told"), [(1, "2"), (3, "4"), (8, "8"), (16, "16")])
def test_a_plan_is_tried_on_half_as_many_gpus_while_it_fits(least, told):
    def run(words):
        gpus, batch = (int(words[words.index(n) + 1]) for n in ("--gpus", "--batch"))
        assert batch == 3 * gpus
        return 0 if gpus >= least else 1

    end = time.monotonic() + 60
    (found,) = suggestions._helping("torchfake plan net --gpus 8 --batch 24", run, end)
    assert found == f"torchfake plan net --gpus {told} --batch {3 * int(told)}"


def test_all_gpus_are_named_by_leaving_them_out(run):
    code, out, _ = run("fit", *LLAMA, "--gpu", "all", "--serve", "8000000,users=64")
    assert code == 1
    assert all("--gpu" not in words for words in suggested(out))


LARGE = (
    "transformers:LlamaForCausalLM", "-c", "num_hidden_layers=12", "-c", "hidden_size=8192",
    "--seq", "64", "--vary", "none",
)  # fmt: skip


def test_inference_in_fp32_is_first_tried_in_bf16(run):
    code, out, _ = run("fit", *LARGE, "--gpu", "l4")
    assert code == 1
    first = suggested(out)[0]
    assert first[first.index("--dtype") + 1] == "bf16"
    assert run(*first)[0] == 0
    assert not any("int4" in words for words in suggested(out))  # half the bits are enough


def test_where_bf16_is_not_enough_it_is_combined_with_fewer_bits_or_a_larger_gpu(run):
    code, out, _ = run("fit", *LARGE, "--gpu", "rtx3080")
    assert code == 1
    quantized, larger, same = suggested(out)
    assert quantized[quantized.index("--dtype") + 1] == "bf16"
    assert quantized[quantized.index("--weights") + 1] == "int4"
    assert "--gpu" not in larger
    assert larger[larger.index("--dtype") + 1] == "bf16"
    assert "--gpu" not in same
    assert "--dtype" not in same


FRAGMENTED = ("--batch", "16", "--seq", "950", "--gpu", "t4", "-c", "vocab_size=500")


def test_where_only_fragmentation_is_too_large_the_allocator_is_set_first(run):
    options = (*FRAGMENTED, "--train", "--dtype", "bf16", "--vary", "none")
    code, out, _ = run("fit", *LLAMA, *options)
    assert code == 1
    first = suggested(out)[0]
    assert first[first.index("--allocator") + 1] == "expandable_segments:True"
    assert run(*first)[0] == 0
    _, out, _ = run("fit", *LLAMA, *options, "--allocator", "max_split_size_mb:512")
    assert "expandable_segments" not in out


def test_a_plan_sets_the_allocator_first(run):
    code, out, _ = run("plan", *LLAMA, *FRAGMENTED, "--gpus", "1", "--precision", "bf16")
    assert code == 1
    assert re.search(r"(?m)^  try +--allocator expandable_segments:True, which (may fit|fits)", out)
