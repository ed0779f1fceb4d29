"""Fake tensors for PyTorch: the public names, nothing else."""

from torchfake import _composites as _composites  # registers its kernels
from torchfake import errors as errors
from torchfake._cuda import CudaProfile as CudaProfile
from torchfake._cuda import profiles as profiles
from torchfake._graph_text import graph as graph
from torchfake._meta_init import clear_meta_init_cache as clear_meta_init_cache
from torchfake._meta_init import is_meta_init as is_meta_init
from torchfake._meta_init import materialize as materialize
from torchfake._meta_init import meta_init as meta_init
from torchfake._tensor import FakeTensor as FakeTensor
from torchfake.checkpoint import save_materialized as save_materialized
from torchfake.compat import install_as_torchdistx as install_as_torchdistx
from torchfake.deferred import deferred_init as deferred_init
from torchfake.deferred import deferred_mode as deferred_mode
from torchfake.deferred import dematerialize_module as dematerialize_module
from torchfake.deferred import is_deferred as is_deferred
from torchfake.deferred import materialize_module as materialize_module
from torchfake.deferred import materialize_tensor as materialize_tensor
from torchfake.distributed import plan as plan
from torchfake.fake import fake_like as fake_like
from torchfake.fake import fake_mode as fake_mode
from torchfake.fake import is_fake as is_fake
from torchfake.fake import meta_like as meta_like
from torchfake.inspect import check as check
from torchfake.inspect import diff as diff
from torchfake.inspect import estimate as estimate
from torchfake.inspect import example_inputs as example_inputs
from torchfake.inspect import fit as fit
from torchfake.inspect import read_profiles as read_profiles
from torchfake.inspect import report as report
from torchfake.inspect import summary as summary

__version__ = "0.1.0"

__all__ = [
    "CudaProfile",
    "FakeTensor",
    "check",
    "clear_meta_init_cache",
    "deferred_init",
    "deferred_mode",
    "dematerialize_module",
    "diff",
    "errors",
    "estimate",
    "example_inputs",
    "fake_like",
    "fake_mode",
    "fit",
    "graph",
    "install_as_torchdistx",
    "is_deferred",
    "is_fake",
    "is_meta_init",
    "materialize",
    "materialize_module",
    "materialize_tensor",
    "meta_init",
    "meta_like",
    "plan",
    "profiles",
    "read_profiles",
    "report",
    "save_materialized",
    "summary",
]
