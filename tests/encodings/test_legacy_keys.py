import warnings

import pytest
import torch
from torch import nn

from mmpos import ALiBi, LearnedTable, Mixed, RoPE, Sinusoidal


@pytest.mark.parametrize(
    "encoding, names",
    [
        (Sinusoidal(8), ["pe"]),
        (Sinusoidal(8), ["pos_embed"]),
        (RoPE(8), ["cos_cached", "inv_freq", "sin_cached"]),
        (ALiBi(4), ["alibi"]),
    ],
)
def test_saved_fixed_tensors_are_ignored_with_a_notice(encoding, names):
    model = nn.ModuleDict({"pos": encoding, "head": nn.Linear(2, 3)})
    state = model.state_dict() | {f"pos.{name}": torch.zeros(3) for name in names}
    with pytest.warns(UserWarning, match="ignored what is saved") as caught:
        result = model.load_state_dict(state)
    assert not result.unexpected_keys
    message = f"{type(encoding).__name__} computes {', '.join(names)} and ignored what is saved"
    assert [str(warning.message) for warning in caught] == [message]


def test_many_layers_give_one_notice():
    model = nn.ModuleList(RoPE(8) for _ in range(12))
    state = {f"{layer}.inv_freq": torch.zeros(4) for layer in range(12)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        model.load_state_dict(state)
    assert len(caught) == 1


@pytest.mark.parametrize(
    "encoding, key",
    [
        (Sinusoidal(8), "weight"),
        (Sinusoidal(8), "pe.weight"),
        (RoPE(8, spectrum=Mixed(), axes=2, num_heads=3), "inv_freq"),
        (RoPE(8), "freqs"),
        (LearnedTable(8, 4), "pos_embed"),
    ],
)
def test_other_entries_still_raise(encoding, key):
    model = nn.ModuleDict({"pos": encoding})
    with pytest.raises(RuntimeError, match=f'Unexpected key.*"pos.{key}"'):
        model.load_state_dict(model.state_dict() | {f"pos.{key}": torch.zeros(3)})


def test_a_stray_table_beside_the_encoding_still_raises():
    model = nn.ModuleDict({"pos": Sinusoidal(8)})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"pe"'):
        model.load_state_dict({"pe": torch.zeros(3)})
