import itertools
import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmpos import grid_coords, resample_bias_table, sequence_coords, video_coords
from mmpos.encodings.bias.swin import SwinBias

COORDS = {(9,): sequence_coords(9), (4, 7): grid_coords(4, 7), (2, 3, 5): video_coords(2, 3, 5)}


def bias_of(window, num_heads=3, **options):
    bias = SwinBias(num_heads, window, **options)
    for parameter in bias.parameters():
        nn.init.normal_(parameter)
    return bias


def entries(bias, q_coords, k_coords):
    """The table at each offset in float64: a sum over its cells of their distance to the offset, cut at 1."""
    table, window = bias.weight.detach().double(), bias.window
    steps = q_coords.double()[:, None] - k_coords.double()[None]
    total = torch.zeros(*steps.shape[:-1], table.shape[-1], dtype=torch.float64)
    for offset in itertools.product(*(range(1 - side, side) for side in window)):
        share = (1 - (steps - torch.tensor(offset)).abs()).clamp(min=0).prod(-1)
        total += share[..., None] * table[tuple(step + side - 1 for step, side in zip(offset, window, strict=True))]
    return total.permute(2, 0, 1)


@pytest.mark.parametrize("window", COORDS)
def test_each_offset_has_its_own_number(window):
    bias, coords = bias_of(window), COORDS[window]
    got = bias(coords, coords)
    assert got.dtype == torch.float32
    assert torch.equal(got.double(), entries(bias, coords, coords))
    assert len(got[0].unique()) == bias.weight[..., 0].numel() == math.prod(2 * side - 1 for side in window)


def test_the_order_of_queries_and_keys_matters():
    bias = bias_of((4, 7))
    coords = grid_coords(4, 7)
    assert bias(coords, coords)[1, 0, 5] == bias.weight[3, 1, 1]  # the query stands 5 columns before the key
    assert bias(coords, coords)[1, 5, 0] == bias.weight[3, 11, 1]
    assert bias(coords, coords)[1, 0, 7] == bias.weight[2, 6, 1]  # one row before


@pytest.mark.parametrize("window", COORDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_between_whole_offsets_entries_are_interpolated(window, dtype):
    bias = bias_of(window)
    last = torch.tensor(window) - 1
    q_coords, k_coords = (torch.rand(n, len(window), dtype=dtype) * last for n in (11, 6))
    want = entries(bias, q_coords.double(), k_coords.double())
    torch.testing.assert_close(bias(q_coords, k_coords).double(), want, atol=1e-6, rtol=0)


def test_whole_numbers_are_the_same_in_every_dtype():
    bias, coords = bias_of((4, 7)), grid_coords(4, 7)
    want = bias(coords, coords)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.float32, torch.float64):
        assert torch.equal(bias(coords.to(dtype), coords.to(dtype)), want)


def test_only_differences_matter():
    bias, coords = bias_of((4, 7)), grid_coords(4, 7)
    want = bias(coords, coords)
    assert torch.equal(bias(coords + 2**40, coords + 2**40), want)
    assert torch.equal(bias(coords.double() - 2**30, coords.double() - 2**30), want)


def test_windows_in_a_batch_have_their_own_coordinates():
    bias = bias_of((4, 7))
    coords = torch.stack([grid_coords(4, 7), grid_coords(4, 7).flip(0) + torch.tensor([3, 0])])
    got = bias(coords, coords[:, :5])
    assert got.shape == (2, 3, 28, 5)
    for row in range(2):
        assert torch.equal(got[row], bias(coords[row], coords[row, :5]))
    assert not torch.equal(got[0], got[1])


def test_queries_elsewhere_and_one_at_a_time():
    bias, keys = bias_of((4, 7)), grid_coords(4, 7)
    queries = torch.tensor([[0.5, 3.25], [3.0, 6.0], [1.75, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(bias(queries, keys).double(), entries(bias, queries, keys), atol=1e-6, rtol=0)
    whole = bias(keys, keys)
    for row in (0, 11, 27):
        assert torch.equal(bias(keys[row : row + 1], keys), whole[:, row : row + 1])


def test_score_is_one_entry_of_the_bias():
    bias, coords = bias_of((3, 4)), grid_coords(3, 4)
    every = torch.vmap(torch.vmap(torch.vmap(bias.score, (None, None, 0)), (None, 0, None)), (0, None, None))
    assert torch.equal(every(torch.arange(3), coords, coords), bias(coords, coords))
    assert bias.score(torch.tensor(2), [*coords[7]], [*coords[1]]) == bias(coords, coords)[2, 7, 1]
    far = coords + torch.tensor([0, 1])
    got = every(torch.arange(3), far, coords)
    outside = (far[:, None] - coords[None])[..., 1] > 3
    assert torch.equal(got.isnan(), outside.expand(3, 12, 12))
    far = torch.tensor([[1e300, 0.0], [-1e300, 0.0], [0.0, 2.0**63], [1.5, 0.0]], dtype=torch.float64)
    got = every(torch.arange(3), far, coords[:1].double())
    assert got[:, :3].isnan().all()
    assert torch.equal(got[:, 3:], bias(far[3:], coords[:1]))


def test_the_score_runs_in_flex_attention():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    bias, coords = bias_of((3, 4), num_heads=2), grid_coords(3, 4)
    q, k, v = torch.randn(3, 1, 2, 12, 16)
    with pytest.warns(UserWarning, match="flex_attention called without torch.compile"):
        got = flex.flex_attention(
            q, k, v, score_mod=lambda score, b, h, i, j: score + bias.score(h, coords[i], coords[j])
        )
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=bias(coords, coords))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "window, q_coords, message",
    [
        ((8,), sequence_coords(10), r"within 8 tokens, got coords that lie up to 9 apart; .*bias.resize\(10\)$"),
        (
            (7, 5),
            grid_coords(9, 5),
            r"within 7 x 5 tokens, got coords that lie up to 8 x 4 apart; .*bias.resize\(9, 5\)$",
        ),
        ((7, 5), grid_coords(5, 7), r"within 7 x 5 tokens, got .* up to 4 x 6 apart; .*bias.resize\(7, 7\)$"),
        ((8,), torch.tensor([[7.5], [math.nan]]), r"got coords that lie up to 7.5 apart; .*bias.resize\(9\)$"),
        ((8,), torch.tensor([[-7.25], [math.inf]]), r"got coords that lie up to 7.25 apart; .*bias.resize\(9\)$"),
    ],
)
def test_beyond_the_window_is_an_error_that_says_how_to_resize(window, q_coords, message):
    origin = torch.zeros_like(q_coords[:1])
    for pair in ((q_coords, origin), (origin, q_coords)):
        with pytest.raises(ValueError, match="^SwinBias holds the offsets .*" + message) as caught:
            bias_of(window)(*pair)
    sides = [int(side) for side in re.findall(r"\d+", str(caught.value).split("resize(")[1])]
    finite = q_coords[q_coords.isfinite().all(-1)]
    assert bias_of(window).resize(*sides)(finite, origin).isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_coordinates_that_are_no_numbers_give_nan_for_their_token(bad):
    bias = bias_of((4, 5))
    coords = torch.tensor([[1.5, 2.0], [bad, 2.0], [0.5, 1.0], [2.0, bad]])
    got = bias(coords, coords)
    assert got[:, [1, 3]].isnan().all()
    assert got[:, :, [1, 3]].isnan().all()
    assert got[:, [0, 2]][:, :, [0, 2]].isfinite().all()
    bias(coords, coords).nansum().backward()
    assert bias.weight.grad.isfinite().all()


def test_compiled_an_offset_beyond_the_window_gives_nan_and_never_another_entry():
    bias = bias_of((4, 5))
    compiled = torch.compile(bias, fullgraph=True, backend="aot_eager")
    coords = torch.tensor([[3, 4], [0, 0], [4, 0], [0, 5], [-1, 2]])
    for dtype in (torch.int64, torch.float64):
        got = compiled(coords.to(dtype), coords.to(dtype))
        steps = (coords[:, None] - coords[None]).abs()
        inside = (steps <= torch.tensor([3, 4])).all(-1)
        assert torch.equal(got.isnan(), ~inside.expand(3, 5, 5))
        assert torch.equal(got[:, :2, :2], bias(coords[:2], coords[:2]))


def test_meta_tensors_give_shapes():
    with torch.device("meta"):
        bias = SwinBias(6, (4, 5), prefix=True)
    coords = torch.zeros(2, 7, 2, device="meta")
    assert (bias(coords, coords[:, :3]).shape, bias.prefix_bias().is_meta) == ((2, 6, 7, 3), True)


def test_gradients_count_the_pairs_of_each_offset():
    bias, coords = bias_of((4, 7)), grid_coords(4, 7)
    weight = torch.randn(3, 28, 28)
    (bias(coords, coords) * weight).sum().backward()
    want = torch.zeros(7, 13, 3, dtype=torch.float64)
    for i, q in enumerate(coords.tolist()):
        for j, k in enumerate(coords.tolist()):
            want[q[0] - k[0] + 3, q[1] - k[1] + 6] += weight[:, i, j].double()
    torch.testing.assert_close(bias.weight.grad.double(), want, atol=1e-5, rtol=0)


def test_gradients_reach_real_coordinates():
    bias = bias_of((4,), num_heads=1)
    q_coords = torch.tensor([[0.25], [2.5]], dtype=torch.float64, requires_grad=True)
    k_coords = torch.tensor([[1.0], [0.75]], dtype=torch.float64, requires_grad=True)
    bias(q_coords, k_coords)[0].sum().backward()
    table = bias.weight.detach().double()[:, 0]
    # Offsets -0.75 and -0.5 lie between entries 2 and 3, 1.5 and 1.75 between 4 and 5.
    slopes = torch.stack([table[3] - table[2], table[5] - table[4]])
    torch.testing.assert_close(q_coords.grad[:, 0], 2 * slopes, atol=1e-6, rtol=0)
    torch.testing.assert_close(k_coords.grad[:, 0], -slopes.sum().expand(2), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_bias_is_float32_in_a_model_of_any_dtype(dtype):
    bias, coords = bias_of((4, 7), prefix=True), grid_coords(4, 7)
    rounded = bias_of((4, 7), prefix=True)
    for own, other in zip(rounded.parameters(), bias.parameters(), strict=True):
        own.data.copy_(other.to(dtype))
    bias = bias.to(dtype)
    assert torch.equal(bias(coords, coords), rounded(coords, coords))
    assert bias(coords, coords).dtype == bias.prefix_bias().dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rounded(coords.double(), coords), rounded(coords, coords))


def test_prefix_tokens_have_three_numbers_of_their_own():
    bias = bias_of((4, 7), prefix=True)
    assert torch.equal(bias.prefix_bias(), bias.prefix_weight)
    assert bias.prefix_weight.shape == (3, 3)
    bias.prefix_bias().square().sum().backward()
    assert torch.equal(bias.prefix_weight.grad, 2 * bias.prefix_weight)
    assert bias_of((4, 7)).prefix_bias() is None


def test_no_parameter_decays_and_the_state_holds_no_others():
    bias, plain = bias_of((4, 7), prefix=True), bias_of((4, 7))
    assert set(bias.state_dict()) == bias.no_weight_decay() == {"weight", "prefix_weight"}
    assert set(plain.state_dict()) == {"weight"}
    other = SwinBias(3, (4, 7), prefix=True)
    other.load_state_dict(bias.state_dict())
    assert torch.equal(other.weight, bias.weight)
    assert torch.equal(other.prefix_weight, bias.prefix_weight)


def test_reset_parameters_draws_small_numbers_anew():
    bias = SwinBias(8, (20, 15), prefix=True)
    assert bias.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert bias.prefix_weight.any(-1).all()
    first = [parameter.detach().clone() for parameter in bias.parameters()]
    bias.reset_parameters()
    assert not any(torch.equal(a, b) for a, b in zip(bias.parameters(), first, strict=True))


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize("old, new", [((7, 5), (9, 8)), ((4, 7), (6, 3)), ((3, 6), (3, 11))])
def test_resize_stretches_the_table_of_offsets(old, new, mode):
    bias = bias_of(old, prefix=True)
    before = bias.weight.detach().clone()
    bigger = bias.resize(*new, mode=mode)
    want = F.interpolate(before.permute(2, 0, 1)[None], [2 * side - 1 for side in new], mode=mode, align_corners=False)[
        0
    ].permute(1, 2, 0)
    torch.testing.assert_close(bigger.weight, want, atol=1e-6, rtol=0)
    assert torch.equal(bigger.prefix_weight, bias.prefix_weight)
    assert (bigger.window, bigger.prefix, bigger.axes) == (new, True, 2)
    coords = grid_coords(*new)
    assert bigger(coords, coords).isfinite().all()
    for parameter in bigger.parameters():
        parameter.data.zero_()
    assert torch.equal(bias.weight, before)
    assert bias.prefix_weight.any()


@pytest.mark.parametrize("old, new", [((9,), (14,)), ((2, 3, 5), (4, 3, 2))])
def test_resize_of_one_and_three_axes(old, new):
    assert bias_of(old).resize(*new).weight.shape == (*(2 * side - 1 for side in new), 3)


def test_resize_to_the_native_window_is_a_copy_to_the_bit():
    bias = bias_of((4, 7), prefix=True)
    same = bias.resize(4, 7)
    for own, other in zip(same.parameters(), bias.parameters(), strict=True):
        assert torch.equal(own, other)
        assert own.data_ptr() != other.data_ptr()


def test_resize_keeps_what_is_not_of_the_window_and_draws_no_random_numbers():
    bias = bias_of((3, 4), prefix=True, resize_on_load=True).bfloat16().eval()
    bias.prefix_weight.requires_grad_(False)
    state = torch.get_rng_state()
    bigger = bias.resize(6, 5)
    assert torch.equal(torch.get_rng_state(), state)
    assert (bigger.weight.dtype, bigger.training, bigger.resize_on_load) == (torch.bfloat16, False, True)
    assert (bigger.weight.requires_grad, bigger.prefix_weight.requires_grad) == (True, False)


def test_resize_needs_a_number_for_each_axis():
    with pytest.raises(ValueError, match=r"window must be 2 positive numbers"):
        bias_of((3, 4)).resize(6)


@pytest.mark.parametrize("old, new", [((7, 7), (12, 12)), ((7, 5), (5, 7)), ((9,), (14,)), ((2, 3, 4), (2, 4, 3))])
@pytest.mark.parametrize("strict", [True, False])
def test_a_table_of_another_window_is_explained_on_loading(old, new, strict):
    model = nn.ModuleDict({"pos": bias_of(new)})
    before = model["pos"].weight.detach().clone()
    by_old, by_new = (" x ".join(map(str, window)) for window in (old, new))
    message = (
        f"pos.weight of the checkpoint holds the offsets within {by_old} tokens, this SwinBias those within {by_new}; "
        rf"load it .* call .resize\({', '.join(map(str, new))}\) on that, or build this one with resize_on_load=True"
    )
    with pytest.raises(RuntimeError, match=message):
        model.load_state_dict({"pos.weight": bias_of(old).weight.detach()}, strict=strict)
    assert torch.equal(model["pos"].weight, before)


def test_what_fits_no_window_is_refused():
    for shape in ((7, 13, 4), (8, 13, 3), (7, 13)):
        with pytest.raises(RuntimeError, match=r"weight of the checkpoint has shape \(.*, this SwinBias \(7, 13, 3\)"):
            bias_of((4, 7)).load_state_dict({"weight": torch.zeros(shape)})


@pytest.mark.parametrize("old, new", [((7, 5), (9, 8)), ((9,), (14,)), ((2, 3, 4), (3, 3, 3))])
def test_a_table_of_another_window_is_resized_on_loading_when_asked(old, new):
    source, bias = bias_of(old, prefix=True), bias_of(new, prefix=True, resize_on_load=True)
    by_old, by_new = (" x ".join(map(str, window)) for window in (old, new))
    state = source.state_dict()
    with pytest.warns(UserWarning, match=f"SwinBias resized a table of {by_old} tokens to {by_new} on loading"):
        bias.load_state_dict(state)
    assert torch.equal(bias.weight, source.resize(*new).weight)
    assert torch.equal(bias.prefix_weight, source.prefix_weight)
    assert state["weight"].shape == source.weight.shape  # the checkpoint itself is left alone


@pytest.mark.parametrize("window", COORDS)
def test_flat_tables_load_as_they_are(window):
    bias, coords = bias_of(window), COORDS[window]
    rows = torch.randn(math.prod(2 * side - 1 for side in window), 3)
    bias.load_state_dict({"weight": rows})
    steps = coords[:, None] - coords[None]
    index = torch.zeros_like(steps[..., 0])
    for axis, side in enumerate(window):
        index = index * (2 * side - 1) + steps[..., axis] + side - 1
    assert torch.equal(bias(coords, coords), rows[index].permute(2, 0, 1))


@pytest.mark.parametrize("window", COORDS)
def test_beits_last_rows_are_those_of_the_class_token(window):
    rows = torch.randn(math.prod(2 * side - 1 for side in window) + 3, 3)
    bias = bias_of(window, prefix=True)
    bias.load_state_dict({"weight": rows})
    assert torch.equal(bias.weight.flatten(0, -2), rows[:-3])
    assert torch.equal(bias.prefix_bias(), rows[-3:])
    with pytest.raises(RuntimeError, match=rf"has {len(rows)} rows, an even number: 3 .* build .* with prefix=True"):
        bias_of(window).load_state_dict({"weight": rows})


@pytest.mark.parametrize("resize_on_load", [False, True])
def test_flat_tables_of_another_window_are_never_guessed(resize_on_load):
    bias = bias_of((12, 9), num_heads=4, resize_on_load=resize_on_load)
    rows = torch.randn(13 * 13, 4)  # 7 x 7, or 85 x 1: nothing says which
    message = r"has 169 rows, this SwinBias 391; resample it first: resample_bias_table\(table, \(12, 9\), old_window"
    with pytest.raises(RuntimeError, match=message):
        bias.load_state_dict({"weight": rows})
    bias.load_state_dict({"weight": resample_bias_table(rows, (12, 9), old_window=(7, 7))})
    want = F.interpolate(rows.T.reshape(1, 4, 13, 13), (23, 17), mode="bicubic")[0].permute(1, 2, 0)
    torch.testing.assert_close(bias.weight.detach(), want, atol=1e-6, rtol=0)


def test_a_class_token_that_the_checkpoint_lacks_is_missing():
    bias = bias_of((4, 7), prefix=True)
    with pytest.raises(RuntimeError, match=r'Missing key.*"prefix_weight"'):
        bias.load_state_dict({"weight": torch.zeros(7 * 13, 3)})


def test_example_coords_are_cells_of_the_window():
    assert torch.equal(SwinBias(2, (2, 3)).example_coords(8), grid_coords(2, 3)[[0, 1, 2, 3, 4, 5, 0, 1]])


def test_other_axes_name_the_call_that_takes_them():
    with pytest.raises(ValueError, match=r"k_coords must have 1 axis \(t\), .* use SwinBias\(window=\(y, x\)\)"):
        bias_of(7)(sequence_coords(7), grid_coords(7, 7))


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"num_heads": 0, "window": 7}, ValueError, "num_heads must be positive, got 0"),
        ({"num_heads": 2, "window": ()}, ValueError, r"window must have one to three axes, got \(\)"),
        ({"num_heads": 2, "window": (2, 3, 4, 5)}, ValueError, r"one to three axes, got \(2, 3, 4, 5\)"),
        ({"num_heads": 2, "window": (7, 0)}, ValueError, "window must be positive, got 0"),
        ({"num_heads": 2, "window": 7.0}, TypeError, "window must be an integer, got 7.0"),
        ({"num_heads": 2, "window": "7"}, TypeError, "window must be an integer or a sequence of them, got '7'"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        SwinBias(**arguments)
