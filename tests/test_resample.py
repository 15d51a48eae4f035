import math
from itertools import pairwise

import pytest
import torch

from mmpos.resample import resample_bias_table, resample_pos_embed, resample_table, split_pos_embed


def weights(old, new, mode, antialias, align_corners=False):
    """Share of every old cell in every new one; written from the definition of the filters."""
    matrix = torch.zeros(new, old, dtype=torch.float64)
    step = old / new
    if align_corners:
        step = (old - 1) / (new - 1) if new > 1 else 0.0
    stretch = max(step, 1.0) if antialias else 1.0
    reach = (1 if mode == "bilinear" else 2) * stretch
    sharpness = -0.5 if antialias else -0.75  # PyTorch's cubic: Keys' with antialiasing, steeper without

    def kernel(x):
        x = abs(x)
        if mode == "bilinear":
            return max(1 - x, 0.0)
        if x < 1:
            return ((sharpness + 2) * x - (sharpness + 3)) * x * x + 1
        return (((x - 5) * x + 8) * x - 4) * sharpness if x < 2 else 0.0

    for i in range(new):
        centre = i * step if align_corners else (i + 0.5) * step - 0.5
        for j in range(math.floor(centre - reach), math.ceil(centre + reach) + 1):
            if antialias and 0 <= j < old:
                matrix[i, j] += kernel((j - centre) / stretch)
            elif not antialias:  # cells beyond the border repeat it
                matrix[i, min(max(j, 0), old - 1)] += kernel(j - centre)
    return matrix / matrix.sum(1, keepdim=True)


def reference(table, size, mode="bicubic", antialias=True, align_corners=False):
    table = table.double()
    for axis, (old, new) in enumerate(zip(table.shape, size, strict=False)):
        if old != new:
            matrix = weights(old, new, mode, antialias, align_corners)
            table = torch.tensordot(matrix, table.movedim(axis, 0), dims=1).movedim(0, axis)
    return table


def expect(got, want, old):
    """Agreement to 1e-12, in float32 to its rounding: PyTorch computes places on an axis in it, too."""
    atol = 1e-12 if got.dtype == torch.float64 else 2e-6 + torch.finfo(torch.float32).eps * 2 * max(*old, *want.shape)
    torch.testing.assert_close(got.double(), want, atol=atol, rtol=0)


# Tables of a grid

GRIDS = [
    ((7,), (12,)),
    ((300,), (64,)),
    ((9,), (1,)),
    ((6, 4), (9, 11)),
    ((9, 7), (4, 5)),
    ((5, 8), (8, 5)),
    ((7, 1), (12, 1)),
    ((1, 7), (1, 12)),
    ((9, 7), (4, 1)),
    ((7, 1), (3, 5)),
    ((2, 3), (1, 1)),
    ((4, 5, 6), (7, 3, 8)),
    ((4, 5, 1), (4, 3, 1)),
    ((4, 5, 6), (6, 5, 6)),
]
FILTERS = [(True, False), (False, False), (False, True)]


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize("antialias, align_corners", FILTERS)
@pytest.mark.parametrize("old, new", GRIDS)
@pytest.mark.parametrize("dim", [1, 3])
def test_every_axis_is_filtered_as_defined(old, new, dim, mode, antialias, align_corners):
    options = {"mode": mode, "antialias": antialias, "align_corners": align_corners}
    for dtype in (torch.float32, torch.float64):
        table = torch.randn(*old, dim, dtype=dtype)
        got = resample_table(table, new, **options)
        assert got.dtype == dtype
        expect(got, reference(table, new, **options), old)


@pytest.mark.parametrize("new", [(4, 1), (12, 5)])
def test_tables_in_any_memory_order_are_filtered_alike(new):
    table = torch.randn(3, 9, 7, dtype=torch.float64).permute(1, 2, 0)  # channels first in memory
    torch.testing.assert_close(resample_table(table, new), reference(table, new), atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [(257,), (2, 8), (3, 4, 5)])
def test_native_size_is_kept_to_the_bit(dtype, size):
    table = torch.randn(*size, 6).to(dtype)
    assert resample_table(table, size) is table


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("antialias, align_corners", FILTERS)
@pytest.mark.parametrize("old, new", [((14, 10), (16, 12)), ((9,), (5,)), ((3, 4, 5), (6, 3, 4))])
def test_half_precision_is_resampled_in_float32_and_rounded_once(dtype, old, new, antialias, align_corners):
    table = torch.randn(*old, 6).to(dtype)
    options = {"antialias": antialias, "align_corners": align_corners}
    got = resample_table(table, new, **options)
    assert got.dtype == dtype
    assert torch.equal(got, resample_table(table.float(), new, **options).to(dtype))


@pytest.mark.parametrize("old, new", [((8,), (13,)), ((3, 6), (6, 4)), ((2, 3, 4), (5, 4, 2))])
def test_a_constant_stays_constant(old, new):
    table = torch.full((*old, 2), 0.75)
    torch.testing.assert_close(resample_table(table, new), torch.full((*new, 2), 0.75), atol=1e-6, rtol=0)


def test_axes_do_not_mix():
    # A table that varies along y only still does after x is resampled, and so for every axis of a video.
    for axis in range(3):
        shape = [1, 1, 1, 2]
        shape[axis] = 4
        table = torch.randn(shape).expand(4, 4, 4, 2)
        size = [4, 4, 4]
        size[(axis + 1) % 3] = 7
        want = table.narrow((axis + 1) % 3, 0, 1).expand(*size, 2)
        torch.testing.assert_close(resample_table(table, size), want, atol=1e-6, rtol=0)


def test_aligned_corners_keep_the_outermost_cells():
    table = torch.randn(6, 4, 3)
    got = resample_table(table, (11, 9), antialias=False, align_corners=True)
    torch.testing.assert_close(got[::10, ::8], table[::5, ::3], atol=1e-6, rtol=0)
    torch.testing.assert_close(got[::2, 0], table[:, 0], atol=1e-6, rtol=0)
    assert (resample_table(table, (11, 9), antialias=False)[0, 0] - table[0, 0]).abs().max() > 0.01


def test_antialiasing_is_a_choice_that_matters():
    torch.manual_seed(0)
    table = torch.randn(14, 14, 64)

    def gap(new, mode):
        first, second = (resample_table(table, new, mode=mode, antialias=antialias) for antialias in (True, False))
        return (first - second).abs().max()

    assert gap((7, 7), "bilinear") > 0.3
    assert gap((7, 7), "bicubic") > 0.5
    assert gap((28, 21), "bicubic") > 0.1  # another cubic even where nothing is averaged
    assert gap((28, 21), "bilinear") < 1e-5


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("antialias, align_corners", FILTERS)
@pytest.mark.parametrize(
    "old, new", [((5, 3), (4, 7)), ((5, 3), (7, 1)), ((5, 1), (8, 1)), ((6,), (9,)), ((2, 2, 3), (3, 3, 2))]
)
def test_gradients_flow_to_the_table(old, new, dim, antialias, align_corners):
    table = torch.randn(*old, dim, dtype=torch.float64, requires_grad=True)
    options = {"antialias": antialias, "align_corners": align_corners}
    assert torch.autograd.gradcheck(lambda t: resample_table(t, new, **options), table)


@pytest.mark.parametrize("keep", [1, 20])
def test_first_rows_may_be_kept(keep):
    table = torch.randn(77, 5)
    got = resample_table(table, (248,), keep=keep)
    assert torch.equal(got[:keep], table[:keep])
    assert torch.equal(got[keep:], resample_table(table[keep:], (248 - keep,)))
    expect(got[keep:], reference(table[keep:], (248 - keep,)), (77,))
    half = resample_table(table.bfloat16(), (248,), keep=keep)
    assert torch.equal(half[:keep], table[:keep].bfloat16())


def test_autocast_leaves_the_bits_alone():
    for dtype in (torch.float32, torch.float64):
        table = torch.randn(9, 7, 3, dtype=dtype)
        for antialias in (True, False):
            want = resample_table(table, (4, 5), antialias=antialias)
            with torch.autocast("cpu", torch.bfloat16):
                assert torch.equal(resample_table(table, (4, 5), antialias=antialias), want)


@pytest.mark.parametrize("old, new", [((5, 3), (4, 7)), ((5, 3), (7, 1)), ((6,), (9,)), ((2, 2, 3), (3, 3, 2))])
def test_meta_tensors_give_shapes(old, new):
    for dtype in (torch.bfloat16, torch.float64):
        got = resample_table(torch.empty(*old, 3, dtype=dtype, device="meta"), new)
        assert (got.device.type, got.dtype, tuple(got.shape)) == ("meta", dtype, (*new, 3))


def test_it_compiles():
    table = torch.randn(5, 3, 2)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(table):
        return resample_table(table, (4, 7)), resample_pos_embed(
            table.flatten(0, 1), (4, 6), old_size=(7, 2), num_prefix_tokens=1
        )

    grid, flat = call(table)
    torch.testing.assert_close(grid, resample_table(table, (4, 7)), atol=1e-6, rtol=0)
    want = resample_pos_embed(table.flatten(0, 1), (4, 6), old_size=(7, 2), num_prefix_tokens=1)
    torch.testing.assert_close(flat, want, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "size, options, message",
    [
        ((4,), {}, r"size must be 2 positive numbers, as many as the table's axes, got \(4,\)"),
        ((4, 5, 6), {}, r"size must be 2 positive numbers"),
        ((4, 0), {}, r"size must be 2 positive numbers.*got \(4, 0\)"),
        ((4, 5), {"mode": "nearest"}, "mode must be 'bicubic' or 'bilinear', got 'nearest'"),
        ((4, 5), {"align_corners": True}, "align_corners=True needs antialias=False"),
        ((4, 5), {"keep": 1}, r"keep \(1\) is for tables of one axis, got one of 2"),
    ],
)
def test_bad_input_is_named(size, options, message):
    with pytest.raises(ValueError, match=message):
        resample_table(torch.zeros(3, 2, 5), size, **options)


@pytest.mark.parametrize("keep, size", [(20, 30), (-1, 30), (7, 7), (9, 9)])
def test_keeping_leaves_something_to_stretch(keep, size):
    with pytest.raises(ValueError, match=r"keep must be from 0 to less than the rows of both tables \(\d+\), got"):
        resample_table(torch.zeros(20, 5), (size,), keep=keep)


@pytest.mark.parametrize("size", [(4.5, 5), ("4", 5), ((4, 5), 6), "45", 20, (True, 5)])
def test_a_size_that_is_no_integer_is_refused_by_name(size):
    with pytest.raises(TypeError, match="size must"):
        resample_table(torch.zeros(3, 2, 5), size)


def test_tables_that_cannot_be_filtered_are_refused():
    with pytest.raises(TypeError, match=r"table must be floating point, got torch.int64"):
        resample_table(torch.zeros(3, 2, 5, dtype=torch.int64), (4, 5))
    with pytest.raises(ValueError, match=r"table must have one to three axes and then channels, got shape \(5,\)"):
        resample_table(torch.zeros(5), ())
    with pytest.raises(TypeError, match=r"keep must be an integer, got 2\.0"):
        resample_table(torch.zeros(9, 5), (12,), keep=2.0)


# Flat position embeddings


@pytest.mark.parametrize("batch", [(), (1,)])
@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("old, new", [((14, 10), (16, 12)), ((9,), (5,)), ((2, 4, 3), (3, 5, 7))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_prefix_rows_stay_and_the_grid_is_resampled(dtype, old, new, prefix, batch):
    flat = torch.randn(*batch, prefix + math.prod(old), 6).to(dtype)
    got = resample_pos_embed(flat, new, old_size=old, num_prefix_tokens=prefix)
    assert (got.dtype, tuple(got.shape)) == (dtype, (*batch, prefix + math.prod(new), 6))
    rows, result = flat.reshape(-1, 6), got.reshape(-1, 6)
    assert torch.equal(result[:prefix], rows[:prefix])
    assert torch.equal(result[prefix:].unflatten(0, new), resample_table(rows[prefix:].reshape(*old, 6), new))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rectangular_grid_is_kept_to_the_bit_at_its_own_size(dtype):
    flat = torch.randn(1, 1 + 2 * 8, 6).to(dtype)
    assert torch.equal(resample_pos_embed(flat, (2, 8), old_size=(2, 8), num_prefix_tokens=1), flat)
    turned = resample_pos_embed(flat, (8, 2), old_size=(2, 8), num_prefix_tokens=1)  # as many cells, another grid
    assert not torch.equal(turned, flat)


def test_options_of_the_filter_are_passed_on():
    flat = torch.randn(1 + 14 * 10, 6)
    for options in ({"mode": "bilinear"}, {"antialias": False}, {"antialias": False, "align_corners": True}):
        got = resample_pos_embed(flat, (9, 12), old_size=(14, 10), num_prefix_tokens=1, **options)
        want = reference(flat[1:].reshape(14, 10, 6), (9, 12), **options)
        expect(got[1:].unflatten(0, (9, 12)), want, (14, 10))


@pytest.mark.parametrize(
    "rows, size, prefix", [(196, (14, 14), 0), (196, (13, 15), 1), (197, (14, 14), 1), (50, (7, 7), 1), (49, (7, 7), 0)]
)
def test_rows_are_split_as_said(rows, size, prefix):
    flat = torch.randn(1, rows, 6)
    first, table = split_pos_embed(flat, size, num_prefix_tokens=prefix)
    assert torch.equal(first, flat[0, :prefix])
    assert torch.equal(table, flat[0, prefix:].reshape(*size, 6))


@pytest.mark.parametrize(
    "rows, size, prefix, message",
    [
        (197, (14, 14), 0, r"pos_embed has 197 rows, but old_size 14 x 14 and num_prefix_tokens \(0\) make 196"),
        (196, (14, 14), 1, r"pos_embed has 196 rows, but old_size 14 x 14 and num_prefix_tokens \(1\) make 197"),
        (196, (14, 14), -1, "num_prefix_tokens must not be negative, got -1"),
        (196, (14, 14, 1, 1), 0, "old_size must be one to three positive numbers"),
        (196, (14, 0), 0, "old_size must be made of positive numbers"),
    ],
)
def test_rows_that_do_not_fit_are_counted(rows, size, prefix, message):
    with pytest.raises(ValueError, match=message):
        resample_pos_embed(torch.zeros(1, rows, 6), (16, 12), old_size=size, num_prefix_tokens=prefix)


def test_forms_of_a_flat_embedding():
    for shape in ((2, 196, 6), (196,), (1, 1, 196, 6)):
        with pytest.raises(ValueError, match=r"pos_embed must be \(prefix \+ n, dim\) or \(1, prefix \+ n, dim\), got"):
            split_pos_embed(torch.zeros(shape), (14, 14), num_prefix_tokens=0)
    with pytest.raises(ValueError, match="size must be 2 positive numbers, as many as old_size"):
        resample_pos_embed(torch.zeros(196, 6), (16,), old_size=(14, 14), num_prefix_tokens=0)
    with pytest.raises(TypeError, match="num_prefix_tokens must be an integer, got True"):
        split_pos_embed(torch.zeros(197, 6), (14, 14), num_prefix_tokens=True)
    with pytest.raises(TypeError, match="pos_embed must be floating point"):
        split_pos_embed(torch.zeros(196, 6, dtype=torch.int64), (14, 14), num_prefix_tokens=0)


def test_gradients_flow_to_prefix_and_grid():
    flat = torch.randn(2 + 4 * 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: resample_pos_embed(t, (5, 2), old_size=(4, 3), num_prefix_tokens=2), flat)


# Tables of relative offsets


def geometric(table, window):
    """Rows at geometric places, read off linearly; one axis after the other, in float64."""
    table = table.double()
    for axis, (count, side) in enumerate(zip(table.shape, window, strict=False)):
        arms, reach = count // 2, side - 1
        low, high = 1.01, 1.5
        while high - low > 1e-6:
            ratio = (low + high) / 2
            if sum(ratio**arm for arm in range(arms)) > reach:
                high = ratio
            else:
                low = ratio
        steps = [ratio**arm for arm in range(arms)]
        places = [-sum(steps[:arm]) for arm in range(arms, 0, -1)] + [sum(steps[:arm]) for arm in range(arms + 1)]
        rows = table.movedim(axis, 0)
        result = []
        for offset in range(-reach, reach + 1):
            if offset <= places[0] or offset >= places[-1]:
                result.append(rows[0 if offset <= places[0] else -1])
                continue
            left, right = next((a, b) for a, b in pairwise(range(count)) if places[a] <= offset <= places[b])
            share = (offset - places[left]) / (places[right] - places[left])
            result.append(rows[left] * (1 - share) + rows[right] * share)
        table = torch.stack(result).movedim(0, axis)
    return table


WINDOWS = [
    ((7,), (12,)),
    ((7, 7), (12, 12)),
    ((7, 5), (9, 8)),
    ((6, 9), (9, 6)),
    ((4, 1), (7, 1)),
    ((2, 3, 4), (3, 5, 4)),
]


def bias_table(window, prefix=0, heads=5, dtype=torch.float32):
    return torch.randn(math.prod(2 * side - 1 for side in window) + prefix, heads).to(dtype)


def grid_of(window):
    return [2 * side - 1 for side in window]


@pytest.mark.parametrize("prefix", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("old, new", WINDOWS)
def test_offsets_are_resampled_and_prefix_rows_kept(old, new, dtype, prefix):
    table = bias_table(old, prefix, dtype=dtype)
    rows = math.prod(grid_of(old))
    grid = table[:rows].reshape(*grid_of(old), 5)
    for options, want in [
        ({}, reference(grid, grid_of(new), antialias=False)),
        ({"antialias": True}, reference(grid, grid_of(new))),
        ({"mode": "bilinear"}, reference(grid, grid_of(new), "bilinear", antialias=False)),
        ({"mode": "geometric"}, geometric(grid, new)),
    ]:
        got = resample_bias_table(table, new, old_window=old, num_prefix_rows=prefix, **options)
        assert got.dtype == dtype
        assert torch.equal(got[len(got) - prefix :], table[rows:])
        expect(got[: len(got) - prefix].unflatten(0, grid_of(new)), want, grid_of(old))


@pytest.mark.parametrize("mode", ["bicubic", "geometric"])
def test_the_bias_of_a_token_on_itself_stays(mode):
    table = bias_table((7, 5), dtype=torch.float64)
    got = resample_bias_table(table, (9, 8), old_window=(7, 5), mode=mode)
    # The middle row: offset 0 lies on offset 0 of any window, which a cubic reproduces.
    torch.testing.assert_close(got[len(got) // 2], table[len(table) // 2], atol=1e-12, rtol=0)


@pytest.mark.parametrize("mode", ["bicubic", "bilinear", "geometric"])
def test_the_native_window_is_kept_to_the_bit(mode):
    for dtype in (torch.float32, torch.bfloat16):
        table = bias_table((7, 5), 3, dtype=dtype)
        assert torch.equal(resample_bias_table(table, (7, 5), old_window=(7, 5), num_prefix_rows=3, mode=mode), table)


@pytest.mark.parametrize("mode", ["bicubic", "geometric"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_offsets_in_half_precision_are_rounded_once(dtype, mode):
    table = bias_table((7, 5), 3, dtype=dtype)
    arguments = {"old_window": (7, 5), "num_prefix_rows": 3, "mode": mode}
    got = resample_bias_table(table, (9, 8), **arguments)
    assert torch.equal(got, resample_bias_table(table.float(), (9, 8), **arguments).to(dtype))
    on_meta = resample_bias_table(table.to("meta"), (9, 8), **arguments)
    assert (on_meta.device.type, on_meta.dtype, on_meta.shape) == ("meta", dtype, got.shape)


@pytest.mark.parametrize("mode", ["bicubic", "geometric"])
def test_gradients_flow_to_offsets(mode):
    table = bias_table((3, 2), 3, heads=2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda t: resample_bias_table(t, (5, 3), old_window=(3, 2), num_prefix_rows=3, mode=mode), table
    )


@pytest.mark.parametrize(
    "window, arguments, message",
    [
        ((9, 9), {"old_window": (14, 14)}, r"table must be \(27 \* 27 \+ 0, heads\) for old_window \(14, 14\)"),
        ((9, 9), {"old_window": (15, 13), "num_prefix_rows": 3}, r"table must be \(29 \* 25 \+ 3, heads\)"),
        ((9,), {"old_window": (14, 14), "num_prefix_rows": 3}, "window must be 2 positive numbers, as many as old_w"),
        ((9, 0), {"old_window": (14, 14), "num_prefix_rows": 3}, "window must be 2 positive numbers"),
        ((9, 9), {"old_window": (14, 14), "num_prefix_rows": -3}, "num_prefix_rows must not be negative, got -3"),
        ((9, 9), {"old_window": (14, 14), "num_prefix_rows": 3, "mode": "nearest"}, "mode must be .*got 'nearest'"),
        (
            (9, 9),
            {"old_window": (14, 14), "num_prefix_rows": 3, "mode": "geometric", "antialias": True},
            "mode 'geometric' needs antialias=False",
        ),
    ],
)
def test_bad_windows_are_named(window, arguments, message):
    with pytest.raises(ValueError, match=message):
        resample_bias_table(bias_table((14, 14), 3), window, **arguments)


def test_a_window_is_a_sequence_of_integers():
    table = bias_table((14, 14))
    for window, old in ((16, (14, 14)), ((16, 16), 14), ((16.0, 16), (14, 14))):
        with pytest.raises(TypeError, match="window must be"):
            resample_bias_table(table, window, old_window=old)
    with pytest.raises(TypeError, match=r"num_prefix_rows must be an integer, got 0\.0"):
        resample_bias_table(table, (16, 16), old_window=(14, 14), num_prefix_rows=0.0)
