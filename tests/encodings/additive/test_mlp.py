import math

import pytest
import torch
from torch import nn

from mmpos import grid_coords, normalise
from mmpos.encodings.additive.mlp import CoordinateMLP


def formula(encoding, coords):
    """Linear map, GELU, linear map in float64."""
    weight = {name: value.detach().double() for name, value in encoding.state_dict().items()}
    hidden = sum(coords[..., axis, None].double() * row for axis, row in enumerate(weight["weight"])) + weight["bias"]
    if "out.weight" not in weight:
        return hidden
    return hidden / 2 * (1 + torch.erf(hidden / math.sqrt(2))) @ weight["out.weight"].T + weight["out.bias"]


@pytest.mark.parametrize("hidden_dim", [None, 11, 128])
@pytest.mark.parametrize("axes", [1, 2, 4])
def test_it_follows_the_formula(axes, hidden_dim):
    encoding = CoordinateMLP(7, axes=axes, hidden_dim=hidden_dim)
    for coords in (torch.randint(-300, 300, (2, 270, axes)), torch.randn(9, axes)):
        got, want = encoding(coords), formula(encoding, coords)
        assert (got.dtype, got.shape) == (torch.float32, (*coords.shape[:-1], 7))
        torch.testing.assert_close(got.double(), want, atol=2e-6 * want.abs().max().item(), rtol=0)


def test_without_a_hidden_layer_it_is_a_linear_function_of_time():
    encoding = CoordinateMLP(6, hidden_dim=None).double()
    got = encoding(torch.tensor([[0.0], [1.0], [2.0], [1e6]], dtype=torch.float64))
    torch.testing.assert_close(got[2] - got[1], got[1] - got[0])
    torch.testing.assert_close(got[3] - got[0], 1e6 * (got[1] - got[0]))
    assert set(encoding.state_dict()) == {"weight", "bias"}


def test_a_model_in_half_precision_tells_neighbours_apart():
    coords = torch.tensor([[255], [256], [257], [258], [4095], [4097]])
    for linear, cast in ((nn.Module.bfloat16, torch.bfloat16), (nn.Module.half, torch.float16)):
        encoding = CoordinateMLP(6, hidden_dim=None)
        want = encoding(coords)
        assert torch.equal(linear(encoding)(coords), want)
        assert len(want.unique(dim=0)) == len(coords)
        network = CoordinateMLP(6, hidden_dim=9).to(cast)
        assert (network.weight.dtype, network.out.weight.dtype) == (torch.float32, cast)
        hidden = (coords.double() * network.weight.detach().double() + network.bias.detach().double()).to(cast)
        assert torch.equal(network(coords), network.out(nn.functional.gelu(hidden)))


def test_autocast_does_not_round_what_multiplies_coordinates():
    encoding, coords = CoordinateMLP(6, axes=2, hidden_dim=None), torch.tensor([[255, 1], [257, 4097]])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding(coords), encoding.float()(coords))


@pytest.mark.parametrize("hidden_dim", [None, 5])
def test_gradients_reach_all_weights_and_coordinates(hidden_dim):
    encoding = CoordinateMLP(3, axes=2, hidden_dim=hidden_dim).double()
    coords = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in encoding.named_parameters()]

    def call(coords, *parameters):
        return torch.func.functional_call(encoding, dict(zip(names, parameters, strict=True)), (coords,))

    assert torch.autograd.gradcheck(call, (coords, *encoding.parameters()))


@pytest.mark.parametrize("hidden_dim", [None, 5])
def test_resetting_draws_all_weights_as_a_fresh_build_does(hidden_dim):
    encoding = CoordinateMLP(3, axes=2, hidden_dim=hidden_dim)
    before = {name: value.clone() for name, value in encoding.state_dict().items()}
    assert set(before) == encoding.no_weight_decay()
    torch.manual_seed(1)
    encoding.reset_parameters()
    torch.manual_seed(1)
    fresh = CoordinateMLP(3, axes=2, hidden_dim=hidden_dim).state_dict()
    for name, value in encoding.state_dict().items():
        assert torch.equal(value, fresh[name])
        assert not torch.equal(value, before[name])
    assert CoordinateMLP(900, axes=4, hidden_dim=None).weight.abs().max().item() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("hidden_dim", [None, 5])
def test_a_token_without_a_place_is_nan_throughout(hidden_dim):
    got = CoordinateMLP(3, axes=2, hidden_dim=hidden_dim)(torch.tensor([[0.5, 0.1], [math.inf, 0.1], [0.5, math.nan]]))
    assert got[0].isfinite().all()
    assert got[1:].isnan().all()


def test_a_grid_of_any_size_and_shape():
    encoding = CoordinateMLP(8, axes=2)
    for size in ((14, 10), (3, 17)):
        assert encoding(normalise(grid_coords(*size), size)).shape == (size[0] * size[1], 8)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dim": 0}, ValueError, "dim must be positive, got 0"),
        ({"dim": 4, "axes": 0}, ValueError, "axes must be positive, got 0"),
        ({"dim": 4, "hidden_dim": 0}, ValueError, "hidden_dim must be positive, got 0"),
        ({"dim": 4, "hidden_dim": 8.0}, TypeError, "hidden_dim must be an integer, got 8.0"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        CoordinateMLP(**arguments)
