"""Every operator that falls short of eager in the OpInfo suite, and why.

One table per variant of ``test_opinfo.py``: operator -> reason. A new failure is not in its
table, a new pass still is: both fail the test. `SINCE` and `UNTIL` bound entries to the torch
versions that have them.
"""

VALUES = "the result's shape, or a branch, is a matter of values, and these are unknown"
SPARSE = "fakes are strided; a sparse argument or result is refused"
CUDA = "the CUDA kernel lays its result out otherwise than the CPU oracle"
LACKING = "CUDA has no such kernel or driver, the CPU oracle does; refused with CUDA's error"
EMPTY = "strides of an empty or one-element dim, which no kernel reads"

_VALUES_FUNCTION = {
    "__getitem__": VALUES,
    "allclose": VALUES,
    "argwhere": VALUES,
    "equal": VALUES,
    "item": VALUES,
    "masked_select": VALUES,
    "narrow": VALUES,
    "nonzero": VALUES,
    "repeat_interleave": VALUES,
    "tensor_split": VALUES,
    "unique": VALUES,
    "unique_consecutive": VALUES,
}


def _without(*names: str) -> dict[str, str]:
    return {name: reason for name, reason in _VALUES_FUNCTION.items() if name not in names}


SHORTFALLS: dict[str, dict[str, str]] = {
    "function-float32": {
        **_VALUES_FUNCTION,
        "sparse.mm.reduce": SPARSE,
        "sparse.sampled_addmm": SPARSE,
        "to_sparse": SPARSE,
    },
    "method-float32": {**_without("item"), "to_sparse": SPARSE},
    "inplace-float32": {
        "addbmm": "eager resizes a one-element self to the result, its own meta kernel refuses",
    },
    "cuda-float32": {
        **_VALUES_FUNCTION,
        "_native_batch_norm_legit": "the CPU saves no statistics in evaluation",
        "combinations": CUDA,  # composed of nonzero_static
        "fft.hfft2": CUDA,
        "fft.hfftn": CUDA,
        "fft.rfft2": CUDA,
        "fft.rfftn": CUDA,
        "histogram": LACKING,
        "histogramdd": LACKING,
        "linalg.eig": CUDA,
        "linalg.lstsq": LACKING,
        "linalg.lstsq.grad_oriented": LACKING,
        "linalg.svd": CUDA,
        "native_batch_norm": "the CPU saves no statistics in evaluation",
        "native_group_norm": CUDA,
        "nn.functional.max_unpool2d": CUDA,
        "nn.functional.max_unpool2d.grad": CUDA,
        "nn.functional.rms_norm": CUDA,
        "nn.functional.scaled_dot_product_attention": CUDA,
        "nonzero_static": CUDA,
        "pca_lowrank": CUDA,
        "sparse.mm.reduce": SPARSE,
        "sparse.sampled_addmm": SPARSE,
        "svd": CUDA,
        "svd_lowrank": CUDA,
        "to_sparse": SPARSE,
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": LACKING,
    },
    "backward-float32": {
        **dict.fromkeys(("__getitem__", "masked_select", "narrow", "repeat_interleave"), VALUES),
        **dict.fromkeys(("index_fill", "index_put", "tensor_split"), VALUES),
        "ormqr": "the gradient of a column-major argument is column-major in eager alone",
        "sparse.mm.reduce": SPARSE,
        "sparse.sampled_addmm": SPARSE,
    },
    "function-bfloat16": {
        **_VALUES_FUNCTION,
        "sparse.mm.reduce": SPARSE,
        "to_sparse": SPARSE,
    },
    "function-int64": {
        **_without("allclose"),
        "bincount": VALUES,
        "nn.functional.one_hot": VALUES,
        "to_sparse": SPARSE,
    },
    "function-complex64": {
        **_without("unique", "unique_consecutive"),
        "sparse.sampled_addmm": SPARSE,
        "to_sparse": SPARSE,
    },
}

# Only the database of torch 2.14 has samples of native_group_norm in channels_last:
SINCE: dict[tuple[str, str], str] = {
    ("cuda-float32", "native_group_norm"): "2.14",
    ("cuda-float32", "combinations"): "2.15",
}
UNTIL: dict[tuple[str, str], str] = {("cuda-float32", "native_group_norm"): "2.15"}

RECORDED: dict[str, str] = {
    "nn.functional.instance_norm": "statistics outside of the mode are written after they are read",
    "addbmm": "in place, eager resizes a one-element self; its own meta kernel refuses that",
}
"""Operators that fall short recorded (``test_recorded.py``), in any way, dtype or variant, and why:
all of them with an error, none with other values."""

LAID_OUT: dict[str, str] = {
    **SHORTFALLS["function-float32"],
    **dict.fromkeys(("bincount", "nn.functional.one_hot"), VALUES),
}
"""Operators that fall short with arguments in other layouts (``test_layouts.py``), and why."""

SHARING: dict[str, str] = {
    "addbmm": "in place, eager resizes a one-element self; its own meta kernel refuses that",
    "matmul": "out=: C++ asks whether a view is an alias, and copies the result to itself if not",
}
"""Operators that fall short where memory is shared (``test_overlaps.py``), and why."""

NONDETERMINISTIC = frozenset({"linalg.lstsq"})
"""Eager gives other bits each time: the default driver reads memory that nobody has written."""

OTHER_BITS: dict[str, str] = {
    "cumprod": "of complex numbers: for subclasses C++ computes the gradient without a division",
    **dict.fromkeys(
        ("matmul", "__rmatmul__"), "a batch of one is multiplied as one matrix for subclasses"
    ),
}
"""Operators whose known values have other bits (``test_known_values.py``), and why."""

_NO_META = "with out= torch has no meta kernel for it: refused"
_ON_META = "C++ compares a device that is named with that of the wrapper: refused"
_WIDER = "out= of another width than the meta kernel's result is refused"
OUTPUTS: dict[str, str] = {
    **dict.fromkeys(("geqrf", "histogram", "mode", "_native_batch_norm_legit"), _NO_META),
    **dict.fromkeys(("arange", "empty", "full", "ones", "randn", "zeros", "logspace"), _ON_META),
    **dict.fromkeys(("linspace.tensor_overload", "logspace.tensor_overload"), _ON_META),
    **dict.fromkeys(("linspace", "normal.number_mean", "eye"), _ON_META),
    **dict.fromkeys(("abs", "logsumexp"), _WIDER),
    "searchsorted": "dtypes of tensors without elements are accepted",
    "index_add": "out= of another dtype is accepted: the operator is composed",
    "index_copy": "out= of another dtype is accepted for a 0-dim tensor",
    "linalg.slogdet": "out= of another dtype is accepted for a matrix without elements",
    "nansum": "out= of booleans is refused for integers",
}
"""Operators that refuse or take other dtypes of ``out=`` than eager (``test_refused.py``)."""

REFUSED: dict[str, str] = {
    "narrow_copy": "a dim out of range: IndexError, RuntimeError in eager",
}
"""Operators that refuse other arguments than eager (``test_refused.py``), and why."""

TENSORS = "lengths are read by C++ inside of torch.func: refused, by shape or by torch's own assert"
DEVICE = "inside of torch.func C++ asks the wrapper for its device: sections have to be numbers"
KERNEL = "inside of torch.func fakes take the math path: the strides of its gradients"
_UNFOLD = {"nn.functional.unfold": "col2im of an empty batch: the decomposition keeps its padding"}
_SPARSE = dict.fromkeys(("sparse.sampled_addmm", "to_sparse"), SPARSE)
LEAF = "the gradient of a real leaf is moved to its device: a copy, where eager has a view"
_COLUMN_MAJOR = {"ormqr": "the gradient of a column-major argument is column-major in eager alone"}
_STATISTICS = "statistics outside of the mode are written after they are read"

_COMPLEX_TO_REAL = ("fft2", "fftn", "hfft", "hfft2", "hfftn", "ifft2", "ifftn", "irfft", "irfft2",
                    "irfftn")  # fmt: skip

_NEGATED = "a gradient that eager negates when it is read is negated at once"
_WRAPPED = (
    "a real tensor that torch.func has wrapped is refused beside recorded ones, by its device"
)
_TANGENTS = "a view of a real tensor that has a tangent: torch's own assert"
_OF_VMAP = "strides of a result of vmap are those of the kernel for fakes"
_EVERYWHERE: dict[str, str] = {
    **dict.fromkeys(("__rsub__", "frexp", "native_layer_norm", "nn.functional.layer_norm"), EMPTY),
    **dict.fromkeys(("nn.functional.prelu", "polar", "rsub", "sort"), EMPTY),
    "linalg.det": "the gradient of a column-major factor is row-major in eager alone",
    "nn.functional.logsigmoid": _OF_VMAP,
}

TRANSFORMED: dict[str, dict[str, str]] = {
    "real": {
        **_SPARSE,
        **_EVERYWHERE,
        **dict.fromkeys(("as_strided.partial_views", "ravel"), _TANGENTS),
        **dict.fromkeys(("gradient", "take_along_dim"), _WRAPPED),
        **dict.fromkeys(("linalg.vector_norm", "masked.mean", "masked.norm", "nanmean"), _NEGATED),
        **dict.fromkeys(("nn.functional.alpha_dropout", "nn.functional.dropout"), _NEGATED),
        **dict.fromkeys(("nn.functional.l1_loss", "nn.functional.margin_ranking_loss"), _NEGATED),
        **_UNFOLD,
        "combinations": "linearize traces with meta tensors, which have no values",
        **dict.fromkeys(("cfloat", "complex", "linalg.vander", "select_scatter"), LEAF),
        **dict.fromkeys((f"fft.{name}" for name in _COMPLEX_TO_REAL), LEAF),
        **_COLUMN_MAJOR,
        "masked_select": "linearize traces with meta tensors, which have no values",
        "nn.functional.ctc_loss": TENSORS,
        "nn.functional.instance_norm": _STATISTICS,
        "prod": EMPTY,
    },
    "cloned": {
        **_SPARSE,
        **_EVERYWHERE,
        "complex": EMPTY,
        **_UNFOLD,
        **_COLUMN_MAJOR,
        "nn.functional.ctc_loss": TENSORS,
        "prod": EMPTY,
        "tensor_split": DEVICE,
    },
    "fake": {
        **_SPARSE,
        **_UNFOLD,
        **_EVERYWHERE,
        **dict.fromkeys(("__getitem__", "masked.prod", "repeat_interleave"), VALUES),
        "complex": EMPTY,
        **_COLUMN_MAJOR,
        **dict.fromkeys(("index_fill", "index_put", "index_reduce.prod"), VALUES),
        **dict.fromkeys(("masked_select", "narrow", "scatter_reduce.prod", "tensor_split"), VALUES),
        "nn.functional.scaled_dot_product_attention": KERNEL,
        "prod": EMPTY,
    },
}
"""Operators that fall short in a transform (``test_transforms.py``), for each way in which inputs
come about, and why: with an error or in metadata, none with other values."""

SINCE_IN_TRANSFORMS: dict[str, dict[str, str]] = {
    way: {"__getitem__": "2.14"} for way in ("cloned", "fake")
}
"""Lists as indices inside of torch.func, on torch versions whose C++ drops their data."""

_UNCOMPARED = "torch's meta kernel does not compare these sizes, and nothing else does yet"
_OF_VALUES = "eager refuses a value that is out of range of the other size, or compares it there"
WRONG_SIZES: dict[str, str] = {
    **dict.fromkeys(
        ("torch._scaled_mm", "torch._scaled_mm_v2", "searchsorted",
         "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "native_batch_norm",
         "_native_batch_norm_legit", "_batch_norm_with_update", "nn.functional.batch_norm",
         "native_group_norm", "nn.functional.linear_cross_entropy.chunked"),
        _UNCOMPARED,
    ),
    **dict.fromkeys(
        ("nn.functional.ctc_loss", "nn.CTCLoss", "_segment_reduce.lengths",
         "_segment_reduce.offsets"),
        "sizes are compared with lengths only where the lengths are known",
    ),
    "nn.functional.embedding_bag": _OF_VALUES,
    **dict.fromkeys(
        ("nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d"),
        "samples of another dtype than the input are accepted, whatever the sizes",
    ),
    **dict.fromkeys(
        ("linalg.lstsq", "linalg.lstsq.grad_oriented"),
        "the other tensor may have fewer dims by two, and is not expanded",
    ),
    **dict.fromkeys(
        ("nn.functional.linear_cross_entropy", "nn.functional.linear_cross_entropy.chunked_none"),
        "weights of one class are reshaped by torch's Python, which refuses two",
    ),
    "clamp": "a bound of more dims makes the result larger, which eager's gradient refuses",
    "var": "strides of a result without elements",
    "prod": "zeros, which are values, decide the formula of the gradient",
    **dict.fromkeys(
        ("nn.GRU", "nn.LSTM", "nn.RNN"), "gradients of weights are views in eager alone"
    ),
}  # fmt: skip
"""Operators that refuse or take other sizes than eager (``test_wrong_sizes.py``), and why."""

_FILLED = "C++ counts a write of what it has just made, and none is counted for a fake"
VERSIONS: dict[str, dict[str, str]] = {
    "function": dict.fromkeys(
        ("nn.functional.linear_cross_entropy.chunked", "linalg.matrix_rank",
         "nn.functional.linear_cross_entropy.chunked_none", "linalg.matrix_rank.hermitian",
         "nn.functional.one_hot"),
        _FILLED,
    ),
    "out": dict.fromkeys(("linalg.matrix_rank", "linalg.matrix_rank.hermitian"), _FILLED),
    "backward": dict.fromkeys(
        ("__getitem__", "aminmax", "combinations", "copysign", "corrcoef", "cov", "cummax",
         "cummin", "cumulative_trapezoid", "diff", "dsplit", "gather", "gradient", "hsplit",
         "index_select", "kthvalue", "linalg.householder_product", "linalg.matrix_power",
         "masked.median", "masked.normalize", "masked.std", "masked.var", "masked_select",
         "max.reduction_no_dim", "max.reduction_with_dim", "max_pool2d_with_indices_backward",
         "median", "min.reduction_no_dim", "min.reduction_with_dim", "mode", "msort", "nanmedian",
         "nanquantile", "nextafter", "nn.functional.binary_cross_entropy",
         "nn.functional.binary_cross_entropy_with_logits", "nn.functional.cosine_embedding_loss",
         "nn.functional.cosine_similarity", "nn.functional.gaussian_nll_loss",
         "nn.functional.hinge_embedding_loss", "nn.functional.kl_div",
         "nn.functional.linear_cross_entropy.chunked",
         "nn.functional.linear_cross_entropy.chunked_none", "nn.functional.local_response_norm",
         "nn.functional.multilabel_soft_margin_loss", "nn.functional.normalize",
         "nn.functional.poisson_nll_loss", "nn.functional.rms_norm", "nn.functional.softsign",
         "nn.functional.triplet_margin_loss", "nn.functional.triplet_margin_with_distance_loss",
         "normal", "normal.number_mean", "ormqr", "prod", "quantile", "repeat", "sort", "take",
         "take_along_dim", "tensor_split", "topk", "trace", "trapezoid", "trapz", "vsplit"),
        _FILLED,
    ),
}  # fmt: skip
"""Operators of whose results or gradients the version counter is another than in eager
(``test_version_counters.py``), by the way to call them, and why."""
