"""What encodings cost a model: all of them are made, and many positions are compared with a copy."""

import pytest
import torch

from benchmarks import costs
from mmpos.factory import ENCODINGS

CPU = torch.device("cpu")
NAMES = sorted(ENCODINGS)


SHAPES = {"additive": (196, 384), "rotary": (1, 196, 32), "bias": (6, 196, 196)}


def test_all_encodings_and_the_calendar_are_made():
    calls = costs.make_calls(CPU)
    assert calls.pop("calendar")().shape == (196, 7)
    assert sorted(calls) == NAMES
    for name, call in calls.items():
        coords, result = call()
        kind = ENCODINGS[name][0]
        result = result.cos if kind == "rotary" else result
        assert len(coords) == 196
        assert result.shape == SHAPES.get(kind, (*result.shape[:-1], 196)), name


def test_many_positions():
    pytest.importorskip("pandas", reason="needs pandas")
    table = costs.at_scale(CPU, 4096, 3)
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert rows == [
        "RoPE, 2 axes, 64 channels", "Sinusoidal, 2 axes, 64 channels",
        "calendar_fields, UTC", "calendar_coords, UTC", "pandas, accessors, UTC",
        "calendar_fields, Europe/Berlin", "calendar_coords, Europe/Berlin", "pandas, accessors, Europe/Berlin",
    ]  # fmt: skip


def test_imports_are_timed():
    seconds = costs.import_seconds(1)
    assert seconds["torch"] > 0
    assert seconds["mmpos"] > 0
