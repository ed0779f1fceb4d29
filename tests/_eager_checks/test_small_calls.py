"""Trials of kernels on small tensors: none ends the process, and none is large."""

import json
import subprocess
import sys

import pytest
import torch

from torchfake import fake_like, fake_mode
from torchfake._eager_checks.small_calls import cuts_for
from torchfake._operators.operator_call import Call

aten = torch.ops.aten


def fakes(*sizes):
    return [fake_like(torch.ones(size)) for size in sizes]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_no_call_on_fakes_ends_the_process():
    command = [sys.executable, "-m", "tests._eager_checks.worker_small_calls"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=300, check=True)
    names, ended = json.loads(done.stdout)
    assert len(names) > 20
    assert ended == []


def call_of(func, *args):
    return Call(func, args, {})


def test_all_lengths_are_one_length():
    (cut, *_) = cuts_for(call_of(aten.mm.default, *fakes((30, 40), (40, 5))))
    assert [cut.of(size) for size in ((30, 40), (40, 5))] == [(3, 3), (3, 3)]
    assert not cut.lists


def test_of_one_element_each_all_lengths_are_one():
    (cut, *_) = cuts_for(call_of(aten.sort.default, *fakes((1, 1))))
    assert cut.length == 1  # kernels that have nothing to do accept any dtype


def test_the_sizes_of_a_call_are_tried_where_others_do_not_fit():
    x, weight = fakes((2, 4, 5, 5), (4, 2, 1, 1))
    arguments = x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 2
    assert [cut.length for cut in cuts_for(call_of(aten.convolution.default, *arguments))] == [None]


def test_empty_arguments_are_not_tried():
    assert not cuts_for(call_of(aten.mm.default, *fakes((0, 40), (40, 5))))


@pytest.mark.parametrize(
    "make",
    [lambda: torch.eye(1 << 40, 2), lambda: torch.tril_indices(1 << 17, 1 << 17),
     lambda: torch.arange(1 << 50), lambda: torch.ones(2).new_full((1 << 20, 1 << 20), 1)],
)  # fmt: skip
def test_no_trial_is_large(make):
    with fake_mode():
        assert make().numel() > 1 << 30
