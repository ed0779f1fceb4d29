"""What an estimate leaves out of a real run, one line each.

Input: the workload, the step, and the operators that allocated memory. Output: lines of text.
Invariant: whatever the fake copy does not run, or runs differently from the user's program, has a
line.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchfake._core.gpu_profiles import ROCM
from torchfake.inspect.copies.references import Reached, hooks_of
from torchfake.inspect.copies.workload import Workload
from torchfake.inspect.inputs.libraries.of_libraries import denoises
from torchfake.inspect.records.units import bytes_text
from torchfake.inspect.serve import PAGED, Serve
from torchfake.inspect.steps.step import Step
from torchfake.inspect.steps.training_arguments import settings_left_out
from torchfake.observe import is_replicated


def left_out_of(workload: Workload, step: Step, ops: set[str], device: str) -> tuple[str, ...]:
    """What the estimate of a step leaves out, one line each.

    Args:
        workload: the module and inputs that were run.
        step: the options of the step.
        ops: names of the operators that allocated memory.
        device: the device that the estimate is for.
    """
    reached = Reached(workload.program or workload.module)
    modules = [child for _, module in reached.modules for child in module.modules()]
    lines = [
        *_compiled(modules, reached),
        *_replicated(modules),
        *_without_fakes(modules, step, device),
        *_of_kernels(ops, device),
        *_of_rocm(workload, ops),
    ]
    lines += _optimizers_that_compile(step.optimizer)
    if workload.program is None:
        lines += _hooks(workload.module, step.optimizer)
        lines += _of_pipelines(workload.module, step)
    if step.serve is not None:
        lines += _of_servers(step.serve)
    if step.training is not None:
        lines += settings_left_out(step.training, device)
    return tuple(lines)


def _of_servers(serve: Serve) -> Iterator[str]:
    yield "sampling from the logits"
    if serve.cache == PAGED:
        yield "the fused kernels and CUDA graphs of a serving engine: the model's modules are run"


def _of_pipelines(module: nn.Module, step: Step) -> Iterator[str]:
    """What a pipeline of diffusers runs beside the model that denoises."""
    if denoises(module):
        others = "" if step.mode == "training" else ", the other denoising steps"
        yield f"all else that the pipeline runs: text encoders, an autoencoder{others}"


def _compiled(modules: list[nn.Module], reached: Reached) -> Iterator[str]:
    """A line if ``torch.compile`` or ``module.compile()`` has compiled a module or function."""
    wrapped = sum(type(module).__name__ == "OptimizedModule" for module in modules)
    called = sum(getattr(module, "_compiled_call_impl", None) is not None for module in modules)
    made = sum(hasattr(function, "_torchdynamo_orig_callable") for function in reached.functions)
    if wrapped + called + made:
        yield "torch.compile: run eagerly, without a compiler's fusion and memory reuse"


def _optimizers_that_compile(optimizer: Any) -> Iterator[str]:
    """A line if an optimizer compiles its own step, as torchao's of few bits do."""
    while isinstance(optimizer, partial):
        optimizer = optimizer.func
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    step = getattr(kind, "step", None)  # a function that makes an optimizer has none
    code = None if step is None else getattr(inspect.unwrap(step), "__code__", None)
    if code is not None and "compile" in code.co_names:
        yield f"{kind.__name__} compiles its step: run operator by operator, which takes longer"


def _replicated(modules: list[nn.Module]) -> Iterator[str]:
    for module in filter(is_replicated, modules):
        if isinstance(module, nn.DataParallel):
            yield "DataParallel: run on one device, with the whole batch; replicas are not counted"
            continue
        num_bytes = sum(p.nbytes for p in module.parameters() if p.requires_grad)
        is_view = getattr(module, "gradient_as_bucket_view", False)
        buckets = "" if is_view else f"its buckets, {bytes_text(num_bytes)}, and "
        yield f"DistributedDataParallel: {buckets}its messages are not counted"


def _without_fakes(modules: list[nn.Module], step: Step, device: str) -> Iterator[str]:
    """Fused kernels, which allocate other tensors than the operators they replace."""
    if device == "cpu" and any(isinstance(module, nn.RNNBase) for module in modules):
        yield "recurrent layers on the CPU: run operator by operator; oneDNN saves other tensors"
    encodes = any(isinstance(module, nn.TransformerEncoderLayer) for module in modules)
    if encodes and step.mode == "inference":
        yield "nn.TransformerEncoder without gradients: run without its fast path"


def _of_kernels(ops: set[str], device: str) -> Iterator[str]:
    if device.startswith("cuda") and any("convolution" in op for op in ops):
        yield "convolutions: the workspaces that cuDNN takes while they run"


def _of_rocm(workload: Workload, ops: set[str]) -> Iterator[str]:
    """Scratch memory that is modelled for CUDA's kernels but not for AMD's."""
    if workload.gpu is None or workload.gpu.backend != ROCM:
        return
    yield (
        "ROCm: what hipBLASLt takes while it multiplies; reductions are counted with the blocks of "
        "NVIDIA's GPUs"
    )
    if any("scaled_dot_product" in op for op in ops):
        yield "ROCm: what AOTriton's attention takes while it runs; chosen as on CUDA without cuDNN"


def _hooks(module: nn.Module, optimizer: Any) -> Iterator[str]:
    """Hooks that the fake copy does not have."""
    hooked = sum(any(hooks_of(parameter)) for parameter in module.parameters())
    if hooked:
        yield (
            f"hooks of parameters ({hooked}): not run; in a step that is a function of yours they "
            "are"
        )
    if isinstance(optimizer, Optimizer):
        names = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
        if any(getattr(optimizer, name, None) for name in names):
            yield "hooks of the optimizer: not run; in a step that is a function of yours they are"
