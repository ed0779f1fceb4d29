"""What a rank of a server holds, caches and sends is what four real processes count, on gloo."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.serving.layouts import SERVED, activations_on_cpu, work_of
from tests.distributed.serving.worker_served import LENGTH, ROWS
from tests.ranks import Launch, finished, once_per_session, run_launches

Counted = Callable[[str], list[dict[str, Any]]]

served = pytest.mark.parametrize("name", SERVED)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """What the ranks have counted of a family in a layout."""

    def count(folder: Path) -> None:
        folder.mkdir()
        args = str(folder), *SERVED
        run_launches([Launch("tests.distributed.serving.worker_served", 4, args)], folder)

    folder = once_per_session(tmp_path_factory, "served", count)
    finished(folder, 0).printed()
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]
    return lambda name: [each[name] for each in found]


@served
def test_every_rank_holds_the_weights_that_were_counted(name: str, counted: Counted) -> None:
    weights = work_of(name).weights
    for rank in counted(name):
        assert sum(w.num_bytes for w in weights if w.is_parameter) == rank["parameters"]
        assert sum(w.num_bytes for w in weights if not w.is_parameter) == rank["buffers"]


@served
def test_every_rank_caches_the_bytes_that_were_counted(name: str, counted: Counted) -> None:
    """Also of latent attention: since transformers 5.20 its cache, too, has the latent."""
    pages = [layer.pages[0] for layer in work_of(name).layers]
    for rank in counted(name):
        assert [page.token_bytes for page in pages] == rank["token cached"]
        whole = [page.state_bytes + LENGTH * page.token_bytes for page in pages]
        assert whole == rank["cached"]


@served
def test_the_peak_of_a_pass_over_prompts_was_counted(name: str, counted: Counted) -> None:
    """Of experts that get equally many tokens."""
    for rank in counted(name):
        assert activations_on_cpu(name) == rank["activations"]


@served
def test_the_ranks_send_the_messages_that_were_counted(name: str, counted: Counted) -> None:
    """All of them together: routers do not send equally many tokens to each rank."""
    expected, found = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for rank in counted(name):
        for collective, (calls, num_bytes) in rank["messages"].items():
            expected += Counter({(collective, "calls"): calls, (collective, "bytes"): num_bytes})
    for sent in (sent for part in work_of(name).parts for sent in part.sent):
        found[sent.collective, "calls"] += 4
        found[sent.collective, "bytes"] += round(4 * sent.token_bytes * ROWS * LENGTH)
    assert found == expected


@served
def test_a_layout_computes_what_the_model_does(name: str, counted: Counted) -> None:
    """With repeated heads, too."""
    assert all(rank["error"] < 1e-5 for rank in counted(name))
