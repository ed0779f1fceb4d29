"""Decompositions and meta kernels of operators."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from torchfake import fake_mode
from torchfake._torch import dispatch_keys, kernels

aten = torch.ops.aten


def test_decompositions() -> None:
    decomposition = kernels.decomposition_of(aten.addcmul.default)
    assert decomposition is not None
    assert decomposition(*torch.ones(3, 2)).tolist() == [2.0, 2.0]
    assert kernels.decomposition_of(aten.nonzero.default) is None


def test_memory_format() -> None:
    image = torch.empty(2, 3, 4, 5, memory_format=torch.channels_last)
    assert kernels.memory_format_of(image) == torch.channels_last
    assert kernels.memory_format_of(torch.empty(2)) == torch.contiguous_format


def test_meta_kernels_that_depend_on_the_device() -> None:
    kernel = kernels.meta_kernel_of(aten._linalg_svd.default, "cpu")
    assert kernel is not None
    matrix = torch.empty(3, 2, device="meta")
    assert [tuple(t.shape) for t in kernel(matrix)] == [(3, 2), (2,), (2, 2)]
    assert kernels.meta_kernel_of(aten.add.Tensor, "cpu") is None
    assert kernels.meta_kernel_of(aten.add.out, "cpu") is None


def test_is_decomposed_in_cpp() -> None:
    """Composite operators are; operators with kernels are not."""
    assert kernels.is_decomposed_in_cpp(aten.reshape.default)
    assert not kernels.is_decomposed_in_cpp(aten.view.default)
    assert not kernels.is_decomposed_in_cpp(aten.silu_backward.default)  # a kernel for each device


def test_operators_with_a_kernel_for_each_device() -> None:
    assert kernels.has_kernels_of_devices(aten.bmm.default)
    assert not kernels.has_kernels_of_devices(aten.linear.default)  # composed
    assert not kernels.has_kernels_of_devices(aten.zeros_like.default)  # one for all devices


def test_is_noted_in_parts() -> None:
    """The base of ``mT`` is noted when it is decomposed, that of ``chunk`` as a whole."""
    assert kernels.records_bases_in_parts(torch.ops.aten.mT.default)
    assert not kernels.records_bases_in_parts(torch.ops.aten.chunk.default)
    assert not kernels.records_bases_in_parts(torch.ops.aten.slice.Tensor)


def test_the_choice_of_attention_on_the_cpu() -> None:
    """What torch tells is what the graph of a real call shows."""
    attention = torch.nn.functional.scaled_dot_product_attention
    options = {"dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
    for dim, dropout_p in ((8, 0.0), (8, 0.5)):
        tensor = torch.ones(1, 2, 3, dim, requires_grad=True)
        name = attention(tensor, tensor, tensor, dropout_p=dropout_p).grad_fn.name()
        found = kernels.takes_cpu_flash_attention(
            tensor, tensor, tensor, None, **{**options, "dropout_p": dropout_p}
        )
        assert found is ("Flash" in name)
    tensor = torch.ones(2, 3, 8, requires_grad=True)
    is_squeezed = "Squeeze" in attention(tensor, tensor, tensor).grad_fn.name()
    assert kernels.attention_adds_batch_dim() is is_squeezed
    assert kernels.cpu_attention_allows_causal_mask() in (True, False)
    described = kernels.AttentionArgument(tensor.shape, tensor.dtype, True)
    assert hash(described) == hash(described._replace(dtype=torch.float32))


def test_functions_that_take_a_device() -> None:
    found = kernels.names_of_functions_with_device()
    expected = {(torch, "empty"), (torch, "zeros_like"), (torch.fft, "fftfreq"),
                (torch.Tensor, "to"), (torch.Tensor, "new_tensor")}  # fmt: skip
    assert expected <= set(found)
    assert all(hasattr(owner, name) for owner, name in found)


@torch.library.custom_op("torchfake_kernels::some_of", mutates_args=())
def some_of(x: torch.Tensor) -> torch.Tensor:
    return x[:2].clone()


@some_of.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


class ThreeElements:
    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int:
        return 3


def test_sizes_of_custom_operators_that_depend_on_values() -> None:
    op = torch.ops.torchfake_kernels.some_of.default
    result = kernels.run_fake_impl(op, ThreeElements(), (torch.ones(5, device="meta"),), {})
    assert (result.shape, result.is_meta) == ((3,), True)
    assert kernels.run_fake_impl(aten.add.Tensor, None, (), {}) is NotImplemented


def test_run_whole_on_cuda() -> None:
    """Where CUDA has a kernel, autograd records the operator, and Python gets it in one piece."""
    op = torch.ops.aten._fused_rms_norm.default
    kernels.declare_on_cuda(op)
    assert not kernels.is_decomposed_in_cpp(op)
    kernels.run_whole_on_cuda(op)
    assert dispatch_keys.CUDA_WRAPPER_KEY.has_kernel(op)
    with fake_mode(fake_cuda=True):
        tensor = torch.empty(4, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        result, scale = op(tensor, [8], None, None)
    assert result.grad_fn.name() == "FusedRmsNormBackward0"
    assert (result.dtype, scale.dtype, scale.shape) == (torch.bfloat16, torch.float32, (4, 1))
    real = torch.ones(4, 8, requires_grad=True)
    assert op(real, [8], None, None)[0].grad_fn.name() != "FusedRmsNormBackward0"


def test_attention_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {int(getattr(SDPBackend, name)) for name in ("MATH", "FLASH_ATTENTION")}
    order = kernels.attention_priority()
    assert names <= set(order)
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert kernels.attention_priority()[:2] == [0, 1]
    assert kernels.attention_priority() == order
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert not kernels.prefers_cudnn_attention()
    is_recent = kernels.efficient_attention_shares_keys()
    assert kernels.cudnn_attention_takes_256(9)
    assert kernels.cudnn_attention_takes_256(10) == is_recent
    assert kernels.cudnn_attention_trains_all_widths() != is_recent
    assert kernels.attention_shares_one_head() == is_recent
    assert kernels.efficient_attention_trains_masks() == is_recent
    assert kernels.attention_seed_is_always_on_cpu() != is_recent


def test_cublas_workspace_is_kept() -> None:
    """tests/cuda_stand_in counts what torch's own cuBLAS handles allocate."""
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    assert kernels.cublas_workspace_is_kept() is (version < (2, 15))


def test_whole_convolution_on_meta() -> None:
    tensor = torch.empty(1, 1, 3, device="meta")
    arguments = [tensor, tensor, None, [1], [0], [1], False, [0], 1, False, False, True, True]
    if kernels.has_meta_kernel_of_whole_convolution():
        assert torch.ops.aten._convolution.default(*arguments).shape == (1, 1, 1)
    else:
        with pytest.raises(NotImplementedError):
            torch.ops.aten._convolution.default(*arguments)


def test_decomposed_as_in_cpp() -> None:
    """A function in Python that torch has for its tracers copies here."""
    from torch._decomp import decompositions  # noqa: F401  registers it

    x = torch.ones(3)
    assert kernels.decompose(aten.dropout.default, (x, 0.5, False), {}) is x


def test_scripts_know_a_replacement_by_the_name_of_its_original() -> None:
    def replacement(*args: object) -> None: ...

    operators = torch.jit._builtins._get_builtin_table()
    kernels.name_in_scripts(replacement, torch.tensor)
    kernels.name_in_scripts(replacement, test_decompositions)  # no operator: nothing is noted
    place = id(replacement)
    assert operators[place] == operators[id(torch.tensor)] == "aten::tensor"
    del replacement
    assert place not in operators


def test_linear_is_that_of_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    found = kernels.linear
    x, weight = torch.randn(2, 3), torch.randn(4, 3)
    expected = torch.nn.functional.linear(x, weight)
    monkeypatch.setattr(torch.nn.functional, "linear", None)
    assert kernels.linear is found
    assert torch.equal(kernels.linear(x, weight), expected)


def test_check_convolution() -> None:
    x, weight = torch.empty(1, 3, 8, 8), torch.empty(4, 3, 3, 3)
    sizes = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    kernels.check_convolution(x, weight, None, *sizes)
    with pytest.raises(RuntimeError, match="channels"):
        kernels.check_convolution(x, torch.empty(4, 2, 3, 3), None, *sizes)


def test_a_checkpoint_does_not_see_what_is_tried() -> None:
    kernels.attention_adds_batch_dim.cache_clear()
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda _: None):
        kernels.attention_adds_batch_dim()
    assert saved == []
