"""The public function ``serve``: a model that a TARGET names, served to users on given GPUs.

Input: a TARGET, numbers of users, tokens and GPUs. Output: a :class:`ServingPlan`. Invariant: what
does not suit the model or the GPU is refused with the remedy, before anything is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from torchfake._core import gpu_profiles
from torchfake._core.arguments import (
    check_flag,
    check_text,
    is_number_above_0,
    is_whole_number,
)
from torchfake._core.gpu_profiles import DEFAULT_PROFILE, CudaProfile
from torchfake.distributed.layout import layout_of
from torchfake.distributed.parallelize.mesh_axes import MeshAxes, axes_of, mesh_axes
from torchfake.distributed.parallelize.tensor_parallel import SplitError
from torchfake.distributed.passes.attention import NOT_FUSED, fuse_attention
from torchfake.distributed.passes.capacity import UTILIZATION
from torchfake.distributed.passes.engines import engine_named
from torchfake.distributed.passes.formats import (
    FORMATS,
    Format,
    check_kernels,
    format_named,
    format_of_config,
    keeping,
    of_cache,
    shown_name,
)
from torchfake.distributed.passes.pass_time import Machine
from torchfake.distributed.passes.rank_record import RankWork
from torchfake.distributed.passes.rank_work import rank_work
from torchfake.distributed.serving.remedies import with_remedy
from torchfake.distributed.serving.server import Server
from torchfake.distributed.serving.serving_plan import ServingPlan
from torchfake.distributed.strategy import Strategy
from torchfake.errors import InputsError
from torchfake.inspect.contents.schemes import method_of
from torchfake.inspect.serve import Serve
from torchfake.inspect.serving.blocks import Page
from torchfake.inspect.targets.build import construct
from torchfake.inspect.targets.resolve import resolve
from torchfake.inspect.targets.target import Target
from torchfake.inspect.targets.transformers_models import BUILT_UNQUANTIZED
from torchfake.inspect.timing.collectives import GPUS_PER_NODE, Links
from torchfake.inspect.timing.hardware import hardware_of, has_bfloat16_cores, why_untimed

PASS_TOKENS = 8192
"""Tokens of the largest pass, as vLLM's ``max_num_batched_tokens`` on large GPUs."""


def serve(
    target: str,
    *,
    users: int = 1,
    context: int = 8192,
    prompt: int | None = None,
    answer_tokens: int | None = None,
    gpus: int | None = None,
    gpu: str | CudaProfile = DEFAULT_PROFILE,
    mesh: str | Mapping[str, int] | None = None,
    weights: str | None = None,
    cache_dtype: torch.dtype | str | None = None,
    block_size: int = 16,
    pass_tokens: int = PASS_TOKENS,
    utilization: float = UTILIZATION,
    engine: str = "engine",
    overrides: Sequence[str] = (),
    suggests: bool = True,
) -> ServingPlan:
    """Find whether a model can be served to a number of users, and how fast it answers.

    :func:`search_servers` finds the GPUs, and takes limits and prices.

    Args:
        target: a TARGET, see :func:`torchfake.inspect.resolve`: a language model of transformers.
        users: the number of requests under way at the same time.
        context: the most tokens of a sequence, prompt and answer together.
        prompt: the length of prompts in tokens; by default half of the context.
        answer_tokens: the length of answers in tokens, by default the rest of the context. If it
            is less, times are those of such answers, and full contexts are longer than sequences.
        gpus: the number of GPUs, by default the size of `mesh`, or 1.
        gpu: the GPU type.
        mesh: the sizes of the axes, such as ``"tp=4,replicate=2"``: ``tp`` splits tensors by the
            model's own plan, ``pp`` layers, ``ep`` distributes experts over ranks with users of
            their own (``ep=1,tp=8``: over the ranks of ``tp``), ``replicate`` keeps copies.
            By default ``tp`` in a node of 8, ``pp`` between nodes.
        weights: the format of the weights, such as ``"fp8"`` or ``"awq"``; by default the one of
            the checkpoint's ``quantization_config``, or the dtype of the config.
        cache_dtype: the dtype of keys and values, by default the model's.
        block_size: the number of tokens in a block of the cache.
        pass_tokens: the most tokens of a pass (chunked prefill).
        utilization: the share of the GPU's memory that the engine may use.
        engine: what passes take beside arithmetic and bytes.
        overrides: changes of the config or arguments, each as ``key=value``.
        suggests: whether to look for options with which all users fit, if they do not.

    Raises:
        TargetError: if the target is invalid, or cannot be built.
        InputsError: if the model cannot be served in that way; the message has the remedy.
        DeviceError: if there is no such GPU.
    """
    check_flag(suggests, "suggests")
    question = question_of(
        target,
        users=users,
        context=context,
        prompt=prompt,
        answer_tokens=answer_tokens,
        weights=weights,
        cache_dtype=cache_dtype,
        block_size=block_size,
        pass_tokens=pass_tokens,
        utilization=utilization,
        engine=engine,
        overrides=overrides,
    )
    profile, sizes = gpu_profiles.profile(gpu), _mesh(mesh, gpus)
    try:
        found = question.plan_on(profile, sizes)
    except SplitError as error:
        if mesh is not None:
            raise
        layers = f"mesh='pp={math.prod(sizes.values())}' splits layers instead"
        raise InputsError(f"{error}. Without mesh=, the GPUs split tensors; {layers}") from None
    return with_remedy(found, question) if suggests and not found.fits else found


@dataclass(frozen=True)
class Question:
    """What is to be served, apart from the GPUs."""

    text: str  # the TARGET, as given by the user
    target: Target
    users: int
    serve: Serve
    weights: str | None  # the format; None: the one of the target
    utilization: float
    engine: str
    answer: int | None = None  # tokens of an answer
    gpus: tuple[CudaProfile, ...] = ()  # that will be asked for
    works: dict[Any, RankWork] = field(default_factory=dict, compare=False)
    """What a rank does, by mesh and GPU, with a cache in the model's dtype."""

    @property
    def has_experts(self) -> bool:
        """Whether what was run so far has stacks of experts."""
        return any(work.has_experts for work in self.works.values())

    def plan_on(self, gpu: CudaProfile, mesh: Mapping[str, int]) -> ServingPlan:
        """The plan on GPUs of one type, in one layout.

        Raises:
            InputsError: if the model cannot be served in that way.
        """
        axes = mesh_axes(mesh)
        _check_axes(axes)
        stored = self.format
        machine = _machine(gpu, self.engine, stored)
        work = keeping(self._work(axes, gpu), stored.kept if stored else ())
        if has_no_bf16 := work.dtype == torch.bfloat16 and not has_bfloat16_cores(machine.hardware):
            work = replace(work, dtype=torch.float16)
        if self.serve.cache_dtype is not None:
            work = work.with_cache(partial(Page.stored, old=self._plain, new=self.serve))
        if axes.pipeline_ranks > len(work.layers):
            raise InputsError(
                f"{axes.pipeline}={axes.pipeline_ranks} is more than the {len(work.layers)} layers "
                f"of {work.class_name}: give that or less"
            )
        server = Server(work, machine, axes, self.serve, self.utilization, self.answer)
        of_target = (note for note in self.target.notes_of_config if note != BUILT_UNQUANTIZED)
        in_fp16 = (f"in fp16: {gpu.name} has no tensor cores for bf16",) * has_no_bf16
        own = (NOT_FUSED,) * (self.engine != "eager" and not work.is_fused)
        notes = (*of_target, *in_fp16, *own, *of_cache(self.serve.dtype_name, gpu))
        return ServingPlan(self.text, server, self.users, shown_name(stored, work, gpu), notes)

    @property
    def format(self) -> Format | None:
        """How weights are stored; None: in the model's own dtype."""
        config = self.target.quantization
        if self.weights is not None or not config:
            return format_named(self.weights)
        found = format_of_config(config)
        if found is None:
            raise InputsError(
                f"the config's quantization_config has {method_of(config) or 'no quant_method'}, "
                "which is no format that is served: give weights=, one of bf16, "
                f"{', '.join(FORMATS)}"
            )
        return found

    @property
    def _plain(self) -> Serve:
        return replace(self.serve, cache_dtype=None)

    def _work(self, axes: MeshAxes, gpu: CudaProfile) -> RankWork:
        sizes = {axis: axes.sizes[axis] for axis in (axes.experts, axes.tensor) if axis}
        sizes = sizes if max(sizes.values(), default=1) > 1 else {}
        layout = tuple(sizes.items())
        gpu = self._run_on(gpu)
        if (layout, gpu) not in self.works:
            others = dict.fromkeys(map(self._run_on, self.gpus))
            new = [each for each in others if each != gpu and (layout, each) not in self.works]
            is_eager = self.engine == "eager"
            found = _run(self.target, sizes, self._plain, [gpu, *new], is_eager)
            self.works.update({(layout, each): work for each, work in found.items()})
        return self.works[layout, gpu]

    def _run_on(self, gpu: CudaProfile) -> CudaProfile:
        """The GPU that a run is for: engines have kernels of attention that store no scores on each
        GPU, torch has them for grouped heads from compute capability 8.0 on.
        """
        is_old = gpu.major < 8 and self.engine != "eager"
        return gpu._replace(major=8, minor=0) if is_old else gpu


def question_of(
    target: str,
    *,
    users: int,
    context: int,
    prompt: int | None,
    answer_tokens: int | None,
    weights: str | None,
    cache_dtype: torch.dtype | str | None,
    block_size: int,
    pass_tokens: int,
    utilization: float,
    engine: str,
    overrides: Sequence[str],
) -> Question:
    """Check what is to be served; for the arguments, see :func:`serve`."""
    if not is_whole_number(users, 1):
        raise InputsError(f"users={users!r} is not a whole number of 1 or more")
    if not is_whole_number(pass_tokens, 1):
        raise InputsError(f"pass_tokens={pass_tokens!r} is not a whole number of 1 or more")
    if not is_number_above_0(utilization) or utilization > 1:
        raise InputsError(f"utilization={utilization!r} is not a share between 0 and 1")
    check_text(engine, "engine", "eager")
    engine_named(engine)
    format_named(weights)
    prompt = max(context // 2, 1) if prompt is None and is_whole_number(context, 2) else prompt
    workload = Serve(
        context, prompt=prompt, cache_dtype=cache_dtype, block_size=block_size, prefill=pass_tokens
    )
    rest = context - workload.prompt_length
    if answer_tokens is not None and not is_whole_number(answer_tokens, 1):
        raise InputsError(f"answer_tokens={answer_tokens!r} is not a whole number of 1 or more")
    if answer_tokens is not None and answer_tokens > rest:
        raise InputsError(
            f"answer_tokens={answer_tokens} is more than the {rest} that prompts of "
            f"{workload.prompt_length} leave of a context of {context}"
        )
    resolved = _in_half_precision(resolve(target, overrides=overrides))
    return Question(target, resolved, users, workload, weights, utilization, engine, answer_tokens)


def _mesh(mesh: str | Mapping[str, int] | None, gpus: int | None) -> Mapping[str, int]:
    """The sizes of the axes; by default tensors are split in a node, and layers between nodes."""
    if mesh is not None:
        return axes_of(mesh, gpus).sizes
    number = 1 if gpus is None else gpus
    if not is_whole_number(number, 1):
        raise InputsError(f"gpus={gpus!r} is not a whole number of 1 or more")
    nodes = -(-number // GPUS_PER_NODE)
    if number % nodes:
        raise InputsError(f"{number} GPUs are no equal parts of {nodes} nodes: give mesh=")
    return {"pp": nodes, "tp": number // nodes}


def _check_axes(axes: MeshAxes) -> None:
    if axes.shard and axes.sizes[axes.shard] > 1:
        size = axes.sizes[axes.shard]
        raise InputsError(
            f"{axes.shard}={size} shards parameters for training: a server has replicas, "
            f"replicate={size}"
        )
    if axes.context_ranks > 1:
        raise InputsError("cp splits sequences for training: leave it out of the mesh of a server")


def _in_half_precision(target: Target) -> Target:
    """The target in the dtype of its config, or bfloat16 if that is float32: servers use half
    precision.
    """
    is_half = target.dtype is not None and target.dtype.itemsize == 2
    return target if is_half else replace(target, dtype=torch.bfloat16)


def _machine(gpu: CudaProfile, engine: str, stored: Format | None) -> Machine:
    hardware = hardware_of(gpu)
    if hardware is None:
        raise InputsError(
            f"the time of a token is {why_untimed(gpu)}: take a GPU whose figures are, such as "
            f"{DEFAULT_PROFILE}, or fit with --serve, which tells the memory alone"
        )
    if stored is not None:
        check_kernels(stored, gpu)
    return Machine(gpu, hardware, Links(hardware.link_bytes), engine_named(engine), stored)


def _run(
    target: Target,
    sizes: Mapping[str, int],
    workload: Serve,
    gpus: Sequence[CudaProfile],
    is_eager: bool,
) -> dict[CudaProfile, RankWork]:
    """What a rank does, of a mesh of these sizes, on the first GPU and others that are alike."""
    strategy: Any = Strategy(sizes, precision="bf16", engine="inference") if sizes else None
    if strategy is None:
        layout = layout_of(1, None)
    else:
        layout = layout_of(strategy.mesh_shape, strategy.mesh_dim_names)
    whole = replace(workload, users=max(1, (workload.prefill or 1) // workload.prompt_length))
    return rank_work(partial(_decoder, target, is_eager), strategy, layout, whole, gpus)


def _decoder(target: Target, is_eager: bool) -> nn.Module:
    """Build the model, which has to be one that servers of text run."""
    module: Any = construct(target)
    generates = getattr(module, "can_generate", None)
    if generates is None or not generates():
        raise InputsError(
            f"{target.name} is no language model of transformers that generates text, so it cannot "
            "be served: torchfake fit, or estimate in Python, tells the memory and the time of its "
            "forward pass"
        )
    if module.config.is_encoder_decoder:
        takes_text = module.main_input_name == "input_ids"
        instead = "--serve CONTEXT,cache=dynamic tells the memory of its generate"
        instead = instead if takes_text else "--batch 1 tells the memory of a forward pass"
        raise InputsError(f"{target.name} has an encoder, and served are decoders: fit {instead}")
    if not is_eager:
        fuse_attention(module)
    return module  # type: ignore[no-any-return]
