"""Which blocks are checkpointed, and how."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import

from tests.distributed.parallelize import laid_out_models as models  # noqa: E402
from torchfake import fake_mode  # noqa: E402
from torchfake.distributed import Strategy, plan_target  # noqa: E402
from torchfake.distributed.parallelize.checkpoints import (  # noqa: E402
    CHECKPOINTS,
    counts_of,
    kinds_of,
    text_of,
)
from torchfake.errors import InputsError  # noqa: E402


@given(st.lists(st.sampled_from(CHECKPOINTS), min_size=1, max_size=12))
def test_text_names_the_kinds(kinds: list[str]) -> None:
    text = text_of(kinds)
    assert kinds_of(text, len(kinds)) == kinds
    counts = counts_of(text)
    if counts is not None:
        assert counts == {kind: kinds.count(kind) for kind in counts}


def test_a_number_is_of_the_first_blocks() -> None:
    assert kinds_of(2, 4) == kinds_of("2", 4) == kinds_of("full:0-1", 4)
    assert kinds_of(0, 4) == ["none"] * 4
    assert kinds_of(4, 4) == ["full"] * 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("slective", "did you mean selective?"),
        ("slective:0-3", "did you mean selective?"),
        ("full:", "give none, selective, full, how many of the blocks"),
        ("full:3-1", "'full:3-1' has 3-1: give 1-3"),
        ("full:0-3,selective:2", "names block 2 twice"),
        (-1, "checkpoint=-1 is not understood: give none, selective, full"),
        (True, "checkpoint=True is not understood"),
    ],
)
def test_bad_input(given: object, message: str) -> None:
    with pytest.raises(InputsError) as raised:
        Strategy({"dp": 2}, given)  # type: ignore[arg-type]
    assert message in str(raised.value)


def test_blocks_that_are_not_there() -> None:
    with fake_mode(), pytest.raises(InputsError, match=r"names block 3, and the model has 3 bloc"):
        Strategy({"dp": 2}, 4).code(models.llama())


def test_the_code_of_some_blocks() -> None:
    def code(checkpoint: str | int) -> str:
        with fake_mode():
            return Strategy({"dp": 2}, checkpoint, "fp32").code(models.llama(num_hidden_layers=6))

    mixed = code("full:0-2,selective:3+5")
    wrapped = "model.model.layers[i] = checkpoint_wrapper(model.model.layers[i]"
    assert f"    for i in range(3):\n        {wrapped})\n" in mixed
    assert f"    for i in (3, 5):\n        {wrapped}, context_fn=contexts)\n" in mixed
    assert "checkpoint_wrapper" not in code(0)
    assert code(6) == code("full")


def test_what_is_kept_is_said() -> None:
    sizes = ("hidden_size=32", "num_attention_heads=4", "intermediate_size=64", "vocab_size=64")
    found = plan_target(
        "transformers:LlamaForCausalLM",
        gpus=2,
        checkpoint="full:0-1,selective:2",
        seq=16,
        overrides=(*sizes, "num_key_value_heads=4", "num_hidden_layers=4"),
    )
    line = next(line for line in str(found).splitlines() if line.startswith("checkpoint"))
    assert line.split(maxsplit=1)[1] == (
        "full:0-1,selective:2: of 2 blocks, only the inputs; of 1 block, attention and every "
        "second matrix product; of the others, all activations"
    )
