"""What modules pass to each other, against hooks of our own and the graphs of ``torch.fx``."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from torch import fx, nn

from tests.inspect.dataflow.checks import problems
from torchfake import fake_mode, graph_of
from torchfake.errors import InputsError
from torchfake.inspect import DataflowGraph, GraphNode, example_inputs

SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 50}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "num_layers": 3, "vocab_size": 50}


def llama(**options: Any) -> nn.Module:
    with fake_mode():
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **options))


def node_named(graph: DataflowGraph, name: str) -> GraphNode:
    return next(node for node in graph.nodes if node.name == name)


def sources(graph: DataflowGraph, node: GraphNode) -> list[str]:
    edges = [e for e in graph.edges if e.target == node.number and not e.to_next]
    return [graph.nodes[edge.source].name for edge in edges]


def test_a_llama_is_one_block_with_its_residuals() -> None:
    model = llama(num_hidden_layers=5, tie_word_embeddings=True)
    graph = graph_of(model, example_inputs(model, batch=1, seq=8), depth=3)
    block = node_named(graph, "model.layers.0-4")
    assert (block.repeat, block.is_chain, block.is_open) == (5, True, True)
    adds = [node for node in graph.nodes if node.kind == "function"]
    assert [sorted(sources(graph, add)) for add in adds] == [
        ["model.embed_tokens", "model.layers.0-4.self_attn"],
        ["add", "model.layers.0-4.mlp"],
    ]
    back = [
        (graph.nodes[e.source].name, graph.nodes[e.target].name) for e in graph.edges if e.to_next
    ]
    assert back == [("add", "model.layers.0-4.input_layernorm"), ("add", "add")]
    assert node_named(graph, "lm_head").tied_to == ("model.embed_tokens",)
    edge = next(e for e in graph.edges if graph.nodes[e.target].name == "lm_head")
    assert (edge.tensors[0].shape, edge.num_bytes) == ((1, 8, 16), 8 * 16 * 4)


@pytest.mark.parametrize(
    "config",
    [
        transformers.T5Config(**T5),
        transformers.AlbertConfig(**SMALL, embedding_size=8, num_hidden_layers=3),
        transformers.MixtralConfig(**SMALL, num_hidden_layers=2, num_key_value_heads=2),
        transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[3, 2]),
    ],
    ids=lambda config: config.model_type,
)
def test_every_call_is_shown_with_the_shapes_of_the_run(config: Any) -> None:
    with fake_mode():
        model = transformers.AutoModel.from_config(config).eval()
    assert list(problems(model, dict(example_inputs(model, batch=2, seq=8)))) == []


class Branches(nn.Module):
    """A network with a skip, a module that is called twice, and functions in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout()
        self.left = nn.Conv2d(4, 4, 1)
        self.right = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.norm(self.stem(x)))
        y = self.left(self.drop(x))
        y = self.act(y) + x
        z = torch.cat([y, self.right(x)], 1)
        return self.head(z.mean((2, 3)))


class Joins(nn.Module):
    """A network that keeps all it made, scales it by what it saw of it, and shares a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4 * (i + 1), 4) for i in range(3))
        self.gate = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16))
        self.shared, self.act = nn.Linear(8, 8), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [x]
        for layer in self.layers:
            made.append(layer(torch.cat(made, -1)))
        y = torch.cat(made, -1)
        y = y * torch.sigmoid(self.gate(y.mean(0, keepdim=True)))
        left, right = y.chunk(2, -1)
        return self.shared(left) - self.act(self.shared(right))


def edges_of_fx(module: nn.Module) -> set[tuple[str, str]]:
    """Edges between calls of modules, through functions of any kind."""
    traced = fx.symbolic_trace(module)
    found: set[tuple[str, str]] = set()
    behind: dict[fx.Node, set[str]] = {}
    for node in traced.graph.nodes:
        before = {name for n in node.all_input_nodes for name in behind[n]}
        if node.op in ("call_module", "output", "placeholder"):
            name = str(node.target)
            found |= {(source, name) for source in before}
            before = {name}
        behind[node] = before
    return found


@pytest.mark.parametrize(
    ("model", "shape"), [(Branches(), (2, 3, 8, 8)), (Joins(), (2, 4))], ids=["Branches", "Joins"]
)
def test_edges_between_modules_are_those_of_fx(model: nn.Module, shape: tuple[int, ...]) -> None:
    model = model.eval()
    graph = graph_of(model, torch.ones(shape), depth=9, functions="none", fold=False)
    names = {node.number: node.name for node in graph.nodes}
    found = {(names[edge.source], names[edge.target]) for edge in graph.edges}
    # in place: what reads x after the activation of y reads x, as fx has it
    assert found == edges_of_fx(model)


def test_what_is_written_into_a_view_comes_from_who_wrote_it() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            buffer = x.new_zeros(2, 2, 4)
            buffer[0] = self.a(x)
            buffer[1].add_(self.b(x))
            return self.c(buffer)

    graph = graph_of(Writes(), torch.ones(2, 4), functions="none")
    assert sources(graph, node_named(graph, "c")) == ["a", "b"]


def test_experts_of_a_list_are_one_box_side_by_side() -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(128))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([expert(x) for expert in self.experts]).sum(0)

    graph = graph_of(Mixture(), torch.ones(2, 4))
    experts = node_named(graph, "experts.0-127")
    assert (experts.repeat, experts.is_chain, experts.num_modules) == (128, False, 128)
    assert len(graph.to_svg()) < 8_000


def test_what_passes_through_a_module_is_not_mixed() -> None:
    class Passes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, pair: list[torch.Tensor]) -> list[torch.Tensor]:
            return [*pair, self.inner(pair[0])]

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.passes = nn.Linear(4, 4), nn.Linear(4, 4), Passes()
            self.c, self.d = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left, right, inner = self.passes([self.a(x), self.b(x)])
            return self.c(left) + self.d(right) + inner

    model, inputs = Pairs(), {"x": torch.ones(1, 4)}
    assert list(problems(model, inputs)) == []
    graph = graph_of(model, inputs, depth=2)
    assert [sources(graph, node_named(graph, name)) for name in "cd"] == [["a"], ["b"]]


def test_layers_with_and_without_an_unused_module_are_not_alike() -> None:
    class Layer(nn.Module):
        def __init__(self, has_cross_attention: bool) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.cross_attention = nn.Linear(4, 4) if has_cross_attention else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    graph = graph_of(nn.Sequential(*(Layer(i % 2 == 0) for i in range(4))), torch.ones(1, 4))
    layers = [node for node in graph.nodes if node.class_name == "Layer"]
    assert [(layer.num_calls, layer.num_parameters) for layer in layers] == [(2, 40), (2, 20)]


def test_a_model_without_modules_shows_its_functions() -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return (x * scale).relu()

    graph = graph_of(Plain(), torch.ones(2), torch.ones(2))
    assert [node.name for node in graph.nodes] == ["x", "scale", "mul", "relu", "output"]


def test_the_model_and_hooks_are_left_as_found() -> None:
    class Stops(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    model = nn.Sequential(nn.Linear(2, 2), Stops())
    with pytest.raises(KeyboardInterrupt):
        graph_of(model, torch.ones(1, 2))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert type(torch.ones(1) + 1) is torch.Tensor
    assert torch.is_grad_enabled()


def test_wrong_options_are_named() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    for options, name in (({"depth": 0}, "depth=0"), ({"functions": "some"}, "functions='some'")):
        with pytest.raises(InputsError, match=name):
            graph_of(model, x, **options)
    with pytest.raises(InputsError, match="a graph needs a run"):
        graph_of(model)


def test_a_graph_is_plain_data() -> None:
    found = json.loads(json.dumps(graph_of(nn.Linear(2, 2), torch.ones(1, 2)).to_dict()))
    assert [node["kind"] for node in found["nodes"]] == ["input", "function", "output"]
    assert found["edges"][0]["tensors"] == [{"shape": [1, 2], "dtype": "float32", "device": "cpu"}]
