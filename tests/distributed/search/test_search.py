"""A search names what plans say of each layout; few layers say what all do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from torchfake import profiles, report
from torchfake.distributed import Search, plan_target, search_layouts
from torchfake.distributed.search import trials
from torchfake.distributed.search.candidates import Candidate, candidates, splits, variants
from torchfake.distributed.search.extrapolation import DEPTHS, Taken, taken
from torchfake.distributed.search.measurements import Measured, measured
from torchfake.errors import InputsError
from torchfake.inspect.arithmetic.uncounted import Uncounted
from torchfake.inspect.records.record import shown
from torchfake.inspect.show.layout import laid_out

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import; FSDP2's, of views

TARGET = "transformers:LlamaForCausalLM"
DEEP = (
    "hidden_size=64", "num_hidden_layers=9", "num_attention_heads=4", "num_key_value_heads=2",
    "intermediate_size=128", "vocab_size=100",
)  # fmt: skip
GPU = profiles()["h100-80gb"]


def test_candidates_divide_gpus_and_batch() -> None:
    found = list(candidates(12, 24, ["none"]))
    assert found == [
        Candidate(12, 1, "none", 1),
        Candidate(12, 1, "none", 2),
        Candidate(6, 2, "none", 1),
        Candidate(6, 2, "none", 2),
        Candidate(6, 2, "none", 4),
        Candidate(3, 4, "none", 1),
        Candidate(3, 4, "none", 2),
        Candidate(3, 4, "none", 4),
        Candidate(3, 4, "none", 8),
    ]
    assert [c.mesh_text for c in found[1:3]] == ["dp=12", "dp=6,tp=2"]
    assert [c.mesh for c in candidates(4, 3, ["none"])] == [{"tp": 4}]
    assert {c.num_gpus for c in candidates(64, 512, ["none", "full"])} == {64}
    assert not [c for c in candidates(2, 4, ["none"], offload=True) if c.data_ranks == 1]


def test_variants_send_less() -> None:
    found = [(v.mesh_text, v.zero) for v in variants(Candidate(32, 2, "full", 1))]
    assert found == [
        ("dp=32,tp=2", 2),
        ("replicate=8,dp=4,tp=2", 3),
        ("replicate=8,dp=4,tp=2", 2),
    ]
    assert [v.zero for v in variants(Candidate(8, 1, "full", 1))] == [2]
    assert not list(variants(Candidate(8, 1, "full", 1, zero=2)))
    assert not list(variants(Candidate(8, 1, "full", 1, offload=True)))


def test_splits_have_more_split() -> None:
    (split,) = splits(Candidate(4, 2, "full", 1), 4)
    assert split.is_sequence_parallel
    assert split.mesh == {"dp": 4, "tp": 2}
    assert [c.mesh_text for c in splits(Candidate(8, 1, "full", 1), 12)] == [
        "dp=4,ep=2",
        "dp=2,ep=4",
    ]
    assert not list(splits(Candidate(8, 1, "full", 1), 0))
    found = list(candidates(4, 4, ["full"], is_sequence_parallel=True))
    assert {c.tensor_ranks for c in found} == {2, 4}
    assert all(c.is_sequence_parallel for c in found)


MIXTURE = (*DEEP, "num_local_experts=4")
WHERE = [
    (target, mesh, checkpoint)
    for target, mesh in [
        ("transformers:LlamaForCausalLM", "dp=4"),
        ("transformers:LlamaForCausalLM", "dp=2,tp=2"),
        ("transformers:MixtralForCausalLM", "dp=4"),
        ("transformers:GPT2LMHeadModel", "dp=4"),
    ]
    for checkpoint in ("none", "full")
]


@pytest.mark.parametrize(("target", "mesh", "checkpoint"), WHERE)
def test_few_layers_say_what_all_do(target: str, mesh: str, checkpoint: str) -> None:
    shape = {
        "transformers:MixtralForCausalLM": MIXTURE,
        "transformers:GPT2LMHeadModel": ("n_embd=64", "n_head=4", "vocab_size=100"),
    }.get(target, DEEP)

    def run(layers: int) -> Measured:
        overrides = (*shape, f"num_hidden_layers={layers}")
        options = {"mesh": mesh, "checkpoint": checkpoint, "batch": 8, "seq": 512}
        planned = plan_target(target, gpu=GPU, overrides=overrides, answer="typical", **options)
        return measured(planned)

    whole, few = run(9), list(map(run, DEPTHS))
    for number in (3, 2):  # two are enough for a mesh on which three were in proportion
        found = taken(few[:number], DEPTHS[:number], 9)
        assert found is not None
        assert found.is_extrapolated
        assert found.peak_bytes == whole.peak_bytes
        assert found.step_seconds == pytest.approx(whole.step_seconds, rel=0.01)
        least, most = found.reserved_range
        assert least <= whole.reserved_bytes <= most


def test_what_does_not_grow_in_proportion_is_not_extrapolated() -> None:
    def grown(peaks: list[int]) -> Taken | None:
        return taken([Measured(peak, peak, None) for peak in peaks], DEPTHS, 9)

    assert grown([8, 16, 32]) is None
    assert grown([8, 16, 24]) == Taken(56, 56, None, True)


@pytest.fixture(scope="module")
def found() -> Search:
    small = GPU._replace(total_memory=(1 << 30) + (80 << 20))
    options = {"overrides": DEEP, "checkpoints": ("none", "full"), "seq": 512}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "variants", lambda candidate: ())
        patch.setattr(
            trials, "splits", lambda candidate, num_experts: ()
        )  # they take as long as the rest
        return search_layouts(TARGET, gpus=2, batch=2, gpu=small, **options)


def test_the_answers_were_run_whole(found: Search) -> None:
    assert found.fits
    assert found.fastest is not None
    assert found.fastest.fits
    row = next(
        row
        for row in found.rows
        if row.candidate.mesh == dict(found.fastest.strategy.mesh)
        and row.candidate.checkpoint == found.fastest.strategy.checkpoint
        and row.candidate.micro_batch == found.fastest.batch.micro
        and row.candidate.zero == found.fastest.strategy.zero
    )
    assert row.taken is not None
    assert not row.taken.is_extrapolated
    assert row.taken.step_seconds == found.fastest.step_seconds
    faster = [r for r in found.rows if r.taken and r.taken.step_seconds < row.taken.step_seconds]
    assert not any(r.fits for r in faster if r.candidate.num_gpus == 2)
    assert found.cheapest is not None


def test_the_layout_on_the_fewest_gpus_has_no_time(found: Search) -> None:
    """On fewer GPUs only layouts of least memory are tried, which others may outrun there."""
    assert "\nfewest" not in str(replace(found, cheapest=found.fastest))
    (line,) = (line for line in str(found).splitlines() if line.startswith("fewest "))
    reserved = "44.0 MB" if torch.__version__ >= "2.15" else "77.6 MB"  # of workspaces
    assert " ".join(line.split()) == (
        f"fewest 1 GPU: dp 1, checkpoint full, micro-batch 1; {reserved} reserved of "
        "83.9 MB (tight); for the fastest layout there, the same search with --gpus 1"
    )


def test_where_the_fastest_layout_is_tight_one_with_room_is_named(found: Search) -> None:
    assert found.cheapest is not None
    assert found.cheapest.verdict == "tight"
    row = found.rows[0]._replace(fits=True, is_near=False, is_tight=False)
    tight = replace(found, fastest=found.cheapest, rows=(row,))
    (line,) = (line for line in str(tight).splitlines() if line.startswith("with room"))
    assert f" {row.candidate.mesh_text}, checkpoint {row.candidate.checkpoint}, " in line
    assert line.endswith(" reserved")
    full = replace(tight, rows=(row._replace(is_tight=True),))
    assert "with room" not in str(full)


def test_options_of_a_layout_stand_in_the_table_if_any_layout_has_one(found: Search) -> None:
    (row, *_) = found.rows
    split = row.candidate._replace(zero=2, is_sequence_parallel=True, offload=True)
    lines = str(replace(found, rows=(row._replace(candidate=split),))).splitlines()
    assert any("options" in line.split() for line in lines)
    assert any("  ZeRO-2, sequence parallel, CPU offload  " in line for line in lines)
    plain = str(replace(found, rows=(row,)))
    assert not any("options" in line.split() for line in plain.splitlines())


@pytest.mark.parametrize("width", [46, 80])
def test_the_table_fits_a_phone_and_a_terminal(found: Search, width: int) -> None:
    mixed = Candidate(16, 4, "full:0-58,selective:59-79", 1, zero=2, is_sequence_parallel=True)
    row = next(row for row in found.rows if row.taken is not None)
    _, layouts, *_ = shown(replace(found, num_gpus=64, rows=(row._replace(candidate=mixed),)))
    lines = ["".join(text for text, _ in line) for line in laid_out([layouts], width)]
    assert max(map(len, lines)) <= width
    whole = " ".join(" ".join(lines).split())
    for text in ("dp=16,tp=4", "full:0-58,selective:59-79", "ZeRO-2, sequence parallel", "fits"):
        assert text in whole


def test_operators_whose_flops_are_not_known_are_named(
    found: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found.fastest is not None
    assert "no FLOPs known" not in str(found)
    row = Uncounted("aten.x", 3, 12_000_000)
    monkeypatch.setitem(vars(found.fastest.plan), "uncounted", (row,))
    assert "not counted  no FLOPs known for: aten.x (3 calls, 12.0 MB)" in str(found)
    assert "no FLOPs known for: aten.x (3 calls, 12.0 MB)" in str(found.fastest)


def test_no_layout_of_the_table_is_beaten_by_another(found: Search) -> None:
    taken = [row.taken for row in found.pareto if row.taken is not None]
    assert taken
    seconds = [row.step_seconds or 0.0 for row in taken]
    sizes = [row.reserved_bytes for row in taken]
    assert seconds == sorted(seconds)
    assert sizes == sorted(sizes, reverse=True)
    said = json.loads(json.dumps(found.to_dict()))
    assert len(said["rows"]) == len(found.rows)
    assert said["fastest"]["code"] not in str(found) + "\n"


def test_a_page_has_the_layouts_then_the_best_of_them(found: Search, tmp_path: Path) -> None:
    page = report(found, tmp_path / "search.html").read_text()
    assert "<title>LlamaForCausalLM</title>" in page
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings[:2] == ["Layouts", "Ranks"]
    assert headings[-1] == "Code of this layout"
    layouts, *_ = page.split("<h2>")[1].split("</table>")
    assert layouts.count('<tr><th scope="row">') == len(found.pareto)


def test_what_is_near_is_said_and_run_whole(found: Search) -> None:
    for row in found.rows:
        if row.taken is None:
            continue
        least, most = row.taken.reserved_range
        assert row.taken.peak_bytes <= least <= row.taken.reserved_bytes <= most
        assert (least == most) == (not row.taken.is_extrapolated)
        assert row.is_near == (least <= found.usable_bytes < most)
        assert (row.verdict == "perhaps") == row.is_near
        assert row.to_dict()["verdict"] == row.verdict
    is_near = any(row.is_near for row in found.pareto)
    assert ("perhaps: so near that only" in str(found)) == is_near


def test_a_layout_that_is_near_is_tried_first() -> None:
    tried = trials.Trials.__new__(trials.Trials)
    tried.usable_bytes, tried._told, tried._plans, tried.whole = 100, {}, {}, {}
    ran = []

    def run_whole(candidate: Candidate) -> None:
        ran.append(candidate.micro_batch)
        tried.whole[candidate] = trials.Row(candidate, None, candidate.micro_batch == 2)
        tried._plans[candidate] = candidate  # type: ignore[assignment]

    tried._run_whole = run_whole  # type: ignore[method-assign]
    rows = [
        tried._told_row(Candidate(1, 1, "full", n), Taken(peak, reserved, 1.0, True))
        for n, peak, reserved in ((8, 101, 105), (4, 90, 105), (2, 80, 90), (1, 10, 20))
    ]
    assert [row.verdict for row in rows] == ["no", "perhaps", "perhaps", "yes"]
    assert tried.first_that_fits(rows) == rows[2].candidate  # type: ignore[comparison-overlap]
    assert ran == [4, 2]


def test_nothing_fits() -> None:
    tiny = GPU._replace(total_memory=(1 << 30) + 4_000_000)
    options = {"overrides": DEEP, "checkpoints": ("full",), "seq": 64}
    found = search_layouts(TARGET, gpus=2, batch=2, gpu=tiny, **options)
    assert not found.fits
    assert {row.candidate.offload for row in found.rows} == {False, True}
    first = str(found).splitlines()[0]
    assert first.startswith(f"fastest  none of {len(found.rows)} layouts fits; the smallest ")
    assert first.endswith("; training with adamw in mixed precision, global batch 2, seq 64")


def test_bad_input() -> None:
    search = partial(search_layouts, TARGET, overrides=DEEP)
    with pytest.raises(InputsError, match="a batch of 3 does not divide among 16 GPUs"):
        search(gpus=16, batch=3)
    with pytest.raises(InputsError, match=r"no layout can be run; the first: .*precision"):
        search(gpus=2, batch=2, precision="fp4", zero=None)
