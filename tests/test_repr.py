"""How fakes print, to the letter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from expecttest import assert_expected_inline as expect
from torch import nn

from torchfake import fake_like, fake_mode

_REPR_BEFORE = torch.Tensor.__repr__
