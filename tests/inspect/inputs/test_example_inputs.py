"""Inputs made for models of transformers: the models run on them, as fakes and real."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.conftest import all_fake, generators_stand_still
from tests.inspect.inputs.conftest import REAL, SEQ, built, real_model, run
from torchfake import deferred_init, fake_like, fake_mode, is_deferred, is_fake
from torchfake.errors import DeviceError, InputsError
from torchfake.inspect.inputs.example_inputs import example_inputs

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


transformers = pytest.importorskip("transformers")


TEXT = (
    "bart bert bloom bros canine deberta-v2 electra gemma2 gpt2 gpt_neox llama mamba mixtral "
    "modernbert opt phi3 qwen3_moe roberta t5 xlnet xmod"
)


VISION = "beit convnext dinov2 segformer timesformer vit vitdet yolos"


SPEECH = "audio-spectrogram-transformer encodec omniasr_ctc speech_to_text wav2vec2 wav2vec2-bert whisper"


TOGETHER = "clip llava lxmert qwen2_5_vl qwen2_5_vl_vision siglip2 xclip"


OTHERS = "decision_transformer idefics2 patchtst perceiver timesfm"


ARCHITECTURES = " ".join((TEXT, VISION, SPEECH, TOGETHER, OTHERS)).split()


BATCH = 3


def tensors(output: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(dict(output))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_run(name: str) -> None:
    """At their defaults, as AutoModel makes them; the batch comes out as it went in."""
    model = built(name).eval()
    with generators_stand_still():
        inputs = example_inputs(model, batch=BATCH, seq=SEQ)
    assert all_fake(dict(inputs))
    output = run(model, inputs)
    assert all_fake(dict(output))
    batches = {tensor.shape[0] for tensor in tensors(output) if tensor.dim() > 1}
    if "grid_thw" in inputs:  # patches of all images in a row
        assert all(size % BATCH == 0 for size in batches)
    else:
        assert BATCH in batches


def test_about_fifty_architectures() -> None:
    assert len(set(ARCHITECTURES)) == len(ARCHITECTURES) >= 40


def real_input(value: Any) -> Any:
    """The values that a fake has; small numbers where it has none."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype.is_floating_point:
        return torch.rand(value.shape, dtype=value.dtype)
    return torch.tensor(value.tolist(), dtype=value.dtype)


@pytest.mark.parametrize("name", REAL)
def test_eager_runs_on_the_same(name: str) -> None:
    """With labels: eager takes inputs of these shapes and values, and gives what the fake gave."""
    model = real_model(name)
    inputs = example_inputs(model, batch=2, labels=True)
    expected = model(**{key: real_input(value) for key, value in inputs.items()})
    output = run(fake_like(model), inputs)
    described = [
        [(key, [(t.shape, t.dtype) for t in pytree.tree_leaves(value) if torch.is_tensor(t)])
         for key, value in result.items()]
        for result in (output, expected)
    ]  # fmt: skip
    assert described[0] == described[1]
    assert output.loss.shape == ()
    assert expected.loss.isfinite()


def test_a_real_model_runs_on_fakes_and_stays_as_it_is() -> None:
    model = real_model("BertForMaskedLM")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert is_fake(model(**example_inputs(model, labels=True)).loss)
    assert not is_fake(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_deferred_model_stays_deferred() -> None:
    model = deferred_init(real_model, "LlamaForCausalLM")
    inputs = example_inputs(model, labels=True)
    assert is_deferred(model)
    assert not any(is_deferred(value) for value in inputs.values())
    assert run(model, inputs).loss.shape == ()


def test_resized() -> None:
    model = real_model("T5ForConditionalGeneration")
    inputs = example_inputs(model, batch=2, labels=True)
    assert (inputs.batch, inputs.seq) == (2, 128)
    larger = inputs.resized(batch=5)
    assert (larger.batch, larger.seq) == (5, 128)
    shorter = larger.resized(seq=7)
    assert (shorter.batch, shorter.seq) == (5, 7)
    assert {tuple(value.shape) for value in shorter.values()} == {(5, 7)}
    assert set(shorter) == {*inputs} == {
        "input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "labels",
    }  # fmt: skip
    assert {tuple(value.shape) for value in inputs.values()} == {(2, 128)}


@pytest.mark.parametrize(
    ("device", "on"), [("cuda:1", "cuda:1"), (torch.device("cuda"), "cuda:0"), ("cpu", "cpu")]
)
def test_on_a_device_that_is_not_there(device: Any, on: str) -> None:
    """The model's, or the one that is named."""
    real = real_model("LlamaForCausalLM")
    fake = fake_like(real, device=device)
    for inputs in (example_inputs(fake), example_inputs(real, device=device)):
        assert {str(value.device) for value in inputs.values()} == {on}
        assert {str(value.device) for value in inputs.resized(batch=2).values()} == {on}
    with fake_mode(fake_cuda=2):
        assert str(fake(**inputs).logits.device) == on


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"seq": -1}, {"batch": 1.5}, {"seq": True}])
def test_sizes_are_whole_numbers(sizes: dict[str, Any]) -> None:
    with pytest.raises(InputsError, match="whole number of 1 or more"):
        example_inputs(real_model("GPT2LMHeadModel"), **sizes)


def test_what_is_not_of_transformers() -> None:
    with pytest.raises(InputsError, match="not for a Linear: make them yourself"):
        example_inputs(torch.nn.Linear(3, 4))
    with pytest.raises(InputsError, match="not for the class Linear: create an inst"):
        example_inputs(torch.nn.Linear)


def test_what_nothing_can_be_made_up_for() -> None:
    with fake_mode():
        model = transformers.Kosmos2Model(transformers.Kosmos2Config())
    with pytest.raises(InputsError, match=r"seq must be 65 or more, and is 16"):
        example_inputs(model, seq=16)
    assert run(model.eval(), example_inputs(model)).last_hidden_state.shape[1] == 128
    with fake_mode():
        session = transformers.Sam2VideoModel(transformers.Sam2VideoConfig())
    with pytest.raises(InputsError, match="needs 'inference_session'"):
        example_inputs(session)


def test_a_model_on_meta() -> None:
    """Its fake copy is on the CPU, and so are its inputs."""
    with torch.device("meta"):
        model = real_model("GPT2LMHeadModel")
    inputs = example_inputs(model)
    assert {value.device.type for value in inputs.values()} == {"cpu"}
    assert run(fake_like(model), inputs).logits.device.type == "cpu"


def test_fakes_cannot_be_everywhere() -> None:
    with pytest.raises(DeviceError, match="fakes cannot be on 'meta'"):
        example_inputs(real_model("GPT2LMHeadModel"), device="meta")


def test_wrappers_that_hand_their_arguments_on() -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

    with fake_mode():
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1))
    inputs = example_inputs(Wrapped(Wrapped(model)), batch=2, labels=True)
    assert inputs.keys() == example_inputs(model, labels=True).keys()
    assert inputs.resized(batch=5)["labels"].shape == (5, 128)
