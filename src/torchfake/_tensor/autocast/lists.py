"""Which operators autocast treats in which way, for each device type.

Input: nothing. Output: :data:`POLICIES` and :data:`UNLISTED`. Invariant: the names are those of
aten/src/ATen/autocast_mode.h and .cpp over torch 2.12 to 2.15. An operator that the installed torch
does not autocast is not autocast here either (``kernels`` checks), and
tests/_tensor/autocast/test_lists.py fails if torch autocasts one that is missing here.
"""

from __future__ import annotations

CPU = {
    "lower": """
        _addmm_activation _convolution.deprecated _native_multi_head_attention addbmm addmm
        baddbmm bmm conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding conv_tbc
        conv_transpose1d conv_transpose2d.input conv_transpose3d.input linalg_vecdot linear matmul
        mkldnn_rnn_layer mm prelu scaled_dot_product_attention
    """,
    "fp32": """
        _grid_sampler_2d_cpu_fallback _lu_with_info adaptive_avg_pool3d adaptive_max_pool3d
        avg_pool3d binary_cross_entropy binary_cross_entropy_with_logits cdist cholesky
        cholesky_inverse cholesky_solve cosine_embedding_loss cross_entropy_loss ctc_loss.IntList
        ctc_loss.Tensor fake_quantize_per_tensor_affine fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft
        fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn
        fractional_max_pool2d fractional_max_pool3d geqrf grid_sampler grid_sampler_2d
        grid_sampler_3d hinge_embedding_loss huber_loss inverse kl_div l1_loss linalg_cholesky
        linalg_cholesky_ex linalg_cond linalg_cond.p_str linalg_eig linalg_eigh linalg_eigvals
        linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq
        linalg_matrix_rank linalg_matrix_rank.atol_rtol_float linalg_matrix_rank.atol_rtol_tensor
        linalg_matrix_rank.tol_tensor linalg_matrix_sqrth linalg_qr linalg_solve linalg_svd
        linalg_svdvals linalg_tensorinv linalg_tensorsolve lu_solve margin_ranking_loss max_pool3d
        max_unpool2d max_unpool3d mse_loss multi_margin_loss multilabel_margin_loss
        multilabel_margin_loss_forward nanquantile nanquantile.scalar nll_loss nll_loss2d orgqr
        ormqr pinverse poisson_nll_loss polar prod prod.dim_Dimname prod.dim_int qr quantile
        quantile.scalar reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d
        replication_pad3d smooth_l1_loss soft_margin_loss stft stft.center svd trace
        triangular_solve triplet_margin_loss view_as_complex
    """,
    "promote": "cat index_copy index_copy.dimname stack",
}

CUDA = {
    "lower": """
        _convolution _convolution.deprecated _scaled_dot_product_flash_attention
        _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm addmm addmv addr baddbmm bmm chain_matmul
        conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
        conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose einsum
        gru_cell linalg_multi_dot linalg_vecdot linear lstm_cell matmul mm mv prelu rnn_relu_cell
        rnn_tanh_cell scaled_dot_product_attention
    """,
    "half": "_cudnn_rnn",
    "fp32": """
        _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d acos asin
        binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity dist
        erfinv exp expm1 frobenius_norm.dim group_norm hinge_embedding_loss huber_loss kl_div
        l1_loss layer_norm linalg_matrix_sqrth log log10 log1p log2 logsumexp margin_ranking_loss
        mse_loss multi_margin_loss multilabel_margin_loss native_layer_norm nll_loss nll_loss2d
        nuclear_norm nuclear_norm.dim pdist poisson_nll_loss pow.Scalar pow.Tensor_Scalar
        pow.Tensor_Tensor reciprocal renorm rms_norm rsqrt sinh smooth_l1_loss soft_margin_loss
        softplus tan triplet_margin_loss upsample_bicubic2d upsample_bilinear2d upsample_linear1d
        upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    """,
    "fp32_set_dtype": """
        cumprod cumprod.dimname cumsum cumsum.dimname linalg_matrix_norm linalg_matrix_norm.str_ord
        linalg_vector_norm log_softmax.Dimname log_softmax.int prod prod.dim_Dimname prod.dim_int
        softmax.Dimname softmax.int sum sum.dim_DimnameList sum.dim_IntList
    """,
    "fp32_append_dtype": "norm.Scalar norm.ScalarOpt_dim norm.names_ScalarOpt_dim",
    "promote": """
        addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot
    """,
    "banned": "binary_cross_entropy",
}

MPS = {**CUDA, "fp32": CUDA["fp32"] + " batch_norm"}

OTHERS = "privateuseone"
"""The key of devices whose extensions list the operators: those of CUDA are assumed."""


def _by_operator(table: dict[str, str]) -> dict[str, str]:
    return {f"aten::{name}": policy for policy, names in table.items() for name in names.split()}


POLICIES: dict[str, dict[str, str]] = {
    device_type: _by_operator(table)
    for device_type, table in {
        "cpu": CPU,
        "cuda": CUDA,
        "mps": MPS,
        "xpu": CUDA,
        "mtia": CUDA,
        OTHERS: CUDA,
    }.items()
}
"""``POLICIES["cuda"]["aten::softmax.int"] == "fp32_set_dtype"``: a policy's name, by the device
type of the fakes and the operator's qualified name. Where several types autocast an operator, they
do so in one way, so the others have CUDA's lists, as far as the installed torch has them."""

UNLISTED = {
    "aten::linalg_pinv.atol_rtol_tensor": dict.fromkeys(POLICIES, "product"),
    "aten::_trilinear": dict.fromkeys(POLICIES, "inside"),
    "aten::lstm.input": {"cpu": "onednn"},
    "aten::_cudnn_rnn": {"cuda": "half"},
}
"""Operators that an installed torch may not list, with their policies by device type. All but the
last call listed operators: C++ autocast casts inside, since the inputs still carry its key. One
ends in a product, one computes with products; an LSTM is oneDNN's operator, which plain fakes do
not run. The last is listed where torch is built for CUDA (aten/src/ATen/cudnn/AutocastRNN.cpp)."""
