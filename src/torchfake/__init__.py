"""Fake tensors for PyTorch: the public names, nothing else."""

from torchfake import _composites as _composites  # registers its kernels
from torchfake import errors as errors
from torchfake._cuda import CudaProfile as CudaProfile
from torchfake._cuda import profiles as profiles
from torchfake._tensor import FakeTensor as FakeTensor
from torchfake.fake import fake_like as fake_like
from torchfake.fake import fake_mode as fake_mode
from torchfake.fake import is_fake as is_fake
from torchfake.fake import meta_like as meta_like

__version__ = "0.1.0"

__all__ = [
    "CudaProfile",
    "FakeTensor",
    "errors",
    "fake_like",
    "fake_mode",
    "is_fake",
    "meta_like",
    "profiles",
]
