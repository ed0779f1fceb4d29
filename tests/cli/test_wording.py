"""Errors of the command line name its options, not arguments of Python functions."""

from __future__ import annotations

import pytest

from torchfake.cli.output import in_options

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("folder")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("write batch=1, which generates inputs", "write --batch 1, which generates inputs"),
        ("leave out optimizer=, loss=", "leave out --optimizer, loss="),
        ("decode=(0, 10): give two", "--decode 0,10: give two"),
        ("give serve= cache='dynamic'", "give --serve cache=dynamic"),
        ("keep_gradients=True is", "--keep-gradients is"),
        ("micro_batch=3 and", "--micro-batch 3 and"),
        ("give vary='seq' or vary=None", "give --vary seq or --vary none"),
        ("--input batch=8 'seq=9' self.batch=7", "--input --batch 8 'seq=9' self.batch=7"),
        ('answer="typical", on the command line --answer typical',) * 2,
    ],
)
def test_arguments_become_options(text, said):
    assert in_options(text) == said


TINY = "-c n_layer=1 -c n_embd=16 -c n_head=2 -c vocab_size=50 -c n_positions=64"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("fit transformers:GPT2LMHeadModel --train --seq 65", "give at most --seq 64, or a model"),
        ("fit transformers:GPT2LMHeadModel --serve 65,prompt=9", "give a context of at mo"),
        ("inspect transformers:GPT2LMHeadModel --decode 60,6", "give --decode at most 64 tokens"),
        ("plan transformers:GPT2LMHeadModel --gpus 2 --seq 65", "give at most --seq 64, or a mod"),
        ("graph transformers:GPT2LMHeadModel --seq 65", "GPT2LMHeadModel has learned 64 positions"),
        ("fit transformers:GPT2LMHeadModel --serve 8 --seq 4", "is run: leave out --seq\n"),
    ],
)
def test_one_line_names_the_culprit_and_the_remedy(run, arguments, said):
    code, out, err = run(*arguments.split(), *TINY.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


SMALL = (
    "-c hidden_size=16 -c num_hidden_layers=1 -c num_attention_heads=2 -c intermediate_size=16 "
    "-c vocab_size=50"
)


def test_what_generates_no_tokens_is_not_served(run):
    for options in ("--serve 8", "--decode 4,4"):
        code, _, err = run("fit", "transformers:BertModel", *SMALL.split(), *options.split())
        assert code == 2
        assert "gives no cache of keys and values, so it generates no tokens: leave out --se" in err
    code, _, err = run("fit", "transformers:ViTModel", *SMALL.split()[:-2], "--decode", "4,4")
    assert code == 2
    assert "--decode needs input_ids [batch, tokens], and ViTModel is run on other inputs" in err
