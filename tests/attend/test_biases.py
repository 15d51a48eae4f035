"""Every bias with every mask: all backends give what the formula gives, forwards and backwards."""

import pytest
import torch
from torch import nn

from mmpos import AttentionBias, attention, sequence_coords
from mmpos.catalogue import ENCODINGS
from mmpos.factory import build
from mmpos.masks import causal, documents, padding, window
from tests.attention_checks import draw, reference, small_blocks  # noqa: F401

N, HEADS, GROUPS, WIDTH, DIM = 11, 4, 2, 8, 32


class Ramp(AttentionBias):
    """A learned slope times the difference: an inner product up to a number of each query's own."""

    axes = 1

    def __init__(self):
        super().__init__()
        self.slopes = nn.Parameter(draw(HEADS) / 4)

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        return self.slopes[:, None, None] * (k_coords.mT - q_coords).float().unsqueeze(-3)

    def factors(self, q_coords, k_coords, *, ordered=False, query=None, key=None, tokens=None):
        left = self.slopes[:, None, None].expand(*q_coords.shape[:-2], HEADS, q_coords.shape[-2], 1)
        return left, k_coords.float().unsqueeze(-3)

    def score(self, head, q_coord, k_coord):
        return self.slopes[head] * (k_coord[0] - q_coord[0])


class Table(AttentionBias):
    """A learned number of each difference, and numbers of prefix tokens."""

    axes = 1

    def __init__(self):
        super().__init__()
        self.weight, self.prefix = nn.Parameter(draw(2 * N, HEADS)), nn.Parameter(draw(3, HEADS, seed=1))

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        return self.weight[(q_coords - k_coords.mT).long() % (2 * N)].movedim(-1, -3)

    def prefix_bias(self):
        return self.prefix


class Late(Table):
    """The same behind the softmax."""

    after_softmax = True

    def prefix_bias(self):
        return None


class Contents(AttentionBias):
    """Reads everything there is."""

    axes = 1
    needs = frozenset({"query", "key", "tokens"})

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(draw(WIDTH))

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        distance = (q_coords - k_coords.mT).abs().float().unsqueeze(-3) / N
        key = key.repeat_interleave(HEADS // GROUPS, dim=-3)
        return (
            (query @ self.weight)[..., None] * distance + (key @ self.weight)[..., None, :] + tokens[..., None, :, :1]
        )


OWN = {"Ramp": Ramp, "Table": Table, "Late": Late, "Contents": Contents}
# What constructors need that has no default, beside sizes.
MORE = {"PeriodicBias": {"periods": (5, 7)}, "RelativeLogits": {"extent": N - 1}}
NAMES = [*OWN, "tensor", *(name for name, (kind, _) in ENCODINGS.items() if kind == "bias")]
MASKS = {
    "none": lambda n: None,
    "causal": lambda n: causal(),
    "window": lambda n: window(4),
    "two-sided window": lambda n: window(3, two_sided=True),
    "documents": lambda n: documents(torch.arange(n) // 4),
    "padding": lambda n: padding(draw(2, n, seed=9) > -0.5),
    "joined": lambda n: causal() & documents((torch.arange(2 * n) // 5).view(2, n)) & padding(draw(2, n, seed=9) > -1),
    **{
        f"boolean {shape}": lambda n, shape=shape: draw(*[n if side == N else side for side in shape], seed=8) > -0.5
        for shape in [(N, N), (1, N), (HEADS, N, N), (2, 1, 1, N), (2, 1, N, 1), (1, HEADS, N, N), (2, HEADS, N, N)]
    },
}


def make(name):
    if name in OWN:
        return OWN[name]()
    sizes = {"dim": DIM, "num_heads": HEADS, "num_kv_heads": GROUPS, "head_dim": WIDTH, "size": (N,)}
    bias = build({"name": name, **MORE.get(name, {})}, kind="bias", **sizes)
    with torch.no_grad():
        for number, parameter in enumerate(bias.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=number) / 2)  # some start at zero
    return bias


def attend(name, mask, backend, prefix=0, is_batched=False):
    """The result and the gradients, and both by the formula."""
    n = N + prefix
    inputs = [draw(2, HEADS, n, WIDTH), draw(2, GROUPS, n, WIDTH, seed=1), draw(2, GROUPS, n, WIDTH + 2, seed=2)]
    tokens, coords = draw(2, n, DIM, seed=3), sequence_coords(N)
    coords = torch.stack([coords, coords.flip(0)]) if is_batched else coords
    bias = draw(HEADS, N, N, seed=4) if name == "tensor" else make(name)
    learned = [bias] if name == "tensor" else [*bias.parameters()]
    for part in (*inputs, *learned):
        part.requires_grad_()
    weight = draw(2, HEADS, n, WIDTH + 2, seed=5)
    chosen = MASKS[mask](n)
    options = {"q_coords": coords, "tokens": tokens, "num_prefix_tokens": prefix, "mask": chosen, "backend": backend}
    got = attention(*inputs, bias=bias, **options)
    grads = torch.autograd.grad((got * weight).sum(), (*inputs, *learned), materialize_grads=True)

    exact = [part.detach().double().requires_grad_() for part in inputs]
    if name == "tensor":
        inner, values = bias.double(), None
    else:
        content = {"query": exact[0].float()[:, :, prefix:], "key": exact[1].float()[:, :, prefix:]}
        content["tokens"] = tokens[:, prefix:]
        inner = bias(coords, coords, **{needed: content[needed] for needed in bias.needs}).double()
        values = bias.prefix_bias()
    dense = nn.functional.pad(inner, (prefix, 0, prefix, 0))
    if values is not None and prefix:
        to_tokens, to_prefix, between = values.double()[:, :, None, None]
        rows, columns = torch.arange(n)[:, None] < prefix, torch.arange(n) < prefix
        dense = torch.where(rows & ~columns, to_tokens, dense)
        dense = torch.where(columns & ~rows, to_prefix, dense)
        dense = torch.where(rows & columns, between, dense)
    visible = chosen
    if chosen is not None and not isinstance(chosen, torch.Tensor):
        visible = chosen.dense(n, n, num_prefix_tokens=prefix)
    if name != "tensor" and bias.after_softmax:
        shown = dense if visible is None else dense * visible
        values_of_heads = exact[2].repeat_interleave(HEADS // GROUPS, dim=1)
        want = reference(*exact, visible=visible) + shown @ values_of_heads
    else:
        want = reference(*exact, dense, visible=visible)
    return got, want, grads, torch.autograd.grad((want * weight).sum(), (*exact, *learned), materialize_grads=True)


def compare(got, want, grads, wanted_grads):
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=0)
    for grad, wanted in zip(grads, wanted_grads, strict=True):
        scale = max(wanted.abs().max().item(), 1.0)
        torch.testing.assert_close(grad.double(), wanted.double(), atol=1e-5 * scale, rtol=0)


@pytest.mark.parametrize("backend", ["sdpa", "blocks", "dense", "auto"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["Ramp", "Table", "Late", "Contents", "tensor"])
def test_every_mask(name, mask, backend):
    compare(*attend(name, mask, backend))


@pytest.mark.parametrize("backend", ["sdpa", "blocks", "dense"])
@pytest.mark.parametrize("mask", ["none", "window", "joined"])
@pytest.mark.parametrize("prefix, is_batched", [(0, True), (3, False), (3, True)])
@pytest.mark.parametrize("name", NAMES)
def test_every_bias(name, prefix, is_batched, mask, backend):
    compare(*attend(name, mask, backend, prefix, is_batched))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("is_batched", [False, True])
def test_factors_with_every_mask(mask, is_batched):
    compare(*attend("Ramp", mask, "factors", is_batched=is_batched))


@pytest.mark.parametrize("mask", ["causal", "joined"])
@pytest.mark.parametrize("name", [name for name in ("ALiBi", "PeriodicBias", "RelativeSinusoids") if name in NAMES])
def test_factors_of_every_bias_that_has_them(name, mask):
    compare(*attend(name, mask, "factors"))
