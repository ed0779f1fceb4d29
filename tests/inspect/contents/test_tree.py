"""A module as a tree: the oracle is ``parameters()`` and ``buffers()`` of the module itself."""

from __future__ import annotations

import cProfile
import json

import pytest
import torch
from torch import nn

from torchfake import fake_mode
from torchfake.inspect import ModuleNode, read_module


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("cache", torch.ones(2, width), persistent=False)


def assert_size_is_torchs(module: nn.Module) -> ModuleNode:
    tree = read_module(module)
    parameters, buffers = list(module.parameters()), list(module.buffers())
    assert tree.size.num_trainable == sum(p.numel() for p in parameters if p.requires_grad)
    assert tree.size.num_frozen == sum(p.numel() for p in parameters if not p.requires_grad)
    assert tree.size.parameter_bytes == sum(p.numel() * p.element_size() for p in parameters)
    assert tree.size.num_buffer_values == sum(b.numel() for b in buffers)
    assert tree.size.buffer_bytes == sum(b.numel() * b.element_size() for b in buffers)
    assert sum(n.size_bytes * times for n, times in _counted(tree)) == (
        tree.size.parameter_bytes + tree.size.buffer_bytes
    )
    return tree


def _counted(tree: ModuleNode):
    for node, times in tree.walk():
        for tensor in node.tensors:
            if tensor.tied_to is None:
                yield tensor, times


@pytest.mark.parametrize("fake", [False, True])
def test_equal_blocks_fold(fake):
    with fake_mode() if fake else torch.device("cpu"):
        module = nn.ModuleDict({"blocks": nn.ModuleList(Block(4) for _ in range(6))})
    blocks = assert_size_is_torchs(module).children[0]
    (block,) = blocks.children
    assert (block.name, block.repeat, block.class_name) == ("0-5", 6, "Block")
    assert blocks.folded_block is block
    assert block.size.num_parameters == 20
    assert block.total.num_parameters == 120
    assert [(t.name, t.shape, t.kind, t.persistent) for t in block.tensors] == [
        ("scale", (4,), "buffer", True),
        ("cache", (2, 4), "buffer", False),
    ]


def test_what_differs_does_not_fold():
    frozen = Block(4).requires_grad_(False)
    half = Block(4).half()
    blocks = nn.ModuleList([Block(4), Block(4), frozen, half, Block(5), nn.Linear(4, 4), Block(4)])
    tree = assert_size_is_torchs(blocks)
    assert [child.name for child in tree.children] == ["0-1, 6", "2", "3", "4", "5"]


def test_a_module_list_folds_alternating_layers_and_a_sequential_only_neighbours():
    layers = [nn.Linear(4, 4) if i % 2 else nn.LayerNorm(4) for i in range(8)]
    tree = assert_size_is_torchs(nn.ModuleList(layers))
    assert [child.name for child in tree.children] == ["0, 2, ... 6", "1, 3, ... 7"]
    tree = assert_size_is_torchs(nn.Sequential(*layers, nn.Linear(4, 4)))
    assert [child.name for child in tree.children] == ["0", "1", "2", "3", "4", "5", "6", "7-8"]


def test_the_name_of_many_runs_is_short():
    module = nn.ModuleList(nn.LayerNorm(4) if i % 4 == 3 else nn.Linear(4, 4) for i in range(48))
    most, rest = assert_size_is_torchs(module).children
    assert (most.name, rest.name) == ("0-2, 4-6, ... 44-46", "3, 7, ... 47")
    assert most.names == tuple(str(i) for i in range(48) if i % 4 != 3)


def test_other_modules_do_not_fold():
    block = nn.Module()
    block.q, block.k = nn.Linear(2, 2), nn.Linear(2, 2)
    assert [child.name for child in assert_size_is_torchs(block).children] == ["q", "k"]


def test_tied_tensors_count_once():
    module = nn.ModuleDict({"embedding": nn.Embedding(10, 4), "head": nn.Linear(4, 10)})
    module["head"].weight = module["embedding"].weight
    module["head"].register_buffer("again", torch.ones(3))
    module.register_buffer("first", module["head"].again)
    tree = assert_size_is_torchs(module)
    head = tree.children[1]
    assert [(t.name, t.tied_to) for t in head.tensors] == [
        ("weight", "embedding.weight"),
        ("bias", None),
        ("again", "first"),
    ]
    assert head.size.num_parameters == 10


def test_one_module_registered_often_counts_once():
    block = Block(4)
    tree = assert_size_is_torchs(nn.ModuleList([block] * 5))
    first, rest = tree.children
    assert (first.name, first.shared_with) == ("0", None)
    assert (rest.name, rest.repeat, rest.shared_with) == ("1-4", 4, "0")


def test_a_module_inside_itself_ends():
    module = nn.Sequential(nn.Linear(2, 2))
    module.add_module("again", module)
    assert assert_size_is_torchs(module).children[1].shared_with == "itself"


def test_lazy_parameters_have_no_shape_yet():
    (weight, _) = read_module(nn.LazyLinear(3)).tensors
    assert weight.shape is None
    assert weight.num_values == 0


def test_depth_cuts_the_dict_and_not_the_counts():
    tree = read_module(nn.Sequential(nn.Sequential(Block(4), Block(4)), Block(4)))
    cut = tree.to_dict(depth=1)
    assert cut["size"] == tree.to_dict()["size"]
    folded, single = cut["children"]
    # a folded container and its block are one level
    assert [c["repeat"] for c in folded["children"]] == [2]
    assert folded["children"][0]["children"] == []
    assert single["children"] == []
    assert json.loads(json.dumps(tree.to_dict())) == tree.to_dict()


def test_reading_is_linear():
    """In calls of functions, which no busy machine changes."""

    def calls(num_blocks: int) -> int:
        module = nn.ModuleList(
            nn.ModuleList(Block(1) for _ in range(20)) for _ in range(num_blocks)
        )
        profiler = cProfile.Profile()
        (outer,) = profiler.runcall(read_module, module).children
        assert (outer.repeat, outer.children[0].repeat) == (num_blocks, 20)
        return sum(entry.callcount for entry in profiler.getstats())

    with fake_mode():
        small, large = calls(5), calls(50)
    assert large < 11 * small
