"""Tracing fake, deferred and meta modules: the oracle is what torch traces of the real ones."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import pytest
import torch
import torch._dynamo  # here: what is first imported while torch is replaced learns replacements
from torch import nn
from torch.fx.experimental import proxy_tensor
from torch.fx.passes.shape_prop import ShapeProp
from torch.utils import _pytree as pytree

from torchfake import (
    deferred_init,
    deferred_mode,
    fake_like,
    fake_mode,
    fx,
    graph,
    is_deferred,
    is_fake,
    materialize_module,
)
from torchfake.errors import TraceError, UnknownValueError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attributes self.lstm:UserWarning"),  # torch's
]

META, CPU = torch.device("meta"), torch.device("cpu")


# Models.


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, groups=4), nn.GroupNorm(2, 8), nn.PReLU())
        self.head = nn.Linear(8, 5)
        self.register_buffer("scale", torch.linspace(1, 2, 8), persistent=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.stem(image))) * self.scale[:, None, None]
        return self.head(self.deep(hidden).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 11)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden, (last, _) = self.lstm(self.embed(tokens))
        return {"logits": self.head(hidden), "last": last}


class Attention(nn.Module):
    """Tied weights, a table that is no buffer, constants made in forward, and lists of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)
        self.key.weight = self.query.weight
        self.norm = nn.LayerNorm(8)
        self.table = torch.arange(8.0)

    def forward(self, pair: list[torch.Tensor], shift: torch.Tensor, times: int = 1) -> Any:
        query, key = self.query(pair[0]), self.key(pair[1]).to(shift.device)
        heads = [part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (query, key, key)]
        mixed = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)
        mixed = mixed + torch.tensor([1.0, 2.0] * 4, device=shift.device) * times
        return self.norm(mixed) + self.table.to(shift.device), mixed + shift


def own_models() -> dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]]:
    words = torch.randn(2, 3, 8)
    return {
        "convolutions": (Convolutions, (torch.randn(2, 3, 8, 8),)),
        "recurrent": (Recurrent, (torch.arange(6).view(2, 3),)),
        "attention": (Attention, ([words, words + 1], torch.ones(8))),
    }


class First(nn.Module):
    """A model of transformers that gives its first output: caches are in no graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> Any:
        names = ["pixel_values"] if inputs[0].dim() == 4 else ["input_ids", "decoder_input_ids"]
        return self.model(**dict(zip(names, inputs, strict=False)))[0]


_TEXT = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 40}
_WIDE = {**_TEXT, "intermediate_size": 24, "num_key_value_heads": 2}


def transformers_models() -> dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]]:
    transformers = pytest.importorskip("transformers")
    tokens = torch.arange(10).view(2, 5) + 3
    text: dict[str, tuple[str, dict[str, Any]]] = {
        "gpt2": ("GPT2LMHeadModel", {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 40}),
        "bert": ("BertForMaskedLM", {**_TEXT, "intermediate_size": 24}),
        "llama": ("LlamaForCausalLM", _WIDE),
        "mixtral": ("MixtralForCausalLM", {**_WIDE, "num_local_experts": 2}),
        "t5": (
            "T5ForConditionalGeneration",
            {"num_layers": 1, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2}
            | {"vocab_size": 40},
        ),
    }

    def builder(name: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
        config_class = getattr(transformers, name).config_class
        # With a padding token, inputs are searched for it: a branch on values.
        ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
        ends |= {"decoder_start_token_id": 0, "pad_token_id": 0} if "d_kv" in options else {}
        config = config_class(**options, **ends)
        return lambda: First(getattr(transformers, name)(copy.deepcopy(config))).eval()

    models: dict[str, Any] = {}
    for name, (class_name, options) in text.items():
        inputs = (tokens, tokens[:, :3]) if name == "t5" else (tokens,)
        models[name] = (builder(class_name, options), inputs)
    image = {**_TEXT, "intermediate_size": 24, "image_size": 8, "patch_size": 4}
    models["vit"] = (
        builder("ViTForImageClassification", image),
        (torch.randn(2, 3, 8, 8),),
    )
    return models


COMPOSITE = ["recurrent"]
"""What eager runs in a fused kernel on the CPU, a fake runs as the operators it is made of."""

OWN = ["convolutions", "recurrent", "attention"]
TRANSFORMERS = ["gpt2", "bert", "llama", "mixtral", "t5", "vit"]
MODELS = OWN + TRANSFORMERS


@functools.cache
def model(name: str) -> tuple[Callable[[], nn.Module], tuple[Any, ...]]:
    torch.manual_seed(1)
    return (own_models() if name in OWN else transformers_models())[name]


def eager(name: str) -> nn.Module:
    torch.manual_seed(0)
    return model(name)[0]()


def deferred(name: str) -> nn.Module:
    torch.manual_seed(0)
    return deferred_init(model(name)[0])


def on_fake_cuda(name: str) -> tuple[nn.Module, Any]:
    build, inputs = model(name)
    with fake_mode(fake_cuda=1):
        module = build().cuda()
    return module, pytree.tree_map_only(torch.Tensor, lambda t: fake_like(t, device="cuda"), inputs)


# What is compared.


def values_on(node: torch.fx.Node, *, device: bool = True) -> list[Any]:
    found = pytree.tree_leaves(node.meta.get("val"))
    return [
        (tuple(v.shape), v.dtype, v.stride(), *([v.device] if device else []))
        if isinstance(v, torch.Tensor)
        else v
        for v in found
    ]


def operators(traced: Any) -> list[Any]:
    """Operators in order, with all that is known of their results."""
    nodes = [n for n in traced.graph.nodes if n.op not in ("placeholder", "get_attr")]
    return [(n.op, str(n.target), values_on(n)) for n in nodes]


def tensors_on(traced: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves([node.meta.get("val") for node in traced.graph.nodes])
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def state_of(module: nn.Module) -> list[Any]:
    """All that a trace could change: values, records, versions, attributes."""
    found: list[Any] = []
    for name, submodule in module.named_modules():
        plain = {
            k: str(graph(v)) if isinstance(v, torch.Tensor) and is_fake(v) and is_deferred(v) else v
            for k, v in vars(submodule).items()
            if isinstance(v, (int, str, torch.Tensor)) and not k.startswith("_")
        }
        found.append((name, sorted(vars(submodule)), repr(plain)))
    for name, tensor in module.state_dict(keep_vars=True).items():
        if is_fake(tensor):
            value = str(graph(tensor)) if is_deferred(tensor) else repr(tensor)
        else:
            value = repr(tensor.detach().tolist())
        found.append((name, id(tensor), tensor._version, value, tensor.grad))
    return found


def flat(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def assert_same_bits(expected: Any, result: Any) -> None:
    pairs = list(zip(flat(expected), flat(result), strict=True))
    assert pairs
    for one, other in pairs:
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


# make_fx.


@pytest.mark.parametrize("name", MODELS)
def test_make_fx_of_a_deferred_model(name: str) -> None:
    """The nodes are torch's; what becomes real is eager."""
    _, inputs = model(name)
    expected = proxy_tensor.make_fx(eager(name))(*inputs)
    module = deferred(name)
    before = state_of(module)
    traced = fx.make_fx(module, *inputs)
    if name not in COMPOSITE:
        assert operators(traced) == operators(expected)
    assert state_of(module) == before
    own = {id(t) for t in [*module.parameters(), *module.buffers()]}
    assert {id(p) for p in traced.parameters()} <= own
    for path, parameter in traced.named_parameters():
        assert module.get_parameter(path) is parameter
    materialize_module(module)
    materialize_module(traced)
    result, wanted = traced(*inputs), eager(name)(*inputs)
    if name in COMPOSITE:
        torch.testing.assert_close(result, wanted)
    else:
        assert_same_bits(wanted, result)


@pytest.mark.parametrize("name", [*OWN, "bert", "mixtral"])
def test_make_fx_on_fake_cuda(name: str) -> None:
    """Kernels are the device's; shapes are eager's, and all devices are what the fake reports."""
    module, inputs = on_fake_cuda(name)
    before = state_of(module)
    traced = fx.make_fx(module, *inputs)
    assert state_of(module) == before
    (output,) = (n for n in traced.graph.nodes if n.op == "output")
    results = [n.meta["val"] for n in output.all_input_nodes]
    wanted = {(t.shape, t.dtype) for t in flat(eager(name)(*model(name)[1]))}
    assert {(t.shape, t.dtype) for t in results} == wanted
    assert {t.device.type for t in results} == {"cuda"}
    for node in traced.graph.nodes:
        devices = [a for a in pytree.tree_leaves((node.args, node.kwargs)) if is_device(a)]
        assert META.type not in {device.type for device in devices}
    assert {t.device for t in tensors_on(traced)} <= {torch.device("cuda", 0), CPU}


def is_device(value: Any) -> bool:
    return isinstance(value, torch.device)


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_make_fx_of_other_kinds(kind: str) -> None:
    module, (image,) = eager("convolutions"), model("convolutions")[1]
    expected = operators(proxy_tensor.make_fx(eager("convolutions"))(image))
    module = module if kind == "real" else fake_like(module)
    before = state_of(module)
    assert operators(fx.make_fx(module, image)) == expected
    assert operators(fx.make_fx(module, fake_like(image))) == expected
    assert operators(fx.make_fx(module, image=image)) == expected
    assert state_of(module) == before


def test_make_fx_takes_a_decomposition_table() -> None:
    table = torch._decomp.get_decompositions([torch.ops.aten.native_layer_norm])
    words = torch.randn(2, 8)
    expected = proxy_tensor.make_fx(nn.LayerNorm(8), table)(words)
    traced = fx.make_fx(deferred_init(nn.LayerNorm, 8), words, decomposition_table=table)
    assert operators(traced) == operators(expected)


def test_make_fx_of_a_function_that_refers_to_a_model() -> None:
    """A training step: nothing is recorded, and the graph gives eager's gradients."""

    def gradients(module: nn.Module) -> Callable[[torch.Tensor], Any]:
        def function(image: torch.Tensor) -> Any:
            loss = module(image).square().sum()
            return torch.autograd.grad(loss, list(module.parameters()))

        return function

    (image,) = model("convolutions")[1]
    expected = proxy_tensor.make_fx(gradients(eager("convolutions")))(image)
    module, twin = deferred("convolutions"), eager("convolutions")
    before = [str(graph(t)) for t in module.state_dict().values()]
    before_real = [t.clone() for t in twin.state_dict().values()]
    traced = fx.make_fx(gradients(module), image)
    assert operators(traced) == operators(expected)
    assert operators(fx.make_fx(gradients(twin), image)) == operators(expected)
    assert [str(graph(t)) for t in module.state_dict().values()] == before
    assert_same_bits(before_real, list(twin.state_dict().values()))
    materialize_module(module)
    assert_same_bits(gradients(eager("convolutions"))(image), traced(image))


def test_make_fx_of_functions() -> None:
    """Only what holds tensors is an input; a tensor that is given twice is two."""

    def function(*terms: torch.Tensor, times: int = 1, **more: Any) -> torch.Tensor:
        return terms[0] * times + more["last"]["x"]

    ones = torch.ones(3)
    traced = fx.make_fx(function, ones, ones, times=3, last={"x": ones})
    assert torch.equal(traced(ones, ones, {"x": 2 * ones}), 5 * ones)
    assert torch.equal(fx.make_fx(torch.add, ones, 2)(ones), 3 * ones)
    assert not fx.make_fx(lambda: torch.zeros(2).sum()).graph.find_nodes(op="placeholder")


def test_values_of_buffers() -> None:
    """Known, as torch has it; of what is deferred nothing is made, to trace it."""

    class Repeats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("times", torch.tensor([1, 3]))
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.repeat(int(self.times[1])) * self.scale[0]

    x, module = torch.ones(3), deferred_init(Repeats)
    with fake_mode():
        made = Repeats()
    for known in (Repeats(), made):
        assert tensors_on(fx.make_fx(known, x))[-1].shape == (9,)
    with pytest.raises(TraceError, match="UnknownValueError"):
        fx.make_fx(module, x)
    materialize_module(module, buffers_only=True)
    assert operators(fx.make_fx(module, x)) == operators(fx.make_fx(made, x))
    assert is_deferred(module)


def test_make_fx_of_a_method() -> None:
    """Names are the module's, and the module is not changed."""

    class Counting(nn.Linear):
        def twice(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = 1
            return self(x) * 2

    module, x = deferred_init(Counting, 4, 5), torch.ones(2, 4)
    before = state_of(module)
    traced = fx.make_fx(module.twice, x)
    assert dict(traced.named_parameters()) == dict(module.named_parameters())
    assert state_of(module) == before
    materialize_module(module)
    assert torch.equal(traced(x), module.twice(x))


def test_numbers_that_are_known_on_the_host_are_constants() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        count = torch.arange(4, device=x.device)[x.dim()].item()
        one, _ = torch.tensor([1, 2], device=x.device).tolist()
        return x.repeat(int(count) + one).tensor_split(torch.tensor([6]))[0]

    x = fake_like(torch.ones(3), device="cuda")
    (output,) = fx.make_fx(function, x).graph.find_nodes(op="output")
    assert output.args[0].meta["val"].shape == (6,)


# export.


def exported(program: torch.export.ExportedProgram) -> list[Any]:
    """Nodes by name, inputs included, with all that is known of them."""
    nodes = [(n.name, n.op, str(n.target), values_on(n)) for n in program.graph.nodes]
    return [*nodes, str(program.graph_signature), str(program.range_constraints)]


@pytest.mark.parametrize("name", [*OWN, "bert", "llama", "t5"])
def test_export_of_a_deferred_model(name: str) -> None:
    """torch's program of the real model, node by node, with the module's own tensors."""
    _, inputs = model(name)
    expected = torch.export.export(eager(name), inputs)
    module = deferred(name)
    before = state_of(module)
    program = fx.export(module, inputs)
    assert exported(program) == exported(expected)
    assert state_of(module) == before
    for path, tensor in program.state_dict.items():
        assert module.state_dict(keep_vars=True)[path] is tensor
    materialize_module(module)
    assert_same_bits(eager(name)(*inputs), program.module()(*inputs))


@pytest.mark.parametrize("name", [*OWN, "gpt2"])
def test_export_on_fake_cuda(name: str) -> None:
    """No CUDA is needed: the same shapes as on the CPU, and the fake's devices."""
    module, inputs = on_fake_cuda(name)
    before = state_of(module)
    program = fx.export(module, inputs)
    assert state_of(module) == before
    (output,) = program.graph.find_nodes(op="output")
    results = [n.meta["val"] for n in output.all_input_nodes]
    assert {t.device.type for t in results} == {"cuda"}
    wanted = {(t.shape, t.dtype) for t in flat(eager(name)(*model(name)[1]))}
    assert {(t.shape, t.dtype) for t in results} == wanted
    assert {t.device for t in tensors_on(program)} <= {torch.device("cuda", 0), CPU}
    with fake_mode(fake_cuda=1):
        assert {t.device.type for t in flat(program.module()(*inputs))} == {"cuda"}


@pytest.mark.parametrize(("device", "strict"), [("cpu", False), ("cuda", False), ("cuda", True)])
def test_export_with_dynamic_shapes(device: str, strict: bool) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    (image,) = model("convolutions")[1]
    options: Any = {"dynamic_shapes": ({0: batch},), "strict": strict}
    expected = torch.export.export(eager("convolutions"), (image,), **options)
    module = fake_like(eager("convolutions"), device=device)
    program = fx.export(module, (fake_like(image, device=device),), **options)
    shapes = [[str(t.shape) for t in tensors_on(p)] for p in (program, expected)]
    assert shapes[0] == shapes[1]
    assert str(program.range_constraints) == str(expected.range_constraints)
    assert {t.device.type for t in tensors_on(program)} == {device}
    assert program.state_dict["head.weight"] is module.head.weight


def test_export_and_decompose() -> None:
    (image,) = model("convolutions")[1]
    expected = torch.export.export(eager("convolutions"), (image,)).run_decompositions()
    module = fake_like(eager("convolutions"), device="cuda")
    program = fx.export(module, (fake_like(image, device="cuda"),), decompose=True)
    names = [[str(n.target) for n in p.graph.nodes] for p in (program, expected)]
    assert names[0] == names[1]
    assert {t.device.type for t in tensors_on(program)} == {"cuda"}
    assert program.state_dict["head.weight"] is module.head.weight
    assert program.constants["scale"] is module.scale
    table: dict[Any, Any] = {}
    kept = fx.export(module, (fake_like(image, device="cuda"),), decompose=table)
    assert any("conv2d" in str(node.target) for node in kept.graph.nodes)


def test_a_condition_on_fake_cuda_is_exported() -> None:
    class Conditional(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            half = torch.tensor([0.5], device="cuda").cuda().to("cuda")
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x * half,))

    program = fx.export(Conditional(), (fake_like(torch.ones(3), device="cuda"),))
    assert any("cond" in str(node.target) for node in program.graph.nodes)


def test_export_leaves_torchs_fakes_as_they_were() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    def attributes() -> list[Any]:
        found = [*vars(FakeTensor).items(), *vars(FakeTensorMode).items()]
        return [(name, id(v)) for name, v in found if callable(v) or isinstance(v, property)]

    before = attributes()
    layer = fake_like(nn.Linear(3, 3), device="cuda")
    fx.export(layer, (fake_like(torch.ones(2, 3), device="cuda"),))
    with pytest.raises(TraceError):
        fx.export(layer, (torch.ones(2, 3),))
    assert attributes() == before


# symbolic_trace.


class Symbolic(nn.Module):
    """Writes a buffer, counts its calls, and makes constants of what nobody else has."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.tied = self.layers[0]
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("weights", torch.randn(8))
        self.table = torch.ones(8)
        self.calls = 0

    def forward(self, x: torch.Tensor, flag: bool = False, *, scale: float = 1.0) -> Any:
        self.calls += 1
        self.steps.add_(1)
        hidden = self.layers(x) * self.weights.softmax(0)
        hidden = (hidden + (self.tied(x) if flag else self.table[:3].sum())) * scale
        return hidden, hidden.shape, x.unbind(0)


def known(traced: torch.fx.GraphModule) -> list[Any]:
    rows = []
    for node in traced.graph.nodes:
        meta = node.meta.get("tensor_meta")
        rows.append((node.name, node.op, str(node.target), meta, node.meta.get("type")))
    return rows


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("kind", ["real", "fake", "deferred"])
def test_symbolic_trace(kind: str, flag: bool) -> None:
    x = torch.randn(3, 4)

    def build() -> nn.Module:
        torch.manual_seed(0)
        return Symbolic()

    expected = torch.fx.symbolic_trace(build(), {"flag": flag})
    ShapeProp(expected).propagate(x, flag)
    builders = {"real": build, "fake": lambda: fake_like(build()), "deferred": None}
    chosen = builders[kind]
    module = deferred_init(build) if chosen is None else chosen()
    before = state_of(module)
    traced = fx.symbolic_trace(module, x, concrete_args={"flag": flag})
    assert state_of(module) == before
    assert known(traced) == known(expected)
    assert traced.get_submodule("layers.0") is module.layers[0]
    assert traced.training == module.training
    for node in traced.graph.nodes:
        for value in flat(node.meta["val"]):
            assert value.device == CPU
    if kind == "deferred":
        materialize_module(traced)
    if kind != "fake":
        assert_same_bits(build()(x, flag), traced(x, flag))


def test_symbolic_trace_on_fake_cuda() -> None:
    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + torch.arange(4, device="cuda")

    with deferred_mode(fake_cuda=2):
        module = Made().to("cuda:0")
    traced = fx.symbolic_trace(module, fake_like(torch.ones(2, 4), device="cuda"))
    assert {value.device for value in tensors_on(traced)} == {torch.device("cuda", 0)}
    (constant,) = traced.graph.find_nodes(op="get_attr")
    assert is_deferred(getattr(traced, constant.target))


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_symbolic_trace_of_writes_and_of_old_weight_norm() -> None:
    """A buffer is written from a proxy; an attribute has a history."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.utils.weight_norm(nn.Linear(4, 4))
            self.register_buffer("last", torch.zeros(2, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last.copy_(x)
            self.given = x
            return torch.cat([self.last, self.layer(x)])

    x = torch.ones(2, 4)
    expected, module = torch.fx.symbolic_trace(Keeps()), deferred_init(Keeps)
    before = state_of(module)
    traced = fx.symbolic_trace(module, x)
    assert [n.name for n in traced.graph.nodes] == [n.name for n in expected.graph.nodes]
    assert state_of(module) == before
    assert not hasattr(module, "given")


def test_symbolic_trace_by_name_and_of_functions() -> None:
    def function(x: torch.Tensor, *rest: Any, scale: Any = 2) -> Any:
        return x * scale + rest[0]

    ones = torch.ones(3)
    traced = fx.symbolic_trace(function, ones, ones)
    assert [tuple(t.shape) for t in tensors_on(traced)] == [(3,)] * 6
    shared = fx.symbolic_trace(lambda x, y: x + y, y=ones, x=ones.double())
    assert {t.dtype for t in tensors_on(shared)} == {torch.float32, torch.float64}
    assert not any("val" in node.meta for node in fx.symbolic_trace(nn.ReLU()).graph.nodes)


# Modes, kinds of modules, and what torch does itself.


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_tracers_work_inside_modes(mode: Any) -> None:
    """Real modules and those made in the mode; nothing is recorded of it."""
    real = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    with mode(fake_cuda=1):
        made, x = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), torch.ones(2, 4)
        for module in (made, real):
            before = state_of(module)
            operator = fx.make_fx(module, x).graph.find_nodes(op="output")[0].all_input_nodes[0]
            assert operator.meta["val"].shape == (2, 8)
            assert (
                fx.symbolic_trace(module, x)
                .graph.find_nodes(op="call_module")[-1]
                .meta["val"]
                .dim()
            )
            program = fx.export(module, (x,))
            assert tensors_on(program)[-1].shape == (2, 8)
            assert state_of(module) == before
        assert is_fake(torch.ones(1))
        assert is_deferred(torch.ones(1)) == (mode is deferred_mode)


def test_torch_itself_traces_fakes_on_the_cpu() -> None:
    """What needs no help, and gets none."""
    module, (image,) = deferred("convolutions").eval(), model("convolutions")[1]
    twin = eager("convolutions").eval()
    plain = torch.fx.symbolic_trace(module)
    assert [n.name for n in plain.graph.nodes] == [
        n.name for n in torch.fx.symbolic_trace(twin).graph.nodes
    ]
    expected = torch.export.export(twin, (image,))
    assert exported(torch.export.export(module, (image,))) == exported(expected)


def test_a_model_far_beyond_memory() -> None:
    """15 GB of weights, and none are made."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "vocab_size": 128256}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, **heads, use_cache=False)
    with fake_mode(fake_cuda=1), torch.device("cuda"):
        module = transformers.LlamaForCausalLM(config).eval()
        tokens = torch.zeros(1, 2048, dtype=torch.int64)
    program = fx.export(module, (tokens,), {"use_cache": False})
    assert sum(t.nbytes for t in program.parameters()) > 14e9
    logits = program.graph.find_nodes(op="output")[0].all_input_nodes[0].meta["val"]
    assert (*logits.shape, logits.device.type) == (1, 2048, 128256, "cuda")


# Errors.


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x


def test_a_branch_on_a_value_cannot_be_traced() -> None:
    x = fake_like(torch.ones(3))
    with pytest.raises(TraceError, match=r"(?s)Branching.*symbolic_trace.*control flow.*make_fx"):
        fx.symbolic_trace(Branching(), x)
    with pytest.raises(TraceError, match=r"(?s)make_fx.*UnknownValueError.*torch\.where") as raised:
        fx.make_fx(Branching(), x)
    assert isinstance(raised.value.__cause__, UnknownValueError)
    with pytest.raises(TraceError, match=r"(?s)torch\.export.*torch\.cond") as raised:
        fx.export(Branching(), (x,))
    assert raised.value.__cause__ is not None


def test_inputs_that_do_not_fit() -> None:
    layer, wrong = deferred_init(nn.Linear, 4, 5), torch.ones(2, 3)
    with pytest.raises(TraceError, match=r"does not run on the inputs: at .*target=0"):
        fx.symbolic_trace(nn.Sequential(layer), wrong)
    with pytest.raises(TraceError, match=r"make_fx: RuntimeError: .*reduction dim"):
        fx.make_fx(layer, wrong)
    with pytest.raises(TraceError, match=r"torch\.export: RuntimeError: .*reduction dim"):
        fx.export(layer, (wrong,))
    with pytest.raises(TraceError, match="missing a required argument"):
        fx.make_fx(layer)


def test_a_module_that_cannot_be_copied() -> None:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lock = Lock()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    x = torch.ones(3)
    for trace in (fx.symbolic_trace, fx.make_fx, lambda m, x: fx.export(m, (x,))):
        with pytest.raises(TraceError, match="cannot be copied"):
            trace(Locked(), x)


def test_what_is_no_module() -> None:
    for trace in (fx.symbolic_trace, fx.make_fx):
        with pytest.raises(TypeError, match="a module or a function"):
            trace(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a module, not function"):
        fx.export(lambda x: x)  # type: ignore[arg-type]


def test_autocast_on_fake_cuda_is_refused_by_export_alone() -> None:
    """Where there is CUDA, it is not."""

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                return self.layer(x)

    module, x = fake_like(Cast(), device="cuda"), fake_like(torch.ones(2, 4), device="cuda")
    assert tensors_on(fx.make_fx(module, x))[-1].dtype == torch.bfloat16
    if not torch.cuda.is_available():
        with pytest.raises(TraceError, match=r"fake_like\(module, device=\"cpu\"\)"):
            fx.export(module, (x,))
    on_cpu = fx.export(fake_like(module, device="cpu"), (torch.ones(2, 4),))
    assert tensors_on(on_cpu)[-1].dtype == torch.bfloat16


# MetaAwareMethodsPatcher.

METHODS = [
    (nn.Linear, "__init__"),
    (nn.Linear, "forward"),
    (nn.Embedding, "__init__"),
    (nn.Embedding, "forward"),
    (nn.Parameter, "__new__"),
    (nn.UninitializedParameter, "__new__"),
]
CONSTRUCTORS = [0, 2, 4, 5]


def methods() -> list[Any]:
    return [vars(owner)[name] for owner, name in METHODS]


@pytest.fixture(autouse=True)
def _no_method_stays_replaced() -> Iterator[None]:
    before = methods()
    yield
    assert all(one is other for one, other in zip(methods(), before, strict=True))


@pytest.fixture
def patcher() -> Iterator[fx.MetaAwareMethodsPatcher]:
    made = fx.MetaAwareMethodsPatcher()
    yield made
    made.unpatch()


def layers() -> list[nn.Module]:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.randn(3))
            self.register_parameter("scale", nn.Parameter(self.shift + 1))
            self.empty = nn.Parameter()
            self.tied = self.shift

    class Wide(nn.Linear):
        def __init__(self, num: int) -> None:
            super().__init__(num, num, bias=False, device="cpu")

    encoder = nn.TransformerEncoderLayer(4, 2, batch_first=True)
    return [
        Own(), Wide(3), nn.Linear(2, 3), nn.Linear(2, 3, True, "cpu", torch.float64),
        nn.Embedding(5, 3), nn.Embedding(5, 3, 1, max_norm=1.0),
        nn.Embedding(2, 2, _weight=torch.ones(2, 2)),
        nn.Embedding.from_pretrained(torch.ones(2, 2)),
        nn.LazyLinear(3), nn.Bilinear(2, 3, 4), nn.Conv2d(2, 4, 3), nn.ConvTranspose1d(2, 4, 3),
        nn.BatchNorm2d(3), nn.GroupNorm(2, 4), nn.LayerNorm(3), nn.RMSNorm(3), nn.PReLU(),
        nn.LSTM(3, 4), nn.GRU(3, 4), nn.MultiheadAttention(4, 2), nn.EmbeddingBag(5, 3),
        nn.TransformerEncoder(encoder, 2), nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)),
        nn.utils.skip_init(nn.Linear, 2, 3), copy.deepcopy(nn.Linear(2, 3)),
    ]  # fmt: skip


def shapes(modules: list[nn.Module]) -> list[Any]:
    found = []
    for module in modules:
        named = itertools.chain(module.named_parameters(), module.named_buffers())
        plain = [(n, t) for n, t in named if not nn.parameter.is_lazy(t)]
        found.append([(n, t.shape, t.dtype, t.stride(), t.requires_grad) for n, t in plain])
    return found


def test_every_parameter_is_on_meta(patcher: fx.MetaAwareMethodsPatcher) -> None:
    """Of every layer, whatever device is named; buffers are real."""
    expected, before = shapes(layers()), methods()
    with patcher as entered:
        assert entered is patcher
        made = layers()
    for module in made:
        assert {p.device for p in module.parameters()} <= {META}, module
        assert {b.device for b in module.buffers()} <= {CPU}, module
    assert shapes(made) == expected
    assert made[0].tied is made[0].shift
    for index in CONSTRUCTORS:
        assert methods()[index] is before[index]
    assert nn.Linear(2, 3).weight.device == CPU
    lazy = made[8]
    assert lazy(torch.ones(4, 5)).shape == (4, 3)
    assert (lazy.weight.device, lazy.weight.shape) == (META, (3, 5))


@pytest.mark.parametrize("name", ["bert", "mixtral"])
def test_models_on_meta_are_traced(name: str, patcher: fx.MetaAwareMethodsPatcher) -> None:
    """Built in the context, they have the shapes of real ones, and the nodes."""
    build, inputs = model(name)
    with patcher:
        module = build()
    assert {p.device for p in module.parameters()} == {META}
    assert shapes([module]) == shapes([eager(name)])
    patcher.unpatch()
    expected = fx.make_fx(fake_like(eager(name)), *inputs)
    assert operators(fx.make_fx(module, *inputs)) == operators(expected)
    assert {p.device for p in module.parameters()} == {META}


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "real": lambda t: t,
    "meta": lambda t: t.to(META),
    "fake": fake_like,
    "fake cuda": lambda t: fake_like(t, device="cuda:1"),
    "deferred": lambda t: deferred_init(torch.zeros_like, t),
    "not contiguous": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_forwards_without_weights(
    kind: str, dtype: torch.dtype, patcher: fx.MetaAwareMethodsPatcher
) -> None:
    """The shape and dtype of eager, the device and kind of the input."""
    with patcher:
        linear = nn.Linear(3, 5, dtype=dtype)
        embedding = nn.Embedding(7, 4, padding_idx=1, max_norm=2.0, dtype=dtype)
    with torch.no_grad():
        eager_linear, eager_embedding = (
            nn.Linear(3, 5, dtype=dtype),
            nn.Embedding(7, 4, dtype=dtype),
        )
    floats, tokens = torch.ones(2, 3, 3, dtype=dtype), torch.arange(6).view(2, 3)
    for layer, oracle, real in (
        (linear, eager_linear, floats),
        (embedding, eager_embedding, tokens),
        (linear, eager_linear, floats[0, 0]),
        (linear, eager_linear, floats[:, :0]),
    ):
        given = KINDS[kind](real)
        result, expected = layer(given), oracle(real)
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        assert (result.device, is_fake(result)) == (given.device, is_fake(given))
        if kind == "real":
            assert not result.any()


def test_forwards_under_autocast(patcher: fx.MetaAwareMethodsPatcher) -> None:
    with patcher:
        layer, double = nn.Linear(3, 5), nn.Linear(3, 5, dtype=torch.float64)
    real = nn.Linear(3, 5)
    with torch.autocast("cpu"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            given = torch.ones(2, 3, dtype=dtype)
            assert layer(given).dtype == real(given).dtype == torch.bfloat16
        wide = torch.ones(2, 3, dtype=torch.float64)
        assert double(wide).dtype == real.double()(wide).dtype


def test_forwards_in_a_trace(patcher: fx.MetaAwareMethodsPatcher) -> None:
    """With real inputs: symbolically, by operators, and in torch.compile, as optimum does."""
    with patcher:
        module = nn.Sequential(nn.Embedding(7, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    tokens = torch.arange(6).view(2, 3)
    names = [node.op for node in torch.fx.symbolic_trace(module).graph.nodes]
    assert names == ["placeholder", *["call_module"] * 3, "output"]
    traced = proxy_tensor.make_fx(module)(tokens)
    assert tensors_on(traced)[-1].shape == module(tokens).shape == (2, 3, 2)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert compiled(tokens).shape == (2, 3, 2)
    with pytest.raises(RuntimeError):
        module[2](torch.ones(2, 3))  # the inputs are checked as ever


def test_real_layers_are_as_they_were(patcher: fx.MetaAwareMethodsPatcher) -> None:
    layer, table = nn.Linear(3, 5), nn.Embedding(7, 4)
    floats, tokens = torch.randn(2, 3), torch.arange(6)
    expected = [layer(floats), table(tokens)]
    with patcher:
        assert_same_bits(expected, [layer(floats), table(tokens)])
        layer.weight.data.add_(0)
    assert_same_bits(expected, [layer(floats), table(tokens)])
    assert layer(floats).requires_grad
    assert layer.weight.device == CPU


def test_contexts_in_contexts() -> None:
    """One patcher twice, two at once; the last to leave restores, of constructors and forwards."""
    before, one, other = methods(), fx.MetaAwareMethodsPatcher(), fx.MetaAwareMethodsPatcher()
    with one, other:
        with one:
            assert nn.Linear(2, 3).weight.is_meta
        assert nn.LayerNorm(3).weight.is_meta
    layer_on_meta = _linear_on_meta(one)
    assert [methods()[i] is before[i] for i in CONSTRUCTORS] == [True] * 4
    one.unpatch()
    one.unpatch()
    assert layer_on_meta(torch.ones(2)).shape == (3,)
    other.unpatch()
    assert all(m is b for m, b in zip(methods(), before, strict=True))
    with pytest.raises((RuntimeError, NotImplementedError)):
        layer_on_meta(torch.ones(2))
    fx.MetaAwareMethodsPatcher().unpatch()


def _linear_on_meta(patcher: fx.MetaAwareMethodsPatcher) -> nn.Module:
    with patcher:
        return nn.Linear(2, 3)


def test_unpatched_inside_the_context() -> None:
    """The constructors are still replaced, and the forwards again at the next entry."""
    patcher, before = fx.MetaAwareMethodsPatcher(), methods()
    with patcher:
        patcher.unpatch()
        layer = nn.Linear(2, 3)
    assert layer.weight.is_meta
    assert all(m is b for m, b in zip(methods(), before, strict=True))
    with patcher:
        pass
    assert layer(torch.ones(2)).device == CPU
    patcher.unpatch()


def test_an_exception_inside() -> None:
    patcher, before = fx.MetaAwareMethodsPatcher(), methods()
    with pytest.raises(ZeroDivisionError), patcher:
        raise ZeroDivisionError
    assert nn.Linear(2, 3).weight.device == CPU
    patcher.unpatch()
    assert all(m is b for m, b in zip(methods(), before, strict=True))


def test_other_threads_build_as_ever(patcher: fx.MetaAwareMethodsPatcher) -> None:
    def devices() -> set[torch.device]:
        made = [nn.Linear(2, 3), nn.Embedding(2, 3), nn.LayerNorm(3), nn.LazyLinear(2)]
        return {p.device for m in made for p in m.parameters()}

    with ThreadPoolExecutor(1) as pool, patcher:
        assert pool.submit(devices).result() == {CPU}
        assert devices() == {META}
        with fx.MetaAwareMethodsPatcher() as other:
            assert pool.submit(devices).result() == {CPU}
        other.unpatch()


def test_somebody_elses_replacement_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    patcher = fx.MetaAwareMethodsPatcher()
    with patcher:
        layer = nn.Linear(2, 3)
    below = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, input: below(self, input))
    theirs = nn.Linear.forward
    patcher.unpatch()
    assert nn.Linear.forward is theirs
    assert nn.Linear(2, 3)(torch.ones(2)).shape == (3,)
    with pytest.raises(RuntimeError):
        layer(torch.ones(2))  # ours is below, and does nothing
    monkeypatch.undo()
    nn.Linear.forward = below.__wrapped__  # type: ignore[attr-defined, method-assign]


def test_nothing_is_drawn_for_linear_layers_and_embeddings() -> None:
    patcher, state = fx.MetaAwareMethodsPatcher(), torch.get_rng_state()
    with patcher:
        nn.Linear(1 << 20, 1 << 20), nn.Embedding(1 << 30, 1 << 10)
    patcher.unpatch()
    assert torch.equal(torch.get_rng_state(), state)


def test_fakes_made_inside_are_on_meta_too(patcher: fx.MetaAwareMethodsPatcher) -> None:
    with patcher, fake_mode(fake_cuda=1):
        made = [nn.Linear(2, 3, device="cuda"), nn.LayerNorm(3, device="cuda")]
    with deferred_mode(), patcher:
        made += [nn.Linear(2, 3), nn.LayerNorm(3)]
    assert {type(p.data) for m in made for p in m.parameters()} == {torch.Tensor}
    assert {p.device for m in made for p in m.parameters()} == {META}
