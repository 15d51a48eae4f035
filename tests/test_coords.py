import itertools
import math

import mpmath
import pytest
import torch

from mmpos import grid_coords, packed_coords, padded_coords, sequence_coords, video_coords, volume_coords
from mmpos.coords import sphere_coords


def lattice(sizes, spacing=None, origin=None):
    """The definition: every cell in row-major order, first axis slowest."""
    spacing, origin = spacing or [1] * len(sizes), origin or [0] * len(sizes)
    cells = itertools.product(*(range(size) for size in sizes))
    return [[start + step * i for i, step, start in zip(cell, spacing, origin, strict=True)] for cell in cells]


def test_sequence_counts_from_its_offset():
    coords = sequence_coords(5, offset=-2)
    assert coords.dtype == torch.int64
    assert coords.tolist() == [[-2], [-1], [0], [1], [2]]
    assert sequence_coords(0).shape == (0, 1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sequence_takes_an_offset_for_each_row(dtype):
    offset = torch.tensor([[0, 7, 250], [3, 2, 1]], dtype=dtype)
    coords = sequence_coords(9, offset=offset)
    assert coords.dtype == torch.int64
    assert coords.tolist() == [[[[o + i] for i in range(9)] for o in row] for row in offset.tolist()]


def test_sequence_after_an_eviction_goes_on_from_the_tokens_seen():
    # A cache that saw ten tokens and kept four: the next position is 10, and nothing reads it from the cache's size.
    assert sequence_coords(1, offset=10).tolist() == [[10]]


def test_positions_are_integers_that_a_half_precision_model_cannot_round():
    coords = sequence_coords(32768)
    assert len(coords.unique()) == 32768  # float16 tells only 6145 of them apart


def test_grid_is_row_major_with_rows_first():
    coords = grid_coords(height=3, width=5)
    assert coords.dtype == torch.int64
    assert coords.tolist() == lattice([3, 5])
    assert coords[1].tolist() == [0, 1]  # along a row only the second axis, x, varies


def test_transposing_an_image_transposes_its_coordinates():
    upright = grid_coords(height=3, width=5).reshape(3, 5, 2)
    lying = grid_coords(height=5, width=3).reshape(5, 3, 2)
    assert torch.equal(upright.transpose(0, 1).flip(-1), lying)


def test_sub_grid_equals_a_slice_of_the_grid():
    whole = grid_coords(height=7, width=9).reshape(7, 9, 2)
    part = grid_coords(height=4, width=3, origin=(2, 5)).reshape(4, 3, 2)
    assert torch.equal(part, whole[2:6, 5:8])


@pytest.mark.parametrize("coords", [video_coords, volume_coords])
def test_three_axes_are_in_order_slowest_first(coords):
    assert coords(2, 3, 4).tolist() == lattice([2, 3, 4])
    assert coords(2, 3, 4).dtype == torch.int64
    spacing, origin = (5.0, 0.75, 0.5), (-1, 2, 0.25)
    real = coords(2, 3, 4, spacing=spacing, origin=origin)
    assert real.dtype == torch.float64
    assert real.tolist() == lattice([2, 3, 4], spacing, origin)


def test_frames_keep_their_seconds_apart_after_a_day_of_video():
    frames = video_coords(3, 1, 1, spacing=(1 / 30, 1, 1), origin=(86400, 0, 0))[:, 0]
    assert [round(seconds - 86400, 10) for seconds in frames.tolist()] == [0, round(1 / 30, 10), round(2 / 30, 10)]


@pytest.mark.parametrize(
    "spacing, origin, dtype",
    [(2, -3, torch.int64), (0.5, 0, torch.float64), (1, 0.5, torch.float64), ((1, 2.0), 0, torch.float64)],
)
def test_whole_numbers_give_integers_and_others_float64(spacing, origin, dtype):
    assert grid_coords(2, 3, spacing=spacing, origin=origin).dtype == dtype


def test_spacing_of_two_photographs_of_the_same_scene():
    coarse = grid_coords(height=2, width=3, spacing=2, origin=0.5)
    fine = grid_coords(height=4, width=6, spacing=1)
    centres = fine.double().reshape(2, 2, 3, 2, 2).mean(dim=(1, 3)).flatten(0, 1)
    assert torch.equal(coarse, centres)


def test_packed_documents_start_at_zero_each():
    coords, document = packed_coords([3, 0, 2, 4])
    assert coords.tolist() == [[0], [1], [2], [0], [1], [0], [1], [2], [3]]
    assert document.tolist() == [0, 0, 0, 2, 2, 3, 3, 3, 3]
    assert coords.dtype == document.dtype == torch.int64


def test_packed_documents_keep_a_gap():
    lengths, gap = torch.tensor([3, 1, 2], dtype=torch.int32), 1000
    coords, document = packed_coords(lengths, gap=gap)
    assert coords[:, 0].tolist() == [j * gap + i for j, n in enumerate(lengths.tolist()) for i in range(n)]
    assert document.tolist() == [0, 0, 0, 1, 2, 2]


def test_left_padding_does_not_shift_positions_and_rows_are_counted_alone():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 0, 1]], dtype=torch.bool)
    coords = padded_coords(mask)
    assert coords.dtype == torch.int64
    assert coords[..., 0].tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 0, 0, 0], [0, 0, 1, 0, 2]]
    for row in range(len(mask)):
        assert torch.equal(padded_coords(mask[row : row + 1])[0], coords[row])


@pytest.mark.parametrize("size, real, start", [((4, 6), (2, 5), (0, 0)), ((4, 6), (3, 2), (1, 4))])
def test_padded_images_are_grids_wherever_the_pads_are(size, real, start):
    mask = torch.zeros(2, *size, dtype=torch.bool)
    window = tuple(slice(s, s + r) for s, r in zip(start, real, strict=True))
    mask[(1, *window)] = True
    coords = padded_coords(mask)
    assert coords.shape == (2, size[0] * size[1], 2)
    assert torch.equal(coords[1, mask[1].flatten()], grid_coords(*real))
    assert not coords[0].any()
    assert not coords[1, ~mask[1].flatten()].any()


def test_padded_videos_pad_inside_the_grid():
    # Rows appended after flattening would shift every frame but the first.
    mask = torch.zeros(1, 3, 4, 5, dtype=torch.bool)
    mask[:, :2, :3, 1:] = True
    assert torch.equal(padded_coords(mask)[0, mask.flatten()], video_coords(2, 3, 4))


CALLS = {
    "sequence": lambda **on: sequence_coords(3, offset=5, **on),
    "grid": lambda **on: grid_coords(2, 3, **on),
    "video": lambda **on: video_coords(2, 3, 4, spacing=0.5, **on),
    "volume": lambda **on: volume_coords(2, 3, 4, **on),
    "packed": lambda **on: packed_coords([3, 2], **on)[0],
    "packed document": lambda **on: packed_coords([3, 2], **on)[1],
    "padded": lambda **on: padded_coords(torch.ones(2, 3, dtype=torch.bool), **on),
}


@pytest.mark.parametrize("make", CALLS.values(), ids=CALLS)
def test_device_is_where_the_result_lies(make):
    plain, moved = make(), make(device="meta")
    assert plain.device.type == "cpu"
    assert (moved.device.type, moved.shape, moved.dtype) == ("meta", plain.shape, plain.dtype)


def test_results_lie_where_their_arguments_do():
    assert sequence_coords(3, offset=torch.zeros(2, dtype=torch.int64, device="meta")).is_meta
    assert padded_coords(torch.ones(2, 3, dtype=torch.bool, device="meta")).is_meta


def test_arguments_are_not_modified():
    offset, lengths = torch.tensor([4, 5]), torch.tensor([3, 2])
    mask = torch.tensor([[True, False], [True, True]])
    before = [part.clone() for part in (offset, lengths, mask)]
    sequence_coords(3, offset=offset).add_(1)
    packed_coords(lengths)[0].add_(1)
    padded_coords(mask).add_(1)
    assert all(map(torch.equal, before, (offset, lengths, mask)))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: sequence_coords(-1), ValueError, "length must not be negative, got -1"),
        (lambda: sequence_coords(2.0), TypeError, "length must be an integer, got 2.0"),
        (lambda: sequence_coords(True), TypeError, "length must be an integer, got True"),
        (lambda: sequence_coords(2, offset=0.5), TypeError, "offset must be an integer, got 0.5"),
        (lambda: sequence_coords(2, offset=torch.ones(2)), TypeError, "offset must hold integers, got torch.float32"),
        (lambda: grid_coords(2, -3), ValueError, "width must not be negative, got -3"),
        (lambda: grid_coords(2.5, 3), TypeError, "height must be an integer, got 2.5"),
        (lambda: video_coords(-2, 3, 4), ValueError, "frames must not be negative, got -2"),
        (lambda: volume_coords(-2, 3, 4), ValueError, "depth must not be negative, got -2"),
        (
            lambda: grid_coords(2, 3, spacing=(1, 2, 3)),
            ValueError,
            r"spacing .* each of height, width, got \(1, 2, 3\)",
        ),
        (lambda: grid_coords(2, 3, origin=[0]), ValueError, r"origin .* got \[0\]"),
        (lambda: grid_coords(2, 3, spacing=None), TypeError, "spacing must be made of numbers, got None"),
        (lambda: packed_coords([2, -1]), ValueError, "lengths must not be negative, got -1"),
        (lambda: packed_coords(torch.tensor([2, -1])), ValueError, "lengths must not be negative, got -1"),
        (lambda: packed_coords(torch.tensor([[2, 1]])), ValueError, r"one axis, got shape \(1, 2\)"),
        (lambda: packed_coords(torch.tensor([2.0])), TypeError, "lengths must hold integers, got torch.float32"),
        (lambda: packed_coords([2], gap=1.5), TypeError, "gap must be an integer, got 1.5"),
        (lambda: padded_coords(torch.ones(2, 3)), TypeError, r"boolean .*got torch.float32; use mask.bool\(\)"),
        (lambda: padded_coords(torch.ones(3, dtype=torch.bool)), ValueError, r"got shape \(3,\)"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


# The sphere


def on_sphere(latitude, longitude):
    """The definition in 40 digits: (z, y, x)."""
    with mpmath.workdps(40):
        lat, lon = (mpmath.mpf(degrees) * mpmath.pi / 180 for degrees in (latitude, longitude))
        return [
            float(mpmath.sin(lat)),
            float(mpmath.cos(lat) * mpmath.sin(lon)),
            float(mpmath.cos(lat) * mpmath.cos(lon)),
        ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_places_on_a_sphere_are_unit_vectors(dtype):
    latitude = (torch.rand(300, dtype=dtype) * 2 - 1) * 90
    longitude = (torch.rand(300, dtype=dtype) * 2 - 1) * 720
    coords = sphere_coords(latitude, longitude)
    assert (coords.dtype, coords.shape) == (torch.float64, (300, 3))
    want = [on_sphere(*place) for place in zip(latitude.tolist(), longitude.tolist(), strict=True)]
    torch.testing.assert_close(coords, torch.tensor(want, dtype=torch.float64), atol=2**-52, rtol=0)
    torch.testing.assert_close(coords.norm(dim=-1), torch.ones(300, dtype=torch.float64), atol=2**-51, rtol=0)


def test_quarters_of_a_sphere_are_exact():
    east = {
        0: (0, 1),
        90: (1, 0),
        180: (0, -1),
        270: (-1, 0),
        360: (0, 1),
        -90: (-1, 0),
        -180: (0, -1),
        90 * 10**9: (0, 1),
    }
    for longitude, (y, x) in east.items():
        coords = sphere_coords([0, 90, -90], longitude)
        assert coords.tolist() == [[0, y, x], [1, 0, 0], [-1, 0, 0]]
        assert not coords[coords == 0].signbit().any()


def test_there_is_no_seam_and_a_pole_is_one_point():
    latitude = torch.linspace(-90, 90, 37, dtype=torch.float64)
    for east, west in ((180, -180), (190, -170), (359, -1), (540, 180)):
        assert torch.equal(sphere_coords(latitude, east), sphere_coords(latitude, west))
    near = sphere_coords(latitude, 179.999) - sphere_coords(latitude, -179.999)
    assert near.norm(dim=-1).max() < math.radians(0.002) * 1.01
    poles = sphere_coords(torch.tensor([[90.0], [-90.0]]), torch.rand(50) * 360)
    assert torch.equal(poles, poles[:, :1].expand(2, 50, 3))


def test_places_may_be_numbers_sequences_or_tensors_that_broadcast():
    assert sphere_coords(45, 30.5).shape == (1, 3)
    assert torch.equal(sphere_coords([45, -10], 30), sphere_coords(torch.tensor([45.0, -10.0]), torch.tensor([30, 30])))
    latitude, longitude = torch.tensor([60, 0, -60]), torch.tensor([10.0, 20.0, 30.0, 40.0])
    coords = sphere_coords(latitude[:, None], longitude).flatten(0, 1)
    for i, j in itertools.product(range(3), range(4)):
        assert coords[4 * i + j].tolist() == sphere_coords(latitude[i].item(), longitude[j].item())[0].tolist()
    assert sphere_coords(torch.zeros(2, 0), 5).shape == (2, 0, 3)
    assert sphere_coords(torch.zeros(7, device="meta"), 5).is_meta
    assert sphere_coords(1, 2, device="meta").is_meta


def test_gradients_reach_latitude_and_longitude():
    places = [torch.tensor([12.5, -70.0], dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(sphere_coords, places)


def test_a_place_that_is_no_number_is_nan_and_alone_so():
    coords = sphere_coords([math.nan, 10, 10], [5, math.inf, 5])
    assert coords[0].isnan().all()
    assert coords[1, 1:].isnan().all()
    assert coords[2].isfinite().all()


def test_compiled_a_latitude_out_of_range_is_nan():
    compiled = torch.compile(sphere_coords, fullgraph=True, backend="aot_eager")
    coords = compiled(torch.tensor([90.0, 91.0, -90.5]), torch.tensor(0.0))
    assert coords.isnan().tolist() == [[False] * 3, [True] * 3, [True] * 3]


@pytest.mark.parametrize(
    "latitude, longitude, error, message",
    [
        (91, 0, ValueError, "latitude must be from -90 to 90 degrees, got 91"),
        ([45.0, -90.001], 0, ValueError, "latitude must be from -90 to 90 degrees, got -90.001"),
        ([1, 2, 3], [1, 2], ValueError, r"latitude and longitude must broadcast, got shapes \(3,\) and \(2,\)"),
        (torch.zeros(3, dtype=torch.bfloat16), 0, TypeError, "latitude must be degrees in .*, got torch.bfloat16"),
        (0, torch.zeros(3, dtype=torch.bool), TypeError, "longitude must be degrees in .*, got torch.bool"),
    ],
)
def test_places_that_are_none_are_refused(latitude, longitude, error, message):
    with pytest.raises(error, match=message):
        sphere_coords(latitude, longitude)
