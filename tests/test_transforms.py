"""Transforms of coordinates, against formulas written here."""

import pytest
import torch

from mmpos import grid_coords, jitter, normalise, rescale, shift, video_coords


@pytest.mark.parametrize("by, sides", [("separate", (3, 5)), ("max", (5, 5)), ("min", (3, 3))])
def test_cells_are_areas_from_minus_1_to_1(by, sides):
    got = normalise(grid_coords(3, 5), (3, 5), by=by)
    want = [[2 * (y + 0.5) / sides[0] - 1, 2 * (x + 0.5) / sides[1] - 1] for y in range(3) for x in range(5)]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64))


def test_a_finer_grid_lies_where_the_coarse_one_was():
    fine = rescale(video_coords(4, 6, 10), (1, 0.5, 0.25))
    assert fine.dtype == torch.float64
    assert fine.amax(0).tolist() == [3.0, 2.5, 2.25]
    assert torch.equal(rescale(grid_coords(3, 5), 2), grid_coords(3, 5) * 2.0)


def test_random_ones_draw_once_for_each_row_and_repeat_with_their_generator():
    coords = grid_coords(3, 5).expand(7, -1, -1)
    for transform in (lambda g: shift(coords, 2.0, generator=g), lambda g: jitter(coords, 1.5, generator=g)):
        first, again = (transform(torch.Generator().manual_seed(5)) for _ in range(2))
        assert torch.equal(first, again)
        assert len({tuple(row[-1].tolist()) for row in first}) == 7
    offsets = shift(coords, 2.0) - coords
    assert torch.allclose(offsets, offsets[:, :1].expand_as(offsets))
    assert 0 < offsets.abs().max() <= 2
    factors = (jitter(coords, 1.5)[:, -1] / coords[:, -1]).log() / torch.tensor(1.5).double().log()
    assert 0 < factors.abs().max() <= 1
    assert not torch.allclose(factors[:, 0], factors[:, 1])
    shared = jitter(coords, 1.5, shared=True)[:, -1] / coords[:, -1]
    torch.testing.assert_close(shared[:, 0], shared[:, 1])


def test_factors_spread_evenly_in_their_logarithm():
    one = torch.ones(20000, 1, 1)
    logs = jitter(one, 3.0).log().flatten() / torch.tensor(3.0).double().log()
    torch.testing.assert_close(logs.mean(), torch.tensor(0.0).double(), atol=0.02, rtol=0)  # 5 standard errors
    torch.testing.assert_close(logs.square().mean(), torch.tensor(1 / 3).double(), atol=0.011, rtol=0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda c: normalise(c, (3, 5, 7)), r"size must have a positive number for each of 2 axes, got \(3, 5, 7\)"),
        (lambda c: normalise(c, (3, 0)), r"size must have .* got \(3, 0\)"),
        (lambda c: normalise(c, (3, 5), by="longest"), "by must be 'separate', 'max' or 'min', got 'longest'"),
        (lambda c: rescale(c, (1, 2, 3)), r"factor must be one number or one for each of 2 axes, got \(1, 2, 3\)"),
        (lambda c: shift(c, -1), "reach must not be negative, got -1"),
        (lambda c: jitter(c, 0.5), "factor must be at least 1, got 0.5"),
    ],
)
def test_what_does_not_fit_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(grid_coords(3, 5))
