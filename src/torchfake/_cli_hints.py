"""What to write in place of a command or an option that other tools have.

Input: the message of an error in the use of the command line. Output: a line, or nothing.
Invariant: nothing is imported but the standard library.
"""

from __future__ import annotations

import re

# {0} stands for the first group of the pattern
_HINTS = (
    (r"command '(summary|tree|show|params|print)'", "torchfake inspect TARGET"),
    (r"command '(check|run|flops|macs|profile|forward)'",
     "torchfake inspect TARGET --batch 1, which runs it and counts FLOPs"),
    (r"command '(estimate\S*|memory\S*|vram|max-batch|size)'",
     "torchfake fit TARGET, or torchfake inspect TARGET --batch 1 for the memory of a step"),
    (r"command '([\w.@-]*[:/][\w./:@-]*|[\w.-]+\.(?:json|py|safetensors))'",
     "torchfake inspect {0}"),
    (r"Missing option '--out'", "torchfake init TARGET --out DIR"),
    (r"command '(train|shard|distribute|parallelize|search)'", "torchfake plan TARGET --gpus 8"),
    (r"command 'serve'", "torchfake fit TARGET --serve 8192,users=16"),
    (r"command '(save|materialize|create)'", "torchfake init TARGET --out DIR"),
    (r"command 'help'", "torchfake --help, or torchfake COMMAND --help"),
    (r"command 'version'", "torchfake --version"),
    (r"command '(gpus?|profiles|list\S*)'|option:? '?--list-gpus",
     "torchfake fit TARGET --gpu all"),
    (r"option:? '?--(quantiz\w*|quant|load-in-[48]bit|int[48]|nf4)",
     "--weights nf4, int4, int8 or fp8"),
    (r"option:? '?--(lora\S*|peft\S*|adapter\S*)",
     "in Python: estimate(model, peft=LoraConfig(...), training=args)"),
    (r"option:? '?--(tp|dp|pp|cp|ep|tensor-parallel\S*|pipeline-parallel\S*)\b",
     "--mesh dp=4,tp=2"),
    (r"option:? '?--(num-gpus|n-gpus|ngpus|gpu-count|nproc\S*|world-size|nodes)",
     "torchfake plan TARGET --gpus 8 --gpu h100"),
    (r"option:? '?--gpus", "--gpu h100 here; for several GPUs torchfake plan TARGET --gpus 8"),
    (r"option:? '?--(context\S*|users|concurrency|max-model-len)", "--serve 8192,users=16"),
    (r"option:? '?--(bf16|fp16|half|mixed\S*|amp)\b",
     "--dtype bf16, or --autocast bf16 for weights in float32"),
    (r"option:? '?--(arg|args|kwargs|set|override\w*|hidden-size|num-layers)",
     "--config KEY=VALUE"),
    (r"option:? '?--(input-size|input-shape|shape)", "--input 8,64"),
    (r"option:? '?--gpu-memory-utilization",
     "--gpu h100 alone; the answer says what is reserved of it"),
    (r"option:? '?--(memory|vram|gpu-memory)\b",
     "--gpu l4-24gb, or --profiles FILE with a total_memory of your own"),
    (r"option:? '?(-b|--batch-size|--bs)\b", "--batch 4"),
    (r"option:? '?(-s|--seq-?len\w*|--sequence-length|--max-length)\b", "--seq 2048"),
    (r"option:? '?--(precision|torch-dtype)\b", "--dtype bf16, or --autocast bf16"),
    (r"option:? '?--(format|output-format)\b", "--json, or --html FILE"),
    (r"option:? '?--(output|out|save)\b", "--html FILE, or --json > FILE; of graph --svg FILE"),
    (r"option:? '?(-v|--verbose|--debug)\b", "--traceback, which shows warnings and logs too"),
    (r"option:? '?(-m|--model|--target|--name)\b", "the model without an option: inspect TARGET"),
    (r"option:? '?--(offline|local-files-only)\b", "HF_HUB_OFFLINE=1 before the command"),
    (r"No such command", "torchfake inspect, fit, graph, plan, diff or init, with a TARGET"),
    (r"option:? '?--(zero\S*|deepspeed\S*|ds-config|fsdp\S*)", "--zero 3 or 2, or --engine fsdp1"),
    (r"option:? '?--(gradient-accumulation\S*|grad-accum\S*|accumulation-steps)",
     "--accumulate 4"),
    (r"option:? '?--(gradient-checkpointing|activation-checkpointing|recompute|ac)\b",
     "torchfake plan TARGET --checkpoint full; of inspect and fit, in Python: "
     "model.gradient_checkpointing_enable()"),
    (r"option:? '?--(kv-cache-dtype|max-num-seqs|max-num-batched-tokens|block-size)\b",
     "--serve 8192,users=16,cache_dtype=fp8"),
    (r"for '--gpus'", "--gpus is their number: --gpus 8 --gpu h100"),
    (r"extra argument\S* \((\d+)[x*]([a-z][\w-]+)\)", "--gpus {0} --gpu {1}"),
    (r"extra argument\S* \((?=[a-z-]*\d)([a-z][\w-]+)\)", "--gpu {0}"),
    (r"extra argument\S* \([\w.]+=", "repeat the option: --config A=1 --config B=2"),
)  # fmt: skip


def hint(message: str) -> str:
    """The line that answers an error of use, or "".

    >>> hint("No such command 'summary'.")
    'Write: torchfake inspect TARGET'
    """
    for pattern, text in _HINTS:
        if found := re.search(pattern, message):
            return f"Write: {text.format(*found.groups())}"
    return ""
