import pytest
import torch

from mmpos import RoPE, convert_layout, sequence_coords

# 4 heads of queries and 2 of keys, of 6 channels, from 10 channels: no projection is square.
DIM, HEADS, GROUPS, WIDTH = 10, 4, 2, 6


@pytest.mark.parametrize("shape", [(24, 10), (24,), (24, 3, 3)])
@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_there_and_back_is_the_identity_to_the_bit(shape, rotary_dim):
    weight = torch.randn(shape)
    half = convert_layout(weight, "half", head_dim=WIDTH, rotary_dim=rotary_dim)
    assert not torch.equal(half, weight)
    assert torch.equal(convert_layout(half, "interleaved", head_dim=WIDTH, rotary_dim=rotary_dim), weight)


def test_channels_go_where_the_other_layout_pairs_them():
    assert convert_layout(torch.arange(6), "half", head_dim=6).tolist() == [0, 2, 4, 1, 3, 5]
    assert convert_layout(torch.arange(12), "interleaved", head_dim=6, rotary_dim=4).tolist() == [
        0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11
    ]  # fmt: skip


@pytest.mark.parametrize("rotary_dim", [6, 4])
def test_logits_are_unchanged_for_grouped_heads(rotary_dim):
    x, coords = torch.randn(2, 9, DIM, dtype=torch.float64), sequence_coords(9, offset=300)
    weights = {
        f"layers.3.{name}_proj.{part}": torch.randn(heads * WIDTH, *shape, dtype=torch.float64)
        for name, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))
        for part, shape in (("weight", (DIM,)), ("bias", ()))
    }

    def logits(state, layout):
        rotation = RoPE(WIDTH, rotary_dim=rotary_dim, layout=layout)(coords)
        q, k = (
            rotation.apply(
                torch.nn.functional.linear(
                    x, state[f"layers.3.{name}_proj.weight"], state[f"layers.3.{name}_proj.bias"]
                ).unflatten(-1, (-1, WIDTH)).transpose(1, 2)
            )
            for name in "qk"
        )  # fmt: skip
        return q @ k.repeat_interleave(HEADS // GROUPS, dim=1).mT

    converted = convert_layout(weights, "half", head_dim=WIDTH, rotary_dim=rotary_dim)
    torch.testing.assert_close(logits(converted, "half"), logits(weights, "interleaved"), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(logits(weights, "half"), logits(weights, "interleaved"))
    for name in weights:
        assert torch.equal(converted[name], weights[name]) == ("v_proj" in name)


def test_a_fused_projection_keeps_its_values():
    fused = torch.randn((HEADS + 2 * GROUPS) * WIDTH, DIM)
    converted = convert_layout({"attn.qkv.weight": fused}, "half", head_dim=WIDTH, num_heads=6, names="qkv")
    rows = (HEADS + GROUPS) * WIDTH
    assert torch.equal(converted["attn.qkv.weight"][rows:], fused[rows:])
    assert torch.equal(converted["attn.qkv.weight"][:rows], convert_layout(fused[:rows], "half", head_dim=WIDTH))


@pytest.mark.parametrize(
    "weights, options, message",
    [
        (torch.zeros(20, 10), {}, r"weights has shape \(20, 10\), whose rows are not whole heads of 6"),
        (torch.zeros(24, 10), {"rotary_dim": 3}, r"rotary_dim \(3\) must be even and at most head_dim \(6\)"),
        (torch.zeros(24, 10), {"rotary_dim": 8}, r"rotary_dim \(8\) must be even and at most head_dim \(6\)"),
        (torch.zeros(24, 10), {"num_heads": 5}, "weights has 4 heads, so num_heads cannot be 5"),
        (torch.zeros(24, 10), {"to": "halves"}, "layout must be 'half' or 'interleaved', got 'halves'"),
        ({"a.weight": torch.zeros(24, 10)}, {}, r"no name of the state dict matches .*it has a.weight"),
        ({"a.q_proj.weight": torch.zeros(20, 10)}, {}, r"a.q_proj.weight has shape \(20, 10\)"),
    ],
)
def test_what_cannot_be_converted_is_refused(weights, options, message):
    with pytest.raises(ValueError, match=message):
        convert_layout(weights, **{"to": "half", "head_dim": WIDTH, **options})
