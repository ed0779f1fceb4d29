"""What people write in place of ``with fake_mode():``, and what to write.

Input: nothing. Output: advice on arguments and attributes of modes, and their metaclass. Invariant:
nothing is imported but the errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from torchfake.errors import CallError

_CUDA = 'write fake_cuda=True for one fake CUDA device, fake_cuda=8, or fake_cuda="h100-80gb"'
_DEVICE = (
    "tensors are created on the devices that the program names. To fake a GPU: "
    'with fake_mode(fake_cuda=True), torch.device("cuda"): ...'
)

POSITIONAL = "its arguments are given by name, such as {name}(fake_cuda=True)"
FUNCTION = "write `with {name}(): ...`, or with parentheses as a decorator, @{name}()"
KEYWORDS = {
    **dict.fromkeys(("device", "default_device"), _DEVICE),
    **dict.fromkeys(("cuda", "gpu", "num_gpus"), _CUDA),
    **dict.fromkeys(
        ("allow_non_fake_inputs", "allow_fallback_kernels", "allow_meta"),
        "leave it out; real and fake tensors can be mixed",
    ),
    **dict.fromkeys(
        ("shape_env", "static_shapes"),
        "shapes are numbers here; torchfake.fx.export has symbolic ones",
    ),
    "dtype": "call torch.set_default_dtype(...), or module.to(...) on the result",
    "seed": "call torch.manual_seed(...)",
}
"""By keyword arguments of torch's FakeTensorMode and others, what to write."""

_ATTRIBUTES = {
    "from_tensor": "fake_like(x)",
    "fake_tensor_converter": "fake_like(x)",
    "shape_env": "fx.export(...) for symbolic shapes",
}


def missing_attribute(mode: Any, name: str) -> AttributeError:
    """The error of a mode that lacks an attribute, which torch's FakeTensorMode may have."""
    write = _ATTRIBUTES.get(name)
    told = f"; write torchfake.{write}" if write else ""
    return AttributeError(f"{type(mode).__name__} has no attribute {name!r}{told}")


class WithParentheses(type):
    """The class of modes: ``with fake_mode:`` is answered with ``with fake_mode():``."""

    if not TYPE_CHECKING:  # a type checker has to see that a class is no context manager

        def __enter__(cls) -> NoReturn:
            raise CallError(f"{cls.__name__} is a class: write `with {cls.__name__}():`")

        def __exit__(cls, *exc_info: Any) -> None:
            """Never called, but looked for before ``__enter__`` is."""
