"""Operators without a kernel on CUDA, and dtypes that it refuses: which follow from the CPU's
kernels, and which do not.

Input: a call on fake CUDA, and the error of the CPU's kernel for its dtypes. Output: nothing, or an
error as CUDA's. Invariant: a call that CUDA accepts is accepted. Calls of other dtypes than these
are not tried: see docs/limits.md.

No kernel of CUDA can be run. tests/_eager_checks/worker_cuda_dtypes compares every operator of
torch's database with torch's own CUDA backend, whose host code refuses dtypes.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from torchfake._eager_checks.small_calls import NO_DTYPE
from torchfake._operators.operator_call import Args, Call, Kwargs, tensors_in
from torchfake._tensor.method_arguments import scalar_type

WITHOUT_KERNEL = frozenset(
    f"aten::{name}" for name in (
        "histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts",
        "_histogramdd_from_bin_tensors", "_spdiags", "_add_relu", "_add_relu_", "to_mkldnn",
        "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "slow_conv3d_forward",
        "_upsample_lanczos2d_aa", "_upsample_lanczos2d_aa_backward", "_dyn_quant_matmul_4bit",
        "_dyn_quant_pack_4bit_weight", "_weight_int4pack_mm_for_cpu",
        "_convert_weight_to_int4pack_for_cpu", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward", "quantized_gru", "quantized_lstm",
    )
)  # fmt: skip
"""Operators with a kernel on the CPU and none on CUDA, in torch's dispatcher."""


def check_kernel(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Refuse an operator that CUDA does not have, and the drivers of least squares."""
    name = func._schema.name
    is_on_other_driver = name == "aten::linalg_lstsq" and kwargs.get("driver") not in (None, "gels")
    if not is_on_other_driver and name not in WITHOUT_KERNEL:
        return
    if all(tensor.device.type != "cuda" for tensor in tensors_in(args, kwargs)):
        return
    if is_on_other_driver:
        text = "`driver` other than `gels` is not supported on CUDA"
        raise RuntimeError(f"torch.linalg.lstsq: {text}")
    raise NotImplementedError(
        f"Could not run '{func.name()}' with arguments from the 'CUDA' backend. This could be "
        "because the operator doesn't exist for this backend, or was omitted during the "
        "selective/custom build process (if using custom build)."
    )


_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})

_ALIKE = _INTEGERS | {torch.bool, torch.complex64, torch.complex128}
"""Dtypes that kernels on CUDA lack where those on the CPU do. Kernels on CUDA have more of the
floating ones of two bytes, and fewer of unsigned integers."""

_ONLY_ON_CUDA = frozenset(
    f"aten::{name}" for name in (
        "abs", "abs_", "median", "nanmedian", "max_unpool2d", "max_unpool3d", "histc", "trace",
        "nansum", "_adaptive_avg_pool3d", "convolution", "logcumsumexp", "_logcumsumexp",
    )
)  # fmt: skip
"""Operators that CUDA has for more of these dtypes than the CPU."""

_OF_LIBRARIES = re.compile(
    "aten::(_?linalg_(?!vector_norm)|cholesky|lu_|geqrf|orgqr|ormqr|triangular_solve|bitwise_|"
    "__i?[lr]shift__|special_|gcd|lcm)"
)
"""Operators that have no floating dtypes of two bytes on either device, or no floating ones."""


def is_like_cpu(call: Call) -> bool:
    """Whether CUDA refuses a call for its dtypes if a kernel of the CPU does."""
    packet, dtypes = call.traits.packet, {t.dtype for t in call.tensors}
    if not dtypes or packet in _ONLY_ON_CUDA:
        return False
    return dtypes <= _ALIKE or _OF_LIBRARIES.match(packet) is not None


_SAVED_IN_OTHER_DTYPES = re.compile(
    r"aten::\w*(norm\w*_backward|scaled|_int[48]|mixed_dtypes|quant)"
)
"""Operators that CUDA gives other dtypes than the CPU: what a norm has saved, scales of weights."""


def is_mixed(call: Call) -> bool:
    """Whether a call has arguments of several dtypes, which code for all devices compares."""
    if _SAVED_IN_OTHER_DTYPES.match(call.traits.packet):
        return False
    numbers = (*call.args, *call.kwargs.values())
    return len({t.dtype for t in call.tensors}) > 1 or complex in map(type, numbers)


_KERNELS = {
    "mm": "addmm_cuda",
    "addmm": "addmm_cuda",
    "bmm": "baddbmm_cuda",
    "baddbmm": "baddbmm_cuda",
    "mv": "addmv_impl_cuda",
    "addmv": "addmv_impl_cuda",
    "dot": "dot",
    "vdot": "dot",
    "max_pool2d_with_indices": "max_pool2d_with_indices_out_cuda_frame",
    "max_pool3d_with_indices": "max_pool3d_with_indices_out_frame",
}
"""Kernels that CUDA has for no integers, and the CPU does, by their operators."""


def check_integers(call: Call) -> None:
    """Refuse integers where the CPU takes some: in products and in pooling."""
    kernel = _KERNELS.get(call.traits.packet.removeprefix("aten::").removesuffix("_"))
    dtype = call.tensors[0].dtype if call.tensors else None
    if kernel is not None and dtype in _INTEGERS and all(t.numel() for t in call.tensors):
        raise NotImplementedError(f'"{kernel}" {NO_DTYPE}{scalar_type(dtype)}\'')


_NORMS = frozenset({"aten::native_layer_norm", "aten::native_group_norm"})


def check_norms(call: Call) -> None:
    """Refuse weights of another dtype than the input: the CPU takes float32 for half precision."""
    if call.traits.packet not in _NORMS:
        return
    own, *others = dict.fromkeys(t.dtype for t in call.tensors)
    if others:
        expected, found = scalar_type(own), scalar_type(others[0])
        raise RuntimeError(f"expected scalar type {expected} but found {found}")


_LACKING = re.compile(NO_DTYPE + r"(\w+)'")
_NAMES_CPU = re.compile("cpu|mkldnn|onednn|lapack", re.IGNORECASE)
"""What an error says that is of the CPU alone."""


def raise_for_cuda(call: Call, error: Exception) -> None:
    """Raise the CPU's error as CUDA's, unless it is of the CPU alone: that it names, or a kernel's
    for dtypes that CUDA's has.
    """
    lacking = _LACKING.search(str(error))
    if lacking is None:
        if not _NAMES_CPU.search(str(error)):
            raise error.with_traceback(None)
    elif is_like_cpu(call):
        name = call.traits.packet.removeprefix("aten::")
        raise NotImplementedError(f'"{name}_cuda" {NO_DTYPE}{lacking[1]}\'') from None
