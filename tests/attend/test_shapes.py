"""Odd sizes and devices, and tokens that come one after the other."""

import pytest
import torch

from mmpos import ALiBi, attention, sequence_coords
from mmpos.masks import causal, documents, window
from tests.attention_checks import Steep, Waves, draw, reference


@pytest.mark.parametrize("backend", ["auto", "sdpa", "blocks", "factors", "dense"])
@pytest.mark.parametrize("batch, queries, keys", [((2,), 0, 5), ((2,), 5, 0), ((2,), 0, 0), ((0,), 5, 5), ((), 0, 5)])
def test_there_may_be_no_tokens(batch, queries, keys, backend):
    q, k = torch.zeros(*batch, 4, queries, 8), torch.zeros(*batch, 2, keys, 8)
    coords = {"q_coords": sequence_coords(queries), "k_coords": sequence_coords(keys)}
    for options in ({}, {"is_causal": True}, {"mask": window(2)}):
        got = attention(q, k, k, bias=Waves(1), **coords, **options, backend=backend)
        assert torch.equal(got, torch.zeros(*batch, 4, queries, 8))


@pytest.mark.parametrize("backend", ["auto", "sdpa", "blocks", "dense"])
@pytest.mark.parametrize("n", [7, 3000])
def test_on_the_meta_device_nothing_is_computed(backend, n):
    q, ids = torch.empty(2, 4, n, 8, device="meta"), torch.zeros(n, dtype=torch.int64, device="meta")
    mask, coords = causal() & documents(ids) & window(5), sequence_coords(n).to("meta")
    for options in ({}, {"bias": ALiBi(4), "q_coords": coords}):
        got = attention(q, q, q, mask=mask, backend=backend, **options)
        assert (got.device.type, got.shape) == ("meta", q.shape)


@pytest.mark.parametrize("backend", ["auto", "sdpa", "blocks", "factors", "dense"])
@pytest.mark.parametrize("batch", [(), (1,), (3, 2)])
def test_any_batch_shape(batch, backend):
    q, k, v = (draw(*batch, heads, 9, 8, seed=seed) for seed, heads in enumerate((4, 2, 2)))
    coords = torch.arange(9).expand(*batch, 9)[..., None]
    ids = torch.arange(9).expand(*batch, 9) // 4
    bias = Waves(2)
    got = attention(q, k, v, bias=bias, q_coords=coords, mask=causal() & documents(ids), backend=backend)
    place = torch.arange(9)
    visible = (place[:, None] >= place) & (place[:, None] // 4 == place // 4)
    dense = bias(place[:, None], place[:, None])
    torch.testing.assert_close(got.double(), reference(q, k, v, dense, visible=visible), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("packed", [False, True])
def test_decoding_with_conditions_equals_the_full_pass(size, packed):
    q, k, v = (draw(2, 4, 12, 8, seed=seed) for seed in range(3))
    coords, ids, bias = sequence_coords(12), torch.arange(12) // 5, Steep(0.5, 0.25, 0.1, 0.05)

    def mask(queries, keys):
        own = causal() if size is None else window(size)
        return own & documents(ids[keys - queries : keys], ids[:keys]) if packed else own

    full = attention(q, k, v, bias=bias, q_coords=coords, mask=mask(12, 12))
    parts, seen = [], 0
    for step in (5, 1, 4, 1, 1):
        new = slice(seen, seen + step)
        seen += step
        past = [part[..., :seen, :] for part in (k, v)]
        options = {"q_coords": coords[new], "k_coords": coords[:seen], "mask": mask(step, seen)}
        parts.append(attention(q[..., new, :], *past, bias=bias, **options))
    torch.testing.assert_close(torch.cat(parts, dim=-2), full, atol=3e-6, rtol=0)
