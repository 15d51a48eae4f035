"""Transforms of coordinates, against formulas written here."""

import pytest
import torch

from mmpos import (
    grid_coords,
    jitter,
    normalise,
    normalise_padded,
    packed_coords,
    padded_coords,
    rescale,
    sequence_coords,
    shift,
    video_coords,
)
from mmpos.transforms import skip, subsample


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


def test_tokens_may_move_by_themselves():
    coords = grid_coords(3, 5).expand(7, -1, -1)
    moves = shift(coords, 0.5, per_token=True) - coords
    assert moves.abs().max() <= 0.5
    assert len(moves.unique()) == moves.numel()


def test_offsets_may_be_whole():
    moves = shift(grid_coords(3, 5).expand(4000, -1, -1), 3, whole=True) - grid_coords(3, 5)
    assert moves.dtype == torch.int64
    assert torch.equal(moves, moves[:, :1].expand_as(moves))
    assert (moves[:, 0].flatten().bincount() / 8000 - 0.25).abs().max() < 0.025  # 5 standard errors
    assert not torch.equal(moves[..., 0], moves[..., 1])


@pytest.mark.parametrize("transform", [subsample, skip])
def test_positions_of_a_longer_range_keep_their_order(transform):
    coords = sequence_coords(6).expand(500, -1, -1)
    got = transform(coords, 11, generator=torch.Generator().manual_seed(3))
    again = transform(coords, 11, generator=torch.Generator().manual_seed(3))
    assert torch.equal(got, again)
    assert got.dtype == torch.int64
    assert got.shape == (500, 6, 1)
    assert (got.diff(dim=-2) > 0).all()
    assert (got.min(), got.max()) == (0, 10)
    assert len({tuple(row) for row in got[..., 0].tolist()}) > 20  # each row by its own draw
    torch.testing.assert_close(transform(sequence_coords(6), 6), sequence_coords(6))


def test_a_subset_is_any_with_equal_chance():
    got = subsample(sequence_coords(2).expand(30000, -1, -1), 4)[..., 0]
    pairs, counts = got.unique(dim=0, return_counts=True)
    assert pairs.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert (counts.double() / 30000 - 1 / 6).abs().max() < 0.011  # 5 standard errors


def test_a_skip_keeps_chunks_together():
    steps = skip(sequence_coords(50).expand(300, -1, -1), 1000, chunks=3)[..., 0].diff(dim=-1)
    assert ((steps > 1).sum(-1) <= 2).all()
    assert ((steps > 1).sum(-1) == 2).float().mean() > 0.9
    assert skip(sequence_coords(50), 1000, chunks=1)[..., 0].tolist() == list(range(50))
    # The first skip is even from 0 to length - n, the second even from there on.
    jumps = skip(sequence_coords(4).expand(30000, -1, -1), 8, chunks=4)[..., 0].diff(dim=-1) - 1
    first = torch.bincount(jumps[:, 0], minlength=5).double() / 30000
    assert (first - 0.2).abs().max() < 0.012
    second = torch.bincount(jumps[jumps[:, 0] == 3, 1], minlength=2).double()
    assert (second / second.sum() - 0.5).abs().max() < 0.04


@pytest.mark.parametrize("transform", [subsample, skip])
def test_documents_of_a_row_keep_their_meaning(transform):
    coords, _ = packed_coords([3, 5])
    got = transform(coords, 40)[:, 0]
    assert torch.equal(got[:3], got[3:6])


@pytest.mark.parametrize("transform", [subsample, skip])
def test_positions_that_cannot_be_moved_are_refused(transform):
    with pytest.raises(ValueError, match=r"length \(5\) must be at least the number of tokens \(6\)"):
        transform(sequence_coords(6), 5)
    with pytest.raises(ValueError, match="coords must be from 0 to 5, less than the number of tokens, got 2 to 7"):
        transform(sequence_coords(6, offset=2), 50)
    with pytest.raises(TypeError, match="coords must hold integers"):
        transform(sequence_coords(6).double(), 50)
    with pytest.raises(ValueError, match=r"coords must have one axis, got shape \(15, 2\)"):
        transform(grid_coords(3, 5), 50)
    with pytest.raises(ValueError, match=r"chunks \(7\) must be from 1 to the number of tokens \(6\)"):
        skip(sequence_coords(6), 50, chunks=7)


@pytest.mark.parametrize("offset", [1.0, 0.5])
def test_padded_images_cover_the_range_of_whole_ones(offset):
    mask = torch.zeros(3, 5, 7, dtype=torch.bool)
    mask[0] = mask[1, :3, :6] = mask[2, 1:, 5:] = True
    got = normalise_padded(padded_coords(mask), mask, offset=offset)
    for row, (height, width) in enumerate(((5, 7), (3, 6), (4, 2))):
        y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
        want = torch.stack([(y + offset) / (height + 1e-6), (x + offset) / (width + 1e-6)], dim=-1)
        torch.testing.assert_close(got[row][mask[row].flatten()], want.flatten(0, 1), atol=1e-15, rtol=0)
        assert not got[row][~mask[row].flatten()].any()


def test_lines_without_a_real_cell_are_no_numbers_of_others():
    mask = torch.tensor([[[True, False], [False, False]]])
    assert normalise_padded(padded_coords(mask), mask, eps=0).tolist() == [[[1, 1], [0, 0], [0, 0], [0, 0]]]


def test_a_mask_that_does_not_fit_is_refused():
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    with pytest.raises(TypeError, match=r"mask must be boolean .* use mask.bool\(\)"):
        normalise_padded(padded_coords(mask), mask.long())
    for other in (mask[:, :2], mask[:1], mask.flatten(1)):
        with pytest.raises(ValueError, match=r"mask of shape .* does not fit coords of shape \(2, 12, 2\)"):
            normalise_padded(padded_coords(mask), other)
