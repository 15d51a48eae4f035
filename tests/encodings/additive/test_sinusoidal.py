import copy
import itertools
import math
import pickle

import mpmath
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mmpos import Axial, Given, Learned, Mixed, Periods, Sections, Shared, Sinusoidal, grid_coords, sequence_coords
from mmpos.frequencies import Geometric, Harmonics

FAR = (0, 1, -10, 4095, -131071, 10**6, 10**9, -(10**9), 2**31 - 1, 1 - 2**31)


def geometric(width, base=10000.0, over=None):
    """``base ** (-2i / over)`` for the pairs of ``width`` channels, in 70 digits."""
    with mpmath.workdps(70):
        return [mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / (over or width)) for i in range((width + 1) // 2)]


def sinusoid(coords, blocks, layout="interleaved", cos_first=False, cut=None):
    """Sines and cosines in 70 digits; ``blocks`` are pairs of an axis and its frequencies, in their order."""
    rows = []
    with mpmath.workdps(70):
        parts = (mpmath.cos, mpmath.sin) if cos_first else (mpmath.sin, mpmath.cos)
        for point in coords.tolist():
            angles = [[mpmath.mpf(point[axis]) * freq for freq in freqs] for axis, freqs in blocks]
            if layout == "half":
                angles = [list(itertools.chain(*angles))]
            if layout == "interleaved":
                row = [part(angle) for block in angles for angle in block for part in parts]
            else:
                row = [part(angle) for block in angles for part in parts for angle in block]
            rows.append([float(value) for value in row[:cut]])
    return torch.tensor(rows, dtype=torch.float64)


def axis_blocks(dim, axes, base=10000.0):
    return [(axis, geometric(dim // axes, base)) for axis in range(axes)]


def far_coords(axes):
    return torch.tensor([[c + axis for axis in range(axes)] for c in FAR])


def check(encoding, coords, want):
    got = encoding(coords)
    assert (got.dtype, got.shape) == (torch.float32, want.shape)
    assert (got.double() - want).abs().max() < 1e-7


# The published encoding


@pytest.mark.parametrize(
    "position, row",
    [
        (0, "0 1 0 1 0 1 0 1"),
        (1, "0.8415 0.5403 0.0998 0.995 0.01 1 0.001 1"),
        (2, "0.9093 -0.4161 0.1987 0.9801 0.02 0.9998 0.002 1"),
        (5, "-0.9589 0.2837 0.4794 0.8776 0.05 0.9988 0.005 1"),
    ],
)
def test_the_published_table(position, row):
    got = Sinusoidal(dim=8)(sequence_coords(6))[position]
    assert " ".join(f"{value:.4g}" for value in got.round(decimals=4).tolist()) == row


def test_sine_and_cosine_of_a_pair_share_their_exponent():
    got = Sinusoidal(dim=4)(sequence_coords(1, offset=1))[0]
    want = torch.tensor([math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)])
    torch.testing.assert_close(got, want, atol=1e-7, rtol=0)
    circle = Sinusoidal(dim=64)(sequence_coords(300, offset=4000)).double().unflatten(-1, (-1, 2)).square().sum(-1)
    torch.testing.assert_close(circle, torch.ones(300, 32).double(), atol=2e-7, rtol=0)


@pytest.mark.parametrize("base", [10000.0, 100.0])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_sinusoids_are_exact_at_any_distance(axes, base):
    coords = far_coords(axes)
    check(Sinusoidal(12, axes=axes, base=base), coords, sinusoid(coords, axis_blocks(12, axes, base)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sinusoids_of_real_coordinates(dtype):
    coords = torch.tensor([[998.3897, -0.5], [1e6 + 1 / 3, 1e-9]], dtype=dtype)  # 998.3897 must not become 1000
    check(Sinusoidal(8, axes=2), coords, sinusoid(coords, axis_blocks(8, 2)))


def test_positions_do_not_repeat_after_the_base():
    near, far = Sinusoidal(dim=64)(torch.tensor([[0], [10000]]))
    assert (near - far).abs().max() > 0.5


def test_the_encoding_goes_along_tokens_and_not_along_the_batch():
    x = torch.zeros(2, 3, 4)
    x = x + Sinusoidal(dim=4)(sequence_coords(3))
    assert torch.equal(x[0], x[1])
    assert len(x[0].unique(dim=0)) == 3


@pytest.mark.parametrize("batch", [(), (16,), (2, 3)])
def test_the_result_has_the_batch_of_its_coordinates(batch):
    assert Sinusoidal(12, axes=2)(grid_coords(5, 6).expand(*batch, 30, 2)).shape == (*batch, 30, 12)


def test_a_longer_sequence_does_not_change_what_was_before():
    encoding = Sinusoidal(dim=8)
    short = encoding(sequence_coords(8))
    long = encoding(sequence_coords(9))
    assert torch.equal(long[:8], short)
    assert torch.equal(encoding(sequence_coords(8)), short)
    assert torch.equal(encoding(sequence_coords(8), length=4000), short)
    assert long.dtype == short.dtype


def test_gradients_reach_the_coordinates():
    coords = torch.tensor([[0.25], [-3.5]], dtype=torch.float64, requires_grad=True)
    Sinusoidal(dim=4)(coords).sum().backward()
    x, f = coords.detach(), torch.tensor([1.0, 0.01], dtype=torch.float64)
    torch.testing.assert_close(
        coords.grad, (f * ((x * f).cos() - (x * f).sin())).sum(-1, keepdim=True), atol=2e-7, rtol=0
    )


# Precision


@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.bfloat16, nn.Module.double, copy.deepcopy])
def test_sinusoids_have_the_same_bits_in_a_model_of_any_dtype(cast):
    coords = torch.tensor([[255], [256], [257], [258], [32767], [15962], [131071]])
    encoding = Sinusoidal(dim=64)
    want = encoding(coords)
    assert torch.equal(cast(encoding)(coords), want)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding(coords), want)
    assert len(want.unique(dim=0)) == len(coords)
    assert want[5, 1].item() == pytest.approx(-0.9080, abs=5e-5)
    assert not encoding.state_dict()


def test_half_precision_models_lose_the_rounding_of_the_result_alone():
    coords = sequence_coords(700)
    want = sinusoid(coords, axis_blocks(64, 1))
    assert (Sinusoidal(dim=64).half()(coords).half().double() - want).abs().max() < 5e-4


def test_a_continuous_scalar_is_right_in_a_wide_cast_model_and_refused_in_half_precision():
    coords = torch.tensor([[1234.567]])
    encoding = Sinusoidal(dim=1024).bfloat16()
    check(encoding, coords, sinusoid(coords, axis_blocks(1024, 1)))
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(TypeError, match="coords must not be in half precision"):
            encoding(coords.to(dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
def test_the_dtype_of_coordinates_does_not_reach_the_result(dtype):
    coords = torch.tensor([[3, 250], [77, 0]])
    got = Sinusoidal(12, axes=2)(coords.to(dtype))
    assert got.dtype == torch.float32
    assert torch.equal(got, Sinusoidal(12, axes=2)(coords))


class NoDoubles(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, tuple | list) else [result]
        assert all(not isinstance(part, torch.Tensor) or part.dtype != torch.float64 for part in outputs), func
        return result


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_devices_without_float64_can_compute_sinusoids(dtype):
    encoding = Sinusoidal(11, uneven="odd", learned_scale=True)
    coords = torch.tensor([[2**20], [-7]]).to(dtype)
    with NoDoubles():
        encoding(coords)


def test_sinusoids_have_the_same_bits_compiled():
    coords = torch.tensor([[10**9, -3], [256, 2**31 - 1], [-131071, 257]])
    encoding = Sinusoidal(dim=14, axes=2, layout="axis_half", uneven="round_up", spectrum=Axial(order=(1, 0)))
    compiled = torch.compile(encoding, fullgraph=True)
    assert torch.equal(compiled(coords), encoding(coords))
    real = coords.double() + 0.3
    assert torch.equal(compiled(real), encoding(real))


# Which channels hold what


@pytest.mark.parametrize("cos_first", [False, True])
@pytest.mark.parametrize("layout", ["interleaved", "axis_half", "half"])
@pytest.mark.parametrize("dim, axes, order", [(6, 1, (0,)), (20, 2, (0, 1)), (20, 2, (1, 0)), (18, 3, (2, 0, 1))])
def test_layouts(dim, axes, order, layout, cos_first):
    coords = far_coords(axes)
    encoding = Sinusoidal(dim, axes, spectrum=Axial(order=order), layout=layout, cos_first=cos_first)
    blocks = [(axis, geometric(dim // axes)) for axis in order]
    check(encoding, coords, sinusoid(coords, blocks, layout, cos_first))


@pytest.mark.parametrize("layout", ["interleaved", "axis_half", "half"])
def test_axes_of_different_widths(layout):
    coords = far_coords(3)
    want = [(2, geometric(4)), (0, geometric(8)), (1, geometric(2))]
    check(
        Sinusoidal(14, axes=3, spectrum=Axial(channels=(8, 2, 4), order=(2, 0, 1)), layout=layout),
        coords,
        sinusoid(coords, want, layout),
    )
    want = [(axis, geometric(width)) for axis, width in enumerate((8, 4, 4))]
    check(
        Sinusoidal(16, axes=3, spectrum=Axial(weights=(2, 1, 1)), layout=layout), coords, sinusoid(coords, want, layout)
    )


@pytest.mark.parametrize(
    "series, freqs",
    [
        (Geometric(100.0, endpoint=True), lambda n: [mpmath.mpf(100) ** (mpmath.mpf(-i) / (n - 1)) for i in range(n)]),
        (Geometric(width=50), lambda n: geometric(2 * n, over=50)),
        (Harmonics(360), lambda n: [2 * mpmath.pi * (i + 1) / 360 for i in range(n)]),
        (
            Periods(0.5, 3000.0, endpoint=False),
            lambda n: [4 * mpmath.pi * mpmath.mpf(6000) ** (mpmath.mpf(-i) / n) for i in range(n)],
        ),
    ],
)
def test_any_series_of_frequencies(series, freqs):
    coords = far_coords(2)
    with mpmath.workdps(70):
        blocks = [(axis, freqs(5)) for axis in (0, 1)]
    check(Sinusoidal(20, axes=2, spectrum=Axial(series=series)), coords, sinusoid(coords, blocks))


def test_which_half_varies_along_a_row_of_the_image():
    ours = Sinusoidal(dim=8, axes=2)(grid_coords(2, 3)).unflatten(0, (2, 3))
    released = Sinusoidal(dim=8, axes=2, spectrum=Axial(order=(1, 0)))(grid_coords(2, 3)).unflatten(0, (2, 3))
    along_rows = torch.tensor([False] * 4 + [True] * 4)
    assert torch.equal((ours[:, 0] != ours[:, 1]).any(0), along_rows)
    assert torch.equal((ours[0] != ours[1]).any(0), ~along_rows)
    assert torch.equal((released[:, 0] != released[:, 1]).any(0), ~along_rows)
    assert torch.equal((released[0] != released[1]).any(0), along_rows)


def test_axes_that_share_a_pair_form_one_block():
    coords = torch.tensor([[3, -500], [10**6, 7]])
    sums = coords.sum(-1, keepdim=True)
    want = sinusoid(sums, [(0, geometric(6))], "half")
    for layout in ("axis_half", "half"):
        check(Sinusoidal(6, axes=2, spectrum=Shared(), layout=layout), coords, want)


@pytest.mark.parametrize("layout", ["interleaved", "axis_half", "half"])
def test_channels_that_the_spectrum_leaves_over_are_zero(layout):
    coords = torch.tensor([[3.0, -500.0], [math.nan, 1.0], [0.25, 1e6]])
    rows = ((1.0, 0.5, 0.0), (0.0, 0.0, 0.125))
    got = Sinusoidal(11, axes=2, spectrum=Given(rows), layout=layout)(coords)
    want = sinusoid(coords[[0, 2]], [(0, rows[0][:2]), (1, rows[1][2:])], layout)
    assert (got[[0, 2], :6].double() - want).abs().max() < 1e-7
    assert torch.equal(got[[0, 2], 6:], torch.zeros(2, 5))
    assert got[1].isnan().all()


# Widths that axes do not share


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("dim", [1, 3, 5, 8, 21])
def test_an_odd_width_ends_with_a_sine_of_the_published_formula(dim, layout):
    coords = far_coords(1)
    encoding = Sinusoidal(dim, uneven="odd", layout=layout)
    blocks = [(0, geometric(dim, over=dim))]
    check(encoding, coords, sinusoid(coords, blocks, layout, cut=dim))
    if layout == "interleaved":
        got = encoding(torch.tensor([[700]]))[0]
        for j in range(dim):
            angle = 700 / 10000 ** (2 * (j // 2) / dim)
            assert got[j].item() == pytest.approx([math.sin, math.cos][j % 2](angle), abs=1e-7)


@pytest.mark.parametrize("layout", ["interleaved", "axis_half", "half"])
@pytest.mark.parametrize(
    "dim, axes, width",
    [(5, 1, 6), (1, 1, 2), (8, 1, 8), (5, 2, 4), (10, 2, 6), (1, 2, 2), (10, 3, 4), (64, 3, 22), (12, 3, 4)],
)
def test_rounding_up_cuts_the_last_channels(dim, axes, width, layout):
    coords = far_coords(axes)
    blocks = [(axis, geometric(width)) for axis in range(axes)]
    check(Sinusoidal(dim, axes, uneven="round_up", layout=layout), coords, sinusoid(coords, blocks, layout, cut=dim))


def test_rounding_up_takes_any_spectrum():
    coords = far_coords(3)
    encoding = Sinusoidal(13, axes=3, uneven="round_up", spectrum=Axial(order=(1, 2, 0), series=Geometric(9.0)))
    check(encoding, coords, sinusoid(coords, [(axis, geometric(6, 9.0)) for axis in (1, 2, 0)], cut=13))


@pytest.mark.parametrize("axes, dim", [(1, 10), (2, 20), (3, 30)])
def test_width_is_exactly_the_one_asked_for(axes, dim):
    coords = torch.zeros(7, axes, dtype=torch.int64)
    assert Sinusoidal(dim, axes=axes)(coords).shape == (7, dim)


@pytest.mark.parametrize("dim, axes", [(5, 1), (1, 1), (10, 2), (5, 2), (64, 3), (0, 1), (-4, 1)])
def test_a_width_that_axes_do_not_share_is_refused(dim, axes):
    message = rf"dim \({dim}\) must be a multiple of 2 \* axes \({2 * axes}\); uneven="
    message += "'odd' or 'round_up' allows others" if axes == 1 else "'round_up' allows others"
    with pytest.raises(ValueError, match=message if dim > 0 else f"dim must be positive, got {dim}"):
        Sinusoidal(dim, axes=axes)


# A learned scale


def test_a_learned_scale_starts_as_published_and_learns():
    encoding = Sinusoidal(dim=16, layout="half", learned_scale=True)
    assert encoding.scale.item() == pytest.approx(0.25)
    coords = sequence_coords(5)
    want = Sinusoidal(dim=16, layout="half")(coords)
    torch.testing.assert_close(encoding(coords), want * 0.25, atol=0, rtol=1e-7)
    encoding(coords).sum().backward()
    torch.testing.assert_close(encoding.scale.grad, want.sum().reshape(1), atol=1e-5, rtol=1e-6)
    assert encoding.no_weight_decay() == {"scale"} == set(encoding.state_dict())
    with torch.no_grad():
        encoding.scale.fill_(3.0)
    assert torch.equal(pickle.loads(pickle.dumps(encoding))(coords), want * 3)
    encoding.reset_parameters()
    assert encoding.scale.item() == pytest.approx(0.25)


def test_a_learned_scale_keeps_its_digits_in_half_precision():
    encoding = Sinusoidal(dim=12, learned_scale=True)
    coords = sequence_coords(300)
    want = encoding(coords)
    for cast in (encoding.bfloat16(), encoding.half()):
        assert cast.scale.dtype == torch.float32
        assert torch.equal(cast(coords), want)
    assert encoding.double()(coords).dtype == torch.float32


# What is refused


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dim": 8.0}, TypeError, "dim must be an integer, got 8.0"),
        ({"dim": 8, "axes": 0}, ValueError, "axes must be positive, got 0"),
        ({"dim": 8, "base": -1}, ValueError, "base must be positive and finite, got -1"),
        ({"dim": 8, "base": math.nan}, ValueError, "base must be positive and finite, got nan"),
        ({"dim": 8, "base": "10"}, TypeError, "base must be a number, got '10'"),
        (
            {"dim": 8, "layout": "blocks"},
            ValueError,
            "layout must be 'interleaved', 'axis_half' or 'half', got 'blocks'",
        ),
        ({"dim": 8, "uneven": "cut"}, ValueError, "uneven must be 'odd', 'round_up' or None, got 'cut'"),
        ({"dim": 5, "axes": 2, "uneven": "odd"}, ValueError, "uneven='odd' is for one axis .* got axes=2 .*round_up"),
        ({"dim": 5, "uneven": "odd", "spectrum": Shared()}, ValueError, "without a spectrum, got .*Shared.*round_up"),
        ({"dim": 8, "spectrum": "Axial"}, TypeError, "spectrum must be a fixed one: Axial, .* got 'Axial'"),
        ({"dim": 8, "spectrum": Learned()}, TypeError, r"spectrum must be a fixed one: Axial, .* got Learned\("),
        ({"dim": 8, "spectrum": Mixed()}, TypeError, r"spectrum must be a fixed one: Axial, .* got Mixed\("),
        ({"dim": 8, "spectrum": Sections((3, 2)), "axes": 2}, ValueError, r"must add up to half of dim \(8\)"),
        ({"dim": 9, "spectrum": Axial()}, ValueError, r"dim \(9\) must be a multiple of 2 \* axes \(2\)"),
        ({"dim": 4, "spectrum": Given(((1.0, 2.0, 3.0),))}, ValueError, r"turn 6 channels, more than dim \(4\)"),
        ({"dim": 4, "spectrum": Given((((1.0,),), ((2.0,),)))}, ValueError, "one for all, got one for each of 2 heads"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        Sinusoidal(**arguments)


def test_wrong_axes_name_the_call_that_fits():
    with pytest.raises(ValueError, match=r"shape \(6, 2\); for images use Sinusoidal\(axes=2\)"):
        Sinusoidal(dim=8)(grid_coords(2, 3))


def test_the_representation_shows_what_was_chosen():
    assert repr(Sinusoidal(dim=8, axes=2)) == "Sinusoidal(dim=8, axes=2, base=10000.0)"
    chosen = repr(Sinusoidal(5, layout="half", cos_first=True, uneven="odd", learned_scale=True))
    assert chosen == (
        "Sinusoidal(dim=5, axes=1, base=10000.0, layout='half', cos_first=True, uneven='odd', learned_scale=True)"
    )
