"""Rows within a width: what goes first, what stays whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from expecttest import assert_expected_inline as expect

from torchfake.inspect.records.units import bytes_text, compared_bytes
from torchfake.inspect.show.layout import laid_out
from torchfake.inspect.show.rows import VERDICT, Bar, Block, Column, Row, as_lines, table

SIZES = Block(
    [
        Row("h100", (80 * 2**30, 3, "yes", "16 users")),
        Row("t4", (16 * 2**30, None, "no", "none")),
    ],
    (
        Column("GPU"),
        Column("memory", "", compared_bytes, bytes_text, need=2),
        Column("runs", unit=str, need=3),
        Column("fits", emphasis=VERDICT),
        Column("serves", need=1, under="serves "),
    ),
)
TREE = Block(
    [
        Row("Net", ("8", ("weight [4, 4]", "bias [4]"))),
        Row("(a) Block", ("4", ()), 1),
        Row("(in) Linear", ("4", ("weight [4, 4]", "bias [4]")), 2),
        Row("(b) Linear", ("4", ("weight [4, 4]",)), 1),
    ],
    (Column("module"), Column("size", unit=str), Column("tensors", need=1, under="")),
)


def drawn(*blocks: Block, width: int | None = None) -> str:
    lines = laid_out(blocks, width)
    text = "\n".join("".join(text for text, _ in line).rstrip() for line in lines)
    return text.translate(str.maketrans("├└│─", "+`|-"))  # expecttest writes ASCII


def test_a_number_and_what_it_counts_stand_in_one_line() -> None:
    text = "yes: at most 1,024 users in 69.9 GB of 85.9 GB, within 4 % in the median"
    for width in range(30, 80):
        for line in drawn(Block([Row("fits", (text,))]), width=width).split("\n"):
            assert not line.endswith(("1,024", "69.9", "85.9", "4")), width


def test_without_a_width_everything_is_shown() -> None:
    expect(
        drawn(SIZES),
        """\
GPU               memory  runs  fits  serves
h100  85.9 GB (80.0 GiB)     3  yes   16 users
t4    17.2 GB (16.0 GiB)        no    none""",
    )


def test_units_go_before_columns() -> None:
    expect(
        drawn(SIZES, width=42),
        """\
GPU    memory  runs  fits  serves
h100  85.9 GB     3  yes   16 users
t4    17.2 GB        no    none""",
    )


def test_the_column_that_is_needed_least_goes_first_and_is_named() -> None:
    expect(
        drawn(SIZES, width=30),
        """\
GPU    memory  fits  serves
h100  85.9 GB  yes   16 users
t4    17.2 GB  no    none
left out at 30 columns: runs""",
    )


def test_a_column_may_go_under_the_name() -> None:
    expect(
        drawn(SIZES, width=17),
        """\
GPU   fits
h100  yes
   serves 16 users
t4    no
   serves none
left out at
17 columns: memory,
runs""",
    )


def test_what_goes_under_a_name_stands_beside_it_if_there_is_room() -> None:
    expect(
        drawn(TREE, width=36),
        """\
module                        size
Net  weight [4, 4], bias [4]     8
+- (a) Block                     4
|  `- (in) Linear                4
|        weight [4, 4], bias [4]
`- (b) Linear  weight [4, 4]     4""",
    )


def test_in_plain_text_a_tree_is_indented() -> None:
    expect(
        drawn(TREE),
        """\
module           size  tensors
Net                 8  weight [4, 4], bias [4]
  (a) Block         4
    (in) Linear     4  weight [4, 4], bias [4]
  (b) Linear        4  weight [4, 4]""",
    )


def test_a_name_that_is_too_long_has_a_line_of_its_own() -> None:
    block = Block([Row("a" * 30, (1,)), Row("b", (2,))], (Column("name"), Column("size", unit=str)))
    expect(
        drawn(block, width=20),
        """\
name  size
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
         1
b        2""",
    )


def test_a_table_shows_attributes_and_functions_of_items() -> None:
    items = [SimpleNamespace(name="a", size=SimpleNamespace(num_bytes=2000), level=0)]
    items.append(SimpleNamespace(name="b", size=SimpleNamespace(num_bytes=1000), level=1))
    columns = (
        Column("name", lambda item: item.name.upper()),
        Column("bytes", "size.num_bytes", bytes_text),
    )
    expect(
        drawn(table(items, columns, note="of both")),
        """\
name    bytes
A     2.00 kB
  B   1.00 kB
of both""",
    )


def test_only_the_first_of_several_lines_has_their_name() -> None:
    rows = as_lines([("left out", ["a", 2])]).rows
    assert [(row.name, row.values) for row in rows] == [("left out", ("a",)), ("", ("2",))]


@pytest.mark.parametrize("nothing", ["", None, (), []])
def test_a_line_that_says_nothing_has_no_row(nothing: Any) -> None:
    assert as_lines([("left out", nothing), ("step", "training")]).rows == [
        Row("step", ("training",))
    ]


def test_a_text_is_wrapped_under_itself() -> None:
    lines = as_lines([("fits", "yes: 3 GB of 80 GB, on one GPU of two"), ("  when", "backward")])
    expect(
        drawn(lines, width=30),
        """\
fits    yes: 3 GB of 80 GB, on
        one GPU of two
  when  backward""",
    )


def test_no_word_is_broken() -> None:
    path = "/a" * 30
    assert path in drawn(as_lines([("line", f"{path} in forward")]), width=30)


def test_a_command_can_be_pasted() -> None:
    text = drawn(as_lines([("next", "torchfake fit gpt2 --train --gpu t4-16gb")]), width=30)
    expect(
        text,
        """\
next  torchfake fit gpt2 \\
      --train --gpu t4-16gb""",
    )


def test_code_stays_whole() -> None:
    code = "x = " + "y + " * 20 + "z\n    w"
    assert drawn(Block(code=code), width=30) == code


def test_a_block_has_a_heading_and_a_note() -> None:
    block = Block([Row("a", ("1", "x")), Row("bc", ("23", "y"))], heading="both (2)", note="of 3")
    expect(
        drawn(Block(heading="first"), block),
        """\
first

both (2)
a   1   x
bc  23  y
of 3""",
    )


def test_wide_characters_take_two_columns() -> None:
    block = Block([Row("模型", ("1",)), Row("e\u0301", ("2",))], (Column("a"), Column("b")))
    _, *rows = drawn(block).splitlines()
    assert rows == ["模型  1", "e\u0301     2"]


@pytest.mark.parametrize("verdict", ["yes", "tight", "no"])
def test_the_verdict_alone_is_coloured(verdict: str) -> None:
    (line,) = laid_out([as_lines([("fits", f"{verdict}, on 1 of 2 GPUs")])])
    assert line[1:] == [(verdict, verdict), (", on 1 of 2 GPUs", "")]


def test_a_line_of_another_name_has_no_verdict() -> None:
    (line,) = laid_out([as_lines([("note", "no inputs")])])
    assert line[1:] == [("no inputs", "")]


def test_indented_lines_of_a_category_have_a_bar() -> None:
    found = as_lines([("peak", "8 GB"), ("  inputs", "2 GB")], {"inputs": 0.25, "peak": 1.0})
    assert [row.bar for row in found.rows] == [None, Bar("inputs", 0.25)]


def test_a_control_character_is_escaped() -> None:
    shown = drawn(as_lines([("a\x1b[31m", "b\nc")]), TREE._replace(rows=[Row("d\x07", ("1", ()))]))
    assert shown == "a\\x1b[31m  b\\nc\n\nmodule  size\nd\\x07      1"
