"""``torchfake inspect --json``."""

from __future__ import annotations

import json

import pytest

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers warns on import
    pytest.mark.usefixtures("folder"),
]


def test_json(run):
    code, out, err = run("inspect", "models_here:Net", "--json", "-c", "width=8")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert {key: type(value).__name__ for key, value in report.items()} == {
        "target": "str",
        "class_name": "str",
        "totals": "dict",
        "dtypes": "dict",
        "devices": "dict",
        "resolve_seconds": "float",
        "build_seconds": "float",
        "peak_rss_bytes": "int",
        "peak_rss_increase_bytes": "int",
        "notes": "list",
        "tree": "dict",
    }
    assert report["totals"] == {
        "num_parameters": 312,
        "num_trainable": 304,
        "num_frozen": 8,
        "parameter_bytes": 1248,
        "num_buffer_values": 17,
        "buffer_bytes": 72,
    }
    assert report["dtypes"]["int64"] == {"num_values": 1, "bytes": 8}
    layers = report["tree"]["children"][1]
    assert layers["name"] == "layers"
    (block,) = layers["children"]
    assert block["names"] == ["0", "1", "2"]
    assert block["repeat"] == 3
    assert block["size"]["num_parameters"] == 72
    assert block["tensors"][0] == {
        "name": "weight",
        "kind": "parameter",
        "shape": [8, 8],
        "dtype": "float32",
        "device": "cpu",
        "num_values": 64,
        "size_bytes": 256,
        "trainable": True,
        "persistent": True,
        "tied_to": None,
    }


def test_json_and_depth(run):
    _, out, _ = run("inspect", "models_here:Net", "--json", "--depth", "0")
    assert json.loads(out)["tree"]["children"] == []
