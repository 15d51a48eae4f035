"""Attention under torch.compile."""

import pytest
import torch

from mmpos import FIRE, ALiBi, LogScale, attention, sequence_coords
from mmpos.masks import causal, documents, padding, window
from tests.attention_checks import Steep, Waves, draw


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks, which the backward pass repeats, and factors however few queries there are."""
    for name, value in (("fused.BLOCK", 1), ("fused.ROWS", 30), ("fused.KEPT", 0), ("choice.QUERIES", 1)):
        monkeypatch.setattr(f"mmpos.attend.{name}", value)
    torch.compiler.reset()  # shapes of earlier compilations are not to be taken for dynamic ones


def masked(q, k, v, coords, ids, backend):
    mask = causal() & documents(ids) & window(30)
    return attention(q, k, v, bias=Waves(2), q_coords=coords, mask=mask, backend=backend)


@pytest.mark.parametrize("backend", ["sdpa", "blocks", "factors"])
def test_every_backend_compiles_as_one_graph(backend):
    q, k, v = (draw(2, heads, 70, 8, seed=seed).requires_grad_() for seed, heads in enumerate((4, 2, 2)))
    inputs = (q, k, v, sequence_coords(70), torch.arange(70) // 20, backend)
    got, want = torch.compile(masked, backend="aot_eager", fullgraph=True)(*inputs), masked(*inputs)
    torch.testing.assert_close(got, want, atol=2e-6, rtol=0)
    for grad, wanted in zip(*(torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (got, want)), strict=True):
        torch.testing.assert_close(grad, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("backend", ["sdpa", "blocks"])
def test_sizes_may_be_dynamic(backend):
    compiled = torch.compile(masked, backend="eager", fullgraph=True, dynamic=True)
    for n in (70, 75):
        q, k, v = (draw(2, heads, n, 8, seed=seed) for seed, heads in enumerate((4, 2, 2)))
        inputs = (q, k, v, sequence_coords(n), torch.arange(n) // 20, backend)
        torch.testing.assert_close(compiled(*inputs), masked(*inputs), atol=2e-6, rtol=0)


MASKS = {
    "none": lambda ids: None,
    "causal": lambda ids: causal(),
    "window": lambda ids: window(4),
    "documents": lambda ids: causal() & documents(ids),
    "padding": lambda ids: padding(ids[None] > 0),
    "dense": lambda ids: ids[:, None] >= ids,
}


ENCODINGS = {
    "ALiBi": {"bias": ALiBi(5)},
    "FIRE": {"bias": FIRE(5)},
    "LogScale": {"logit_scale": LogScale(train_length=8)},
}


@pytest.mark.parametrize(
    "mask, encoding",
    [*((mask, None) for mask in MASKS), ("window", "ALiBi"), ("documents", "FIRE"), ("documents", "LogScale")],
)
def test_one_graph_serves_any_size(monkeypatch, mask, encoding):
    monkeypatch.undo()

    def call(q, coords, ids):
        return attention(q, q, q, **ENCODINGS.get(encoding, {}), q_coords=coords, mask=MASKS[mask](ids))

    compiled = torch.compile(call, backend="eager", fullgraph=True, dynamic=True)
    for b, n in ((2, 9), (3, 21), (4, 600)):
        inputs = draw(b, 5, n, 8), sequence_coords(n), torch.arange(n) // 5
        with torch._dynamo.config.patch(error_on_recompile=b > 2):
            got = compiled(*inputs)
        torch.testing.assert_close(got, call(*inputs), atol=2e-6, rtol=0)


def test_compiled_blocks_are_few():
    bias, n = Steep(0.5), 4100
    q = torch.zeros(1, 1, n, 8)

    def call(q):
        return attention(q, q, q, bias=bias, q_coords=sequence_coords(n), backend="blocks")

    calls = []

    def count(graph, inputs):
        calls.extend(node for node in graph.graph.nodes if "scaled_dot_product" in str(node.target))
        return graph

    torch.compile(call, backend=count, fullgraph=True)(q)
    assert 1 < len(calls) <= 32


@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")  # PyTorch 2.12 does
@torch.no_grad()
def test_flex_attention():
    bias, n = Steep(0.5, 0.25, 0.1, 0.05), 148
    q, k, v = (draw(2, heads, n, 16, seed=seed) for seed, heads in enumerate((4, 2, 2)))
    coords = torch.stack([sequence_coords(n - 2), sequence_coords(n - 2, offset=7)])
    mask = documents(torch.arange(n - 2) // 50) & window(40) & padding(draw(2, n, seed=4) > -0.5)
    options = {"bias": bias, "q_coords": coords, "num_prefix_tokens": 2, "mask": mask}
    want = attention(q, k, v, backend="dense", **options)
    torch.testing.assert_close(attention(q, k, v, backend="flex", **options), want, atol=2e-6, rtol=0)


ORDERS = {"grows": [0, 0, 1, 3, 3, 9], "falls": [5, 4, 3, 2, 1, 0], "falls once": [0, 1, 5, 4, 6, 7]}


def test_compiled_factors_of_unordered_coordinates_are_no_numbers():
    bias = Steep(0.5, 0.25)
    q, k, v = (draw(2, 2, 6, 8, seed=seed) for seed in range(3))

    def call(q, k, v, coords):
        return attention(q, k, v, bias=bias, q_coords=coords, is_causal=True, backend="factors")

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    coords = torch.stack([torch.tensor(ORDERS[order]) for order in ("grows", "falls once")])[..., None]
    got = compiled(q, k, v, coords)
    torch.testing.assert_close(got[:1], call(q[:1], k[:1], v[:1], coords[:1]), atol=1e-6, rtol=0)
    assert got[1].isnan().all()
    assert compiled(q, k, v, torch.tensor(ORDERS["falls"])[:, None]).isnan().all()


def test_compiled_attention_does_not_take_order_for_granted():
    bias, n = Steep(0.5, 0.25), 200
    q, k, v = (draw(1, 2, n, 8, seed=seed) for seed in range(3))
    coords = sequence_coords(n).flip(0)

    def call(q, k, v):
        return attention(q, k, v, bias=bias, q_coords=coords, is_causal=True)

    got = torch.compile(call, backend="aot_eager", fullgraph=True)(q, k, v)
    torch.testing.assert_close(got, call(q, k, v), atol=1e-6, rtol=0)
