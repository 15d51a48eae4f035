import copy
import math
import pickle

import pytest
import torch
from torch import nn

from mmpos import LearnedTable, RoPE, Sinusoidal, grid_coords, video_coords
from mmpos.encodings.additive.combine import Concat, Sum
from mmpos.encodings.additive.fourier import Fourier, LearnableFourier
from mmpos.encodings.additive.mlp import CoordinateMLP
from mmpos.encodings.additive.temporal import TAPE


def time_and_place(combine, dim=12):
    table = LearnedTable(dim, size=(5, 3))
    nn.init.normal_(table.weight)
    return combine([Sinusoidal(12), table], on=[(0,), (1, 2)])


def test_a_sum_adds_what_each_part_gives_on_its_axes():
    encoding = time_and_place(Sum)
    coords = video_coords(4, 5, 3).expand(2, -1, -1)
    when, where = encoding.parts
    assert (encoding.axes, encoding.dim, encoding(coords).shape) == (3, 12, (2, 60, 12))
    assert torch.equal(encoding(coords), when(coords[..., :1]) + where(coords[..., 1:]))


def test_three_parts_with_axes_in_any_order():
    parts = [Sinusoidal(8, axes=2), Sinusoidal(8, base=10.0), Sinusoidal(8, axes=2, base=50.0)]
    coords = torch.randint(-500, 500, (270, 3))
    want = parts[0](coords[:, [2, 0]]) + parts[1](coords[:, [1]]) + parts[2](coords[:, [0, 1]])
    assert torch.equal(Sum(parts, on=[(2, 0), (1,), (0, 1)])(coords), want)


def test_all_parts_take_all_axes_unless_told_otherwise():
    parts = [Sinusoidal(8, axes=2), LearnedTable(8, (5, 3))]
    coords = grid_coords(5, 3)
    assert torch.equal(Sum(parts)(coords), parts[0](coords) + parts[1](coords))
    assert Sum(parts).on == ((0, 1), (0, 1))


def test_concat_puts_parts_side_by_side():
    encoding = time_and_place(Concat, dim=5)
    coords = video_coords(4, 5, 3)
    got = encoding(coords)
    assert (encoding.axes, encoding.dim, got.shape) == (3, 17, (60, 17))
    assert torch.equal(got[:, :12], encoding.parts[0](coords[:, :1]))
    assert torch.equal(got[:, 12:], encoding.parts[1](coords[:, 1:]))


@pytest.mark.parametrize("combine", [Sum, Concat])
def test_combinations_nest(combine):
    inner = combine([Sinusoidal(8), LearnedTable(8, 4)], on=[(0,), (1,)])
    outer = combine([inner, Sinusoidal(inner.dim)], on=[(0, 2), (1,)])
    coords = video_coords(2, 3, 4)
    parts = [inner(coords[:, [0, 2]]), outer.parts[1](coords[:, [1]])]
    assert torch.equal(outer(coords), parts[0] + parts[1] if combine is Sum else torch.cat(parts, dim=-1))
    assert outer.needs_cells


@pytest.mark.parametrize("combine", [Sum, Concat])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_results_have_the_widest_dtype_of_the_parts(combine, dtype):
    encoding = time_and_place(combine).to(dtype)
    assert encoding.parts[1].weight.dtype == dtype
    got = encoding(video_coords(4, 5, 3))
    assert got.dtype == torch.promote_types(dtype, torch.float32)
    when, where = encoding.parts[0](video_coords(4, 5, 3)[:, :1]), encoding.parts[1](video_coords(4, 5, 3)[:, 1:])
    assert torch.equal(got, when + where if combine is Sum else torch.cat([when, where], dim=-1))
    tables = combine([LearnedTable(4, 5), LearnedTable(4, 6)]).to(dtype)
    assert tables(torch.tensor([[3]])).dtype == dtype


@pytest.mark.parametrize("combine", [Sum, Concat])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_token_without_a_place_on_any_axis_is_nan_throughout(combine, axis, bad):
    coords = video_coords(4, 5, 3).double()
    coords[7, axis] = bad
    got = time_and_place(combine)(coords)
    assert got[7].isnan().all()
    assert got[torch.arange(60) != 7].isfinite().all()


@pytest.mark.parametrize("combine", [Sum, Concat])
def test_the_length_reaches_all_parts(combine):
    parts = [TAPE(8), TAPE(8, base=10.0)]
    coords = torch.randint(0, 90, (2, 30, 2))
    lengths = torch.tensor([90, 400])
    encoding = combine(parts, on=[(0,), (1,)])
    want = [part(coords[..., [axis]], length=lengths) for axis, part in enumerate(parts)]
    assert torch.equal(encoding(coords, length=lengths), want[0] + want[1] if combine is Sum else torch.cat(want, -1))


@pytest.mark.parametrize("combine", [Sum, Concat])
def test_resize_gives_each_part_the_sides_of_its_axes(combine):
    rows, both = LearnedTable(4, 3), LearnedTable(4, (5, 3))
    encoding = combine([rows, LearnableFourier(4, axes=2, fourier_dim=6), both], on=[(2,), (0, 1), (1, 2)]).eval()
    before = copy.deepcopy(encoding.state_dict())
    bigger = encoding.resize(9, 7, 6)
    assert (type(bigger), bigger.on, bigger.dim, bigger.training) == (combine, encoding.on, encoding.dim, False)
    assert torch.equal(bigger.parts[0].weight, rows.resize(6).weight)
    assert torch.equal(bigger.parts[2].weight, both.resize(7, 6).weight)
    assert bigger(video_coords(9, 7, 6)).shape == (378, encoding.dim)
    with torch.no_grad():
        for parameter in bigger.parameters():
            parameter.zero_()
    for name, value in encoding.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("combine", [Sum, Concat])
def test_what_learns_no_size_stays_itself(combine):
    encoding = combine([Sinusoidal(8, axes=2), LearnableFourier(8)])
    assert encoding.resize(7, 9) is encoding
    with pytest.raises(ValueError, match=r"size must be 2 numbers, one for each axis, got \(7,\)"):
        encoding.resize(7)


@pytest.mark.parametrize("combine", [Sum, Concat])
def test_whether_cells_are_needed(combine):
    assert time_and_place(combine).needs_cells
    assert not combine([Sinusoidal(8), Fourier(8)]).needs_cells


@pytest.mark.parametrize("combine", [Sum, Concat])
def test_example_coords_are_held_by_all_parts(combine):
    assert combine([Sinusoidal(8), Sinusoidal(8)]).example_coords is None
    encoding = combine([LearnedTable(4, 2), LearnedTable(4, (5, 3)), Sinusoidal(4)], on=[(2,), (2, 0), (1,)])
    coords = encoding.example_coords(40)
    assert (coords.dtype, coords.shape) == (torch.int64, (40, 3))
    assert encoding(coords).isfinite().all()
    assert coords.amax(0).tolist() == [2, 39, 1]


@pytest.mark.parametrize("combine", [Sum, Concat])
def test_what_is_learned_is_saved_under_its_part(combine):
    encoding = combine([LearnedTable(4, 5), CoordinateMLP(4, hidden_dim=None), Sinusoidal(4)])
    names = {"parts.0.weight", "parts.1.weight", "parts.1.bias"}
    assert set(encoding.state_dict()) == encoding.no_weight_decay() == names
    loaded = pickle.loads(pickle.dumps(encoding))
    assert torch.equal(loaded(torch.tensor([[3]])), encoding(torch.tensor([[3]])))
    before = {name: value.clone() for name, value in encoding.state_dict().items()}
    torch.manual_seed(1)
    encoding.reset_parameters()
    assert not any(torch.equal(value, before[name]) for name, value in encoding.state_dict().items())


class Decaying(Sinusoidal):
    """A part with weights of which some may decay."""

    def __init__(self, dim):
        super().__init__(dim)
        self.kept, self.decays = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def no_weight_decay(self):
        return {"kept"}


@pytest.mark.parametrize("combine", [Sum, Concat])
def test_parts_say_themselves_what_must_not_decay(combine):
    assert combine([Sinusoidal(4), Decaying(4)]).no_weight_decay() == {"parts.1.kept"}


@pytest.mark.parametrize("combine", [Sum, Concat])
def test_one_table_may_serve_two_axes(combine):
    table = LearnedTable(4, 6)
    encoding = combine([table, table], on=[(0,), (1,)])
    coords = grid_coords(6, 5)
    parts = [table(coords[:, :1]), table(coords[:, 1:])]
    assert torch.equal(encoding(coords), parts[0] + parts[1] if combine is Sum else torch.cat(parts, dim=-1))
    assert encoding.no_weight_decay() == {"parts.0.weight"}
    assert len(list(encoding.parameters())) == 1


@pytest.mark.parametrize("combine", [Sum, Concat])
def test_gradients_reach_parts_and_coordinates(combine):
    encoding = combine([CoordinateMLP(3, hidden_dim=4), LearnedTable(3, (4, 5))], on=[(2,), (0, 1)]).double()
    coords = torch.tensor([[0.25, 3.5, -1.0], [2.75, 0.5, 2.0]], dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in encoding.named_parameters()]

    def call(coords, *parameters):
        return torch.func.functional_call(encoding, dict(zip(names, parameters, strict=True)), (coords,))

    assert torch.autograd.gradcheck(call, (coords, *encoding.parameters()))


def test_a_table_says_itself_what_is_out_of_range():
    with pytest.raises(ValueError, match=r"LearnedTable holds 5 x 3 positions, got coords up to \(5, 2\)"):
        time_and_place(Sum)(video_coords(4, 6, 3))


@pytest.mark.parametrize("combine", [Sum, Concat])
@pytest.mark.parametrize(
    "on, error, message",
    [
        ([(0,)], ValueError, r"on must have axes for each of the 2 parts, got \[\(0,\)\]"),
        ([(0,), (1,)], ValueError, r"LearnedTable has axes=2, but on gives it \(1,\)"),
        ([(0, 1), (1, 2)], ValueError, r"Sinusoidal has axes=1, but on gives it \(0, 1\)"),
        ([(0,), (2, 3)], ValueError, r"on must name every axis from 0 up, and none twice for a part, got"),
        ([(0,), (1, 1)], ValueError, r"on must name every axis from 0 up, and none twice for a part, got"),
        ([(1,), (2, 3)], ValueError, r"on must name every axis from 0 up, and none twice for a part, got"),
        ([(0,), (-1, -2)], ValueError, r"on must name every axis from 0 up, and none twice for a part, got"),
        ([(0,), ("y", "x")], TypeError, r"on must be made of integers, got"),
        (None, ValueError, "parts have axes=1 and 2: say with on which axes each takes"),
    ],
)
def test_axes_that_do_not_fit_the_parts_are_refused(combine, on, error, message):
    with pytest.raises(error, match=message):
        combine([Sinusoidal(4), LearnedTable(4, (5, 3))], on=on)


@pytest.mark.parametrize("combine", [Sum, Concat])
@pytest.mark.parametrize(
    "parts, error, message",
    [
        ([], ValueError, "must be a sequence of one additive encoding or more, got"),
        (Sinusoidal(4), ValueError, "must be a sequence of one additive encoding or more, got Sinusoidal"),
        ([Sinusoidal(4), RoPE(4)], TypeError, "must be built additive encodings, got RoPE"),
        ([Sinusoidal(4), {"name": "Sinusoidal"}], TypeError, "must be built additive encodings, got {'name'"),
    ],
)
def test_parts_that_are_none_are_refused(combine, parts, error, message):
    with pytest.raises(error, match=f"parts of {combine.__name__} {message}"):
        combine(parts)


def test_a_sum_of_different_widths_is_refused():
    with pytest.raises(
        ValueError, match="parts of Sum must have the same dim, got 8 and 12; Concat puts parts side by"
    ):
        Sum([Sinusoidal(8), Sinusoidal(12)])


@pytest.mark.parametrize("combine", [Sum, Concat])
def test_wrong_coordinates_are_refused(combine):
    with pytest.raises(ValueError, match=r"coords must have 3 axes \(t, y, x\), got shape \(15, 2\)"):
        time_and_place(combine)(grid_coords(5, 3))
    with pytest.raises(TypeError, match="coords must not be in half precision"):
        time_and_place(combine)(video_coords(2, 5, 3).half())
