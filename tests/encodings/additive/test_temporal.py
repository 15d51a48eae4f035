import copy
import math

import mpmath
import pytest
import torch
from torch import nn

from mmpos import Geometric, Periods, Sinusoidal, sequence_coords
from mmpos.encodings.additive.temporal import TAPE, Time2Vec

# Time2Vec


def time2vec(t, freqs, phases, wave):
    """The formula in 50 digits, and the size of each angle."""
    with mpmath.workdps(50):
        angles = [[mpmath.mpf(f) * c + p for f, p in zip(freqs, phases, strict=True)] for c in t]
        rows = [[float(row[0]), *(float(wave(angle)) for angle in row[1:])] for row in angles]
        return torch.tensor(rows, dtype=torch.float64), torch.tensor(
            [[float(abs(angle)) for angle in row] for row in angles], dtype=torch.float64
        )


@pytest.mark.parametrize("wave, function", [("sine", mpmath.sin), ("cosine", mpmath.cos)])
@pytest.mark.parametrize("start", [None, Periods(60, 366 * 86400)])
def test_time2vec_is_affine_in_channel_0_and_a_wave_in_all_others(start, wave, function):
    encoding = Time2Vec(dim=9, start=start, wave=wave)
    for t in ([0.0, 1.0, 100.0, -3.25, 998.3897], [1_700_000_000, 1_700_000_060, 2**31 - 1]):
        got = encoding(torch.tensor(t, dtype=torch.float64 if isinstance(t[0], float) else None)[:, None])
        want, angle = time2vec(t, encoding.freqs.tolist(), encoding.phases.tolist(), function)
        assert (got.dtype, got.shape) == (torch.float32, (len(t), 9))
        assert ((got[:, 1:].double() - want[:, 1:]).abs() <= 1e-7 + 2**-52 * angle[:, 1:]).all()
        torch.testing.assert_close(got[:, 0].double(), want[:, 0], rtol=2**-23, atol=0)


def test_the_trend_is_linear_and_the_waves_are_bounded():
    encoding = Time2Vec(dim=6, start=Geometric(10.0)).double()
    got = encoding(torch.tensor([[0.0], [1.0], [2.0], [100.0]], dtype=torch.float64))
    assert (got[2, 0] - got[1, 0]).item() == pytest.approx((got[1, 0] - got[0, 0]).item(), rel=1e-9)
    assert got[3, 0] > 1.5
    assert got[:, 1:].abs().max() <= 1
    assert got[:, 1:].abs().max() > 0.5


@pytest.mark.parametrize("rows", [(), (2,), (2, 3)])
def test_time2vec_takes_any_leading_dimensions(rows):
    encoding = Time2Vec(dim=8)
    t = torch.rand(*rows, 5, 1)
    got = encoding(t)
    assert got.shape == (*rows, 5, 8)
    assert torch.equal(got.flatten(0, -2), encoding(t.flatten(0, -2)))


def test_frequencies_start_spaced_by_their_logarithm():
    encoding = Time2Vec(dim=20, start=Periods(3600, 366 * 86400))
    freqs = encoding.freqs.detach().double()
    assert freqs[1].item() == pytest.approx(2 * math.pi / 3600, rel=1e-6)
    assert freqs[-1].item() == pytest.approx(2 * math.pi / (366 * 86400), rel=1e-6)
    steps = freqs[2:] / freqs[1:-1]
    assert (steps / steps[0] - 1).abs().max() < 1e-6
    assert freqs[0] == freqs[-1]
    default = 10000.0 ** -(torch.arange(19, dtype=torch.float64) / 19)
    torch.testing.assert_close(Time2Vec(dim=20).freqs[1:].double(), default, rtol=1e-6, atol=0)


def test_phases_start_all_around_and_the_trend_at_0():
    phases = Time2Vec(dim=3000).phases.detach()
    assert phases[0] == 0
    assert (phases[1:].min().item(), phases[1:].max().item()) == pytest.approx((-math.pi, math.pi), abs=0.02)
    assert phases[1:].std().item() == pytest.approx(2 * math.pi / math.sqrt(12), rel=0.05)


def test_all_of_time2vec_stays_in_float32_when_cast():
    encoding = Time2Vec(dim=8)
    t = torch.tensor([[255], [256], [257], [258], [1_700_000_000]])
    want = encoding(t)
    for cast in (nn.Module.bfloat16, nn.Module.half):
        assert torch.equal(cast(copy.deepcopy(encoding))(t), want)
    assert encoding.double()(t).dtype == torch.float64


def test_gradients_reach_frequencies_phases_and_time():
    encoding = Time2Vec(dim=5).double()
    t = torch.randn(4, 1, dtype=torch.float64, requires_grad=True)

    def call(t, freqs, phases):
        return torch.func.functional_call(encoding, {"freqs": freqs, "phases": phases}, (t,))

    assert torch.autograd.gradcheck(call, (t, encoding.freqs, encoding.phases))


def test_time2vec_learns_all_that_it_saves():
    encoding = Time2Vec(dim=5)
    assert set(encoding.state_dict()) == encoding.no_weight_decay() == {"freqs", "phases"}
    phases = encoding.phases.detach().clone()
    with torch.no_grad():
        encoding.freqs.fill_(7)
    encoding.reset_parameters()
    torch.testing.assert_close(encoding.freqs[1].item(), 1.0)
    assert not torch.equal(encoding.phases, phases)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dim": 1}, ValueError, "dim must be at least 2, .* got 1"),
        ({"dim": 8, "start": 10000.0}, TypeError, "start must be a series such as Periods or Geometric, got 10000.0"),
        ({"dim": 8, "wave": "sin"}, ValueError, "wave must be 'sine' or 'cosine', got 'sin'"),
    ],
)
def test_bad_arguments_of_time2vec_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        Time2Vec(**arguments)


@pytest.mark.parametrize("encoding", [Time2Vec(4), TAPE(4)])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_time_that_is_no_number_gives_nan_for_its_token(encoding, bad):
    got = encoding(torch.tensor([[1.5], [bad], [3.0]]))
    assert got[1].isnan().all()
    assert got[[0, 2]].isfinite().all()


@pytest.mark.parametrize("encoding", [Time2Vec(4), TAPE(4)])
def test_time_is_one_axis(encoding):
    with pytest.raises(ValueError, match=r"coords must have 1 axis \(t\), got shape \(5, 3\)"):
        encoding(torch.zeros(5, 3))


# tAPE


def tape(coords, dim, length, base=10000.0):
    """ConvTran's formula in 50 digits: ``sin, cos`` of ``t * base ** (-2k / d) * d / L``, and the size of the angle."""
    with mpmath.workdps(70):
        freqs = [mpmath.mpf(base) ** (mpmath.mpf(-2 * k) / dim) * dim / length for k in range(dim // 2)]
        rows = [[float(wave(c * f)) for f in freqs for wave in (mpmath.sin, mpmath.cos)] for c in coords]
        return torch.tensor(rows, dtype=torch.float64), torch.tensor(
            [[float(abs(c * f)) for f in freqs for _ in "sc"] for c in coords], dtype=torch.float64
        )


@pytest.mark.parametrize(
    "dim, length, base", [(64, 96, 10000.0), (6, 5000, 10000.0), (128, 7, 10.0), (64, 64, 10000.0)]
)
def test_tape_is_the_published_formula(dim, length, base):
    got = TAPE(dim, base=base)(sequence_coords(length))
    want, _ = tape(range(length), dim, length, base)
    assert (got.dtype, got.shape) == (torch.float32, (length, dim))
    assert (got.double() - want).abs().max() < 1e-7


def test_tape_far_from_the_series():
    t = [10**6, -(10**9), 2**31 - 1, 12345.678]
    for coords in (torch.tensor(t[:3])[:, None], torch.tensor(t, dtype=torch.float64)[:, None]):
        got = TAPE(32)(coords, length=100)
        want, angle = tape(coords[:, 0].tolist(), 32, 100)
        assert ((got.double() - want).abs() <= 1e-7 + 2**-52 * angle).all()


def test_the_length_is_the_number_of_tokens_unless_given():
    encoding, coords = TAPE(16), sequence_coords(50)
    assert torch.equal(encoding(coords), encoding(coords, length=50))
    assert torch.equal(encoding(coords[:20]), encoding(coords[:20], length=20))
    assert torch.equal(encoding(coords[:20], length=50), encoding(coords)[:20])
    assert not torch.equal(encoding(coords[:20]), encoding(coords)[:20])
    assert encoding(coords[:0]).shape == (0, 16)


def test_each_row_may_have_a_length_of_its_own():
    encoding, coords = TAPE(16), torch.stack([sequence_coords(9), sequence_coords(9, offset=3)])
    lengths = torch.tensor([9, 300], dtype=torch.int32)
    got = encoding(coords, length=lengths)
    for row, length in enumerate((9, 300)):
        assert torch.equal(got[row], encoding(coords[row], length=length))
        want, _ = tape(coords[row, :, 0].tolist(), 16, length)
        assert (got[row].double() - want).abs().max() < 1e-7


def test_at_a_length_of_dim_it_is_the_plain_sinusoid():
    coords = torch.tensor([[0], [17], [2**31 - 1]])
    assert torch.equal(TAPE(48)(coords, length=48), Sinusoidal(48)(coords))


def test_tape_has_the_same_bits_in_a_model_of_any_dtype():
    coords = torch.tensor([[255], [256], [257], [4097]])
    want = TAPE(64)(coords, length=5000)
    assert torch.equal(TAPE(64).bfloat16()(coords, length=5000), want)
    assert len(want.unique(dim=0)) == 4
    assert not TAPE(64).state_dict()


def test_compiled_the_length_need_not_be_given():
    encoding = TAPE(8)
    compiled = torch.compile(encoding, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (12, 31):
        assert torch.equal(compiled(sequence_coords(n)), encoding(sequence_coords(n)))


def test_gradients_of_tape_reach_real_coordinates():
    coords = torch.tensor([[0.25], [3.5]], dtype=torch.float64, requires_grad=True)
    TAPE(4)(coords, length=2).sum().backward()
    x, f = coords.detach(), torch.tensor([2.0, 0.02], dtype=torch.float64)
    want = (f * ((x * f).cos() - (x * f).sin())).sum(-1, keepdim=True)
    torch.testing.assert_close(coords.grad, want, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "length, error, message",
    [
        (0, ValueError, "length must be positive, got 0"),
        (torch.tensor([4, 0]), ValueError, "length must be positive, got 0"),
        (torch.tensor([4, 5, 6]), ValueError, r"length must have shape \(2,\), one for each row, got \(3,\)"),
        (torch.tensor(4), ValueError, r"length must have shape \(2,\), one for each row, got \(\)"),
        (4.0, TypeError, "length must be an integer, an integer tensor or None, got 4.0"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(length, error, message):
    with pytest.raises(error, match=message):
        TAPE(4)(torch.zeros(2, 5, 1, dtype=torch.int64), length=length)


@pytest.mark.parametrize("dim", [5, 1])
def test_an_odd_width_is_refused(dim):
    with pytest.raises(ValueError, match=rf"dim \({dim}\) must be even"):
        TAPE(dim)
