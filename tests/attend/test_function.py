import itertools
import math

import pytest
import torch
from torch import nn

from mmpos import (
    ALiBi,
    AttentionBias,
    LogitScale,
    RoPE,
    attention,
    grid_coords,
    packed_coords,
    padded_coords,
    sequence_coords,
)
from tests.attention_checks import Largest, causal, draw, reference, small_blocks, turned  # noqa: F401

BACKENDS = ["auto", "dense", "blocks"]


CASES = list(itertools.product([0, 1], ["none", "tensor", "alibi"], [0, 1], [0, 1], [1, 3], [0, 2], [0, 1]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rotate, biased, masked, is_causal, groups, prefix, scaled", CASES)
def test_every_combination_equals_the_formula(rotate, biased, masked, is_causal, groups, prefix, scaled, backend):
    n = 5 + prefix
    q, k, v = draw(2, 6, n, 8), draw(2, 6 // groups, n, 8, seed=1), draw(2, 6 // groups, n, 10, seed=2)
    inputs = [q, k, v]
    coords = sequence_coords(5, offset=torch.tensor([[3], [40]]))[:, 0]  # a row has its own positions
    positions = torch.cat([torch.zeros(2, prefix, 1, dtype=torch.int64), coords], dim=1)
    options, bias, factor, visible = {}, None, None, None
    if rotate:
        options["rotation"] = RoPE(8)(coords).with_prefix(prefix)
    if biased == "tensor":
        inputs.append(draw(2, 6, 5, 5, seed=3))
        options["bias"] = inputs[-1]
    elif biased == "alibi":
        options.update(bias=ALiBi(6), q_coords=coords)
    if masked:
        visible = draw(2, 1, n, n, seed=4) > 0
        visible[:, :, 1] = False  # this query sees no key
        options["mask"] = visible
    if is_causal:
        options["is_causal"] = True
    if scaled:
        inputs.append(draw(2, 6, 5, seed=5).abs())
        options["logit_scale"] = inputs[-1]
    weight = draw(2, 6, n, 10, seed=6)

    for part in inputs:
        part.requires_grad_()
    got = attention(q, k, v, num_prefix_tokens=prefix, backend=backend, **options)
    grads = torch.autograd.grad((got * weight).sum(), inputs)

    exact = [part.detach().double().requires_grad_() for part in inputs]
    dense_q, dense_k = exact[:2]
    if rotate:
        dense_q, dense_k = (turned(x, positions[:, None]) for x in exact[:2])
    if biased == "tensor":
        bias = nn.functional.pad(exact[3], (prefix, 0, prefix, 0))
    elif biased == "alibi":
        slopes = torch.tensor([2.0**e for e in (-2, -4, -6, -8, -1, -3)], dtype=torch.float64)
        distance = (coords - coords.mT).abs().double()[:, None]
        bias = nn.functional.pad(-slopes[:, None, None] * distance, (prefix, 0, prefix, 0))
    if scaled:
        factor = nn.functional.pad(exact[-1], (prefix, 0), value=1.0)
    if is_causal:
        visible = causal(n, n) if visible is None else causal(n, n) & visible
    want = reference(dense_q, dense_k, exact[2], bias, factor, visible)
    wanted_grads = torch.autograd.grad((want * weight).sum(), exact)

    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, atol=3e-6, rtol=0)
    for grad, wanted in zip(grads, wanted_grads, strict=True):
        torch.testing.assert_close(grad.double(), wanted, atol=2e-5, rtol=0)
    if masked:
        assert not got[:, :, 1].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_any_batch_shape_and_double_precision(batch, groups, biased, backend):
    q, k, v = (draw(*batch, 4 // g, n, 8, seed=g).double() for g, n in ((1, 5), (groups, 7), (groups, 7)))
    bias = draw(4, 5, 7).double() if biased else None
    got = attention(q, k, v, bias=bias, backend=backend)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, reference(q, k, v, bias), atol=1e-12, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("queries, keys", [(3, 7), (7, 3), (1, 6), (6, 1), (300, 300)])
def test_causal_aligns_the_last_query_with_the_last_key(queries, keys, biased, backend):
    q, k, v = draw(2, 4, queries, 8), draw(2, 4, keys, 8, seed=1), draw(2, 4, keys, 8, seed=2)
    bias = draw(4, queries, keys, seed=3) if biased else None
    got = attention(q, k, v, bias=bias, is_causal=True, backend=backend)
    torch.testing.assert_close(got.double(), reference(q, k, v, bias, visible=causal(queries, keys)), atol=3e-6, rtol=0)
    assert not got[..., : max(queries - keys, 0), :].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (2, 1, 1, 7), (1, 4, 5, 1), (2, 4, 5, 7)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_masks_broadcast(shape, is_causal, backend):
    q, k, v = draw(2, 4, 5, 8), draw(2, 4, 7, 8, seed=1), draw(2, 4, 7, 8, seed=2)
    mask = draw(*shape, seed=3) > -0.5
    got = attention(q, k, v, mask=mask, is_causal=is_causal, backend=backend)
    visible = mask & causal(5, 7) if is_causal else mask
    torch.testing.assert_close(got.double(), reference(q, k, v, visible=visible), atol=3e-6, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias", [None, torch.zeros(5, 5), torch.full((5, 5), math.nan)])
def test_a_query_without_keys_gives_zero_and_finite_gradients(bias, backend):
    q, k, v = (draw(2, 4, 5, 8, seed=s).requires_grad_() for s in range(3))
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[1, :, 2] = False
    if bias is not None:
        bias = bias.clone()
        bias[[0, 1, 3, 4]] = 0  # whatever the bias of a query that sees nothing is, it has no effect
        bias.requires_grad_()
    got = attention(q, k, v, mask=mask.expand(2, 1, 5, 5) if bias is None else mask[1:], bias=bias, backend=backend)
    assert not got[1, :, 2].any()
    assert got.isfinite().all()
    for grad in torch.autograd.grad(got.square().sum(), [part for part in (q, k, v, bias) if part is not None]):
        assert grad.isfinite().all()
    assert not torch.autograd.grad(attention(q, k, v, mask=mask, backend=backend)[1, :, 2].sum(), v)[0].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_of_minus_infinity_hides_keys(backend):
    q, k, v = draw(2, 4, 5, 8), draw(2, 4, 5, 8, seed=1), draw(2, 4, 5, 8, seed=2)
    visible = draw(5, 5, seed=3) > 0
    visible[2] = False
    bias = torch.zeros(5, 5).masked_fill(~visible, -math.inf)
    got = attention(q, k, v, bias=bias, backend=backend)
    torch.testing.assert_close(got.double(), reference(q, k, v, visible=visible), atol=3e-6, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_factor_of_the_logits_may_be_given(backend):
    q, k, v = draw(2, 4, 5, 8), draw(2, 4, 7, 8, seed=1), draw(2, 4, 7, 8, seed=2)
    bias = draw(4, 5, 7, seed=3)
    got = attention(q, k, v, bias=bias, scale=0.7, backend=backend)
    torch.testing.assert_close(got.double(), reference(q, k, v, bias, scale=0.7), atol=3e-6, rtol=0)


def test_queries_and_keys_may_have_rotations_of_their_own():
    q, k, v = draw(2, 4, 5, 8), draw(2, 4, 7, 8, seed=1), draw(2, 4, 7, 8, seed=2)
    q_coords, k_coords = sequence_coords(5, offset=300), sequence_coords(7)
    rope = RoPE(8)
    both = attention(q, k, v, rotation=(rope(q_coords), rope(k_coords)))
    torch.testing.assert_close(both.double(), reference(turned(q, q_coords), turned(k, k_coords), v), atol=3e-6, rtol=0)
    one = attention(q, k, v, rotation=(rope(q_coords), None))
    torch.testing.assert_close(one.double(), reference(turned(q, q_coords), k.double(), v), atol=3e-6, rtol=0)


def test_roles_reach_a_rotation_with_a_scale():
    coords, scale = sequence_coords(5), draw(1, 5, 4).exp()
    rotation = RoPE(8)(coords)._replace(scale=scale)
    q, k, v = draw(2, 4, 5, 8), draw(2, 4, 5, 8, seed=1), draw(2, 4, 5, 8, seed=2)
    wide = torch.cat([scale, scale], dim=-1)
    want = reference(turned(q, coords) * wide, turned(k, coords) / wide, v)
    torch.testing.assert_close(attention(q, k, v, rotation=rotation).double(), want, atol=3e-6, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("biased", [False, True])
def test_half_precision_in_half_precision_out(biased, dtype, backend):
    q, k, v = (draw(2, 4, 7, 8, seed=s).to(dtype) for s in range(3))
    coords = sequence_coords(7, offset=1000)
    bias = {"bias": ALiBi(4), "q_coords": coords} if biased else {}
    got = attention(q, k, v, rotation=RoPE(8)(coords), is_causal=True, backend=backend, **bias)
    assert got.dtype == dtype
    dense = ALiBi(4)(coords, coords) if biased else None
    want = reference(turned(q.double(), coords), turned(k.double(), coords), v, dense, visible=causal(7, 7))
    torch.testing.assert_close(got.double(), want, atol=8 * torch.finfo(dtype).eps, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_tells_the_biases_of_far_keys_apart(autocast, backend):
    # Rounded to bfloat16, five neighbours at a distance of 4096 would all weigh the same.
    dtype = torch.float32 if autocast else torch.bfloat16
    q, k = torch.zeros(8, 1, 8, dtype=dtype), torch.zeros(8, 5, 8, dtype=dtype)
    v = torch.eye(5, dtype=dtype).expand(8, 5, 5)
    alibi = ALiBi(8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        got = attention(
            q, k, v, bias=alibi, q_coords=torch.tensor([[4096]]), k_coords=sequence_coords(5), backend=backend
        )
    weight = (0.5 * torch.arange(5)).exp()
    torch.testing.assert_close(got[0, 0].float(), weight / weight.sum(), atol=2**-9, rtol=0)


@pytest.mark.parametrize("biased", [False, True])
def test_autocast_keeps_the_dtype_of_the_values(biased):
    q, k, v = (draw(2, 4, 7, 8, seed=s) for s in range(3))
    options = {"bias": ALiBi(4), "q_coords": sequence_coords(7)} if biased else {}
    want = attention(q, k, v, is_causal=True, **options)
    with torch.autocast("cpu", torch.bfloat16):
        got = attention(q, k, v, is_causal=True, **options)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, atol=0.02, rtol=0)
    if biased:
        assert torch.equal(got, want)  # a bias is added in float32 or it is not added right


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("biased", [False, True])
def test_autocast_takes_queries_and_values_of_different_dtypes(biased, backend):
    # A norm gives float32 under autocast where a linear layer gives bfloat16.
    q, k, v = (draw(2, 4, 7, 8, seed=s) for s in range(3))
    options = {"bias": ALiBi(4), "q_coords": sequence_coords(7)} if biased else {}
    with torch.autocast("cpu", torch.bfloat16):
        got = attention(q, k, v.bfloat16(), backend=backend, **options)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), attention(q, k, v, **options), atol=0.02, rtol=0)


@pytest.mark.parametrize("is_causal", [False, True])
def test_without_a_bias_or_mask_there_is_no_tensor_of_all_pairs(is_causal):
    q, k, v = (draw(1, 2, 300, 8, seed=s) for s in range(3))
    rotation = RoPE(8)(sequence_coords(300))
    with Largest() as largest:
        attention(q, k, v, rotation=rotation, is_causal=is_causal)
    assert largest.elements < 300 * 300


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_are_dropped_at_the_given_rate_and_rescaled(backend):
    q, v = draw(1, 4, 64, 8), torch.ones(1, 4, 64, 8)
    options = {"bias": torch.zeros(64, 64), "backend": backend}
    dropped = attention(q, q, v, attn_drop=0.25, **options)
    assert dropped.std() > 0.01
    assert dropped.mean().item() == pytest.approx(1, abs=0.05)
    torch.testing.assert_close(attention(q, q, v, attn_drop=0.0, **options), v, atol=1e-6, rtol=0)


def test_inputs_are_not_modified():
    q, k, v = (draw(2, 4, 5, 8, seed=s) for s in range(3))
    bias, factor, mask = draw(4, 5, 5), draw(4, 5).abs(), torch.ones(5, 5, dtype=torch.bool).tril(-1)
    parts = (q, k, v, bias, factor, mask)
    before = [part.clone() for part in parts]
    attention(q, k, v, rotation=RoPE(8)(sequence_coords(5)), bias=bias, logit_scale=factor, mask=mask)
    assert all(map(torch.equal, before, parts))


@pytest.mark.parametrize("backend, dynamic", [("inductor", False), ("aot_eager", True)])
def test_compiled_attention_agrees(backend, dynamic):
    q, k, v = draw(2, 4, 7, 8), draw(2, 2, 7, 8, seed=1), draw(2, 2, 7, 8, seed=2)
    rope, alibi, coords = RoPE(8), ALiBi(4), sequence_coords(7, offset=1000)
    mask = draw(2, 1, 7, 7) > 0

    def call(q, k, v):
        return attention(q, k, v, rotation=rope(coords), bias=alibi, q_coords=coords, mask=mask, is_causal=True)

    torch.compiler.reset()  # shapes of earlier compilations are not to be taken for dynamic ones
    compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(compiled(q, k, v), call(q, k, v), atol=2e-6, rtol=0)


# Positions through attention


def attend_all(q, k, v, coords, **options):
    rope, alibi = RoPE(8), ALiBi(4)
    return attention(q, k, v, rotation=rope(coords), bias=alibi, q_coords=coords, **options)


def test_decoding_with_a_cache_equals_the_full_pass():
    q, k, v = (draw(2, 4, 8, 8, seed=s) for s in range(3))
    full = attend_all(q, k, v, sequence_coords(8), is_causal=True)
    rope, alibi, parts, seen = RoPE(8), ALiBi(4), [], 0
    for step in (4, 1, 2, 1):
        now, past = sequence_coords(step, offset=seen), sequence_coords(seen + step)
        parts.append(
            attention(
                q[..., seen : seen + step, :],
                k[..., : seen + step, :],
                v[..., : seen + step, :],
                rotation=(rope(now), rope(past)),
                bias=alibi,
                q_coords=now,
                k_coords=past,
                is_causal=True,
            )
        )
        seen += step
    torch.testing.assert_close(torch.cat(parts, dim=-2), full, atol=3e-6, rtol=0)


def test_decoding_behind_prefix_tokens_equals_the_full_pass():
    q, k, v = (draw(2, 4, 8, 8, seed=s) for s in range(3))
    coords, factor, alibi = sequence_coords(6), draw(4, 6).abs(), ALiBi(4)
    full = attention(q, k, v, bias=alibi, logit_scale=factor, q_coords=coords, num_prefix_tokens=2, is_causal=True)
    last = attention(
        q[..., -3:, :],
        k,
        v,
        bias=alibi,
        logit_scale=factor[:, -3:],
        q_coords=coords[-3:],
        k_coords=coords,
        num_prefix_tokens=2,
        is_causal=True,
    )
    torch.testing.assert_close(last, full[..., -3:, :], atol=3e-6, rtol=0)


def test_packed_documents_equal_each_alone():
    q, k, v = (draw(4, 10, 8, seed=s) for s in range(3))
    lengths = [3, 5, 2]
    coords, document = packed_coords(lengths)
    got = attend_all(q, k, v, coords, mask=document[:, None] == document, is_causal=True)
    for part, *alone in zip(*(x.split(lengths, dim=-2) for x in (got, q, k, v)), strict=True):
        want = attend_all(*alone, sequence_coords(part.shape[-2]), is_causal=True)
        torch.testing.assert_close(part, want, atol=3e-6, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_row_equals_the_row_alone(side):
    q, k, v = (draw(2, 4, 5, 8, seed=s) for s in range(3))
    real = slice(2, 5) if side == "left" else slice(0, 3)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0] = False
    mask[0, real] = True
    got = attend_all(q, k, v, padded_coords(mask), mask=mask[:, None, None, :])
    alone = attend_all(*(x[0, :, real] for x in (q, k, v)), sequence_coords(3))
    torch.testing.assert_close(got[0, :, real], alone, atol=3e-6, rtol=0)
    torch.testing.assert_close(got[1], attend_all(q[1], k[1], v[1], sequence_coords(5)), atol=3e-6, rtol=0)


def test_dropped_patches_keep_the_positions_of_the_others():
    coords, rope, alibi = grid_coords(2, 8), RoPE(8, axes=2), ALiBi(4, axes=2)
    q, k, v = (draw(2, 4, 16, 8, seed=s) for s in range(3))
    keep = torch.tensor([[0, 3, 4, 7, 8, 11], [1, 2, 3, 4, 10, 9]])
    mask = torch.zeros(2, 16, dtype=torch.bool).scatter(1, keep, True)
    options = {"bias": alibi, "num_prefix_tokens": 0}
    full = attention(q, k, v, rotation=rope(coords), q_coords=coords, mask=mask[:, None, None], **options)
    chosen = keep[:, None, :, None].expand(-1, 4, -1, 8)
    kept = [x.gather(2, chosen) for x in (q, k, v)]
    got = attention(*kept, rotation=rope(coords[keep]), q_coords=coords[keep], **options)
    torch.testing.assert_close(got, full.gather(2, chosen), atol=3e-6, rtol=0)


# Biases and scales that are modules


class ByContent(AttentionBias):
    """Reads the channels of queries and keys, and remembers what it was given."""

    axes = 1

    def __init__(self, *needs):
        super().__init__()
        self.needs = frozenset(needs)

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        self.query, self.key = query, key
        distance = (q_coords - k_coords.mT).float()
        content = 1.0 if query is None else query[..., :1]
        return (content * distance).expand(*([4] if query is None else query.shape[:-2]), *distance.shape)


@pytest.mark.parametrize("prefix", [0, 2])
def test_a_bias_is_given_the_content_that_it_needs_before_rotation_and_without_prefix(prefix):
    coords = sequence_coords(5)
    q, k, v = draw(2, 4, 5 + prefix, 8), draw(2, 2, 5 + prefix, 8, seed=1), draw(2, 2, 5 + prefix, 8, seed=2)
    bias = ByContent("query", "key")
    rotation = RoPE(8)(coords).with_prefix(prefix)
    got = attention(q, k, v, rotation=rotation, bias=bias, q_coords=coords, num_prefix_tokens=prefix)
    assert torch.equal(bias.query, q[..., prefix:, :])
    assert torch.equal(bias.key, k[..., prefix:, :])
    positions = torch.cat([torch.zeros(prefix, 1), coords.float()])
    dense = nn.functional.pad(q[..., prefix:, :1] * (coords - coords.mT), (prefix, 0, prefix, 0))
    want = reference(turned(q, positions), turned(k, positions), v, dense)
    torch.testing.assert_close(got.double(), want, atol=5e-6, rtol=0)


def test_a_bias_is_given_nothing_that_it_does_not_need():
    bias, q = ByContent("key"), draw(2, 4, 5, 8)
    attention(q, q, q, bias=bias, q_coords=sequence_coords(5))
    assert bias.query is None
    assert bias.key is not None


def test_gradients_reach_queries_through_a_bias_of_content():
    coords, q, v = sequence_coords(5), draw(2, 4, 5, 8).requires_grad_(), draw(2, 4, 5, 8, seed=1)
    attention(q, torch.zeros_like(v), v, bias=ByContent("query"), q_coords=coords).square().sum().backward()
    assert q.grad[..., 0].abs().min() > 0
    assert not q.grad[..., 1:].any()


class Recorded(LogitScale):
    axes = 1

    def forward(self, q_coords, *, visible=None):
        self.visible = visible
        return 1 + q_coords[..., 0].float().unsqueeze(-2) / 10


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize(
    "shape, is_causal", [(None, False), (None, True), ((2, 1, -1, -1), True), ((2, 1, 1, -1), False), ((-1, -1), False)]
)
def test_a_scale_is_told_how_many_keys_each_query_sees(shape, is_causal, prefix):
    n, coords = 5 + prefix, sequence_coords(5)
    q, k, v = (draw(2, 4, n, 8, seed=s) for s in range(3))
    mask = None if shape is None else draw(*[n if side == -1 else side for side in shape], seed=3) > -0.5
    scale = Recorded()
    options = {"mask": mask, "is_causal": is_causal, "q_coords": coords, "num_prefix_tokens": prefix}
    got = attention(q, k, v, logit_scale=scale, **options)
    visible = torch.ones(2, 1, n, n, dtype=torch.bool)
    visible = visible if mask is None else visible & mask
    visible = visible & causal(n, n) if is_causal else visible
    counts = visible.sum(-1)[:, 0, prefix:]
    assert scale.visible.shape[-1] == 5
    assert torch.equal(scale.visible.expand(2, 5), counts)
    factor = torch.cat([torch.ones(prefix), 1 + torch.arange(5) / 10])
    torch.testing.assert_close(got.double(), reference(q, k, v, factor=factor, visible=visible), atol=3e-6, rtol=0)


# Misuse

Q, KV, COORDS = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 7, 8), sequence_coords(5)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"backend": "flash"}, ValueError, "backend must be one of auto, dense.*, got 'flash'"),
        ({"k": torch.zeros(2, 4, 5, 6)}, ValueError, "q has 8 channels per head but k has 6"),
        ({"v": torch.zeros(2, 4, 6, 8)}, ValueError, r"k and v must agree .*\(2, 4, 5, 8\) and \(2, 4, 6, 8\)"),
        (
            {"k": torch.zeros(2, 3, 5, 8), "v": torch.zeros(2, 3, 5, 8)},
            ValueError,
            "q has 4 heads, which the 3 heads of k",
        ),
        ({"k": torch.zeros(3, 4, 5, 8), "v": torch.zeros(3, 4, 5, 8)}, ValueError, r"q .*batch.*\(2,\).*\(3,\)"),
        ({"q": torch.zeros(5, 8)}, ValueError, r"\(..., heads, tokens, channels\), got"),
        ({"v": torch.zeros(2, 4, 5, 8).bfloat16()}, TypeError, "dtype.*bfloat16"),
        ({"q": Q.long(), "k": Q.long(), "v": Q.long()}, TypeError, "floating point"),
        ({"mask": torch.zeros(5, 5)}, TypeError, r"mask must be boolean \(True may attend\), got torch.float32"),
        (
            {"mask": torch.ones(5, 6, dtype=torch.bool)},
            ValueError,
            r"mask must fit logits of shape \(2, 4, 5, 5\), got shape \(5, 6\)",
        ),
        ({"mask": torch.ones(3, 1, 5, 5, dtype=torch.bool)}, ValueError, r"mask must fit .*got shape \(3, 1, 5, 5\)"),
        (
            {"bias": torch.zeros(3, 5, 5)},
            ValueError,
            r"bias must fit logits of shape \(2, 4, 5, 5\), got shape \(3, 5, 5\)",
        ),
        (
            {"bias": torch.zeros(4, 4, 5)},
            ValueError,
            r"bias has shape \(4, 4, 5\), which leaves out 1 of the queries; num_prefix_tokens is 0",
        ),
        (
            {"bias": torch.zeros(5, 5), "num_prefix_tokens": 2, "q": torch.zeros(2, 4, 6, 8)},
            ValueError,
            "leaves out 1 of the queries",
        ),
        ({"bias": torch.zeros(5, 5, dtype=torch.bool)}, TypeError, "bias .*torch.bool"),
        ({"bias": torch.zeros(6, 6), "num_prefix_tokens": -1}, ValueError, "num_prefix_tokens .*-1"),
        ({"bias": ALiBi(4)}, ValueError, "ALiBi is a bias of coordinates: attention needs q_coords"),
        ({"bias": ALiBi(3), "q_coords": COORDS}, ValueError, r"bias must fit .*got shape \(3, \d, 5\)"),
        ({"bias": ALiBi(4), "q_coords": sequence_coords(4)}, ValueError, "leaves out 1 of the queries"),
        (
            {"bias": ALiBi(4, axes=2), "q_coords": COORDS},
            ValueError,
            r"q_coords must have 2 axes \(y, x\), got shape \(5, 1\)",
        ),
        (
            {"bias": ByContent("tokens"), "q_coords": COORDS},
            ValueError,
            "ByContent needs tokens, which attention was not given",
        ),
        (
            {"bias": ByContent("tokens"), "q_coords": COORDS, "tokens": torch.zeros(2, 4, 8)},
            ValueError,
            r"ByContent needs tokens of 5 tokens, got shape \(2, 4, 8\)",
        ),
        (
            {"bias": ByContent("speed"), "q_coords": COORDS},
            ValueError,
            "ByContent needs speed, which attention was not",
        ),
        ({"bias": torch.zeros(5)}, ValueError, r"bias must be \(..., h, q, k\), got shape \(5,\)"),
        (
            {"bias": ALiBi(4), "q_coords": COORDS.expand(3, 5, 1)},
            ValueError,
            r"q_coords must fit rows of shape \(2,\), got shape \(3, 5, 1\)",
        ),
        ({"logit_scale": Recorded(), "q_coords": sequence_coords(7)}, ValueError, "q_coords .*leaves out -2 of the"),
        ({"logit_scale": Recorded()}, ValueError, "Recorded is a scale of coordinates: attention needs q_coords"),
        (
            {"logit_scale": Recorded(), "q_coords": COORDS, "mask": torch.ones(4, 5, 5, dtype=torch.bool)},
            ValueError,
            r"a logit scale takes one mask for all heads, got mask shape \(1, 4, 5, 5\)",
        ),
        ({"logit_scale": torch.ones(4, 3)}, ValueError, r"logit_scale .*\(4, 3\)"),
        ({"logit_scale": torch.ones(4, 9)}, ValueError, r"logit_scale .*\(4, 9\)"),
        ({"logit_scale": torch.ones(3, 5)}, ValueError, r"logit_scale .*\(3, 5\)"),
        (
            {"rotation": RoPE(8)(sequence_coords(4))},
            ValueError,
            r"x has 5 tokens but the rotation has 4; .*with_prefix\(1\)",
        ),
        ({"rotation": RoPE(8)}, TypeError, "rotation must be .*RoPE"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_misuse_is_named(arguments, error, message, backend):
    with pytest.raises(error, match=message):
        attention(**{"q": Q, "k": Q, "v": Q, "backend": backend, **arguments})
