import itertools
import math
import pickle

import pytest
import torch
from torch import nn

from mmpos import LearnedTable, grid_coords, padded_coords, sequence_coords, video_coords
from mmpos.encodings.additive.tables import FactorizedTable
from mmpos.resample import resample_table, split_pos_embed

KINDS = [LearnedTable, FactorizedTable]
both = pytest.mark.parametrize("kind", KINDS)


def table_of(kind, size, dim=3, dtype=torch.float32, **options):
    table = kind(dim, size, **options)
    for parameter in table.parameters():
        nn.init.normal_(parameter)
    return table.to(dtype)


def cells_of(table):
    """The vector of every cell in float64: a learned one, or the sum of those of its axes."""
    axes = [parameter.detach().double() for parameter in table.parameters()]
    if isinstance(table, LearnedTable):
        return axes[0]
    ndim = len(axes)
    return sum(axis.reshape(*(-1 if i == j else 1 for j in range(ndim)), axis.shape[-1]) for i, axis in enumerate(axes))


def interpolate(cells, point):
    """Multilinear interpolation of one point in float64, axis by axis."""
    for coord in point:
        low = min(int(coord), len(cells) - 1)
        high = min(low + 1, len(cells) - 1)
        cells = cells[low] * (1 - (coord - low)) + cells[high] * (coord - low)
    return cells


# What a table returns


@both
@pytest.mark.parametrize(
    "size, coords", [((300,), sequence_coords(300)), ((4, 7), grid_coords(4, 7)), ((2, 3, 5), video_coords(2, 3, 5))]
)
def test_every_cell_holds_its_own_vector(kind, size, coords):
    table = table_of(kind, size)
    got = table(coords)
    assert torch.equal(table(coords.double()), got)
    assert len(got.unique(dim=0)) == math.prod(size)
    for point, vector in zip(coords.tolist(), got, strict=True):
        want = cells_of(table)[tuple(point)]
        if kind is LearnedTable:
            assert torch.equal(vector.double(), want)
        torch.testing.assert_close(vector.double(), want, atol=1e-6, rtol=0)


def test_a_factorized_table_is_a_sum_of_vectors_of_each_axis():
    table = table_of(FactorizedTable, (4, 7))
    y, x = 2, 5
    assert torch.equal(table(torch.tensor([[y, x]]))[0], table.weight_y[y] + table.weight_x[x])
    assert [name for name, _ in FactorizedTable(3, 9).named_parameters()] == ["weight_t"]
    assert [(name, tuple(weight.shape)) for name, weight in FactorizedTable(3, (2, 4, 7)).named_parameters()] == [
        ("weight_t", (2, 3)),
        ("weight_y", (4, 3)),
        ("weight_x", (7, 3)),
    ]


@both
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_cells_are_found_with_any_integer_dtype(kind, dtype):
    table = table_of(kind, (20, 30))
    coords = grid_coords(20, 30)
    assert torch.equal(table(coords.to(dtype)), table(coords))


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(9,), (4, 7), (2, 3, 5)])
def test_real_coordinates_interpolate_linearly(kind, size, dtype):
    table = table_of(kind, size)
    last = torch.tensor(size) - 1
    coords = torch.cat([torch.rand(50, len(size)), torch.eye(len(size)), torch.ones(1, len(size))]).to(dtype) * last
    want = torch.stack([interpolate(cells_of(table), point) for point in coords.tolist()])
    torch.testing.assert_close(table(coords).double(), want, atol=1e-6, rtol=0)


@both
@pytest.mark.parametrize("floats", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_in_half_precision_are_rounded_once(kind, dtype, floats):
    table = table_of(kind, (6, 5), dtype=dtype)
    coords = torch.rand(200, 2, dtype=torch.float64) * torch.tensor([5, 4])
    coords = coords if floats else coords.long()
    got = table(coords)
    assert got.dtype == dtype
    want = torch.stack([interpolate(cells_of(table), point) for point in coords.tolist()])
    assert ((got.double() - want).abs() <= torch.finfo(dtype).eps / 2 * want.abs() + 1e-6).all()


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_results_have_the_dtype_of_the_table(kind, dtype):
    table = table_of(kind, (3, 4), dtype=dtype)
    for coords in (grid_coords(3, 4), grid_coords(3, 4).double(), grid_coords(3, 4).float()):
        assert table(coords).dtype == dtype


@both
def test_gradients_reach_cells_and_real_coordinates(kind):
    table = table_of(kind, (4, 5), dtype=torch.float64)
    coords = torch.tensor([[0.25, 3.5], [2.75, 0.5]], dtype=torch.float64, requires_grad=True)
    names, weights = zip(*table.named_parameters(), strict=True)

    def call(coords, *weights):
        return torch.func.functional_call(table, dict(zip(names, weights, strict=True)), (coords,))

    assert torch.autograd.gradcheck(call, (coords, *weights))


def test_a_cell_that_two_tokens_share_gets_both_their_gradients():
    coords = torch.tensor([[1, 2], [1, 2], [3, 0]])
    table, factorized = table_of(LearnedTable, (4, 5)), table_of(FactorizedTable, (4, 5))
    want = torch.zeros(4, 5, 3)
    want[1, 2], want[3, 0] = 2, 1
    table(coords).sum().backward()
    assert torch.equal(table.weight.grad, want)
    factorized(coords).sum().backward()
    assert torch.equal(factorized.weight_y.grad, want.sum(1))
    assert torch.equal(factorized.weight_x.grad, want.sum(0))


@both
def test_the_result_has_the_batch_and_width_asked_for(kind):
    table = kind(12, size=(5, 6))
    for batch in ((), (16,), (2, 3)):
        assert table(grid_coords(5, 6).expand(*batch, 30, 2)).shape == (*batch, 30, 12)
    assert table(torch.zeros(2, 0, 2, dtype=torch.int64)).shape == (2, 0, 12)


# Where a table ends


OUTSIDE = [
    ((8,), sequence_coords(9), r"holds 8 positions, got coords up to \(8,\); resize it with table.resize\(9\)$"),
    (
        (14, 14),
        grid_coords(16, 14),
        r"holds 14 x 14 positions, got coords up to \(15, 13\); resize it with table.resize\(16, 14\)$",
    ),
    (
        (4, 4),
        grid_coords(6, 6, origin=(-1, -1)),
        r"holds 4 x 4 positions, got coords from \(-1, -1\) to \(4, 4\); coords must not be negative$",
    ),
    ((8,), torch.tensor([[7.5]]), r"holds 8 positions, got coords up to \(7.5,\); resize it with table.resize\(9\)$"),
    (
        (8,),
        torch.tensor([[math.nan], [9.0]]),
        r"holds 8 positions, got coords up to \(9.0,\); resize it with table.resize\(10\)$",
    ),
    (
        (8,),
        torch.tensor([[math.inf], [-0.25]]),
        r"holds 8 positions, got coords from \(-0.25,\) to .*must not be negative$",
    ),
]


@both
@pytest.mark.parametrize("size, coords, message", OUTSIDE)
def test_out_of_range_says_what_the_table_holds_and_how_to_resize_it(kind, size, coords, message):
    with pytest.raises(ValueError, match=f"^{kind.__name__} " + message):
        table_of(kind, size)(coords)


@both
def test_resizing_as_the_message_says_makes_room(kind):
    table, coords = table_of(kind, (8, 3)), torch.tensor([[7.5, 1.0]])
    with pytest.raises(ValueError, match=r"table\.resize") as caught:
        table(coords)
    size = [int(side) for side in str(caught.value).split("resize(")[1].rstrip(")").split(", ")]
    assert table.resize(*size)(coords).isfinite().all()


@both
def test_all_cells_are_in_use_and_none_more_is_needed(kind):
    table = table_of(kind, 8)
    assert [tuple(weight.shape) for weight in table.parameters()] == [(8, 3)]
    got = table(sequence_coords(8))
    assert torch.equal(got.double(), cells_of(table))


@both
def test_pads_of_a_batch_are_in_range(kind):
    mask = torch.tensor([[False, False, True, True, True], [True] * 5])
    table = table_of(kind, 5)
    got = table(padded_coords(mask))
    assert torch.equal(got[0, 2:], table(sequence_coords(3)))
    assert torch.equal(got[1], table(sequence_coords(5)))
    assert got.isfinite().all()


@both
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_coordinates_that_are_no_numbers_give_nan_for_their_token(kind, bad):
    got = table_of(kind, (4, 5))(torch.tensor([[1.5, 2.0], [bad, 2.0], [0.5, 1.0], [bad, 9.0]]))
    assert got[[1, 3]].isnan().all()
    assert got[[0, 2]].isfinite().all()


@both
def test_compiled_a_row_out_of_range_gives_nan_and_never_another_row(kind):
    table = table_of(kind, (4, 5))
    compiled = torch.compile(table, fullgraph=True)
    coords = torch.tensor([[3, 4], [4, 0], [0, 5], [-1, 2], [2, -1], [1, 1]])
    for given in (coords, coords.double()):
        got = compiled(given)
        assert torch.equal(got[[0, 5]], table(coords[[0, 5]]))
        assert got[1:5].isnan().all()


@both
def test_exported_a_row_out_of_range_gives_nan(kind):
    table = table_of(kind, (4, 5))
    n = torch.export.Dim("n", min=2, max=50)
    program = torch.export.export(table, (grid_coords(4, 5),), dynamic_shapes={"coords": {0: n}})
    got = program.module()(torch.tensor([[3, 4], [4, 0], [-1, 2]]))
    assert torch.equal(got[0], table(torch.tensor([[3, 4]]))[0])
    assert got[1:].isnan().all()


@both
def test_meta_tensors_give_shapes(kind):
    with torch.device("meta"):
        table = kind(6, size=(4, 5))
    got = table(torch.zeros(2, 7, 2, device="meta"))
    assert (got.is_meta, got.shape) == (True, (2, 7, 6))
    assert {weight.device.type for weight in table.resize(6, 9).parameters()} == {"meta"}


# Another size


@both
@pytest.mark.parametrize("size, new", [((9,), (14,)), ((6, 4), (9, 11)), ((6, 4), (3, 8)), ((2, 3, 5), (4, 3, 2))])
def test_resize_makes_a_new_table(kind, size, new):
    table = table_of(kind, size)
    before = [weight.detach().clone() for weight in table.parameters()]
    other = table.resize(*new)
    assert other is not table
    assert (type(other), other.size, tuple(cells_of(other).shape)) == (kind, new, (*new, 3))
    assert other(torch.tensor([[side - 1 for side in new]])).isfinite().all()
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    assert all(map(torch.equal, table.parameters(), before))


@pytest.mark.parametrize(
    "options", [{}, {"mode": "bilinear", "antialias": False}, {"antialias": False, "align_corners": True}]
)
def test_resize_is_resampling(options):
    table, factorized = table_of(LearnedTable, (2, 3, 5)), table_of(FactorizedTable, (2, 3, 5))
    assert torch.equal(table.resize(4, 3, 2, **options).weight, resample_table(table.weight, (4, 3, 2), **options))
    other = factorized.resize(4, 3, 2, **options)
    for weight, old, side in zip(other.parameters(), factorized.parameters(), (4, 3, 2), strict=True):
        assert torch.equal(weight, resample_table(old, (side,), **options))


def test_the_first_rows_of_a_text_stay_as_long_clip_keeps_them():
    table = table_of(LearnedTable, 77)
    longer = table.resize(248, mode="bilinear", antialias=False, keep=20)
    assert torch.equal(longer.weight[:20], table.weight[:20])
    # 57 rows become 228: row 20 + i lies at the old place 20 + (i + 1/2) / 4 - 1/2, not before row 20 or after 76.
    places = (20 + (torch.arange(228) + 0.5) / 4 - 0.5).clamp(20, 76)
    want = torch.stack([interpolate(cells_of(table), [place]) for place in places.tolist()])
    torch.testing.assert_close(longer.weight[20:].double(), want, atol=1e-6, rtol=0)


def test_each_frame_of_a_video_is_resized_as_an_image():
    table = table_of(LearnedTable, (2, 2, 2))
    taller = table.resize(2, 3, 2)
    for frame in range(2):
        torch.testing.assert_close(taller.weight[frame], resample_table(table.weight[frame], (3, 2)), atol=1e-6, rtol=0)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_resize_to_the_native_size_is_a_copy_to_the_bit(kind, dtype):
    table = table_of(kind, (2, 8), dtype=dtype)
    for same, weight in zip(table.resize(2, 8).parameters(), table.parameters(), strict=True):
        assert same.dtype == dtype
        assert torch.equal(same, weight)
        assert same.data_ptr() != weight.data_ptr()


@both
@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.bfloat16, nn.Module.double])
def test_results_keep_their_dtype_when_the_table_grows(kind, cast):
    table = cast(table_of(kind, 8))
    dtype = table(sequence_coords(8)).dtype
    assert table.resize(9)(sequence_coords(9)).dtype == dtype == next(table.parameters()).dtype


@both
def test_resize_keeps_dtype_mode_and_whether_the_table_is_trained(kind):
    table = table_of(kind, (3, 4), dtype=torch.bfloat16, resize_on_load=True).eval().requires_grad_(False)
    other = table.resize(6, 5)
    for weight in other.parameters():
        assert (weight.dtype, weight.requires_grad) == (torch.bfloat16, False)
    assert (other.training, other.resize_on_load) == (False, True)
    assert all(weight.requires_grad for weight in table_of(kind, (3, 4)).resize(6, 5).parameters())


@both
def test_resize_draws_no_random_numbers(kind):
    table = table_of(kind, (3, 4))
    state = torch.get_rng_state()
    table.resize(6, 5)
    assert torch.equal(torch.get_rng_state(), state)


@both
def test_resize_of_two_axes_needs_two_sizes(kind):
    with pytest.raises(ValueError, match=r"size must be 2 positive numbers, as many as the table's axes, got \(6,\)"):
        table_of(kind, (3, 4)).resize(6)


# Checkpoints


@both
def test_the_state_holds_the_table_alone_and_round_trips(kind):
    table, other = table_of(kind, (3, 4)), kind(3, size=(3, 4))
    assert set(table.state_dict()) == {name for name, _ in table.named_parameters()}
    other.load_state_dict(table.state_dict())
    for same in (other, pickle.loads(pickle.dumps(table))):
        assert torch.equal(cells_of(same), cells_of(table))


@both
def test_nothing_of_a_table_decays(kind):
    table = kind(3, size=(3, 4))
    assert table.no_weight_decay() == {name for name, _ in table.named_parameters()}


@both
@pytest.mark.parametrize("strict", [True, False])
def test_a_checkpoint_of_another_grid_is_explained(kind, strict):
    model = nn.ModuleDict({"pos": kind(3, size=(16, 12))})
    before = cells_of(model["pos"])
    message = (
        rf"pos: the checkpoint holds 14 x 14 positions, this {kind.__name__} 16 x 12; load it into {kind.__name__}"
        r"\(3, size=\(14, 14\)\) and call .resize\(16, 12\) on that, or build this one with resize_on_load=True$"
    )
    with pytest.raises(RuntimeError, match=message):
        model.load_state_dict(nn.ModuleDict({"pos": kind(3, size=(14, 14))}).state_dict(), strict=strict)
    assert torch.equal(cells_of(model["pos"]), before)


@both
@pytest.mark.parametrize("old, new", [((14, 14), (16, 12)), ((9,), (5,)), ((2, 3, 5), (4, 3, 5))])
def test_a_table_may_adapt_a_checkpoint_and_says_so_once(kind, old, new):
    source = nn.ModuleDict({"pos": table_of(kind, old)})
    state = source.state_dict()
    model = nn.ModuleDict({"pos": kind(3, size=new, resize_on_load=True)})
    grids = [" x ".join(map(str, grid)) for grid in (old, new)]
    with pytest.warns(UserWarning, match="pos: resampled") as caught:
        model.load_state_dict(state)
    assert [str(warning.message) for warning in caught] == [
        f"pos: resampled the {grids[0]} positions of the checkpoint to the {grids[1]} of this {kind.__name__}"
    ]
    assert torch.equal(cells_of(model["pos"]), cells_of(source["pos"].resize(*new)))
    assert {name: tensor.shape for name, tensor in state.items()} == {
        name: tensor.shape for name, tensor in source.state_dict().items()
    }
    model.load_state_dict(model.state_dict())  # its own grid: no warning


@both
def test_half_precision_checkpoints_adapt_in_their_dtype(kind):
    source = table_of(kind, (14, 10), dtype=torch.bfloat16)
    table = kind(3, size=(16, 12), resize_on_load=True)
    with pytest.warns(UserWarning, match="14 x 10 .* 16 x 12"):
        table.load_state_dict(source.state_dict())
    assert torch.equal(cells_of(table), cells_of(source.resize(16, 12)))
    assert {weight.dtype for weight in table.parameters()} == {torch.float32}


@both
def test_a_table_without_memory_takes_a_checkpoint_of_another_grid(kind):
    source = table_of(kind, (14, 10))
    with torch.device("meta"):
        table = kind(3, size=(16, 12), resize_on_load=True)
    with pytest.warns(UserWarning, match="14 x 10 .* 16 x 12"):
        table.load_state_dict(source.state_dict(), assign=True)
    assert torch.equal(cells_of(table), cells_of(source.resize(16, 12)))
    assert all(isinstance(weight, nn.Parameter) and weight.requires_grad for weight in table.parameters())


@both
def test_a_checkpoint_without_memory_gives_shapes(kind):
    source = kind(3, size=(14, 10)).to("meta")
    table = kind(3, size=(16, 12), resize_on_load=True)
    with pytest.warns(UserWarning, match="14 x 10 .* 16 x 12"):
        table.load_state_dict(source.state_dict(), assign=True)
    assert all(weight.is_meta for weight in table.parameters())
    assert table(torch.zeros(5, 2, device="meta")).shape == (5, 3)


FLAT = r"; if its rows are cells, row by row, mmpos.resample.split_pos_embed makes a table of them$"


@pytest.mark.parametrize("resize_on_load", [True, False])
@pytest.mark.parametrize(
    "saved, size, message",
    [
        ((196, 3), (14, 14), r"shape \(196, 3\), this LearnedTable \(14, 14, 3\)" + FLAT),
        ((1, 196, 3), (14, 14), r"shape \(1, 196, 3\), this LearnedTable \(14, 14, 3\)" + FLAT),
        ((1, 197, 3), (14, 14), r"shape \(1, 197, 3\), this LearnedTable \(14, 14, 3\)" + FLAT),
        ((1, 140, 3), (10, 14), r"shape \(1, 140, 3\), this LearnedTable \(10, 14, 3\)" + FLAT),
        ((1, 196, 3), (196,), r"shape \(1, 196, 3\), this LearnedTable \(196, 3\)" + FLAT),
        ((140, 3), (2, 7, 10), r"shape \(140, 3\), this LearnedTable \(2, 7, 10, 3\)" + FLAT),
        ((14, 10, 3), (2, 14, 10), r"shape \(14, 10, 3\), this LearnedTable \(2, 14, 10, 3\)$"),
        ((14, 10, 5), (14, 10), r"shape \(14, 10, 5\), this LearnedTable \(14, 10, 3\)$"),
        ((14, 10, 5), (16, 12), r"shape \(14, 10, 5\), this LearnedTable \(16, 12, 3\)$"),
        ((1, 196, 5), (14, 14), r"shape \(1, 196, 5\), this LearnedTable \(14, 14, 3\)$"),
    ],
)
def test_no_grid_is_guessed(saved, size, message, resize_on_load):
    model = nn.ModuleDict({"pos": LearnedTable(3, size=size, resize_on_load=resize_on_load)})
    with pytest.raises(RuntimeError, match="pos.weight of the checkpoint has " + message):
        model.load_state_dict({"pos.weight": torch.zeros(saved)})


def test_a_flat_table_loads_once_its_grid_is_said():
    flat = torch.randn(1, 1 + 14 * 10, 3)
    table = LearnedTable(3, size=(16, 12), resize_on_load=True)
    prefix, weight = split_pos_embed(flat, (14, 10), num_prefix_tokens=1)
    with pytest.warns(UserWarning, match="14 x 10 .* 16 x 12"):
        table.load_state_dict({"weight": weight})
    assert torch.equal(table.weight, resample_table(flat[0, 1:].reshape(14, 10, 3), (16, 12)))
    assert torch.equal(prefix, flat[0, :1])


def test_a_grid_of_one_row_is_one_where_one_is_expected():
    source, table = table_of(LearnedTable, (1, 8)), LearnedTable(3, size=(1, 12), resize_on_load=True)
    with pytest.warns(UserWarning, match="1 x 8 .* 1 x 12"):
        table.load_state_dict(source.state_dict())
    assert torch.equal(table.weight, source.resize(1, 12).weight)


def test_one_frame_adapts_to_a_video():
    source, table = table_of(LearnedTable, (1, 4, 5)), LearnedTable(3, size=(6, 4, 5), resize_on_load=True)
    with pytest.warns(UserWarning, match="1 x 4 x 5 .* 6 x 4 x 5"):
        table.load_state_dict(source.state_dict())
    torch.testing.assert_close(table.weight, source.weight.expand(6, 4, 5, 3), atol=1e-6, rtol=0)


@both
def test_missing_and_foreign_entries_are_reported_as_ever(kind):
    table = kind(3, size=(3, 4), resize_on_load=True)
    state = table.state_dict()
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"pe"'):
        table.load_state_dict({**state, "pe": torch.zeros(3)})
    name = next(iter(state))
    del state[name]
    with pytest.raises(RuntimeError, match=f'Missing key.*"{name}"'):
        table.load_state_dict(state)


def test_half_a_checkpoint_is_no_grid():
    table = FactorizedTable(3, size=(16, 12), resize_on_load=True)
    with pytest.raises(RuntimeError, match=r'(?s)Missing key.*"weight_x".*size mismatch for weight_y'):
        table.load_state_dict({"weight_y": torch.zeros(14, 3)})


# Construction


@both
def test_reset_parameters_draws_small_vectors_anew(kind):
    table = kind(64, size=(60, 50))
    for weight in table.parameters():
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert weight.abs().max() <= 2
    first = cells_of(table)
    table.reset_parameters()
    assert not torch.equal(cells_of(table), first)


@both
def test_example_coords_are_cells_of_the_table(kind):
    cells = list(itertools.product(range(2), range(3)))
    assert [tuple(point) for point in kind(3, size=(2, 3)).example_coords(8).tolist()] == cells + cells[:2]


@both
def test_tables_need_cells_and_say_what_they_are(kind):
    assert kind.needs_cells
    assert kind(8, size=5).extra_repr() == "dim=8, size=(5,)"
    assert kind(8, size=(5, 6), resize_on_load=True).extra_repr() == "dim=8, size=(5, 6), resize_on_load=True"


@both
@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dim": 8, "size": ()}, ValueError, r"size must have one to three axes, got \(\)"),
        ({"dim": 8, "size": (2, 3, 4, 5)}, ValueError, r"one to three axes, got \(2, 3, 4, 5\)"),
        ({"dim": 8, "size": (2, 0)}, ValueError, "size must be positive, got 0"),
        ({"dim": 8, "size": 2.5}, TypeError, "size must be an integer, got 2.5"),
        ({"dim": 8, "size": "14"}, TypeError, "size must be an integer or a sequence of them, got '14'"),
        ({"dim": 0, "size": 4}, ValueError, "dim must be positive, got 0"),
    ],
)
def test_bad_tables_are_named(kind, arguments, error, message):
    with pytest.raises(error, match=message):
        kind(**arguments)


@both
@pytest.mark.parametrize(
    "coords, error, message",
    [
        (torch.zeros(4, 3, dtype=torch.int64), ValueError, r"coords must have 2 axes \(y, x\), got shape \(4, 3\)"),
        (torch.zeros(4, 1, dtype=torch.int64), ValueError, r"use {}\(size=\(t\)\)"),
        (torch.zeros(4, 2, dtype=torch.bfloat16), TypeError, "coords must not be in half precision"),
        (torch.zeros(4, 2, dtype=torch.bool), TypeError, "coords must be integers or floats"),
    ],
)
def test_bad_coordinates_are_named(kind, coords, error, message):
    with pytest.raises(error, match=message.format(kind.__name__)):
        kind(8, size=(3, 4))(coords)
