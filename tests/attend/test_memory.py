"""No tensor of all pairs of queries and keys is made, nor kept for the backward pass."""

import pytest
import torch
from torch import nn

from mmpos import AttentionBias, attention, sequence_coords
from mmpos.masks import causal, padding, window
from tests.attention_checks import Largest, Late, Steep, Waves, draw


class Saved:
    """Numbers that are kept for the backward pass."""

    def __enter__(self):
        self.numbers, self.seen = 0, set()
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda x: x)
        self.hooks.__enter__()
        return self

    def pack(self, x):
        if x.data_ptr() not in self.seen:
            self.seen.add(x.data_ptr())
            self.numbers += x.numel()
        return x

    def __exit__(self, *error):
        self.hooks.__exit__(*error)


HIDDEN = padding(draw(1, 640, seed=7) > -1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"mask": causal() & HIDDEN},
        {"mask": window(16)},
        {"bias": Waves(2), "mask": HIDDEN},
        {"bias": Steep(0.5, 0.1), "is_causal": True},
        {"bias": Steep(0.5, 0.1)},
        {"bias": Late(0.5, 0.1), "mask": HIDDEN},
        {"bias": nn.Linear(640, 1280).weight.view(2, 640, 640), "is_causal": True},
        {"attn_drop": 0.2},
        {"bias": Steep(0.5, 0.1), "attn_drop": 0.2},
    ],
    ids=[
        "plain",
        "causal",
        "padding",
        "window",
        "waves",
        "steep, causal",
        "steep",
        "late",
        "tensor",
        "dropped",
        "both",
    ],
)
def test_nothing_of_all_pairs_is_made_or_kept(options, monkeypatch):
    n = 640
    for name in ("fused.BLOCK", "fused.KEPT", "choice.KEPT", "choice.PACKED"):
        monkeypatch.setattr(f"mmpos.attend.{name}", 2**14)
    q, k, v = (draw(1, 2, n, 8, seed=seed).requires_grad_() for seed in range(3))
    coords = {"q_coords": sequence_coords(n)} if isinstance(options.get("bias"), AttentionBias) else {}
    with Largest() as largest, Saved() as saved:
        result = attention(q, k, v, **coords, **options)
        forward = largest.elements
        torch.autograd.grad(result.square().sum(), (q, k, v))
    given = options["bias"].numel() if isinstance(options.get("bias"), torch.Tensor) else 0
    assert max(forward, largest.elements) <= 32 * 2 * n
    assert saved.numbers - given <= 12 * q.numel()


def test_dropped_weights_are_the_same_when_the_backward_pass_repeats_a_block(monkeypatch):
    for name, value in (("BLOCK", 1), ("KEPT", 0)):
        monkeypatch.setattr(f"mmpos.attend.fused.{name}", value)
    q, k, v = (draw(1, 2, 100, 8, seed=seed).requires_grad_() for seed in range(3))
    weight = draw(1, 2, 100, 8, seed=3)
    for options in ({}, {"bias": Steep(0.5, 0.1), "q_coords": sequence_coords(100)}):
        value = (attention(q, k, v, attn_drop=0.5, backend="blocks", **options) * weight).sum()
        # The result is linear in v with the weights that were dropped.
        torch.testing.assert_close((torch.autograd.grad(value, v)[0] * v).sum(), value, atol=1e-3, rtol=0)
