"""Names and files that nobody trusts: what is printed is harmless, and one line if wrong."""

from __future__ import annotations

import html
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import nn

from tests.cli import hostile
from tests.cli.conftest import SMALL
from tests.cli.hostile import CONFIGS, NAMES, Hostile, assert_harmless, assert_sensible, sampled
from torchfake import check, deferred_init, diff, errors, estimate, fake_mode, report, summary

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers warns on import
    pytest.mark.usefixtures("folder"),
]

TARGET = "tests.cli.hostile:Hostile"


def encodable(name: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in name)


@pytest.fixture
def checkpoint(folder: Path) -> Path:
    """A file of tensors with such names."""
    path = folder / "some.safetensors"
    save_file({name: torch.ones(2) for name in NAMES if encodable(name)}, path)
    return path


def test_a_module_of_such_names(run: Any, folder: Path) -> None:
    for options in ((), ("--depth", "1"), ("--json",)):
        said = assert_sensible(run("inspect", TARGET, *options), codes=(0,))
        assert "[31mred" in said
        assert "<b>x</b>" in said
    found = json.loads(said)
    assert found["class_name"] == Hostile.__name__


def test_a_page_of_such_names(run: Any, folder: Path) -> None:
    assert_sensible(run("inspect", TARGET, "--html", "a.html"), codes=(0,))
    page = (folder / "a.html").read_text()
    body = page[page.index("</head>") :]
    assert_harmless(body.replace("\t", " "))
    assert "<script>alert" not in body
    assert html.escape("<script>alert(1)</script>") in body
    assert body.count("<b>x</b>") == 0


def test_a_diff_of_such_names(run: Any, checkpoint: Path) -> None:
    for options in ((), ("--json",)):
        said = assert_sensible(run("diff", TARGET, str(checkpoint), *options), codes=(1,))
        assert "[31mred" in said
    assert_sensible(run("diff", TARGET, TARGET), codes=(0,))


def test_an_init_of_such_names(run: Any, folder: Path) -> None:
    said = assert_sensible(run("init", TARGET, "--out", "out"))
    assert "half of a surrogate pair" in said
    for name in sampled(NAMES, 0, 5):
        out = hostile.named_file(folder / "outs", name)
        if out is not None and encodable(name):
            target = ("torch.nn:Linear", "-c", "in_features=1", "-c", "out_features=1")
            assert_sensible(run("init", *target, "--out", str(out)), codes=(0,))


def test_records_of_such_names() -> None:
    """Text, terminals, notebooks."""
    with fake_mode():
        module = Hostile()
    found = [summary(module), diff(module, nn.Linear(2, 2))]

    class Identity(nn.Module):
        def forward(self, **inputs: Any) -> Any:
            return inputs

    inputs = {name: torch.ones(2) for name in NAMES}
    found += [check(Identity(), inputs), estimate(Identity(), inputs), summary(Identity(), inputs)]
    for record in found:
        assert_harmless(str(record))
        assert_harmless(record._repr_html_())
        assert "<script>" not in record._repr_html_()
        for width in (0, 1, 20, 80, 300):
            console = Console(width=width, no_color=True, force_terminal=False)
            with console.capture() as capture:
                console.print(record)
            assert_harmless(capture.get())
            if record is found[0] and width == 300:
                assert "([red]x[/red]) Linear" in capture.get()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_hostile_config(run: Any, folder: Path, name: str) -> None:
    (folder / "config.json").write_bytes(CONFIGS[name])
    ways = [
        ("inspect", "config.json"), ("fit", str(folder)), ("diff", "config.json", "llama.json"),
        ("init", "config.json", "--out", "out"),
    ]  # fmt: skip
    for arguments in sampled(ways, [*CONFIGS].index(name), 1):
        assert_sensible(run(*arguments))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_hostile_arguments(run: Any, name: str) -> None:
    ways = [
        ("inspect", f"x{name}"),
        ("inspect", f"models_here:{name}"),
        ("inspect", f"transformers:X{name}"),
        ("inspect", f"{name}x.json"),
        ("inspect", "models_here:Net", "--dtype", f"x{name}"),
        ("inspect", "models_here:Net", "--device", f"x{name}"),
        ("inspect", "models_here:Net", "-c", f"{name}x=3"),
        ("inspect", "models_here:Net", "-c", f"width={name}x"),
        ("diff", f"{name}.safetensors", "models_here:Net"),
        ("fit", "models_here:Net", "--gpu", f"x{name}"),
        ("fit", "models_here:Net", "--profiles", f"{name}x"),
        ("init", f"x{name}", "--out", "out"),
        ("inspect", "models_here:Net", "--html", f"nowhere/{name}x.html"),
    ]
    for arguments in sampled(ways, NAMES.index(name), 3):
        assert_sensible(run(*arguments))
    for arguments in ((f"x{name}",), ("inspect", f"--x{name}"), ("inspect", "a", "--depth", name)):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert_harmless(err)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[" * 100_000, b"a = " + b"[" * 100_000, bytes(range(256)),
        b"[x]\ntotal_memory = nan", b"[x]\ntotal_memory = inf", b"[x]\nmajor = 1979-01-01",
        b"[x]\ntotal_memory = 0x" + b"f" * 5000,
        b'[x]\n"\\u001b[31m" = 3', b"[x]\ntotal_memory = [[]]", b"x = 3", "[é]".encode("latin-1"),
        b'["\\u001b[31m"]\ntotal_memory = "many"', b"[x]\ntotal_memory = -1",
    ],
)  # fmt: skip
def test_hostile_profiles(run: Any, folder: Path, content: bytes) -> None:
    (folder / "gpus.toml").write_bytes(content)
    assert_sensible(run("fit", *SMALL, "--profiles", "gpus.toml"))


def test_a_profile_of_such_a_name(run: Any, folder: Path) -> None:
    key = json.dumps("\x1b[31m[red]\u202e<b>")
    (folder / "gpus.toml").write_text(f'[{key}]\ntotal_memory = "24 GiB"\nname = {key}\n')
    said = assert_sensible(run("fit", *SMALL, "--profiles", "gpus.toml"), codes=(0,))
    assert r"\x1b[31m[red]\u202e<b>" in said


def test_paths_that_are_no_files(run: Any, folder: Path) -> None:
    (folder / "d.json").mkdir()
    (folder / "d.toml").mkdir()
    (folder / "loop.json").symlink_to("loop.json")
    for path in ("d.json", "loop.json", "d.json/below.json", "nowhere/x.json"):
        assert_sensible(run("inspect", path))
        assert_sensible(run("diff", path, "models_here:Net"))
    assert_sensible(run("fit", *SMALL, "--profiles", "d.toml"))
    assert_sensible(run("inspect", "models_here:Net", "--html", "d.toml"))
    if os.path.exists("/dev/zero"):
        (folder / "endless.json").symlink_to("/dev/zero")
        assert "more than" in assert_sensible(run("inspect", "endless.json"))


def test_a_page_that_cannot_be_written(run: Any, folder: Path) -> None:
    """A device stays a device, as root too."""
    said = assert_sensible(run("inspect", "models_here:Net", "--html", "/dev/full"))
    assert "No space left on device" in said
    assert "/dev/full" in said
    assert not os.path.isfile("/dev/full")
    (folder / "link.html").symlink_to(folder / "real.html")
    (folder / "real.html").touch()
    assert_sensible(run("inspect", "models_here:Net", "--html", "link.html"), codes=(0,))
    assert (folder / "link.html").is_symlink()
    assert (folder / "real.html").stat().st_size > 1000


def test_errors_of_the_library(tmp_path: Path) -> None:
    names = [name for name in NAMES if encodable(name)]
    save_file({name: torch.ones(2) for name in names}, tmp_path / "x.safetensors")
    from torchfake import materialize_module

    with pytest.raises(errors.CheckpointError) as caught:
        materialize_module(deferred_init(nn.Linear, 2, 2), checkpoint=tmp_path / "x.safetensors")
    assert_harmless(str(caught.value))
    with pytest.raises(errors.InputsError):
        report("\x1b", options=3)
