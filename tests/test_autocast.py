"""autocast gives fakes the dtypes it gives real tensors: eager is asked wherever it can be."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from torchfake import _autocast, _private, fake_like, fake_mode, is_fake
from torchfake._autocast_lists import POLICIES
from torchfake.errors import UnsupportedOpError

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
HALVES = pytest.mark.parametrize("half", [BF16, F16])

NOT_EAGERS_DTYPE: dict[str, set[str]] = {"float32": set(), "bfloat16": set(), "mixed": set()}
"""Operators of torch's database whose results under CPU autocast differ from eager's in dtype, by
the dtype of the samples. One that differs and is not here fails, and so does the reverse."""


def twins(tree: Any, device: str | None = None) -> Any:
    """`tree` with a fake twin in place of each real tensor, ready for autograd as that is."""

    def twin(real: torch.Tensor) -> torch.Tensor:
        return fake_like(real.detach(), device=device).requires_grad_(real.requires_grad)

    return pytree.tree_map_only(torch.Tensor, twin, tree)


def dtypes(result: Any) -> list[Any]:
    """The dtypes of the tensors in a result, and the types of what else there is."""
    leaves = pytree.tree_leaves(result)
    return [leaf.dtype if isinstance(leaf, torch.Tensor) else type(leaf) for leaf in leaves]


def outcome(function: Callable[[], Any]) -> Any:
    """What `function` gives: dtypes, or None where it fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return dtypes(function())
        except Exception:
            return None


# The lists.


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_every_operator_that_torch_autocasts_has_a_policy(device_type: str) -> None:
    assert set(_private.autocast_operators(device_type)) <= POLICIES[device_type].keys()


def entries(lists: Any, name: str) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """One of torch's own test lists, as (operator, arguments, keyword arguments)."""
    for op, *rest in getattr(lists, name):
        arguments = [item for item in rest if isinstance(item, tuple)]
        keywords = next((item for item in rest if isinstance(item, dict)), {})
        if op == "einsum":
            yield op, (rest[0], *(m.reshape(2, 2, 2, 8) for m in rest[1])), {}
            continue
        for args in arguments:
            yield op, args, keywords


def spellings(op: str, args: tuple[Any, ...]) -> Iterator[Callable[..., Any]]:
    """The ways to call an operator by its name: torch.op, torch._C._nn.op, Tensor.op."""
    for place in (torch, torch._C._nn):
        if hasattr(place, op):
            yield getattr(place, op)
    if hasattr(torch.Tensor, op) and isinstance(args[0], torch.Tensor):
        yield getattr(torch.Tensor, op)


CPU_LISTS = [
    name for name in vars(AutocastCPUTestLists("cpu")) if name.startswith(("torch", "nn", "meth"))
]


@HALVES
@pytest.mark.parametrize("name", CPU_LISTS)
def test_torchs_cpu_lists(name: str, half: torch.dtype) -> None:
    for op, args, kwargs in entries(AutocastCPUTestLists("cpu"), name):
        fakes = twins(args)
        for spelling in spellings(op, args):
            with torch.autocast("cpu", dtype=half):
                expected = outcome(lambda s=spelling, a=args, k=kwargs: s(*a, **k))
                result = outcome(lambda s=spelling, a=fakes, k=kwargs: s(*a, **k))
            assert result == expected, op


CUDA_LISTS = {
    "torch_fp16": F16,
    "torch_fp32": F32,
    "torch_need_autocast_promote": F32,
    "nn_fp16": F16,
    "nn_fp32": F32,
    "linalg_fp16": F16,
    "methods_fp16": F16,
    "methods_fp32": F32,
}


NO_META_KERNEL = {"cudnn_convolution", "cudnn_convolution_transpose"}
"""What the CUDA lists have that torch cannot run on meta tensors, autocast or not."""


@pytest.mark.parametrize("name", CUDA_LISTS)
def test_torchs_cuda_lists(name: str) -> None:
    lists = AutocastTestLists("cpu")
    with fake_mode(fake_cuda=True), torch.autocast("cuda"):
        for op, args, kwargs in entries(lists, name):
            fakes = twins(args, "cuda")
            for spelling in spellings(op, args):
                if op in NO_META_KERNEL:
                    with pytest.raises(UnsupportedOpError):
                        spelling(*fakes, **kwargs)
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # some spellings are deprecated
                    result = pytree.tree_leaves(spelling(*fakes, **kwargs))
                assert {t.dtype for t in result} == {CUDA_LISTS[name]}, op
                assert {t.device.type for t in result} == {"cuda"}, op


def test_torchs_cuda_list_of_what_promotes_by_itself() -> None:
    lists = AutocastTestLists("cpu")
    with fake_mode(fake_cuda=True), torch.autocast("cuda"):
        for op, args, dtype in lists.torch_expect_builtin_promote:
            if op != "equal":  # needs values
                assert getattr(torch, op)(*twins(args, "cuda")).dtype == dtype, op


def test_what_cuda_bans() -> None:
    probability, target = torch.rand(3), torch.rand(3)
    with fake_mode(fake_cuda=True), torch.autocast("cuda"):
        fakes = twins((probability, target), "cuda")
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(*fakes)
        assert F.binary_cross_entropy_with_logits(*fakes).dtype == F32


# The database.


def mix(tree: Any) -> Any:
    """Every other float32 tensor in bfloat16."""
    turn = 0

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal turn
        turn += tensor.dtype is F32
        return tensor.to(BF16) if tensor.dtype is F32 and turn % 2 else tensor

    return pytree.tree_map_only(torch.Tensor, convert, tree)


def samples(op: Any, kind: str) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    dtype = BF16 if kind == "bfloat16" else F32
    if kind != "bfloat16" and F32 not in op.supported_dtypes("cpu"):
        return
    try:  # autocast lets some operators run in a dtype that they do not support
        # (op.sample_inputs looks for the running test on the stack, which takes 30 ms a sample.)
        found = list(islice(op.sample_inputs_func(op, "cpu", dtype, False), 2))
    except (RuntimeError, NotImplementedError):
        return
    for sample in found:
        call = ((sample.input, *sample.args), sample.kwargs)
        if all(t.layout == torch.strided for t in pytree.tree_leaves(call) if torch.is_tensor(t)):
            yield mix(call) if kind == "mixed" else call


def differs(op: Any, call: Any) -> bool:
    """Whether autocast makes the fakes' result another dtype than eager's.

    Where the two differ without autocast, it is no matter of autocast (tests/opinfo has them).
    """
    args, kwargs = call
    fake_args, fake_kwargs = twins(call)
    with torch.autocast("cpu"):
        expected = outcome(lambda: op.op(*args, **kwargs))
        if expected is None or outcome(lambda: op.op(*fake_args, **fake_kwargs)) == expected:
            return False
    plain = outcome(lambda: op.op(*args, **kwargs))
    fake = outcome(lambda: op.op(*fake_args, **fake_kwargs))
    return fake is not None and (plain is None or plain == fake)


@pytest.mark.parametrize("kind", NOT_EAGERS_DTYPE)
def test_operator_database(kind: str) -> None:
    torch.manual_seed(0)
    found = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            if any(differs(op, call) for call in samples(op, kind)):
                found.add(f"{op.name} {op.variant_test_name}".strip())
    assert found == NOT_EAGERS_DTYPE[kind]


# Models.


def conv_net() -> tuple[nn.Module, tuple[Any, ...]]:
    layers = (
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.GroupNorm(2, 8),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(72, 5),
        nn.LogSoftmax(dim=-1),
    )
    return nn.Sequential(*layers), (torch.randn(2, 3, 8, 8, requires_grad=True),)


def attention() -> tuple[nn.Module, tuple[Any, ...]]:
    x = torch.randn(2, 5, 8, requires_grad=True)
    return nn.MultiheadAttention(8, 2, batch_first=True), (x, x, x)


def encoder() -> tuple[nn.Module, tuple[Any, ...]]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return layer, (torch.randn(2, 5, 8, requires_grad=True),)


def decoder() -> tuple[nn.Module, tuple[Any, ...]]:
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    return layer, (torch.randn(2, 5, 8), torch.randn(2, 3, 8))


def lstm() -> tuple[nn.Module, tuple[Any, ...]]:
    state = (torch.randn(4, 2, 6), torch.randn(4, 2, 6))
    return nn.LSTM(4, 6, num_layers=2, bidirectional=True), (torch.randn(5, 2, 4), state)


def lstm_with_projection() -> tuple[nn.Module, tuple[Any, ...]]:
    state = (torch.randn(1, 2, 3), torch.randn(1, 2, 6))
    return nn.LSTM(4, 6, proj_size=3, batch_first=True), (torch.randn(2, 5, 4), state)


def gru() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.GRU(4, 6), (torch.randn(5, 2, 4), torch.randn(1, 2, 6))


def rnn() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.RNN(4, 6), (torch.randn(5, 2, 4), torch.randn(1, 2, 6))


def lstm_cell() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.LSTMCell(4, 6), (torch.randn(2, 4),)


def bilinear() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.Bilinear(4, 5, 6), (torch.randn(2, 4), torch.randn(2, 5))


class Losses(nn.Module):
    """What C++ composites make of listed operators."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        h = F.layer_norm(self.table(labels) * self.scale + x, (4,))
        return (
            F.cross_entropy(h, labels % 4, label_smoothing=0.1),
            torch.einsum("bi,bj->bij", h, h),
            torch.tensordot(h, h.t(), 1),
            torch.chain_matmul(h, h.t(), h),
            F.cosine_similarity(h, x),
            torch.norm(h, dim=-1),
            h.norm(),
            torch.cdist(h, x),
            h @ x.t(),
        )


def losses() -> tuple[nn.Module, tuple[Any, ...]]:
    return Losses(), (torch.randn(3, 4), torch.tensor([0, 3, 5]))


def gpt2() -> tuple[nn.Module, tuple[Any, ...]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, n_positions=16, vocab_size=32, use_cache=False
    )
    ids = torch.arange(12).reshape(2, 6)
    return transformers.GPT2LMHeadModel(config), (ids,)


MODELS = [
    conv_net,
    attention,
    encoder,
    decoder,
    lstm,
    lstm_with_projection,
    gru,
    rnn,
    lstm_cell,
    bilinear,
    losses,
    gpt2,
]


@pytest.fixture
def without_onednn() -> Iterator[None]:
    """OneDNN's LSTM is another operator, which raises under autocast on CPUs without bfloat16."""
    previous = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns about Intel GPUs
    yield
    torch._C._set_mkldnn_enabled(previous)


def train(model: nn.Module, inputs: tuple[Any, ...], device_type: str, half: torch.dtype) -> Any:
    """The dtypes of the outputs and of all gradients of one step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.chain_matmul is deprecated
        with torch.autocast(device_type, dtype=half):
            outputs = pytree.tree_leaves(model(*inputs))
    tensors = [t for t in outputs if isinstance(t, torch.Tensor)]
    sum(t.float().sum() for t in tensors if t.requires_grad).backward()
    leaves = [*model.parameters(), *pytree.tree_leaves(inputs)]
    grads = [leaf.grad.dtype for leaf in leaves if getattr(leaf, "grad", None) is not None]
    return dtypes(tensors), grads, {is_fake(t) for t in tensors}


@HALVES
@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_a_training_step(build: Callable[[], Any], half: torch.dtype) -> None:
    model, inputs = build()
    fake_model, fake_inputs = fake_like(model), twins(inputs)
    *expected, _ = train(model, inputs, "cpu", half)
    assert [*train(fake_model, fake_inputs, "cpu", half)] == [*expected, {True}]


NOT_EAGERS_INFERENCE = {
    # has_torch_function() is true of a fake under autocast, which bars the layer's fused kernel:
    # that gives autocast's dtype, and the Python path ends in a float32 norm.
    "encoder"
}


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_inference(build: Callable[[], Any]) -> None:
    model, inputs = build()
    fake_model, fake_inputs = fake_like(model).eval(), twins(inputs)
    model.eval()
    with warnings.catch_warnings(), torch.no_grad(), torch.autocast("cpu"):
        warnings.simplefilter("ignore")
        is_equal = dtypes(fake_model(*fake_inputs)) == dtypes(model(*inputs))
    assert is_equal == (build.__name__ not in NOT_EAGERS_INFERENCE)


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_a_training_step_on_cuda_that_is_not_there(build: Callable[[], Any]) -> None:
    with fake_mode(fake_cuda=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a CPU build warns that it lacks cuDNN
        model, inputs = build()
        inputs = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cuda(), inputs)
        _, grads, fake = train(model.cuda(), inputs, "cuda", F16)
    assert set(grads) == {F32}
    assert fake == {True}


# Regions.


def matrices() -> tuple[torch.Tensor, torch.Tensor]:
    return fake_like(torch.randn(4, 4)), fake_like(torch.randn(4, 4)).requires_grad_()


def test_regions_inside_regions() -> None:
    x, w = matrices()
    found = [(x @ w).dtype]
    with torch.autocast("cpu"):
        found.append((x @ w).dtype)
        with torch.autocast("cpu", dtype=F16):
            found.append((x @ w).dtype)
            with torch.autocast("cpu", enabled=False):
                found.append((x @ w).dtype)
            found.append((x @ w).dtype)
        found.append((x @ w).dtype)
    assert [*found, (x @ w).dtype] == [F32, BF16, F16, F32, F16, BF16, F32]


def test_each_device_has_its_own_autocast() -> None:
    with fake_mode(fake_cuda=True):
        here, there = torch.randn(4, 4), torch.randn(4, 4, device="cuda")
        with torch.autocast("cuda"):
            assert ((here @ here).dtype, (there @ there).dtype) == (F32, F16)
            assert (here.half().exp().dtype, there.half().exp().dtype) == (F16, F32)
            with torch.autocast("cpu"):
                assert ((here @ here).dtype, (there @ there).dtype) == (BF16, F16)
                assert (there * here.sum()).dtype == F32
        with torch.autocast("cpu"):
            assert ((here @ here).dtype, (there @ there).dtype) == (BF16, F32)


def test_cuda_composites_are_autocast_inside() -> None:
    with fake_mode(fake_cuda=True), torch.autocast("cuda"):
        x = torch.randn(3, 4, device="cuda")
        labels = torch.zeros(3, device="cuda", dtype=torch.int64)
        loss = F.cross_entropy(x.half(), labels)  # not listed on cuda: log_softmax, nll_loss are
        assert (loss.dtype, x.half().std().dtype) == (F32, F16)
        assert x.half().softmax(-1, F16).dtype == F16
        assert torch.sum(x.half(), dtype=F16).dtype == F16
        assert torch.sum(x.to(torch.complex64)).dtype == torch.complex64
        assert torch.norm(x.to(torch.complex64)).dtype == F32
        assert torch.matmul(x.double(), x.double().t()).dtype == torch.float64


def test_in_place_and_out_are_left_alone() -> None:
    for build in (lambda m: m, fake_like):
        x, half = build(torch.randn(4, 4)), build(torch.randn(4, 4, dtype=F16))
        with torch.autocast("cpu"):
            assert x.addmm_(x, x).dtype == F32
            assert torch.prod(half, 0).dtype == F32
            assert torch.prod(half, 0, out=torch.empty_like(half[0])).dtype == F16


def test_a_dtype_that_cannot_be_promoted() -> None:
    half, brain = (fake_like(torch.randn(2).to(dtype)) for dtype in (F16, BF16))
    with torch.autocast("cpu"), pytest.raises(RuntimeError, match="Unexpected floating ScalarType"):
        torch.cat([half, brain])
    with torch.autocast("cpu"):
        assert torch.cat([half.float(), half, brain, half.double()]).dtype == torch.float64


def test_custom_functions() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, w)
            return x.mm(w)

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, w = ctx.saved_tensors
            seen.append((x.mm(w).dtype, grad.mm(w.t()).dtype))
            return grad.mm(w.t()), x.t().mm(grad)

    class Exact(Product):
        forward = torch.amp.custom_fwd(
            Product.forward.__wrapped__, device_type="cpu", cast_inputs=F32
        )

    seen: list[Any] = []
    for function, dtype in ((Product, BF16), (Exact, F32)):
        for build in (lambda m: m, fake_like):
            x, w = (build(torch.randn(4, 4)).requires_grad_() for _ in range(2))
            with torch.autocast("cpu"):
                result = function.apply(x, w)
            result.sum().backward()
            assert (result.dtype, x.grad.dtype, w.grad.dtype) == (dtype, F32, F32)
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_backward_recomputes_under_the_forwards_autocast(inside: bool, reentrant: bool) -> None:
    found = []
    for build in (lambda m: m, fake_like):
        x, w = (build(torch.randn(4, 4)).requires_grad_() for _ in range(2))
        seen: list[torch.dtype] = []

        def block(x: torch.Tensor, w: Any = w, seen: Any = seen) -> torch.Tensor:
            y = x @ w
            seen.append(y.dtype)
            return y.exp()

        with torch.autocast("cpu"):
            loss = checkpoint(block, x, use_reentrant=reentrant).sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        found.append((loss.dtype, x.grad.dtype, w.grad.dtype, seen))
    assert found[0] == found[1]
    assert found[1][-1] == [BF16, BF16]


@pytest.mark.usefixtures("without_onednn")
def test_in_a_mode_and_after_it() -> None:
    def program() -> Any:
        return nn.GRU(4, 4), torch.randn(3, 2, 4), torch.randn(1, 2, 4)

    def run(model: nn.Module, x: torch.Tensor, state: torch.Tensor) -> Any:
        with torch.autocast("cpu"):
            return dtypes(model(x, state))

    with fake_mode():
        made = program()
        inside = run(*made)
    assert inside == run(*made) == run(*program())


def test_real_tensors_beside_fakes() -> None:
    x, _ = matrices()
    with torch.autocast("cpu"):
        assert torch.mm(x, torch.randn(4, 4)).dtype == BF16
        assert torch.cat([torch.randn(4, 4).bfloat16(), x]).dtype == F32


def test_torch_is_as_ever_outside_a_call() -> None:
    before = torch.ones(2, 2), torch.is_autocast_enabled("ipu")
    x, w = matrices()
    with torch.autocast("cpu"):
        x @ w
        assert not torch.is_autocast_enabled("ipu")
        assert not torch._C._dispatch_tls_is_dispatch_key_included(_private.AUTOCAST_KEY.key)
        assert torch.equal(before[0].mm(before[0]), torch.full((2, 2), 2, dtype=BF16))
        with pytest.raises(RuntimeError, match="dim"):
            x @ fake_like(torch.randn(3, 3))
    assert torch.is_autocast_enabled("ipu") == before[1]
    assert torch.mm(*before[:1] * 2).dtype == F32


# The weight cache.


class Casts(TorchDispatchMode):
    """Counts casts."""

    num_casts = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_casts += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("enabled", [True, False])
def test_a_weight_is_cast_once(enabled: bool) -> None:
    num_casts = []
    for build in (lambda m: m, fake_like):
        x, w = (build(torch.randn(4, 4)).requires_grad_() for _ in range(2))
        with Casts() as count, torch.autocast("cpu", cache_enabled=enabled):
            y = x
            for _ in range(3):
                y = F.linear(y, w)
        y.sum().backward()
        assert (y.dtype, w.grad.dtype) == (BF16, F32)
        num_casts.append(count.num_casts)
    assert num_casts == [2, 2] if enabled else [4, 4]


def test_a_cast_is_not_shared_where_it_would_be_wrong() -> None:
    x, w = (fake_like(torch.randn(4, 4)).requires_grad_() for _ in range(2))
    alias = w.detach().requires_grad_()
    with torch.autocast("cpu"), Casts() as count:
        y = x.bfloat16() @ w
        y = y @ alias  # the same storage, another leaf
        with torch.no_grad():
            assert not (x @ w).requires_grad
            w.add_(1)
        y = y @ w  # the same leaf, other values
    y.sum().backward()
    assert (w.grad.dtype, alias.grad.dtype) == (F32, F32)
    assert count.num_casts == 6


def test_no_cast_outlives_the_graph() -> None:
    x, w = (fake_like(torch.randn(4, 4)).requires_grad_() for _ in range(2))
    with torch.autocast("cpu"):
        y = x @ w
    cast = [reference for reference, _ in _autocast._casts[w._fake_storage].values()]
    assert cast[0]() is not None
    del y
    gc.collect()
    assert cast[0]() is None
    storage = w._fake_storage
    assert storage in _autocast._casts
    num_weights = len(_autocast._casts)
    del w, storage
    gc.collect()
    assert len(_autocast._casts) < num_weights
