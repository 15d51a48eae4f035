import copy
import math

import pytest
import torch
from torch import nn

from mmpos import grid_coords, sequence_coords
from mmpos.encodings.bias.kernels import FIRE, KERPLE


def kerple_reference(kernel, r1, r2, distance):
    """The paper's formulas in float64, for heads in front of distances."""
    r1, r2 = r1.double()[:, None, None], r2.double()[:, None, None]
    return -r1 * (1 + r2 * distance).log() if kernel == "log" else -r1 * distance**r2


def fire_reference(fire, distance, reach):
    """The network of ``log(1 + c d) / log(1 + c max(L, reach))`` in float64, one pair after another."""
    state = {name: value.detach().double() for name, value in fire.state_dict().items()}
    c, threshold = state["log_c"].exp().item(), state["log_threshold"].exp().item()
    bias = torch.zeros(fire.num_heads, *distance.shape, dtype=torch.float64)
    for i, row in enumerate(distance.tolist()):
        for j, d in enumerate(row):
            share = math.log(1 + c * d) / math.log(1 + c * max(threshold, reach[i][j]))
            hidden = (state["first.weight"][:, 0] * share + state["first.bias"]).clamp(min=0)
            bias[:, i, j] = (state["last.weight"] * hidden).sum(-1) + state["last.bias"]
    return bias


@pytest.mark.parametrize("kernel", ["log", "power"])
def test_kerple_is_the_papers_formula(kernel):
    kerple = KERPLE(5, kernel=kernel)
    q_coords, k_coords = torch.tensor([[0], [7], [2000]]), sequence_coords(300)
    got = kerple(q_coords, k_coords)
    assert got.dtype == torch.float32
    distance = (q_coords - k_coords.mT).abs().double()
    want = kerple_reference(kernel, kerple.r1.detach(), kerple.r2.detach(), distance)
    torch.testing.assert_close(got.double(), want, atol=1e-6, rtol=3e-6)


@pytest.mark.parametrize("kernel", ["log", "power"])
@pytest.mark.parametrize("metric", ["sum", "euclidean", "max"])
def test_kerple_of_axes_and_units(kernel, metric):
    kerple = KERPLE(4, axes=2, kernel=kernel, metric=metric, per=(2.0, 0.5))
    coords = grid_coords(3, 5).double() + torch.rand(15, 2, dtype=torch.float64)
    step = ((coords[:, None] - coords) / torch.tensor([2.0, 0.5], dtype=torch.float64)).abs()
    distance = {"sum": step.sum(-1), "euclidean": step.square().sum(-1).sqrt(), "max": step.amax(-1)}[metric]
    want = kerple_reference(kernel, kerple.r1.detach(), kerple.r2.detach(), distance)
    torch.testing.assert_close(kerple(coords, coords).double(), want, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kernel, most", [("log", (2, 1)), ("power", (1, 2))])
def test_kerple_starts_where_the_released_code_does(kernel, most):
    kerple = KERPLE(20000, kernel=kernel)
    for value, top in zip((kerple.r1, kerple.r2), most, strict=True):
        assert 0.0099 < value.min() < 0.011
        assert 0.98 * top < value.max() < top
        torch.testing.assert_close(value.mean(), torch.tensor(top / 2), atol=0.02 * top, rtol=0)
    before = kerple.raw_r1.clone()
    kerple.reset_parameters()
    assert not torch.equal(kerple.raw_r1, before)


@pytest.mark.parametrize("kernel", ["log", "power"])
def test_kerple_falls_with_distance_whatever_it_learns(kernel):
    kerple = KERPLE(3, kernel=kernel)
    with torch.no_grad():
        kerple.raw_r1.copy_(torch.tensor([-9.0, 0.0, 3.0]))
        kerple.raw_r2.copy_(torch.tensor([3.0, -9.0, 5.0]))
    bias = kerple(torch.tensor([[0]]), 10 ** torch.arange(7)[:, None])[:, 0]
    assert (bias < 0).all()
    assert (bias.diff() < 0).all()
    assert (kerple.r1 > 0).all()
    assert (kerple.r2 > 0).all()
    assert kernel == "log" or (kerple.r2 < 2).all()


@pytest.mark.parametrize("kernel", ["log", "power"])
def test_kerple_is_symmetric_finite_and_exact_in_time(kernel):
    kerple = KERPLE(4, kernel=kernel)
    now = 1_700_000_000
    times = torch.tensor([[now], [now + 1], [now - 10**8], [-(2**61)], [2**61]])
    bias = kerple(times, times)
    assert torch.equal(bias, bias.mT)
    assert bias.isfinite().all()
    torch.testing.assert_close(bias[:, 0, 1], kerple(times[:1] * 0, times[:1] * 0 + 1)[:, 0, 0])
    far = torch.tensor([[1e308], [-1e308], [0.0]], dtype=torch.float64, requires_grad=True)
    kerple(far, far).sum().backward()
    assert kerple(far, far).isfinite().all()
    assert all(part.grad.isfinite().all() for part in (far, kerple.raw_r1, kerple.raw_r2))


@pytest.mark.parametrize("kernel", ["log", "power"])
def test_gradients_of_kerple(kernel):
    kerple = KERPLE(3, kernel=kernel)
    coords = torch.tensor([[0.0], [0.5], [4.0], [90.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 4, 4, dtype=torch.float64)
    (kerple(coords, coords) * weight).sum().backward()
    raw1, raw2, own = (part.detach().double().requires_grad_() for part in (kerple.raw_r1, kerple.raw_r2, coords))
    apart = (own - own.mT).abs() + torch.eye(4)  # the diagonal, where the bias is 0, is left out below
    want = kerple_reference(kernel, raw1.exp(), raw2.exp() if kernel == "log" else 2 * raw2.sigmoid(), apart)
    (want * weight * (1 - torch.eye(4))).sum().backward()
    torch.testing.assert_close(kerple.raw_r1.grad.double(), raw1.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(kerple.raw_r2.grad.double(), raw2.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(coords.grad, own.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("build", [KERPLE, FIRE, lambda heads: KERPLE(heads, kernel="power")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_learned_stays_in_float32(build, dtype):
    encoding = build(4)
    coords = sequence_coords(1000)[::13]
    want = encoding(coords, coords)
    cast = nn.Sequential(copy.deepcopy(encoding), nn.Linear(2, 2)).to(dtype)[0]
    assert {parameter.dtype for parameter in cast.parameters()} == {torch.float32}
    with torch.autocast("cpu", dtype):
        got = cast(coords, coords)
    assert got.dtype == torch.float32
    assert torch.equal(got, want)


@pytest.mark.parametrize("build", [KERPLE, FIRE, lambda heads: KERPLE(heads, kernel="power")])
def test_what_is_learned_is_float32_in_models_built_in_half_precision(build):
    want = build(4)
    torch.set_default_dtype(torch.bfloat16)
    try:
        encoding = build(4)
        encoding.load_state_dict(want.state_dict())
        coords = sequence_coords(1000)[::13]
        assert {parameter.dtype for parameter in encoding.parameters()} == {torch.float32}
        got = encoding(coords, coords)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got, want(coords, coords))


def test_fire_is_the_papers_formula_for_keys_of_the_past():
    fire = FIRE(3, hidden=7, threshold=20.0)
    for c in (0.1, 2.0):
        with torch.no_grad():
            fire.log_c.fill_(math.log(c))
        q_coords, k_coords = torch.tensor([[40], [90], [15], [700]]), sequence_coords(16)
        distance = q_coords - k_coords.mT
        positions = [[q] * 16 for q in (40, 90, 15, 700)]
        got = fire(q_coords, k_coords)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), fire_reference(fire, distance.double(), positions), atol=1e-6, rtol=0)


def test_fire_of_units_that_turn_on_and_off_everywhere_and_nowhere():
    fire = FIRE(3, hidden=8, threshold=20.0)
    with torch.no_grad():  # knots at 0.2, 0.7, 0.2 again, 0 and 1, outside, and of constants on both sides of 0
        fire.first.weight.copy_(torch.tensor([[1.0], [-1.0], [2.0], [1.0], [-1.0], [0.5], [0.0], [0.0]]))
        fire.first.bias.copy_(torch.tensor([-0.2, 0.7, -0.4, 0.0, 1.0, 3.0, 0.5, -0.5]))
    coords = sequence_coords(20)
    want = fire_reference(fire, (coords - coords.mT).abs().double(), torch.maximum(coords, coords.mT).tolist())
    torch.testing.assert_close(fire(coords, coords).double(), want, atol=1e-6, rtol=0)


def test_fire_is_symmetric_and_never_past_the_whole_way():
    fire = FIRE(3, hidden=7, threshold=4.0)
    coords = torch.tensor([[0.0], [0.5], [3.0], [50.25], [1e6]], dtype=torch.float64)
    bias = fire(coords, coords)
    assert torch.equal(bias, bias.mT)
    reach = torch.maximum(coords, coords.mT).tolist()
    want = fire_reference(fire, (coords - coords.mT).abs(), reach)
    torch.testing.assert_close(bias.double(), want, atol=1e-6, rtol=0)
    # The first token seen from the last, and the last from the first, are the whole way apart.
    whole = fire_reference(fire, torch.tensor([[9.0]]), [[9.0]])[:, 0, 0]
    torch.testing.assert_close(bias[:, 0, 4].double(), whole, atol=1e-6, rtol=0)


def test_fire_depends_on_where_tokens_are():
    fire = FIRE(3, threshold=4.0)
    coords = sequence_coords(9, offset=5)
    assert not torch.allclose(fire(coords + 300, coords + 300), fire(coords, coords), atol=1e-3)
    # Below the threshold it does not.
    fire = FIRE(3, threshold=512.0)
    torch.testing.assert_close(fire(coords + 300, coords + 300), fire(coords, coords), atol=1e-6, rtol=0)


def test_fire_of_axes_and_units():
    fire = FIRE(4, axes=2, hidden=5, threshold=2.0, metric="euclidean", per=(2.0, 0.5))
    coords = grid_coords(3, 4)
    scaled = coords / torch.tensor([2.0, 0.5], dtype=torch.float64)
    own = scaled.norm(dim=-1)
    want = fire_reference(fire, (scaled[:, None] - scaled).norm(dim=-1), torch.maximum(own[:, None], own).tolist())
    torch.testing.assert_close(fire(coords, coords).double(), want, atol=1e-6, rtol=0)


def test_fire_starts_as_in_the_paper():
    fire = FIRE(6)
    assert fire.log_c.exp().item() == pytest.approx(0.1)
    assert fire.log_threshold.exp().item() == pytest.approx(512)
    assert (fire.first.out_features, fire.last.out_features) == (32, 6)
    with torch.no_grad():
        for parameter in fire.parameters():
            parameter.fill_(3.0)
    fire.reset_parameters()
    assert fire.log_c.exp().item() == pytest.approx(0.1)
    assert fire.log_threshold.exp().item() == pytest.approx(512)
    assert all(layer.weight.std() > 0.05 for layer in (fire.first, fire.last))


def test_gradients_of_fire():
    fire = FIRE(2, hidden=6, threshold=5.0)
    coords = torch.tensor([[0.0], [1.5], [4.0], [90.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 4, 4, dtype=torch.float64)
    (fire(coords, coords) * weight).sum().backward()
    own = coords.detach().requires_grad_()
    leaves = {name: part.detach().double().requires_grad_() for name, part in fire.named_parameters()}
    c, threshold = leaves["log_c"].exp(), leaves["log_threshold"].exp()
    share = (1 + c * (own - own.mT).abs()).log() / (1 + c * torch.maximum(own, own.mT).clamp(min=threshold)).log()
    hidden = (share[..., None] * leaves["first.weight"][:, 0] + leaves["first.bias"]).relu()
    bias = (hidden[..., None, :] * leaves["last.weight"]).sum(-1) + leaves["last.bias"]
    (bias.permute(2, 0, 1) * weight).sum().backward()
    for name, leaf in leaves.items():
        torch.testing.assert_close(fire.get_parameter(name).grad.double(), leaf.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(coords.grad, own.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "build, arguments, error, message",
    [
        (KERPLE, {"num_heads": 0}, ValueError, "num_heads must be positive, got 0"),
        (KERPLE, {"num_heads": 4, "kernel": "exp"}, ValueError, "kernel must be one of log, power, got 'exp'"),
        (KERPLE, {"num_heads": 4, "metric": "l2"}, ValueError, "metric must be one of sum, euclidean, max, got 'l2'"),
        (KERPLE, {"num_heads": 4, "per": -1}, ValueError, "per must be positive and finite, got -1"),
        (FIRE, {"num_heads": 4, "hidden": 0}, ValueError, "hidden must be positive, got 0"),
        (FIRE, {"num_heads": 4, "threshold": 0}, ValueError, "threshold must be positive and finite, got 0"),
        (FIRE, {"num_heads": 4, "axes": 2, "per": (1,)}, ValueError, "per must be one number for all axes or one for "),
    ],
)
def test_bad_arguments_are_named(build, arguments, error, message):
    with pytest.raises(error, match=message):
        build(**arguments)
