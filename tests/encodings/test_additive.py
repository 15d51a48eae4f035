import copy
import itertools
import math
import pickle

import mpmath
import pytest
import torch
from torch import nn

from mmpos import LearnedTable, Sinusoidal, grid_coords, sequence_coords, video_coords


def sinusoid(coords, dim, base=10000.0):
    """``sin, cos`` of ``coord * base ** (-2i / width)`` in 50 digits: axis blocks in order, pairs side by side."""
    width = dim // len(coords[0])
    rows = []
    with mpmath.workdps(70):
        for point in coords:
            angles = [c * mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / width) for c in point for i in range(width // 2)]
            rows.append([float(part) for angle in angles for part in (mpmath.sin(angle), mpmath.cos(angle))])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("base", [10000.0, 100.0])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_sinusoids_are_exact_at_any_distance(axes, base):
    far = (0, 1, -10, 4095, -131071, 10**6, 10**9, -(10**9), 2**31 - 1, 1 - 2**31)
    coords = torch.tensor([[c + axis for axis in range(axes)] for c in far])
    got = Sinusoidal(12, axes=axes, base=base)(coords)
    assert (got.dtype, got.shape) == (torch.float32, (len(far), 12))
    assert (got.double() - sinusoid(coords.tolist(), 12, base)).abs().max() < 1e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sinusoids_of_real_coordinates(dtype):
    coords = torch.tensor([[998.3897, -0.5], [1e6 + 1 / 3, 1e-9]], dtype=dtype)  # 998.3897 must not become 1000
    got = Sinusoidal(8, axes=2)(coords)
    assert (got.double() - sinusoid(coords.tolist(), 8)).abs().max() < 1e-7


def test_the_published_encoding_of_position_one():
    got = Sinusoidal(dim=4)(sequence_coords(1, offset=1))[0]
    want = torch.tensor([math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)])
    torch.testing.assert_close(got, want, atol=1e-7, rtol=0)


def test_every_pair_lies_on_the_unit_circle():
    got = Sinusoidal(dim=64)(sequence_coords(300, offset=4000)).double()
    torch.testing.assert_close(
        got.unflatten(-1, (-1, 2)).square().sum(-1), torch.ones(300, 32).double(), atol=2e-7, rtol=0
    )


def test_positions_do_not_repeat_after_the_base():
    near, far = Sinusoidal(dim=64)(torch.tensor([[0], [10000]]))
    assert (near - far).abs().max() > 0.5


@pytest.mark.parametrize("dim, axes", [(5, 1), (1, 1), (10, 2), (5, 2), (64, 3), (0, 1), (-4, 1)])
def test_a_width_that_axes_do_not_share_is_refused(dim, axes):
    message = (
        rf"dim \({dim}\) must be a multiple of 2 \* axes \({2 * axes}\)"
        if dim > 0
        else f"dim must be positive, got {dim}"
    )
    with pytest.raises(ValueError, match=message):
        Sinusoidal(dim, axes=axes)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dim": 8.0}, TypeError, "dim must be an integer, got 8.0"),
        ({"dim": 8, "axes": 0}, ValueError, "axes must be positive, got 0"),
        ({"dim": 8, "base": -1}, ValueError, "base must be positive and finite, got -1"),
        ({"dim": 8, "base": math.nan}, ValueError, "base must be positive and finite, got nan"),
        ({"dim": 8, "base": "10"}, TypeError, "base must be a number, got '10'"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        Sinusoidal(**arguments)


def test_the_encoding_goes_along_tokens_and_not_along_the_batch():
    x = torch.zeros(2, 3, 4)
    x = x + Sinusoidal(dim=4)(sequence_coords(3))
    assert torch.equal(x[0], x[1])
    assert len(x[0].unique(dim=0)) == 3


@pytest.mark.parametrize("batch", [(), (16,), (2, 3)])
@pytest.mark.parametrize("encoding", [Sinusoidal(12, axes=2), LearnedTable(12, size=(5, 6))])
def test_the_result_has_the_batch_of_its_coordinates(encoding, batch):
    coords = grid_coords(5, 6).expand(*batch, 30, 2)
    assert encoding(coords).shape == (*batch, 30, 12)


@pytest.mark.parametrize("make", [Sinusoidal, lambda dim, axes: LearnedTable(dim, size=(3, 4, 5)[:axes])])
@pytest.mark.parametrize("axes, dim", [(1, 10), (2, 20), (3, 30)])
def test_width_is_exactly_the_one_asked_for(make, axes, dim):
    coords = torch.zeros(7, axes, dtype=torch.int64)
    assert make(dim, axes=axes)(coords).shape == (7, dim)


@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.bfloat16, nn.Module.double, copy.deepcopy])
def test_sinusoids_have_the_same_bits_in_a_model_of_any_dtype(cast):
    coords = torch.tensor([[255], [256], [257], [258], [32767], [15962], [131071]])
    encoding = Sinusoidal(dim=64)
    want = encoding(coords)
    assert torch.equal(cast(encoding)(coords), want)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding(coords), want)
    assert len(want.unique(dim=0)) == len(coords)
    assert not encoding.state_dict()


def test_sinusoids_have_the_same_bits_compiled():
    coords = torch.tensor([[10**9, -3], [256, 2**31 - 1], [-131071, 257]])
    encoding = Sinusoidal(dim=12, axes=2)
    compiled = torch.compile(encoding, fullgraph=True)
    assert torch.equal(compiled(coords), encoding(coords))
    real = coords.double() + 0.3
    assert torch.equal(compiled(real), encoding(real))


def test_a_longer_sequence_does_not_change_what_was_before():
    encoding = Sinusoidal(dim=8)
    short = encoding(sequence_coords(8))
    long = encoding(sequence_coords(9))
    assert torch.equal(long[:8], short)
    assert torch.equal(encoding(sequence_coords(8)), short)
    assert long.dtype == short.dtype


def test_gradients_reach_the_coordinates():
    coords = torch.tensor([[0.25], [-3.5]], dtype=torch.float64, requires_grad=True)
    Sinusoidal(dim=4)(coords).sum().backward()
    x, f = coords.detach(), torch.tensor([1.0, 0.01], dtype=torch.float64)
    torch.testing.assert_close(
        coords.grad, (f * ((x * f).cos() - (x * f).sin())).sum(-1, keepdim=True), atol=2e-7, rtol=0
    )


# Learned tables


def table_of(size, dim=3, dtype=torch.float32):
    torch.manual_seed(0)
    table = LearnedTable(dim, size=size)
    nn.init.normal_(table.weight)
    return table.to(dtype)


def interpolate(weight, point):
    """Multilinear interpolation of one point in float64, axis by axis."""
    weight = weight.double()
    for coord in point:
        low = min(int(coord), len(weight) - 1)
        high = min(low + 1, len(weight) - 1)
        weight = weight[low] * (1 - (coord - low)) + weight[high] * (coord - low)
    return weight


@pytest.mark.parametrize(
    "size, coords", [((300,), sequence_coords(300)), ((4, 7), grid_coords(4, 7)), ((2, 3, 5), video_coords(2, 3, 5))]
)
def test_every_cell_holds_its_own_vector(size, coords):
    table = table_of(size)
    got = table(coords)
    for point, vector in zip(coords.tolist(), got, strict=True):
        assert torch.equal(vector, table.weight[tuple(point)])
    assert torch.equal(table(coords.double()), got)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_cells_are_found_with_any_integer_dtype(dtype):
    table = table_of((20, 30))
    coords = grid_coords(20, 30)
    assert torch.equal(table(coords.to(dtype)), table(coords))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(9,), (4, 7), (2, 3, 5)])
def test_real_coordinates_interpolate_linearly(size, dtype):
    table = table_of(size)
    last = torch.tensor(size) - 1
    coords = torch.cat([torch.rand(50, len(size)), torch.eye(len(size)), torch.ones(1, len(size))]).to(dtype) * last
    want = torch.stack([interpolate(table.weight.detach(), point) for point in coords.tolist()])
    torch.testing.assert_close(table(coords).double(), want, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_interpolation_in_half_precision_is_rounded_once(dtype):
    table = table_of((6, 5), dtype=dtype)
    coords = torch.rand(200, 2, dtype=torch.float64) * torch.tensor([5, 4])
    got = table(coords)
    assert got.dtype == dtype
    want = torch.stack([interpolate(table.weight.detach(), point) for point in coords.tolist()])
    assert ((got.double() - want).abs() <= torch.finfo(dtype).eps / 2 * want.abs() + 1e-6).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_cells_have_the_dtype_of_the_table(dtype):
    table = table_of((3, 4), dtype=dtype)
    assert table(grid_coords(3, 4)).dtype == dtype
    assert torch.equal(table(grid_coords(3, 4)), table.weight.flatten(0, 1))


def test_gradients_reach_cells_and_real_coordinates():
    table = table_of((4, 5), dtype=torch.float64)
    coords = torch.tensor([[0.25, 3.5], [2.75, 0.5]], dtype=torch.float64, requires_grad=True)

    def call(coords, weight):
        return torch.func.functional_call(table, {"weight": weight}, (coords,))

    assert torch.autograd.gradcheck(call, (coords, table.weight))
    table(torch.tensor([[1, 2], [1, 2], [3, 0]])).sum().backward()
    want = torch.zeros(4, 5, 3, dtype=torch.float64)
    want[1, 2], want[3, 0] = 2, 1
    assert torch.equal(table.weight.grad, want)


@pytest.mark.parametrize(
    "size, coords, message",
    [
        ((8,), sequence_coords(9), r"holds 8 positions, got coords up to \(8,\); resize it with table.resize\(9\)$"),
        (
            (14, 14),
            grid_coords(16, 14),
            r"holds 14 x 14 positions, got coords up to \(15, 13\); resize it with table.resize\(16, 14\)$",
        ),
        (
            (4, 4),
            grid_coords(6, 6, origin=(-1, -1)),
            r"holds 4 x 4 positions, got coords from \(-1, -1\) to \(4, 4\); coords must not be negative",
        ),
        (
            (8,),
            torch.tensor([[7.5]]),
            r"holds 8 positions, got coords up to \(7.5,\); resize it with table.resize\(9\)$",
        ),
        (
            (8,),
            torch.tensor([[math.nan], [9.0]]),
            r"holds 8 positions, got coords up to \(9.0,\); resize it with table.resize\(10\)$",
        ),
        (
            (8,),
            torch.tensor([[math.inf], [-1.0]]),
            r"holds 8 positions, got coords from \(-1.0,\) to .*must not be negative",
        ),
    ],
)
def test_out_of_range_says_what_the_table_holds_and_how_to_resize_it(size, coords, message):
    with pytest.raises(ValueError, match="^LearnedTable " + message):
        table_of(size)(coords)


def test_resizing_as_the_message_says_makes_room():
    table, coords = table_of((8,)), torch.tensor([[7.5]])
    with pytest.raises(ValueError, match=r"table\.resize") as caught:
        table(coords)
    size = int(str(caught.value).split("resize(")[1].rstrip(")"))
    assert table.resize(size)(coords).isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_coordinates_that_are_no_numbers_give_nan_for_their_token(bad):
    table = table_of((4, 5))
    got = table(torch.tensor([[1.5, 2.0], [bad, 2.0], [0.5, 1.0]]))
    assert got[1].isnan().all()
    assert got[[0, 2]].isfinite().all()


def test_compiled_a_row_out_of_range_gives_nan_and_never_another_row():
    table = table_of((4, 5))
    compiled = torch.compile(table, fullgraph=True)
    coords = torch.tensor([[3, 4], [4, 0], [0, 5], [-1, 2], [2, -1], [1, 1]])
    got = compiled(coords)
    assert torch.equal(got[[0, 5]], table(coords[[0, 5]]))
    assert got[1:5].isnan().all()
    real = compiled(coords.double())
    assert torch.equal(real[[0, 5]], got[[0, 5]])
    assert real[1:5].isnan().all()


def test_meta_tensors_give_shapes():
    with torch.device("meta"):
        table = LearnedTable(6, size=(4, 5))
    got = table(torch.zeros(2, 7, 2, device="meta"))
    assert (got.is_meta, got.shape) == (True, (2, 7, 6))


@pytest.mark.parametrize("size, new", [((9,), (14,)), ((6, 4), (9, 11)), ((6, 4), (3, 8)), ((2, 3, 5), (4, 3, 2))])
def test_resize_makes_a_new_table(size, new):
    table = table_of(size)
    before = table.weight.detach().clone()
    bigger = table.resize(*new)
    assert bigger is not table
    assert (bigger.size, bigger.weight.shape) == (new, (*new, 3))
    assert torch.equal(table.weight, before)
    assert bigger(torch.tensor([[side - 1 for side in new]])).isfinite().all()
    bigger.weight.data.zero_()
    assert torch.equal(table.weight, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_resize_to_the_native_size_is_a_copy_to_the_bit(dtype):
    table = table_of((2, 8), dtype=dtype)
    same = table.resize(2, 8)
    assert same.weight.dtype == dtype
    assert torch.equal(same.weight, table.weight)
    assert same.weight.data_ptr() != table.weight.data_ptr()


def test_resize_keeps_dtype_mode_and_whether_the_table_is_trained():
    table = table_of((3, 4), dtype=torch.bfloat16).eval().requires_grad_(False)
    bigger = table.resize(6, 5)
    assert (bigger.weight.dtype, bigger.training, bigger.weight.requires_grad) == (torch.bfloat16, False, False)
    assert table_of((3, 4)).resize(6, 5).weight.requires_grad


def test_resize_draws_no_random_numbers():
    table = table_of((3, 4))
    state = torch.get_rng_state()
    table.resize(6, 5)
    assert torch.equal(torch.get_rng_state(), state)


def test_resize_of_two_axes_needs_two_sizes():
    with pytest.raises(ValueError, match=r"size must be 2 positive numbers, as many as the table's axes"):
        table_of((3, 4)).resize(6)


def test_state_dict_holds_the_table_alone_and_round_trips():
    table, other = table_of((3, 4)), LearnedTable(3, size=(3, 4))
    assert set(table.state_dict()) == {"weight"}
    other.load_state_dict(table.state_dict())
    assert torch.equal(other.weight, table.weight)
    assert torch.equal(pickle.loads(pickle.dumps(table)).weight, table.weight)
    assert table.no_weight_decay() == {"weight"}


@pytest.mark.parametrize(
    "old, new, hint",
    [
        ((14, 14), (16, 12), r"; load it into LearnedTable\(3, size=\(14, 14\)\) and call .resize\(16, 12\) on that"),
        ((196,), (14, 14), ""),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_table_of_another_size_is_explained_on_loading(old, new, hint, strict):
    model = nn.ModuleDict({"pos": LearnedTable(3, size=new)})
    before = model["pos"].weight.detach().clone()
    shapes = [re_tuple((*size, 3)) for size in (old, new)]
    message = rf"pos.weight of the checkpoint has shape {shapes[0]}, this LearnedTable {shapes[1]}{hint}\s*$"
    with pytest.raises(RuntimeError, match=message):
        model.load_state_dict({"pos.weight": torch.zeros(*old, 3)}, strict=strict)
    assert torch.equal(model["pos"].weight, before)


def re_tuple(shape):
    return str(shape).replace("(", r"\(").replace(")", r"\)")


def test_reset_parameters_draws_small_vectors_anew():
    table = LearnedTable(64, size=(30, 20))
    assert table.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert table.weight.abs().max() <= 2
    first = table.weight.detach().clone()
    table.reset_parameters()
    assert not torch.equal(table.weight, first)


def test_example_coords_are_cells_of_the_table():
    table = table_of((2, 3))
    cells = list(itertools.product(range(2), range(3)))
    assert [tuple(point) for point in table.example_coords(8).tolist()] == cells + cells[:2]


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dim": 8, "size": ()}, ValueError, r"size must have one to three axes, got \(\)"),
        ({"dim": 8, "size": (2, 3, 4, 5)}, ValueError, r"one to three axes, got \(2, 3, 4, 5\)"),
        ({"dim": 8, "size": (2, 0)}, ValueError, "size must be positive, got 0"),
        ({"dim": 8, "size": 2.5}, TypeError, "size must be an integer, got 2.5"),
        ({"dim": 0, "size": 4}, ValueError, "dim must be positive, got 0"),
    ],
)
def test_bad_tables_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        LearnedTable(**arguments)
