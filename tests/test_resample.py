import math

import pytest
import torch

from mmpos.resample import resample_table


def weights(old, new, mode, antialias):
    """Share of every old cell in every new one, with cells as areas; written from the definition of the filters."""
    matrix = torch.zeros(new, old, dtype=torch.float64)
    stretch = max(old / new, 1.0) if antialias else 1.0
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
        centre = (i + 0.5) * old / new - 0.5
        for j in range(math.floor(centre - reach), math.ceil(centre + reach) + 1):
            if antialias and 0 <= j < old:
                matrix[i, j] += kernel((j - centre) / stretch)
            elif not antialias:  # cells beyond the border repeat it
                matrix[i, min(max(j, 0), old - 1)] += kernel(j - centre)
    return matrix / matrix.sum(1, keepdim=True)


def reference(table, size, mode, antialias):
    table = table.double()
    for axis, (old, new) in enumerate(zip(table.shape, size, strict=False)):
        if old != new:
            table = torch.tensordot(weights(old, new, mode, antialias), table.movedim(axis, 0), dims=1).movedim(0, axis)
    return table


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize(
    "old, new",
    [
        ((7,), (12,)),
        ((300,), (64,)),
        ((6, 4), (9, 11)),
        ((9, 7), (4, 5)),
        ((5, 8), (8, 5)),
        ((7, 1), (12, 1)),
        ((1, 7), (1, 12)),
        ((4, 5, 6), (7, 3, 8)),
        ((4, 5, 1), (4, 3, 1)),
    ],
)
def test_every_axis_is_filtered_as_areas(old, new, mode, antialias):
    torch.manual_seed(0)
    table = torch.randn(*old, 3)
    got = resample_table(table, new, mode=mode, antialias=antialias)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), reference(table, new, mode, antialias), atol=2e-6, rtol=0)


def test_doubles_are_filtered_in_double():
    table = torch.randn(6, 4, 3, dtype=torch.float64)
    got = resample_table(table, (9, 11))
    torch.testing.assert_close(got, reference(table, (9, 11), "bicubic", True), atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(257,), (2, 8), (3, 4, 5)])
def test_native_size_is_kept_to_the_bit(dtype, size):
    table = torch.randn(*size, 6).to(dtype)
    assert torch.equal(resample_table(table, size), table)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("old, new", [((14, 10), (16, 12)), ((9,), (5,)), ((3, 4, 5), (6, 3, 4))])
def test_half_precision_is_resampled_in_float32_and_rounded_once(dtype, old, new):
    table = torch.randn(*old, 6).to(dtype)
    got = resample_table(table, new)
    assert got.dtype == dtype
    assert torch.equal(got, resample_table(table.float(), new).to(dtype))


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


def test_gradients_flow_to_the_table():
    table = torch.randn(5, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: resample_table(t, (4, 7)), table)


@pytest.mark.parametrize(
    "size, options, message",
    [
        ((4,), {}, r"size must be 2 positive numbers, as many as the table's axes, got \[4\]"),
        ((4, 5, 6), {}, r"size must be 2 positive numbers"),
        ((4, 0), {}, r"size must be 2 positive numbers.*got \[4, 0\]"),
        ((4, 5), {"mode": "nearest"}, "mode must be 'bicubic' or 'bilinear', got 'nearest'"),
    ],
)
def test_bad_input_is_named(size, options, message):
    with pytest.raises(ValueError, match=message):
        resample_table(torch.zeros(3, 2, 5), size, **options)


@pytest.mark.parametrize("size", [(4.5, 5), ("4", 5), ((4, 5), 6)])
def test_a_size_that_is_no_integer_is_refused_by_name(size):
    with pytest.raises(TypeError, match="size must"):
        resample_table(torch.zeros(3, 2, 5), size)
