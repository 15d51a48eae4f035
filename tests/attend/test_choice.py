"""Which backend is taken, and which cannot be."""

import pytest
import torch
from torch import nn

from mmpos import AttentionBias, RelativeSinusoids, attention, sandwich_bias, sequence_coords
from mmpos.attend import choose_backend
from mmpos.masks import documents, padding, window
from tests.attention_checks import Late, Steep, Waves


def chosen(n=256, heads=8, bias=None, device="meta", dtype=torch.float32, **options):
    q = torch.empty(1, heads, n, 64, device=device, dtype=dtype)
    coords = {"q_coords": sequence_coords(n).to(device)} if isinstance(bias, AttentionBias) else {}
    return choose_backend(q, q, q, bias=bias, **coords, **options)


@pytest.mark.parametrize(
    "options, backend, reason",
    [
        ({}, "sdpa", "no bias, and no mask that the kernel has not of its own"),
        ({"is_causal": True, "n": 8192}, "sdpa", "no bias"),
        ({"mask": padding(torch.ones(1, 8192, dtype=torch.bool)), "n": 8192}, "blocks", "67108864 numbers of mask"),
        (
            {"mask": padding(torch.ones(1, 256, dtype=torch.bool))},
            "sdpa",
            "65536 numbers of mask or weights, few enough",
        ),
        ({"mask": window(512), "n": 2048}, "blocks", "a window of 512 among 2048 keys"),
        ({"mask": documents(torch.arange(2048) // 100), "n": 2048}, "blocks", "documents"),
        (
            {"bias": Steep(*[0.5] * 8), "n": 1024},
            "sdpa",
            "the bias has 8388608 numbers, few enough; Steep has no factors",
        ),
        ({"bias": Steep(*[0.5] * 8), "n": 64}, "sdpa", "64 queries are too few for factors"),
        (
            {"bias": Steep(*[0.5] * 8), "n": 2048},
            "blocks",
            "33554432 numbers, more than are kept; Steep has no factors",
        ),
        ({"bias": Steep(*[0.5] * 8), "n": 1024, "is_causal": True, "device": "cpu"}, "factors", "product of 1 channel"),
        (
            {"bias": Steep(*[0.5] * 8), "n": 600, "is_causal": True},
            "blocks",
            "blocks leave out keys ahead; 600 queries",
        ),
        ({"device": "cpu", "bias": Waves(4), "n": 1024}, "factors", "an inner product of 8 channels"),
        ({"device": "cpu", "bias": Waves(16), "n": 1024}, "sdpa", "few enough; its factors have 32 channels"),
        ({"device": "cpu", "bias": Waves(16), "n": 2048}, "factors", "an inner product of 32 channels"),
        ({"device": "cpu", "bias": Waves(40), "n": 2048}, "blocks", "its factors have 80 channels"),
        (
            {"device": "cpu", "bias": Waves(4), "n": 1024, "dtype": torch.bfloat16},
            "sdpa",
            "its factors have 48 channels",
        ),
        ({"bias": Late(*[0.5] * 8), "n": 2048}, "blocks", "Late is added after the softmax"),
        ({"bias": torch.zeros(8, 1024, 1024, device="meta"), "n": 1024}, "sdpa", "a tensor has no factors"),
    ],
)
def test_the_choice_says_why(options, backend, reason):
    choice = chosen(**options)
    assert choice.backend == backend
    assert reason in choice.reason


def test_dropped_weights_and_gradients_of_a_bias_are_not_written_out_for_many_pairs():
    q = torch.zeros(1, 8, 2048, 8)
    assert choose_backend(q, q, q, attn_drop=0.1).backend == "blocks"
    q = torch.zeros(64, 8, 512, 8)
    bias = nn.Parameter(torch.zeros(8, 512, 512))
    assert choose_backend(q, q, q, bias=bias).backend == "blocks"
    with torch.no_grad():
        assert choose_backend(q, q, q, bias=bias).backend == "sdpa"


@pytest.mark.parametrize(
    "backend, options, message",
    [
        ("factors", {}, "there is no bias"),
        ("factors", {"bias": torch.zeros(5, 5)}, "a tensor has no factors"),
        ("factors", {"bias": Late(0.5, 0.5), "is_causal": True}, "Late is added after the softmax"),
        ("factors", {"bias": Steep(0.5, 0.5)}, "Steep has no factors where coordinates do not grow along causal"),
        ("factors", {"bias": Waves(1), "num_prefix_tokens": 1}, "prefix tokens"),
        ("factors", {"bias": Waves(1), "scale": 0.0}, "the scale is 0"),
        ("flex", {"bias": Waves(1)}, "Waves has no score"),
        ("flex", {"bias": torch.zeros(5, 5)}, "takes biases of coordinates, not tensors"),
        ("flex", {"bias": Late(0.5, 0.5)}, "Late is added after the softmax"),
        ("flex", {"attn_drop": 0.1}, "no dropout"),
        ("flex", {"q": torch.zeros(1, 2, 5, 8, requires_grad=True)}, "no backward pass on CPUs"),
    ],
)
def test_a_backend_that_cannot_says_why(backend, options, message):
    q = torch.zeros(1, 2, 5, 8)
    coords = sequence_coords(5 - options.get("num_prefix_tokens", 0))
    with pytest.raises(ValueError, match=f"backend '{backend}' cannot compute this: .*{message}"):
        attention(**{"q": q, "k": q, "v": q, "backend": backend, "q_coords": coords, **options})


@pytest.mark.parametrize("bias", [sandwich_bias(8, dim=256), RelativeSinusoids(8, 64, 512)], ids=["waves", "sinusoids"])
def test_factors_of_too_many_channels_are_not_made_to_be_counted(bias, monkeypatch):
    def refuse(*coords, **options):
        raise AssertionError("factors were made")

    monkeypatch.setattr(type(bias), "factors", refuse)
    choice = chosen(4096, bias=bias, is_causal=True)
    assert choice.backend == "blocks"
    assert f"its factors have {bias.rank} channels" in choice.reason
