import copy
import itertools
import math

import mpmath
import pytest
import torch
from torch import nn

from mmpos import Axial, Bands, Geometric, Sinusoidal, grid_coords, normalise, sequence_coords
from mmpos.coords import sphere_coords
from mmpos.encodings.additive.fourier import Fourier, GaussianFourier, LearnableFourier, Octaves
from mmpos.frequencies import Harmonics

FAR = (0, 1, -10, 255, 4095, -131071, 10**6, 10**9, 2**31 - 1, 1 - 2**31)

# Series, and their definition: frequency i of n in radians per unit.
SERIES = [
    (Octaves(), lambda i, n: mpmath.pi * 2**i),
    (Octaves(times_pi=False), lambda i, n: mpmath.mpf(2) ** i),
    (Bands(10), lambda i, n: mpmath.pi * (1 + mpmath.mpf(4 * i) / (n - 1))),
    (Bands(224, "octaves"), lambda i, n: mpmath.pi * mpmath.mpf(112) ** (mpmath.mpf(i) / (n - 1))),
    (Geometric(100.0), lambda i, n: mpmath.mpf(100) ** (-mpmath.mpf(i) / n)),
    (Harmonics(24), lambda i, n: 2 * mpmath.pi * (i + 1) / 24),
]


def waves(coords, freq, num_bands):
    """Sine and cosine of ``coord * freq(i, n)`` in 50 digits, ``(n, axis, band, wave)``."""
    with mpmath.workdps(70):
        freqs = [freq(i, num_bands) for i in range(num_bands)]
        return torch.tensor(
            [
                [[[float(mpmath.sin(c * f)), float(mpmath.cos(c * f))] for f in freqs] for c in point]
                for point in coords.tolist()
            ],
            dtype=torch.float64,
        )


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("series, freq", SERIES)
def test_features_are_exact_at_any_distance(series, freq, axes):
    coords = torch.tensor([[c + axis for axis in range(axes)] for c in FAR])
    got = Fourier(axes=axes, num_bands=4, bands=series)(coords)
    assert (got.dtype, got.shape) == (torch.float32, (len(FAR), 8 * axes))
    assert (got.double() - waves(coords, freq, 4).flatten(1)).abs().max() < 1e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_of_real_coordinates(dtype):
    coords = torch.tensor([[998.3897, -0.5], [1234.567, 1e-9], [1e6 + 1 / 3, 0.7]], dtype=dtype)
    got = Fourier(axes=2, num_bands=3)(coords)
    assert (got.double() - waves(coords, SERIES[0][1], 3).flatten(1)).abs().max() < 1e-7


@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.bfloat16, nn.Module.double, copy.deepcopy])
def test_features_have_the_same_bits_in_a_model_of_any_dtype(cast):
    coords = torch.tensor([[1234.567], [998.3897], [255.0], [256.0], [257.0], [258.0]], dtype=torch.float64)
    encoding = Fourier(num_bands=512, bands=Geometric(10000.0))
    want = encoding(coords)
    assert torch.equal(cast(encoding)(coords), want)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding(coords), want)
    assert len(want.unique(dim=0)) == len(coords)
    assert not encoding.state_dict()


@pytest.mark.parametrize(
    "bands, want", [(Octaves(), 1.0), (Octaves(times_pi=False), math.sin(0.5)), (Harmonics(1), 0.0)]
)
def test_the_range_that_one_band_is_for(bands, want):
    # pi for coordinates from -1 to 1, nothing for radians, 2 pi for shares of a whole.
    got = Fourier(num_bands=1, bands=bands)(torch.tensor([[0.5]]))[0, 0].item()
    assert got == pytest.approx(want, abs=1e-7)
    if bands == Octaves(times_pi=False):
        assert got == pytest.approx(0.479, abs=5e-4)


@pytest.mark.parametrize("words", [*itertools.permutations(("axis", "band", "wave"))])
def test_order_says_which_index_is_slow(words):
    axes, num_bands = 3, 4
    coords = torch.rand(5, axes, dtype=torch.float64) * 2 - 1
    by_index = waves(coords, SERIES[0][1], num_bands)
    sizes = {"axis": axes, "band": num_bands, "wave": 2}
    columns = []
    for place in itertools.product(*(range(sizes[word]) for word in words)):
        at = dict(zip(words, place, strict=True))
        columns.append(by_index[:, at["axis"], at["band"], at["wave"]])
    got = Fourier(axes=axes, num_bands=num_bands, order=" ".join(words))(coords)
    torch.testing.assert_close(got.double(), torch.stack(columns, dim=-1), atol=1e-7, rtol=0)


def test_coordinates_stand_in_front_if_included():
    coords = torch.rand(2, 7, 3, dtype=torch.float64)
    got = Fourier(axes=3, num_bands=2, include_coords=True, order="band wave axis")(coords)
    assert (got.dtype, got.shape) == (torch.float32, (2, 7, 15))
    assert torch.equal(got[..., :3], coords.float())
    assert torch.equal(got[..., 3:], Fourier(axes=3, num_bands=2, order="band wave axis")(coords))


def test_each_axis_may_have_bands_of_its_own():
    coords = torch.rand(6, 2, dtype=torch.float64)
    got = Fourier(axes=2, num_bands=3, bands=(Bands(10), Harmonics(24)))(coords)
    for axis, (series, freq) in enumerate([SERIES[2], SERIES[5]]):
        alone = Fourier(num_bands=3, bands=series)(coords[:, axis, None])
        assert torch.equal(got[:, 6 * axis : 6 * axis + 6], alone)
        assert (alone - waves(coords[:, axis, None], freq, 3).flatten(1)).abs().max() < 1e-7


@pytest.mark.parametrize("axes, dim", [(1, 5), (2, 5), (2, 10), (3, 64), (3, 10)])
def test_a_given_width_is_kept_exactly_by_a_learned_map(axes, dim):
    encoding, plain = Fourier(dim, axes=axes, num_bands=4), Fourier(axes=axes, num_bands=4)
    coords = torch.rand(2, 9, axes, dtype=torch.float64)
    assert (encoding.dim, plain.dim) == (dim, 8 * axes)
    assert set(encoding.state_dict()) == encoding.no_weight_decay() == {"proj.weight", "proj.bias"}
    weight, bias = encoding.proj.weight.double(), encoding.proj.bias.double()
    torch.testing.assert_close(encoding(coords).double(), plain(coords).double() @ weight.T + bias, atol=1e-6, rtol=0)
    half = encoding.bfloat16()
    assert half(coords).dtype == torch.bfloat16
    want = plain(coords).double() @ half.proj.weight.double().T + half.proj.bias.double()
    assert (half(coords).double() - want).abs().max() < 8 * 2**-8 * want.abs().max()


def test_resetting_draws_the_map_anew():
    encoding = Fourier(6)
    before = encoding.proj.weight.detach().clone()
    encoding.reset_parameters()
    assert not torch.equal(encoding.proj.weight, before)
    Fourier().reset_parameters()


def test_gradients_of_features_reach_real_coordinates():
    coords = torch.tensor([[0.25, -0.5], [0.75, 0.125]], dtype=torch.float64, requires_grad=True)
    Fourier(axes=2, num_bands=3, include_coords=True)(coords).sum().backward()
    x, f = coords.detach()[..., None], math.pi * torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    want = 1 + (f * ((x * f).cos() - (x * f).sin())).sum(-1)
    torch.testing.assert_close(coords.grad, want, atol=2e-6, rtol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("include_coords", [True, False])
def test_a_token_without_a_place_is_nan_throughout(bad, include_coords):
    got = Fourier(axes=2, num_bands=2, include_coords=include_coords)(torch.tensor([[0.5, 0.1], [0.5, bad]]))
    assert got[0].isfinite().all()
    assert got[1].isnan().all()


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dim": 0}, ValueError, "dim must be positive, got 0"),
        ({"num_bands": 0}, ValueError, "num_bands must be positive, got 0"),
        ({"axes": 2.0}, TypeError, "axes must be an integer, got 2.0"),
        ({"axes": 2, "bands": (Octaves(),)}, ValueError, "one series for all axes or one for each of 2, got 1"),
        ({"bands": "Octaves"}, ValueError, "one series for all axes or one for each of 1, got 7"),
        ({"bands": 10}, TypeError, "bands must be a series such as Octaves, Bands or Geometric, got 10"),
        ({"order": "axis band"}, ValueError, "order must be the words axis, band and wave in any order, got 'axis ban"),
        ({"order": ("axis", "band", "wave")}, ValueError, "order must be the words axis, band and wave"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        Fourier(**arguments)


def test_a_sphere_has_no_seam():
    latitude = torch.tensor([-89.0, -30.0, 0.0, 45.0, 80.0], dtype=torch.float64)
    east, west = (sphere_coords(latitude, longitude) for longitude in (179.9999, -179.9999))
    for encoding in (Fourier(axes=3, num_bands=4, include_coords=True), Sinusoidal(24, axes=3, base=100.0)):
        assert torch.equal(encoding(sphere_coords(latitude, 180)), encoding(sphere_coords(latitude, -180)))
        assert (encoding(east) - encoding(west)).abs().max() < 2e-4  # 2e-4 degrees are 3.5e-6, times 8 pi
    planar = Sinusoidal(24)
    assert (planar(torch.tensor([[179.9999]])) - planar(torch.tensor([[-179.9999]]))).abs().max() > 1


def test_a_periodic_axis_has_no_seam():
    degrees = Fourier(num_bands=6, bands=Harmonics(360))
    assert torch.equal(degrees(torch.tensor([[180], [359]])), degrees(torch.tensor([[-180], [-1]])))
    east, west = torch.tensor([[[179.999]], [[-179.999]]], dtype=torch.float64)
    assert (degrees(east) - degrees(west)).abs().max() < 6 * math.radians(0.002) + 1e-6
    axial = Sinusoidal(12, spectrum=Axial(series=Harmonics(360)))
    assert torch.equal(axial(torch.tensor([[217]])), degrees(torch.tensor([[217]])))


# Random frequencies


def test_random_features_are_sines_then_cosines_of_turns():
    encoding = GaussianFourier(dim=14, axes=3, sigma=2.0)
    coords = torch.randint(-(2**31), 2**31, (50, 3))
    got = encoding(coords)
    with mpmath.workdps(50):
        turns = [
            [mpmath.fsum(c * mpmath.mpf(t) for c, t in zip(point, column, strict=True)) for column in columns]
            for point, columns in zip(coords.tolist(), [encoding.turns.T.tolist()] * len(coords), strict=True)
        ]
        want = [[float(wave(2 * mpmath.pi * t)) for wave in (mpmath.sin, mpmath.cos) for t in row] for row in turns]
    angle = 2 * math.pi * (coords.double().abs() @ encoding.turns.detach().double().abs()).repeat(1, 2)
    assert got.dtype == torch.float32
    assert ((got.double() - torch.tensor(want, dtype=torch.float64)).abs() <= 1e-7 + 2**-52 * angle).all()


def test_the_draw_is_saved_and_loaded_but_not_trained_unless_asked():
    encoding, other = GaussianFourier(dim=8), GaussianFourier(dim=8)
    assert (set(encoding.state_dict()), list(encoding.buffers())) == ({"turns"}, [])
    assert not torch.equal(encoding.turns, other.turns)
    other.load_state_dict(encoding.state_dict())
    coords = normalise(grid_coords(5, 3), (5, 3))
    assert torch.equal(other(coords), encoding(coords))
    assert not encoding(coords).requires_grad
    learned = GaussianFourier(dim=8, learned=True)
    learned(coords).square().sum().backward()
    assert learned.turns.grad is not None
    assert (encoding.turns.requires_grad, learned.turns.requires_grad) == (False, True)


def test_sigma_is_the_spread_of_the_draw():
    for sigma in (0.5, 3.0):
        encoding = GaussianFourier(dim=8000, axes=5, sigma=sigma)
        assert encoding.turns.std().item() == pytest.approx(sigma, rel=0.03)
        assert encoding.turns.mean().item() == pytest.approx(0, abs=0.05 * sigma)


def test_random_frequencies_stay_in_float32():
    encoding = GaussianFourier(dim=8)
    coords = torch.tensor([[1234.567, 0.25], [998.3897, -3.5]], dtype=torch.float64)
    want = encoding(coords)
    for cast in (nn.Module.bfloat16, nn.Module.half):
        assert torch.equal(cast(copy.deepcopy(encoding))(coords), want)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dim": 7}, ValueError, r"dim \(7\) must be even"),
        ({"dim": 8, "sigma": 0}, ValueError, "sigma must be positive and finite, got 0"),
        ({"dim": 8, "sigma": "1"}, TypeError, "sigma must be a number, got '1'"),
    ],
)
def test_bad_arguments_of_random_features_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        GaussianFourier(**arguments)


# Learned frequencies with a network


def network(encoding, coords):
    """The formula of the paper in float64: features of each group, then the network, blocks side by side."""
    weight = {name: value.detach().double() for name, value in encoding.state_dict().items()}
    blocks = []
    for group in coords.double().chunk(encoding.groups, dim=-1):
        angle = sum(group[..., axis, None] * weight["freqs"][axis] for axis in range(group.shape[-1]))
        features = torch.cat([angle.cos(), angle.sin()], dim=-1) / math.sqrt(2 * weight["freqs"].shape[-1])
        hidden = features @ weight["hidden.weight"].T + weight["hidden.bias"]
        hidden = hidden / 2 * (1 + torch.erf(hidden / math.sqrt(2)))
        blocks.append(hidden @ weight["out.weight"].T + weight["out.bias"])
    return torch.cat(blocks, dim=-1)


@pytest.mark.parametrize(
    "axes, groups, sizes",
    [(1, 1, {}), (2, 1, {"fourier_dim": 10, "hidden_dim": 7}), (4, 2, {"gamma": 3.0}), (3, 3, {})],
)
def test_learnable_features_follow_the_formula(axes, groups, sizes):
    encoding = LearnableFourier(12, axes=axes, groups=groups, **sizes)
    for coords in (torch.randint(-(10**6), 10**6, (2, 300, axes)), torch.randn(31, axes, dtype=torch.float64)):
        torch.testing.assert_close(encoding(coords).double(), network(encoding, coords), atol=1e-6, rtol=0)
        exact = copy.deepcopy(encoding).double()
        torch.testing.assert_close(exact(coords), network(exact, coords), atol=1e-9, rtol=0)


def test_features_start_as_a_gaussian_kernel_of_the_distance():
    gamma, pairs = 4.0, 40000
    freqs = LearnableFourier(2, fourier_dim=2 * pairs, hidden_dim=1, gamma=gamma).freqs.detach().double()
    for offset in ([0.0, 0.0], [3.0, 0.0], [0.0, 3.0], [2.0, -4.0], [9.0, 9.0]):
        kernel = (freqs.T @ torch.tensor(offset).double()).cos().sum() / (2 * pairs)
        want = math.exp(-(math.dist(offset, [0, 0]) ** 2) / (2 * gamma**2)) / 2
        assert kernel.item() == pytest.approx(want, abs=0.01)


def test_groups_share_all_weights():
    encoding = LearnableFourier(10, axes=4, groups=2, fourier_dim=6, hidden_dim=5)
    box = torch.randn(7, 4, dtype=torch.float64)
    corners = encoding(box).chunk(2, dim=-1)
    swapped = encoding(box[:, [2, 3, 0, 1]]).chunk(2, dim=-1)
    torch.testing.assert_close(corners[0], swapped[1], atol=1e-6, rtol=0)
    torch.testing.assert_close(corners[1], swapped[0], atol=1e-6, rtol=0)
    assert (corners[0] - corners[1]).abs().max() > 1e-3


def test_cast_it_keeps_frequencies_and_casts_the_network():
    encoding = LearnableFourier(10, fourier_dim=6, hidden_dim=5)
    freqs, coords = encoding.freqs.detach().clone(), torch.tensor([[255, 4095], [256, 4096], [257, 4097]])
    half = encoding.bfloat16()
    assert torch.equal(half.freqs, freqs)
    assert {half.hidden.weight.dtype, half.out.bias.dtype, half(coords).dtype} == {torch.bfloat16}
    angle = coords[:, :1].double() * freqs[0].double() + coords[:, 1:].double() * freqs[1].double()
    features = (torch.cat([angle.cos(), angle.sin()], dim=-1) / math.sqrt(6)).bfloat16()
    assert torch.equal(half(coords), half.out(nn.functional.gelu(half.hidden(features))))
    assert encoding.double().freqs.dtype == torch.float64


def test_gradients_reach_frequencies_network_and_coordinates():
    encoding = LearnableFourier(4, axes=2, fourier_dim=6, hidden_dim=3).double()
    coords = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in encoding.named_parameters()]

    def call(coords, *parameters):
        return torch.func.functional_call(encoding, dict(zip(names, parameters, strict=True)), (coords,))

    assert torch.autograd.gradcheck(call, (coords, *encoding.parameters()))


def test_learnable_features_learn_all_that_they_save():
    encoding = LearnableFourier(8)
    saved = {"freqs", "hidden.weight", "hidden.bias", "out.weight", "out.bias"}
    assert set(encoding.state_dict()) == encoding.no_weight_decay() == saved
    before = {name: value.clone() for name, value in encoding.state_dict().items()}
    torch.manual_seed(1)
    encoding.reset_parameters()
    assert not any(torch.equal(value, before[name]) for name, value in encoding.state_dict().items())
    torch.manual_seed(1)
    for name, value in LearnableFourier(8).state_dict().items():
        assert torch.equal(value, encoding.state_dict()[name])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"fourier_dim": 7}, r"fourier_dim \(7\) must be even"),
        ({"hidden_dim": 0}, "hidden_dim must be positive, got 0"),
        ({"axes": 3, "groups": 2}, r"axes \(3\) must be a multiple of groups \(2\)"),
        ({"axes": 3, "groups": 3}, r"dim \(8\) must be a multiple of groups \(3\)"),
        ({"gamma": -1.0}, "gamma must be positive and finite, got -1.0"),
    ],
)
def test_bad_arguments_of_learnable_features_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        LearnableFourier(8, **arguments)


@pytest.mark.parametrize(
    "make", [Fourier, lambda axes: GaussianFourier(8, axes=axes), lambda axes: LearnableFourier(8, axes=axes)]
)
def test_wrong_axes_say_what_to_use(make):
    with pytest.raises(
        ValueError, match=r"coords must have 2 axes \(y, x\), got shape \(7, 1\); for sequences use \w+\(axes=1\)"
    ):
        make(axes=2)(sequence_coords(7))
