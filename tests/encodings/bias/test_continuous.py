import itertools
import math

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mmpos import grid_coords, sequence_coords, video_coords
from mmpos.encodings.bias.continuous import ContinuousBias

MODES = ("swin", "linear", "cr")
COORDS = {(9,): sequence_coords(9), (4, 7): grid_coords(4, 7), (2, 1, 5): video_coords(2, 1, 5)}


def bias_of(window, num_heads=3, hidden_dim=20, **options):
    bias = ContinuousBias(num_heads, window, hidden_dim=hidden_dim, **options)
    for parameter in bias.parameters():
        nn.init.normal_(parameter)
    return bias


def reference(bias, q_coords, k_coords):
    """The formula in float64, offset by offset."""
    first, offset, last, *last_offset = (parameter.detach().double() for parameter in bias.mlp.parameters())
    got = torch.zeros(bias.num_heads, len(q_coords), len(k_coords), dtype=torch.float64)
    for i, j in itertools.product(range(len(q_coords)), range(len(k_coords))):
        seen = []
        for q, k, side in zip(q_coords[i].tolist(), k_coords[j].tolist(), bias.window, strict=True):
            d, unit = q - k, max(side - 1, 1)
            seen.append(
                {
                    "swin": math.copysign(math.log2(1 + 8 * abs(d) / unit) / math.log2(8), d),
                    "linear": d / unit,
                    "cr": math.copysign(math.log(1 + abs(d)), d),
                }[bias.mode]
            )
        hidden = (first @ torch.tensor(seen, dtype=torch.float64) + offset).clamp(min=0)
        result = last @ hidden + (last_offset[0] if last_offset else 0)
        got[:, i, j] = result if bias.mode == "cr" else 16 / (1 + torch.exp(-result))
    return got


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", COORDS)
def test_the_published_formula(window, mode):
    bias, coords = bias_of(window, mode=mode), COORDS[window]
    q_coords = torch.cat([coords, coords[:3] + 41])
    got = bias(q_coords, coords)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), reference(bias, q_coords, coords), atol=2e-5, rtol=2e-6)
    real = torch.rand(5, len(window), dtype=torch.float64) * 40 - 20
    torch.testing.assert_close(bias(real, coords).double(), reference(bias, real, coords), atol=2e-5, rtol=2e-6)


def test_only_mode_cr_has_a_bias_behind_the_last_map():
    shapes = {mode: {n: tuple(p.shape) for n, p in bias_of((4, 7), mode=mode).named_parameters()} for mode in MODES}
    assert shapes["swin"] == {"mlp.0.weight": (20, 2), "mlp.0.bias": (20,), "mlp.2.weight": (3, 20)}
    assert shapes["linear"] == shapes["swin"]
    assert shapes["cr"] == shapes["swin"] | {"mlp.2.bias": (3,)}


@pytest.mark.parametrize("mode", MODES)
def test_a_window_of_one_token_is_finite(mode):
    bias, coords = bias_of((1, 6), mode=mode), grid_coords(1, 6)
    got = bias(coords, coords)
    assert got.isfinite().all()
    torch.testing.assert_close(got.double(), reference(bias, coords, coords), atol=1e-5, rtol=2e-6)


@pytest.mark.parametrize("mode", MODES)
def test_any_offset_has_a_bias(mode):
    bias = bias_of((4, 7), mode=mode)
    coords = torch.tensor([[0, 0], [10**6, -(10**6)], [2**40, 2**40 + 1]])
    for dtype in (torch.int64, torch.float64):
        got = bias(coords.to(dtype), coords.to(dtype))
        torch.testing.assert_close(got.double(), reference(bias, coords, coords), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("window", COORDS)
def test_integers_and_floats_are_the_same_offsets(window):
    bias, coords = bias_of(window), COORDS[window]
    want = bias(coords, coords)
    for dtype in (torch.uint8, torch.int32, torch.float32, torch.float64):
        torch.testing.assert_close(bias(coords.to(dtype), coords.to(dtype)), want, atol=1e-5, rtol=0)


def test_each_offset_of_a_grid_is_computed_once():
    class Sigmoids(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.Tensor.sigmoid:
                computed.append(args[0][0].numel())
            return function(*args, **(kwargs or {}))

    bias, computed = bias_of((4, 7)), []
    far = torch.tensor([[0, 0], [0, 1], [2**40, 5]])
    with Sigmoids():
        bias(grid_coords(14, 10), grid_coords(14, 10))
        bias(far, far)
    assert computed == [27 * 19, 9]


def test_only_differences_matter():
    bias, coords = bias_of((4, 7)), grid_coords(4, 7)
    assert torch.equal(bias(coords + 2**40, coords + 2**40), bias(coords, coords))


def test_windows_in_a_batch_queries_elsewhere_and_one_at_a_time():
    bias = bias_of((4, 7))
    coords = torch.stack([grid_coords(4, 7), grid_coords(4, 7).flip(0) * 3])
    got = bias(coords, coords[:, :5])
    assert got.shape == (2, 3, 28, 5)
    for row in range(2):
        torch.testing.assert_close(got[row], bias(coords[row], coords[row, :5]), atol=1e-5, rtol=0)
        torch.testing.assert_close(got[row, :, 9:10], bias(coords[row, 9:10], coords[row, :5]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_coordinates_that_are_no_numbers_give_nan_for_their_token(bad):
    bias = bias_of((4, 5))
    coords = torch.tensor([[1.5, 2.0], [bad, 2.0], [0.5, 1.0], [2.0, bad]])
    got = bias(coords, coords)
    assert got[:, [1, 3]].isnan().all()
    assert got[:, :, [1, 3]].isnan().all()
    torch.testing.assert_close(got[:, [0, 2]][:, :, [0, 2]], bias(coords[[0, 2]], coords[[0, 2]]), atol=1e-5, rtol=0)
    got.nansum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in bias.parameters())


@pytest.mark.parametrize("mode", MODES)
def test_gradients_reach_the_network_and_real_coordinates(mode):
    bias, coords = bias_of((4, 7), mode=mode, num_heads=2), grid_coords(2, 3).double()
    coords = coords.requires_grad_()
    weight = torch.randn(2, 6, 6, dtype=torch.float64)
    (bias(coords, coords[:4].detach()) * weight[:, :, :4]).sum().backward()
    leaves = {name: parameter.detach().double().requires_grad_() for name, parameter in bias.named_parameters()}
    place = coords.detach().clone().requires_grad_()
    d = place[:, None] - place[None, :4].detach()
    unit = d / torch.tensor([3.0, 6.0])
    sign = torch.where(d < 0, -1.0, 1.0)  # the slope at 0 is that on both sides of it
    seen = {
        "swin": sign * torch.log2(1 + 8 * sign * unit) / 3,
        "linear": unit,
        "cr": sign * torch.log(1 + sign * d),
    }[mode]
    result = (seen @ leaves["mlp.0.weight"].T + leaves["mlp.0.bias"]).clamp(min=0) @ leaves["mlp.2.weight"].T
    result = result + leaves["mlp.2.bias"] if mode == "cr" else 16 * torch.sigmoid(result)
    (result.permute(2, 0, 1) * weight[:, :, :4]).sum().backward()
    torch.testing.assert_close(coords.grad, place.grad, atol=1e-4, rtol=1e-4)
    for name, parameter in bias.named_parameters():
        torch.testing.assert_close(parameter.grad.double(), leaves[name].grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_bias_is_float32_in_a_model_of_any_dtype(dtype):
    bias, coords = bias_of((4, 7)), grid_coords(14, 10)
    rounded = bias_of((4, 7))
    for own, other in zip(rounded.parameters(), bias.parameters(), strict=True):
        own.data.copy_(other.to(dtype))
    got, want = bias.to(dtype)(coords, coords), rounded(coords, coords)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(rounded(coords, coords), want, atol=1e-5, rtol=0)
        torch.testing.assert_close(rounded(coords.double(), coords), want, atol=1e-5, rtol=0)


def test_no_tensor_has_the_size_of_a_window():
    small, large = bias_of((4, 7)), bias_of((9, 12))
    large.load_state_dict(small.state_dict())
    coords = grid_coords(9, 12)
    unit = torch.tensor([8 / 3, 11 / 6], dtype=torch.float64)  # what one step in the small window is in the large one
    torch.testing.assert_close(large(coords * unit, coords * unit), small(coords, coords), atol=1e-4, rtol=0)
    assert not torch.allclose(large(coords, coords), small(coords, coords), atol=0.1)
    assert small.resize(9, 12) is small
    assert small.no_weight_decay() == set(small.state_dict()) == {"mlp.0.weight", "mlp.0.bias", "mlp.2.weight"}


def test_it_starts_almost_flat():
    bias, coords = ContinuousBias(8, (14, 10)), grid_coords(14, 10)
    assert bias.mlp[0].weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not bias.mlp[0].bias.any()
    torch.testing.assert_close(bias(coords, coords), torch.full((8, 140, 140), 8.0), atol=0.2, rtol=0)
    first = bias.mlp[2].weight.detach().clone()
    bias.reset_parameters()
    assert not torch.equal(bias.mlp[2].weight, first)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"num_heads": 0, "window": 7}, ValueError, "num_heads must be positive, got 0"),
        ({"num_heads": 2, "window": (7, 0)}, ValueError, "window must be positive, got 0"),
        ({"num_heads": 2, "window": (2, 3, 4, 5)}, ValueError, r"window must have one to three axes"),
        ({"num_heads": 2, "window": 7, "hidden_dim": 0}, ValueError, "hidden_dim must be positive, got 0"),
        ({"num_heads": 2, "window": 7, "mode": "log"}, ValueError, "mode must be one of swin, linear, cr, got 'log'"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        ContinuousBias(**arguments)


def test_other_axes_name_the_call_that_takes_them():
    with pytest.raises(ValueError, match=r"k_coords must have 1 axis \(t\), .* ContinuousBias\(window=\(y, x\)\)"):
        bias_of(7)(sequence_coords(7), grid_coords(7, 7))
