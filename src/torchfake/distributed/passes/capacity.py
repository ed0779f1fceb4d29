"""The memory of one GPU of a server: what it holds by category, and how many users' caches fit.

Input: what a rank holds, a GPU, the share of its memory that the engine may use. Output: a
:class:`Memory`. Invariant: the cache gets what is left, in whole blocks, as in vLLM
(``determine_available_memory`` of vllm/v1/worker/gpu_worker.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchfake.distributed.passes.pass_time import Machine
from torchfake.distributed.passes.rank_record import RankWork
from torchfake.inspect.serve import Serve
from torchfake.inspect.serving.blocks import pool_bytes

CONTEXT_BYTES = 358 << 20
"""What is held outside of torch, by the CUDA context and NCCL: 0.25 and 0.35 GiB in vLLM's logs."""

GRAPH_BYTES = 12 << 20
"""What the CUDA graphs of a layer take: about 1 GiB for the 80 layers of a 70B in vLLM's logs. They
are recorded after the cache was allocated, in the memory that the engine leaves free."""

UTILIZATION = 0.90
"""The share of the memory that an engine uses, as vLLM's ``gpu_memory_utilization``."""

_KERNELS = 0.95
"""Activations of an engine's fused kernels as a multiple of those of transformers' modules: those
of a pass over 20,000 tokens in a log of vLLM (vllm-project/vllm#10517)."""

SAMPLER_BYTES = 41
"""Bytes for each logit of the sequences that yield a token, while the sampler sorts them: 1.26 GiB
for 256 sequences of 128,256 logits in a log of vLLM (vllm-project/vllm#10511), where they are more
than activations. Its profile samples for as many sequences as ``max_num_seqs``."""

MOST_SEQUENCES = 1024
"""Sequences that an engine decodes in one pass, as vLLM's ``max_num_seqs`` on large GPUs."""


@dataclass(frozen=True)
class Memory:
    """The memory of one GPU, in bytes."""

    total: int
    weights: int
    activations: int  # at the peak of the pass over the most tokens, or of sampling after it
    context: int  # of CUDA and NCCL
    graphs: int  # CUDA graphs, in what the engine leaves free
    unused: int  # what it leaves free beside them
    cache: int  # blocks of keys and values: what is left; negative if it does not suffice

    def to_dict(self) -> dict[str, int]:
        """All fields by name, as a dict for JSON."""
        return dict(self.__dict__)


def memory_of(
    work: RankWork, weights: int, machine: Machine, utilization: float, sequences: int
) -> Memory:
    """The memory of a rank with so many bytes of weights that decodes so many sequences."""
    total = machine.gpu.total_memory
    num_logits = min(sequences, MOST_SEQUENCES) * (work.vocab_size if work.after.products else 0)
    activations = max(round(work.activation_bytes * _KERNELS), SAMPLER_BYTES * num_logits)
    left_free = round(total * (1 - utilization))
    graphs = 0 if machine.engine.is_eager else min(GRAPH_BYTES * len(work.layers), left_free)
    cache = total - left_free - weights - activations - CONTEXT_BYTES
    return Memory(total, weights, activations, CONTEXT_BYTES, graphs, left_free - graphs, cache)


_MOST_USERS = 1 << 20


def cache_bytes(work: RankWork, serve: Serve) -> int:
    """Bytes of the blocks of all users of a workload."""
    return sum(number * pool_bytes(page, serve) for page, number in work.pages.items())


def most_users(work: RankWork, serve: Serve, num_bytes: int) -> int:
    """The most users whose sequences, of `serve.context` tokens each, fit into the cache."""
    fitting, beyond = 0, 1
    while cache_bytes(work, replace(serve, users=beyond)) <= num_bytes and beyond < _MOST_USERS:
        fitting, beyond = beyond, 2 * beyond
    while beyond - fitting > 1:  # the first users, whose prompts are read, take more
        middle = (fitting + beyond) // 2
        if cache_bytes(work, replace(serve, users=middle)) <= num_bytes:
            fitting = middle
        else:
            beyond = middle
    return fitting
