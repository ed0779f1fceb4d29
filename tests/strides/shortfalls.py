"""What differs from eager, and why."""

KINDS = {
    "refused": "a value is needed that fakes do not know",
    "values": "eager refuses a value, which fakes do not know",
    "crash of eager": "a kernel of torch ends the process, and fakes go on",
    "dtype of nothing": "eager refuses the dtype of ``out=``; no trial of empty tensors shows it",
    "subclass": "C++ composes a gradient otherwise for any subclass, and under any mode",
}
"""Of any operator: the kinds of ``outcomes.difference``."""

_SIZES = "torch's meta kernel does not look whether these sizes agree, and eager refuses them"
_EMPTY = "eager refuses this empty argument, and torch's meta kernel does not"

ACCEPTED: dict[str, str] = {
    **dict.fromkeys(
        ("addmv", "histogramdd", "index_fill", "nn.functional.ctc_loss", "torch._scaled_mm",
         "nn.functional.linear_cross_entropy.chunked",
         "repeat_interleave", "torch._scaled_mm_v2", "nn.BCELoss",
         "nn.CTCLoss", "nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d"),
        _SIZES,
    ),
    **dict.fromkeys(
        ("mode", "nn.functional.pairwise_distance", "histogram", "istft"),
        _EMPTY,
    ),
    **dict.fromkeys(
        ("_segment_reduce.lengths", "_segment_reduce.offsets", "linalg.lu_factor", "linalg.eig",
         "nn.functional.embedding_bag"),
        KINDS["values"],
    ),
}  # fmt: skip
"""Calls that eager refuses and fakes do not, by operator."""

LAID_OUT: dict[str, str] = {
    **dict.fromkeys(
        ("nn.GRU", "nn.LSTM", "nn.RNN"), "gradients of weights are views in eager alone"
    ),
    "cumprod": "zeros, which are values, decide the formula of the gradient",
    "masked.prod": "zeros, which are values, decide the formula of the gradient",
    "prod": "zeros, which are values, decide the formula of the gradient",
    "_batch_norm_with_update": "eager reads past the end of statistics that are too short",
    "torch._scaled_mm_v2": "torch's meta kernel refuses empty arguments, with an error",
    "repeat_interleave": "of repeats that do not fit eager gives as many rows as it has counted",
    "linalg.lstsq.grad_oriented": "there are no residuals if the rank, a value, is not full",
}
"""Results that lie otherwise than in eager, by operator or module."""

OUTPUTS: dict[str, str] = {
    **dict.fromkeys(
        ("deg2rad", "rad2deg"), "strides of dims of length one and of nothing, as C++ gets a number"
    ),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit"),
        "eager reads past the end of statistics that are too short",
    ),
    **dict.fromkeys(
        ("torch._scaled_mm", "torch._scaled_mm_v2"), "sizes that do not agree are not refused"
    ),
    **dict.fromkeys(
        ("linalg.lstsq", "triangular_solve"),
        "an ``out=`` of nothing, which is column-major in eager",
    ),
    **dict.fromkeys(
        ("norm", "linalg.vector_norm"), "torch's Python refuses a negative dim of an empty tensor"
    ),
    "linalg.lu_solve": "pivots that are too great for a matrix that was cut",
    "matmul": "C++ refuses an ``out=`` of which it cannot make a view",
}
"""The same of calls with ``out=``."""
