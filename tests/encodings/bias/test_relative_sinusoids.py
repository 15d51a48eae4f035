import math
import re

import mpmath
import pytest
import torch

from mmpos import attention, grid_coords, packed_coords, sequence_coords
from mmpos.encodings.bias.relative_sinusoids import RelativeSinusoids


def drawn(**arguments):
    bias = RelativeSinusoids(**arguments)
    with torch.no_grad():
        for parameter in bias.parameters():
            parameter.normal_()
    return bias


def sinusoid(step, width, base):
    """Sines and cosines of one difference in turn, to the last bit of float64."""
    with mpmath.workdps(40):
        angles = [mpmath.mpf(step) * mpmath.power(base, mpmath.mpf(-2 * i) / width) for i in range(width // 2)]
        return torch.tensor([float(f(a)) for a in angles for f in (mpmath.sin, mpmath.cos)], dtype=torch.float64)


def reference(bias, q_coords, k_coords, query, key):
    """The definition, one pair at a time in float64."""
    weight, u, v = (part.detach().double() for part in (bias.weight, bias.content_bias, bias.position_bias))
    query = query.double() + v[:, None]
    key = key.double().repeat_interleave(bias.num_heads // key.shape[-3], dim=-3)
    result = torch.zeros(bias.num_heads, len(q_coords), len(k_coords), dtype=torch.float64)
    width = bias.dim // bias.axes
    for i, q in enumerate(q_coords.tolist()):
        for j, k in enumerate(k_coords.tolist()):
            r = torch.cat([sinusoid(a - b, width, bias.base) for a, b in zip(q, k, strict=True)])
            result[:, i, j] = torch.einsum("hd,hdw,w->h", query[:, i], weight, r) + (u * key[:, j]).sum(-1)
    return bias.scale * result


def close(got, want, tolerance=2e-6):
    assert got.dtype == torch.float32
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want, atol=tolerance * want.abs().max().item(), rtol=0)


@pytest.mark.parametrize(
    "arguments, q_coords, k_coords",
    [
        ({"dim": 12}, sequence_coords(4), sequence_coords(4)),
        ({"dim": 10, "scale": 1.0}, sequence_coords(7), sequence_coords(5)),
        ({"dim": 16, "axes": 2, "base": 100.0}, grid_coords(2, 3), grid_coords(3, 2, origin=5)),
        ({"dim": 18, "axes": 3}, torch.randn(4, 3).double() * 30, torch.randn(5, 3).double() * 30),
        ({"dim": 12}, sequence_coords(3, offset=2**31 - 7), torch.tensor([[0], [300], [5000], [-(2**30)]])),
    ],
)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_every_pair_is_the_definition(arguments, q_coords, k_coords, groups):
    bias = drawn(num_heads=4, head_dim=3, **arguments)
    query, key = torch.randn(2, 4, len(q_coords), 3), torch.randn(2, groups, len(k_coords), 3)
    got = bias(q_coords, k_coords, query=query, key=key)
    want = torch.stack([reference(bias, q_coords, k_coords, *row) for row in zip(query, key, strict=True)])
    close(got, want)


def test_both_sides_of_the_diagonal_have_their_own_differences():
    # The shift of Transformer-XL's code is right below the diagonal only, and a table of the length has no other half.
    bias = RelativeSinusoids(num_heads=1, head_dim=1, dim=2, scale=1.0)
    with torch.no_grad():
        bias.weight.copy_(torch.tensor([[[1.0, 0.0]]]))
        bias.content_bias.zero_()
        bias.position_bias.zero_()
    got = bias(sequence_coords(4), sequence_coords(4), query=torch.ones(1, 4, 1), key=torch.ones(1, 4, 1))
    steps = torch.arange(4)[:, None] - torch.arange(4)
    torch.testing.assert_close(got[0].double(), steps.double().sin(), atol=2e-7, rtol=0)


def test_only_differences_matter():
    bias = drawn(num_heads=3, head_dim=4, dim=8)
    query, key = torch.randn(3, 5, 4), torch.randn(3, 6, 4)
    near = bias(sequence_coords(5), sequence_coords(6), query=query, key=key)
    far = bias(sequence_coords(5, offset=10**9), sequence_coords(6, offset=10**9), query=query, key=key)
    torch.testing.assert_close(far, near, atol=3e-6 * near.abs().max().item(), rtol=0)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("batched", [(False, False), (True, False), (False, True)])
def test_factors_are_the_bias_and_need_no_pairs(groups, batched):
    bias = drawn(num_heads=4, head_dim=3, dim=10)
    coords = torch.randint(500, (2, 9, 1)) if batched[0] else torch.randint(500, (9, 1))
    rows = (2,) if batched[1] else ()
    query, key = torch.randn(*rows, 4, 9, 3), torch.randn(*rows, groups, 9, 3)
    left, right = bias.factors(coords, coords, query=query, key=key)
    assert left.shape[-1] == right.shape[-1] == 11
    want = bias(coords, coords, query=query, key=key)
    torch.testing.assert_close(left.double() @ right.double().mT, want.double(), atol=2e-5, rtol=0)


def test_attention_with_it_is_that_of_the_paper():
    bias = drawn(num_heads=4, head_dim=6, dim=8)
    coords = sequence_coords(7, offset=3)
    q, k, v = torch.randn(2, 4, 7, 6), torch.randn(2, 2, 7, 6), torch.randn(2, 2, 7, 6)
    got = attention(q, k, v, bias=bias, q_coords=coords)
    dense = torch.stack([reference(bias, coords, coords, *row) for row in zip(q, k, strict=True)])
    keys, values = (part.double().repeat_interleave(2, dim=1) for part in (k, v))
    weights = (q.double() @ keys.mT * 6**-0.5 + dense).softmax(-1)
    torch.testing.assert_close(got.double(), weights @ values, atol=5e-6, rtol=0)


def test_decoding_a_token_is_its_row_of_the_whole():
    bias, coords = drawn(num_heads=3, head_dim=4, dim=8), sequence_coords(6, offset=40)
    query, key = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 4)
    whole = bias(coords, coords, query=query, key=key)
    for i in range(6):
        alone = bias(coords[i, None], coords, query=query[:, :, i, None], key=key)
        torch.testing.assert_close(alone, whole[:, :, i, None], atol=1e-5, rtol=0)


def test_packed_documents_have_the_bias_that_they_have_alone():
    bias, lengths = drawn(num_heads=3, head_dim=5, dim=6), [4, 7, 2]
    query, key = torch.randn(3, 13, 5), torch.randn(3, 13, 5)
    coords, _ = packed_coords(lengths)
    packed, start = bias(coords, coords, query=query, key=key), 0
    for length in lengths:
        part, own = slice(start, start + length), sequence_coords(length)
        alone = bias(own, own, query=query[:, part], key=key[:, part])
        torch.testing.assert_close(packed[:, part, part], alone, atol=1e-5, rtol=0)
        start += length


def test_float64_content_is_not_rounded_before_the_end():
    bias = drawn(num_heads=2, head_dim=64, dim=128).double()
    coords = torch.tensor([[0], [1], [4000]])
    query, key = torch.randn(2, 3, 64).double() + 1000, torch.randn(2, 3, 64).double()
    with torch.no_grad():
        bias.position_bias -= 1000
    close(bias(coords, coords, query=query, key=key), reference(bias, coords, coords, query, key), tolerance=1e-7)


def test_autocast_changes_no_bit():
    bias, coords = drawn(num_heads=3, head_dim=4, dim=8), sequence_coords(9)
    query, key = torch.randn(3, 9, 4).bfloat16(), torch.randn(3, 9, 4).bfloat16()
    want = bias(coords, coords, query=query, key=key)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(bias(coords, coords, query=query, key=key), want)
    close(want, reference(bias, coords, coords, query, key))


def test_a_coordinate_that_is_no_number_spoils_no_gradient():
    bias = drawn(num_heads=2, head_dim=3, dim=6)
    coords = torch.tensor([[0.0], [math.nan], [2.5], [math.inf]])
    query, key = torch.randn(2, 4, 3, requires_grad=True), torch.randn(2, 4, 3, requires_grad=True)
    got = bias(coords, coords, query=query, key=key)
    lost = torch.tensor([False, True, False, True])
    assert torch.equal(got.isnan(), (lost[:, None] | lost).expand(2, -1, -1))
    got.nan_to_num(0.0).square().sum().backward()
    for part in (query, key, *bias.parameters()):
        assert part.grad.isfinite().all()
        assert part.grad.any()


def test_only_the_projection_decays():
    bias = RelativeSinusoids(num_heads=3, head_dim=4, dim=8)
    assert set(dict(bias.named_parameters())) == {"weight", "content_bias", "position_bias"}
    assert bias.no_weight_decay() == {"content_bias", "position_bias"}
    assert bias.needs == {"query", "key"}


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dim": 6, "axes": 2}, ValueError, "dim (6) must be a multiple of 2 * axes (4)"),
        ({"dim": 0}, ValueError, "dim must be positive, got 0"),
        ({"dim": 8, "base": -1.0}, ValueError, "base must be positive and finite, got -1.0"),
        ({"dim": 8, "head_dim": 2.0}, TypeError, "head_dim must be an integer, got 2.0"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        RelativeSinusoids(**{"num_heads": 3, "head_dim": 4} | arguments)


@pytest.mark.parametrize(
    "content, message",
    [
        ({}, "RelativeSinusoids reads query, (..., 6 heads, 5 queries, 4 channels), but got none"),
        ({"query": torch.zeros(6, 5, 4)}, "RelativeSinusoids reads key, (..., 7 keys, 4 channels), but got none"),
        ({"query": torch.zeros(6, 7, 4)}, "query must be (..., 6 heads, 5 queries, 4 channels), got shape (6, 7, 4)"),
        ({"query": torch.zeros(6, 5, 4), "key": torch.zeros(6, 5, 4)}, "key must be (..., 7 keys, 4 channels), got"),
        (
            {"query": torch.zeros(6, 5, 4), "key": torch.zeros(4, 7, 4)},
            "key must have heads that divide num_heads (6), got (4, 7, 4)",
        ),
    ],
)
def test_content_that_does_not_fit_is_named(content, message):
    bias = RelativeSinusoids(num_heads=6, head_dim=4, dim=8)
    for call in (bias, bias.factors):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(sequence_coords(5), sequence_coords(7), **content)
