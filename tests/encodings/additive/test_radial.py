import math

import pytest
import torch

from mmpos import RadialBasis, calendar_coords
from mmpos.factory import build

KERNELS = {
    "gaussian": lambda r: math.exp(-(r**2) / 2),
    "exponential": lambda r: math.exp(-r),
    "indicator": lambda r: float(r < 1),
}


def reference(coords, centers, widths, kernel, period=None):
    rows = []
    for coord in coords.tolist():
        row = []
        for x in coord:
            for center in centers:
                distance = abs(x - center)
                if period is not None:
                    distance = math.fmod(distance, period)
                    distance = min(distance, period - distance)
                row += [KERNELS[kernel](distance / width) for width in widths]
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("kernel", KERNELS)
def test_bumps_stand_evenly_on_the_circle(kernel):
    turns = torch.rand(300, 2, dtype=torch.float64)
    got = RadialBasis(axes=2, centers=5, kernel=kernel)(turns)
    assert got.shape == (300, 10)
    assert got.dtype == torch.float32
    want = reference(turns, [0, 0.2, 0.4, 0.6, 0.8], [0.2], kernel, period=1)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kernel", KERNELS)
def test_bumps_on_a_line_of_several_widths(kernel):
    far = torch.tensor([0.0, 1e300, -1e9], dtype=torch.float64)
    days = torch.cat([torch.linspace(-40, 40, 333, dtype=torch.float64), far])[:, None]
    encoding = RadialBasis(centers=(0, -7.5), period=None, widths=(1, 3, 10.5), kernel=kernel)
    got = encoding(days)
    assert got.shape == (336, 6)
    want = reference(days.clamp(-1e9, 1e9), [0, -7.5], [1, 3, 10.5], kernel)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-7)


def test_any_period_and_width_far_from_the_origin():
    seconds = 1_700_000_000 + torch.randint(-(10**8), 10**8, (200, 1))
    got = RadialBasis(period=86400.0, centers=24, widths=5400)(seconds)
    want = reference(seconds, [3600 * hour for hour in range(24)], [5400], "gaussian", period=86400)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-7)


def test_there_is_no_seam_at_midnight():
    fields = ["fraction_of_day"]
    late, early = (RadialBasis()(calendar_coords([second], fields)) for second in (86399, 86401))
    torch.testing.assert_close(late[0, 1:].flip(0), early[0, 1:], rtol=0, atol=1e-7)
    assert (late - early).abs().max() < 1e-3


def test_gradients_are_those_of_the_formula():
    days = torch.tensor([[0.0], [0.5], [-2.0], [1e200]], dtype=torch.float64, requires_grad=True)
    RadialBasis(centers=[0], period=None, widths=[2.0])(days).sum().backward()
    want = [0.0, -0.125 * math.exp(-0.03125), 0.5 * math.exp(-0.5), 0.0]
    torch.testing.assert_close(days.grad[:, 0], torch.tensor(want, dtype=torch.float64), rtol=1e-6, atol=0)
    far = torch.tensor([[1e308]], dtype=torch.float64, requires_grad=True)
    RadialBasis(centers=[0], period=None, widths=[1e-3])(far).sum().backward()
    assert far.grad == 0


def test_a_linear_map_takes_features_to_tokens():
    encoding, hours = RadialBasis(dim=9, period=24.0), torch.arange(30)[:, None]
    want = RadialBasis(period=24.0)(hours).double() @ encoding.proj.weight.double().T + encoding.proj.bias
    torch.testing.assert_close(encoding(hours).double(), want, rtol=0, atol=1e-6)
    before = encoding.proj.weight.clone()
    encoding.reset_parameters()
    assert not torch.equal(encoding.proj.weight, before)


def test_in_yaml():
    spec = {"name": "RadialBasis", "centers": [0], "period": None, "widths": [1, 3], "kernel": "exponential"}
    encoding = build(spec, kind="additive", dim=12)
    assert (encoding.dim, encoding.proj.in_features) == (12, 2)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dim": 0}, ValueError, "dim must be positive, got 0"),
        ({"kernel": "cubic"}, ValueError, "kernel must be one of gaussian, exponential, indicator, got 'cubic'"),
        ({"period": 0}, ValueError, "period must be positive and finite, got 0"),
        ({"period": None}, ValueError, r"centers \(12\) stand evenly on a circle; without a period give their places"),
        ({"centers": 0}, ValueError, "centers must be positive, got 0"),
        ({"centers": ()}, ValueError, r"centers must be finite numbers, at least one, got \(\)"),
        ({"centers": (0, math.inf)}, ValueError, "centers must be finite numbers, at least one"),
        ({"centers": (0, "noon")}, TypeError, "centers must be numbers, got 'noon'"),
        ({"centers": (0,)}, ValueError, "widths must be given where centers are places"),
        ({"widths": ()}, ValueError, r"widths must be one or more, got \(\)"),
        ({"widths": (1, 0)}, ValueError, "widths must be positive and finite, got 0"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        RadialBasis(**arguments)
