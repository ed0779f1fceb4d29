"""Settings strings: what torch's parser accepts is accepted, and what it refuses is refused."""

from __future__ import annotations

import pytest
import torch

from torchfake.errors import InputsError
from torchfake.inspect.allocator.settings import MIB, AllocatorSettings, parse_settings

ACCEPTED = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    " max_split_size_mb : 64 , expandable_segments : False ",
    "max_split_size_mb:64,",
    "large_segment_size_mb:20",
    "max_non_split_rounding_mb:20",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[4:0,>:8]",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],expandable_segments:True",
    "pinned_use_background_threads:True",
    "backend:native",
)
REFUSED = (
    "max_split_size_mb:19",
    "max_split_size_mb:x",
    "max_split_size_mb",
    "a",
    "large_segment_size_mb:10",
    "max_non_split_rounding_mb:5",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:1",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[3:1]",
    "roundup_power2_divisions:[4:3]",
    "roundup_power2_divisions:[4:2",
    "expandable_segments:true",
)
ONLY_HERE = {  # torch takes these where it cannot tell, or for another device
    "nonsense:3": "there is no option 'nonsense'; there are backend, expandable_segments",
    "max_split_size_mb:64,,expandable_segments:True": "an empty option between two commas",
    "backend:cudaMallocAsync": "only backend:native is modelled",
    "per_process_memory_fraction:1.5": "per_process_memory_fraction:1.5 is not a number from 0",
    "max_split_size_mb:64MB": "max_split_size_mb:64MB is not a whole number",
}


@pytest.fixture
def torch_parser():
    """Torch's parser of the options that all devices share, since torch 2.9."""
    parser = getattr(torch._C, "_accelerator_setAllocatorSettings", lambda text: None)
    yield parser
    parser("")


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_torch_accepts_is_accepted(text: str, torch_parser) -> None:
    torch_parser(text)
    assert parse_settings(text).text == text


@pytest.mark.parametrize("text", REFUSED)
def test_what_torch_refuses_is_refused_with_the_name_of_the_option(text: str, torch_parser) -> None:
    if torch_parser.__name__ != "<lambda>":
        with pytest.raises((ValueError, RuntimeError)):
            torch_parser(text)
    with pytest.raises(InputsError, match=text.partition(":")[0]):
        parse_settings(text)


@pytest.mark.parametrize("text", ONLY_HERE)
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(InputsError, match=ONLY_HERE[text]):
        parse_settings(text)


def test_what_is_no_string_is_refused() -> None:
    with pytest.raises(InputsError, match=r"allocator=\{'a': 1\} is not a string of options"):
        parse_settings({"a": 1})  # type: ignore[arg-type]


def test_values_in_bytes() -> None:
    found = parse_settings("max_split_size_mb:64,large_segment_size_mb:40,backend:native")
    assert found.max_split_bytes == 64 * MIB
    assert found.large_segment_bytes == 40 * MIB
    assert parse_settings("") == AllocatorSettings()


def test_divisions_by_size() -> None:
    found = parse_settings("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    sizes = (1, 255, 256, 511, 512, 1024, 2048, 1 << 17)
    assert [found.divisions(n * MIB) for n in sizes] == [1, 1, 1, 1, 2, 4, 8, 8]
    assert found.divisions(1) == 1
