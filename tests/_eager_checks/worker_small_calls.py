"""Runs calls that could end the process, each in a child.

Input: none; run as ``python -m tests._eager_checks.worker_small_calls``. The parent runs nothing of
torch, since a child has none of its threads.

Output: the names of all calls, and of those that ended their process, as JSON.
"""

import json
import os
import warnings

import torch
from torch.nn import functional

from torchfake import fake_like, fake_mode

aten = torch.ops.aten


def fakes(*sizes):
    return [fake_like(torch.ones(size)) for size in sizes]


def lengths(*numbers):
    return torch.tensor(numbers)


def batch_norm(operator, size, num_channels, *, training):
    x, *rest = fakes(size, *[(num_channels,)] * 4)
    return operator(x, *rest, training, 0.5, 1e-5)


def batch_norm_backward(size, num_channels):
    grad, x, *rest = fakes(size, size, *[(num_channels,)] * 5)
    return aten.native_batch_norm_backward(grad, x, *rest, False, 1e-5, [True] * 3)


def updated(size, num_channels):
    x, *rest = fakes(size, *[(num_channels,)] * 4)
    return aten._batch_norm_with_update(x, *rest, 0.5, 1e-5)


def ctc_loss(num_inputs, num_targets):
    logits, inputs, targets = fake_like(torch.ones(5, 16, 20)), lengths(*[5] * num_inputs), [1]
    targets = (
        fake_like(torch.ones(16, 30, dtype=torch.int64)),
        fake_like(lengths(*[1] * num_targets)),
    )
    return aten._ctc_loss.Tensor(logits, targets[0], fake_like(inputs), targets[1])


def fused_adam(size, other):
    params, grads, averages, squares, steps = ([each] for each in fakes(size, *[other] * 3, ()))
    aten._fused_adam_(params, grads, averages, squares, [], steps, lr=1.0, beta1=0.5, beta2=0.5,
                      weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)  # fmt: skip


CALLS = {
    "legit, no channel": lambda: batch_norm(
        aten._native_batch_norm_legit, (2, 0), 1, training=True
    ),
    "legit, no row": lambda: batch_norm(aten._native_batch_norm_legit, (0, 1), 0, training=False),
    "native, no channel": lambda: batch_norm(aten.native_batch_norm, (2, 0), 1, training=True),
    "native, few statistics": lambda: batch_norm(aten.native_batch_norm, (2, 99), 1, training=True),
    "with update": lambda: updated((2, 0), 1),
    "with update, few statistics": lambda: updated((2, 50_000, 3), 1),
    "backward of no channel": lambda: batch_norm_backward((0, 1), 0),
    "ctc_loss, one length": lambda: ctc_loss(1, 16),
    "ctc_loss, one target": lambda: ctc_loss(16, 1),
    "ctc_loss, one of each": lambda: ctc_loss(1, 1),
    "pdist of no row": lambda: torch.pdist(*fakes((0, 5))),
    "pdist of no column": lambda: torch.pdist(*fakes((5, 0))),
    "pooled rows": lambda: functional.adaptive_avg_pool1d(*fakes((2, 0, 3)), 2),
    "pooled maps": lambda: functional.adaptive_avg_pool2d(*fakes((2, 3, 0, 4)), 2),
    "pooled to nothing": lambda: functional.adaptive_avg_pool2d(*fakes((2, 3, 4, 4)), 0),
    "pooled volumes": lambda: functional.adaptive_avg_pool3d(*fakes((2, 3, 4, 4, 0)), 2),
    "area": lambda: functional.interpolate(*fakes((2, 0, 4, 4)), (3, 3), mode="area"),
    "area of nothing": lambda: functional.interpolate(*fakes((2, 3, 0, 4)), (3, 3), mode="area"),
    "group norm of another size": lambda: aten.native_group_norm(
        *fakes((2, 4, 3), (4,), (4,)), 9, 4, 99_999, 2, 1e-5
    ),
    "group norm of no group": lambda: aten.native_group_norm(
        *fakes((2, 4, 3), (4,), (4,)), 2, 4, 3, 0, 1e-5
    ),
    "layer norm of few weights": lambda: aten.native_layer_norm(
        *fakes((2, 50_000), (1,), (1,)), [50_000], 1e-5
    ),
    "Adam of few gradients": lambda: fused_adam((90_000,), (1,)),
    "Adam of no gradients": lambda: fused_adam((90_000,), (0,)),
}  # fmt: skip


def ends_its_process(call):
    child = os.fork()
    if not child:
        try:
            with fake_mode():
                call()
        except Exception:
            os._exit(1)  # refused
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(json.dumps([[*CALLS], [name for name in CALLS if ends_its_process(CALLS[name])]]))
