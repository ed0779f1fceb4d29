"""Queries of the autograd engine: live graphs, and the sequence numbers of graph nodes.

Input: a leaf tensor, or nothing (the state of the running thread). Output: whether a live graph
holds the leaf; numbers of graph nodes. Invariant: no tensor and no graph is changed. Called by:
``_materialize/checks`` and ``_materialize/dematerialize`` (live graphs), and
``inspect/run/module_tracker`` (numbers).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad


def is_in_live_graph(leaf: torch.Tensor) -> bool:
    """Whether a graph that is alive would accumulate a gradient into `leaf`.

    A live graph that contains the leaf holds its AccumulateGrad node, which holds the leaf. If
    there is none, using the leaf creates the node, and the use count of the leaf goes up.
    """
    if not leaf.requires_grad or leaf.is_inference() or leaf._is_view():
        return False  # a leaf that is a view was made under no_grad, and is in no graph
    holder: Any = leaf
    # Without dispatch to the subclass, which would test for DTensor and import it (0.5 s).
    no_dispatch: Any = torch._C._DisableTorchDispatch()
    with no_dispatch, torch.inference_mode(False), torch.enable_grad():
        num_uses = holder._use_count()
        view: Any = leaf.view_as(leaf)
        node = view.grad_fn.next_functions[0][0]  # holds the leaf: counted if just created
        del view
        return bool(node is not None and holder._use_count() == num_uses)


def needs_gradient(tensor: torch.Tensor) -> bool:
    """Whether operators on `tensor` are differentiated, backward or forward: what C++ asks with
    ``_may_require_fw_or_bw_grad``.
    """
    is_in_dual_level = torch.autograd.forward_ad._current_level >= 0
    return is_in_dual_level or (torch.is_grad_enabled() and tensor.requires_grad)


def next_sequence_number() -> int:
    """The sequence number of the graph node that this thread will create next."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number


FIRST_LEAF_NUMBER = 1 << 63
"""AccumulateGrad nodes of leaves have sequence numbers from here on, other nodes smaller ones."""


def running_sequence_number() -> int | None:
    """The sequence number of the node that a backward pass is running on this thread, if any."""
    node: Any = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())
