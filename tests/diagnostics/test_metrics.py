"""Metrics against formulas."""

import math

import pytest
import torch

import mmpos
from mmpos.diagnostics import (
    additive_waves,
    attention_distance,
    attention_entropy,
    bias_matrix,
    bias_reach,
    bias_slopes,
    by_distance,
    distances,
    extended_periods,
    offsets,
    period_rows,
    rotary_decay,
    rotary_freqs,
    rotation_gap,
    shift_gap,
    similarity,
    turned,
    usual_scalings,
)


def series(width, base=10000.0):
    return [base ** (-2 * i / width) for i in range(width // 2)]


@pytest.mark.parametrize("width, base", [(8, 10000.0), (64, 10000.0), (48, 100.0)])
def test_frequencies_of_a_rotation(width, base):
    freqs = rotary_freqs(mmpos.RoPE(width, base=base))
    torch.testing.assert_close(freqs[0, 0], torch.tensor(series(width, base), dtype=torch.float64), rtol=1e-6, atol=0)


def test_frequencies_of_axes_heads_and_an_attention_factor():
    given = torch.tensor([[[1.0, 0.3, -0.2], [0.0, 0.5, 7.0]], [[2.0, 0.1, 0.4], [0.6, 0.0, -3.0]]])
    scaling = mmpos.scaling.YaRN(4, train_length=64)
    rope = mmpos.RoPE(6, axes=2, spectrum=mmpos.Given(given.tolist()), num_heads=2)
    torch.testing.assert_close(rotary_freqs(rope), given.double(), rtol=1e-6, atol=0)
    plain, scaled = mmpos.RoPE(16), mmpos.RoPE(16, scaling=scaling)
    assert scaled(mmpos.sequence_coords(2)).factor is not None
    ratio = rotary_freqs(scaled)[0, 0] / rotary_freqs(plain)[0, 0]
    assert ratio[0].item() == pytest.approx(1, rel=1e-6)
    assert ratio[-1].item() == pytest.approx(1 / 4, rel=1e-6)


def test_a_rotation_without_gradients_is_refused():
    class Fixed(mmpos.RotaryEncoding):
        axes = 1

        def forward(self, coords, *, length=None):
            return mmpos.RoPE(8)(coords.detach())

    with pytest.raises(ValueError, match="Fixed has no gradient"):
        rotary_freqs(Fixed())


def test_the_periods_of_eight_channels():
    """What textbooks say of eight channels."""
    for encoding in (mmpos.Sinusoidal(8), mmpos.RoPE(8)):
        rows = period_rows(encoding, [50])
        assert [row.period for row in rows] == pytest.approx([2 * math.pi * 10**i for i in range(4)], rel=1e-5)
        assert [f"{row.period:.1f}" for row in rows] == ["6.3", "62.8", "628.3", "6283.2"]
        assert [row.turns for row in rows] == pytest.approx([49 / (2 * math.pi * 10**i) for i in range(4)], rel=1e-5)
        assert [bool(row.note) for row in rows] == [False, False, True, True]


def test_periods_alias_below_two_steps():
    rope = mmpos.RoPE(6, spectrum=mmpos.Given([[math.pi / 1.01, math.pi / 0.99, 2 * math.pi / 40]]))
    assert [row.note for row in period_rows(rope, [11])] == ["", "aliases", ""]
    assert [row.note for row in period_rows(rope, [10])] == ["", "aliases", "less than a quarter turn"]
    assert [row.note for row in period_rows(rope, [5], spacing=0.5)] == ["", "", "less than a quarter turn"]


def test_rows_of_a_grid_name_axis_and_pair():
    rows = period_rows(mmpos.RoPE(16, axes=2, base=100.0), [14, 10])
    assert [(row.pair, row.axis) for row in rows] == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1), (7, 1)]
    assert rows[6].turns == pytest.approx(9 * 100 ** (-2 * 2 / 8) / (2 * math.pi), rel=1e-5)
    with pytest.raises(ValueError, match="one for each of the 2 axes"):
        period_rows(mmpos.RoPE(16, axes=2), [14])


@pytest.mark.parametrize(
    "layout, cos_first, sines, cosines",
    [
        ("interleaved", False, [0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]),
        ("half", False, [0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]),
        ("axis_half", True, [3, 4, 5, 9, 10, 11], [0, 1, 2, 6, 7, 8]),
    ],
)
def test_sines_find_their_cosines_in_any_layout(layout, cos_first, sines, cosines):
    encoding = mmpos.Sinusoidal(12, axes=2, layout=layout, cos_first=cos_first)
    waves = additive_waves(encoding)
    assert sorted(wave.channels for wave in waves) == sorted(zip(sines, cosines, strict=True))
    found = {wave.channels[0]: wave.freqs for wave in waves}
    for place, freq in zip(sines, [*series(6), *series(6)], strict=True):
        axis = int(sines.index(place) >= 3)
        assert found[place][axis] == pytest.approx(freq, rel=1e-4)
        assert found[place][1 - axis] == 0


def test_slow_waves_of_a_wide_encoding_are_told_apart():
    waves = additive_waves(mmpos.Sinusoidal(256))
    assert [wave.channels for wave in waves] == [(2 * i, 2 * i + 1) for i in range(128)]
    assert [wave.freqs[0] for wave in waves] == pytest.approx(series(256), rel=1e-4)


def test_waves_on_several_axes_keep_their_signs():
    encoding = mmpos.Sinusoidal(4, axes=2, spectrum=mmpos.Given([[1.0, 0.3], [0.5, -0.2]]))
    freqs = torch.tensor([wave.freqs for wave in additive_waves(encoding)])
    torch.testing.assert_close(freqs, torch.tensor([[1.0, 0.5], [0.3, -0.2]]), rtol=1e-4, atol=1e-5)


def test_what_is_no_wave_is_none():
    assert not additive_waves(mmpos.LearnedTable(8, 60))
    assert not additive_waves(mmpos.CoordinateMLP(8))
    alone = additive_waves(mmpos.Time2Vec(5))  # channel 0 is a line, the others sines of any phase
    assert [wave.channels for wave in alone] == [(1,), (2,), (3,), (4,)]
    assert [wave.freqs[0] for wave in alone] == pytest.approx(series(8), rel=1e-4)


def test_similarity_of_rotations_is_the_mean_cosine():
    q, k = torch.tensor([[0, 0], [3, 5]]), mmpos.grid_coords(4, 6)
    rope = mmpos.RoPE(8, axes=2, scaling=mmpos.scaling.YaRN(4, train_length=8))
    freqs = rotary_freqs(rope)[0]
    angle = ((q[:, None, :, None] - k[None, :, :, None]) * freqs).sum(-2)
    torch.testing.assert_close(similarity(rope, q, k)[0], angle.cos().mean(-1), rtol=0, atol=1e-6)


def test_similarity_of_sinusoids_is_the_mean_cosine():
    coords = mmpos.sequence_coords(300)
    angle = (coords - coords.T)[..., None] * torch.tensor(series(16), dtype=torch.float64)
    torch.testing.assert_close(
        similarity(mmpos.Sinusoidal(16), coords[:7], coords)[0], angle[:7].cos().mean(-1), rtol=0, atol=1e-6
    )


def test_the_bound_of_roformer():
    coords = mmpos.sequence_coords(60)
    angle = coords.double() * torch.tensor(series(12), dtype=torch.float64)
    sums = [sum(torch.exp(1j * angle[:, i]) for i in range(j + 1)).abs() for j in range(6)]
    torch.testing.assert_close(rotary_decay(mmpos.RoPE(12), coords)[0], torch.stack(sums).mean(0), rtol=0, atol=1e-6)


def test_slopes_and_reach_of_alibi():
    coords = mmpos.sequence_coords(200)
    behind, curve = by_distance(bias_matrix(mmpos.ALiBi(8), coords, coords), offsets(coords, coords))
    assert behind.tolist() == list(range(-199, 200))
    slopes = [2.0**-h for h in range(1, 9)]
    past = behind >= 0
    assert bias_slopes(behind[past], curve[:, past]).tolist() == pytest.approx(slopes, rel=1e-6)
    reach = bias_reach(behind[past], curve[:, past], factor=100.0)
    expected = [math.ceil(math.log(100) / slope) for slope in slopes]
    assert reach.tolist() == [far if far < 200 else math.inf for far in expected]
    with pytest.raises(ValueError, match="factor must be above 1"):
        bias_reach(behind[past], curve[:, past], factor=1.0)


def test_offsets_are_of_keys_behind_and_on_their_axis():
    q, k = torch.tensor([[5, 1], [7, 2]]), torch.tensor([[4, 9], [5, 0], [9, 2]])
    assert offsets(q, k).tolist() == [[1, 0, -4], [3, 2, -2]]
    assert offsets(q, k, axis=1).tolist() == [[-8, 1, -1], [-7, 2, 0]]
    assert distances(q, k)[0].tolist() == pytest.approx([math.hypot(1, 8), 1, math.hypot(4, 1)])


def test_a_bias_that_reads_content_is_given_some():
    bias = mmpos.RelativeLogits(num_heads=3, head_dim=8, extent=5)
    coords = mmpos.sequence_coords(6)
    matrix = bias_matrix(bias, coords, coords[:4])
    assert matrix.shape == (3, 6, 4)
    assert torch.equal(matrix, bias_matrix(bias, coords, coords[:4]))
    assert not torch.equal(matrix, bias_matrix(bias, coords, coords[:4], seed=1))


@pytest.mark.parametrize("shift", [1, 7, 1000, 0.5])
def test_a_shift_turns_sinusoids(shift):
    gaps = rotation_gap(mmpos.Sinusoidal(32), mmpos.sequence_coords(50), shift)
    # Frequencies are known to 1e-6 or so, and phases to that times the shift.
    assert gaps.shape == (16,)
    assert (gaps < 1e-6 * max(shift, 1)).all()


def test_the_gap_is_that_of_pairs_that_do_not_turn_alike():
    class Bent(mmpos.AdditiveEncoding):
        """A sine and its cosine near 0, which stand still past 50."""

        dim, axes = 2, 1

        def forward(self, coords, *, length=None):
            angle = coords.double().clamp(max=50)
            return torch.cat([angle.sin(), angle.cos()], dim=-1).float()

    (gap,) = rotation_gap(Bent(), torch.tensor([[50.0]], dtype=torch.float64), math.pi).tolist()
    expected = 2 * max(abs(math.sin(50)), abs(math.cos(50)))  # half a turn further there should be the opposite
    assert gap == pytest.approx(expected, rel=1e-4)


def test_logits_stay_where_all_tokens_move():
    coords = mmpos.grid_coords(5, 7)
    assert shift_gap(mmpos.RoPE(32, axes=2), coords, (1000, 3)).max() < 1e-6
    xpos = mmpos.RoPE(32, xpos=mmpos.XPos())
    assert shift_gap(xpos, mmpos.sequence_coords(40), 100).max() < 1e-5

    class Squared(mmpos.RotaryEncoding):
        axes = 1

        def forward(self, coords, *, length=None):
            return mmpos.RoPE(8)(coords.double() ** 2)

    assert shift_gap(Squared(), mmpos.sequence_coords(9), 3).max() > 0.1


def test_one_vector_is_turned_or_added_to():
    coords = mmpos.sequence_coords(40)
    share, degrees = turned(mmpos.RoPE(2), torch.tensor([3.0, 4.0]), coords)
    wrapped = [math.degrees(abs(math.remainder(n, 2 * math.pi))) for n in range(40)]
    torch.testing.assert_close(share, torch.ones(40, dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(degrees, torch.tensor(wrapped, dtype=torch.float64), rtol=0, atol=1e-4)

    x = torch.tensor([3.0, 4.0])
    share, degrees = turned(mmpos.Sinusoidal(2), x, coords)
    for n in (0, 1, 39):
        y = (3 + math.sin(n), 4 + math.cos(n))
        cosine = (3 * y[0] + 4 * y[1]) / (5 * math.hypot(*y))
        assert share[n].item() == pytest.approx(math.hypot(*y) / 5, rel=1e-6)
        assert degrees[n].item() == pytest.approx(math.degrees(math.acos(cosine)), rel=1e-5)


def test_what_extensions_do_to_periods():
    pairs, factor, trained = 24, 8, 512
    scalings = usual_scalings(factor, trained, long_factors=[1 + i / 4 for i in range(pairs)])
    assert list(scalings) == ["as trained", "PI", "NTK", "YaRN", "Llama 3", "LongRoPE"]
    found = extended_periods(mmpos.RoPE(2 * pairs), scalings, factor * trained)
    periods = {name: each[0, 0] for name, each in found.items()}
    plain = torch.tensor([2 * math.pi / freq for freq in series(2 * pairs)], dtype=torch.float64)
    place = torch.arange(pairs, dtype=torch.float64)
    expected = {"as trained": plain, "PI": factor * plain, "LongRoPE": (1 + place / 4) * plain}
    expected["NTK"] = plain * factor ** (2 * place / (2 * pairs - 2))
    kept = ((trained / plain - 1) / 3).clamp(0, 1)
    expected["Llama 3"] = plain / (kept + (1 - kept) / factor)
    low, high = (2 * pairs * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(10000)) for turns in (32, 1))
    ramp = ((place - max(math.floor(low), 0)) / (math.ceil(high) - max(math.floor(low), 0))).clamp(0, 1)
    expected["YaRN"] = plain / (1 - ramp * (1 - 1 / factor))
    for name, wanted in expected.items():
        torch.testing.assert_close(periods[name], wanted, rtol=2e-6, atol=0, msg=name)


def test_means_by_distance_leave_out_what_is_hidden():
    values = torch.tensor([[[1.0, -torch.inf, 5.0], [3.0, 7.0, -torch.inf]]])
    far = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
    known, mean = by_distance(values, far)
    assert known.tolist() == [0, 1, 2]
    assert mean.tolist() == [[4.0, 3.0, 5.0]]
    known, mean = by_distance(values, torch.full_like(far, 2).index_fill(1, torch.tensor([1]), 3))
    assert mean[0].tolist() == [3.0, 7.0]


def test_distance_and_entropy_of_attention():
    weights = torch.tensor([[[[1.0, 0, 0], [0.25, 0.5, 0.25]], [[0, 0, 1], [0, 0, 0]]]])
    q, k = torch.tensor([[0, 0], [3, 4]]), torch.tensor([[0, 0], [3, 4], [0, 4]])
    far = distances(q, k)
    expected = [(0 + 0.25 * 5 + 0.25 * 3) / 2, 4.0]  # a query that sees nothing does not count
    assert attention_distance(weights, far).tolist() == pytest.approx(expected)
    assert attention_entropy(weights).tolist() == pytest.approx([1.5 * math.log(2) / 2, 0.0])
    halved = attention_distance(weights[..., :2], far[..., :2])  # prefix keys cut off: what is left is normalised
    assert halved[0].item() == pytest.approx((0 + 0.25 / 0.75 * 5) / 2)
    rows = torch.stack([far, 2 * far])
    assert attention_distance(weights.expand(2, -1, -1, -1), rows)[1].item() == pytest.approx(6.0)
