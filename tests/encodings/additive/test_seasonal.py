import math
from fractions import Fraction

import pytest
import torch

from mmpos import FactorizedTable, Seasonal, calendar_coords, calendar_fields, time_coords
from mmpos.factory import build

DAY, WEEK, YEAR = 86400, 604800, 31556952
NOW = 1_700_000_000


def reference(coords, waves):
    """Sine and cosine of turns that are reduced exactly; ``waves`` are pairs of an axis and turns per unit."""
    rows = []
    for coord in coords.tolist():
        turns = [float(Fraction(coord[axis]) * rate % 1) for axis, rate in waves]
        rows.append([wave(2 * math.pi * turn) for turn in turns for wave in (math.sin, math.cos)])
    return torch.tensor(rows, dtype=torch.float64)


def harmonics(axis, period, number):
    return [(axis, k / Fraction(period)) for k in range(1, number + 1)]


def test_features_of_timestamps_are_exact():
    times = NOW + torch.randint(-(10**9), 10**9, (300, 1))
    encoding = Seasonal(periods=(DAY, WEEK, YEAR), harmonics=(4, 3, 10))
    want = reference(times, harmonics(0, DAY, 4) + harmonics(0, WEEK, 3) + harmonics(0, YEAR, 10))
    got = encoding(times)
    assert got.shape == (300, 34)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-7)
    real = times + torch.rand(300, 1, dtype=torch.float64)
    want = reference(real, harmonics(0, DAY, 4) + harmonics(0, WEEK, 3) + harmonics(0, YEAR, 10))
    torch.testing.assert_close(encoding(real).double(), want, rtol=0, atol=1e-7)


def test_each_axis_has_periods_of_its_own():
    coords = torch.randint(-999, 999, (2, 7, 3)).double() + 0.375
    encoding = Seasonal(periods=((7,), (), (2.5, 12)), axes=3, harmonics=(2, 1, 3))
    waves = harmonics(0, 7, 2) + harmonics(2, 2.5, 1) + harmonics(2, 12, 3)
    got = encoding(coords)
    assert got.shape == (2, 7, 12)
    for row in range(2):
        torch.testing.assert_close(got[row].double(), reference(coords[row], waves), rtol=0, atol=1e-7)


def test_by_default_coordinates_are_turns():
    times = NOW + 3000 * torch.arange(500)
    turns = calendar_coords(times, ["fraction_of_day", "day_of_week", "fraction_of_year"])
    waves = [wave for axis in range(3) for wave in harmonics(axis, 1, 4)]
    torch.testing.assert_close(Seasonal(axes=3)(turns).double(), reference(turns, waves), rtol=0, atol=1e-7)
    assert Seasonal().dim == 8


def test_an_instant_is_the_same_in_every_window():
    hours = NOW + 3600 * torch.arange(24 * 60)
    fields = ["fraction_of_day", "fraction_of_month", "fraction_of_year"]
    calendar, elapsed = Seasonal(axes=3), Seasonal(periods=(DAY, WEEK))
    whole = calendar(calendar_coords(hours, fields, timezone="Europe/Berlin")), elapsed(time_coords(hours))
    for start, stop in ((0, 96), (95, 191), (1000, 1001)):
        window = hours[start:stop]
        assert torch.equal(calendar(calendar_coords(window, fields, timezone="Europe/Berlin")), whole[0][start:stop])
        assert torch.equal(elapsed(time_coords(window)), whole[1][start:stop])


def test_a_whole_period_later_are_the_same_bits():
    times = NOW + torch.randint(0, 10**7, (50, 1))
    encoding = Seasonal(periods=(DAY, WEEK))
    for weeks in (1, 52, -3000):
        assert torch.equal(encoding(times + weeks * WEEK), encoding(times))


def test_a_linear_map_takes_features_to_tokens():
    encoding = Seasonal(dim=10, periods=24, harmonics=3)
    hours = torch.arange(40)[:, None]
    want = Seasonal(periods=24, harmonics=3)(hours).double() @ encoding.proj.weight.double().T
    torch.testing.assert_close(encoding(hours).double(), want + encoding.proj.bias, rtol=0, atol=1e-6)
    assert encoding.no_weight_decay() == {"proj.weight", "proj.bias"}
    before = encoding.proj.weight.clone()
    encoding.reset_parameters()
    assert not torch.equal(encoding.proj.weight, before)
    assert not list(Seasonal().parameters())


def test_learned_embeddings_of_fields_are_a_table_for_each():
    times = NOW + 100_000 * torch.arange(60).view(3, 20)
    fields = calendar_fields(times, ["hour_of_day", "day_of_week", "month_of_year"])
    table = FactorizedTable(dim=10, size=(24, 7, 12))
    for weight in table.weights():
        torch.nn.init.normal_(weight)
    hour, day, month = (weight.detach().double() for weight in table.weights())
    want = hour[fields[..., 0]] + day[fields[..., 1]] + month[fields[..., 2]]
    torch.testing.assert_close(table(fields).double(), want, rtol=0, atol=1e-6)


def test_in_yaml():
    spec = {"name": "Seasonal", "periods": [86400, "6.048e5"], "harmonics": [4, 3]}
    encoding = build(spec, kind="additive", dim=12)
    assert encoding.dim == 12
    assert encoding.periods == ((86400, 604800.0),)
    assert encoding.proj.in_features == 14


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dim": 0}, ValueError, "dim must be positive, got 0"),
        ({"axes": 0}, ValueError, "axes must be positive, got 0"),
        ({"periods": 0}, ValueError, "periods must be positive and finite, got 0"),
        ({"periods": "day"}, TypeError, "periods must be numbers, got 'day'"),
        ({"periods": ()}, ValueError, r"periods must not be empty, got \(\)"),
        ({"periods": (24, 168), "axes": 2}, ValueError, "periods must be a sequence for each of 2 axes"),
        ({"harmonics": 0}, ValueError, "harmonics must be positive, got 0"),
        ({"harmonics": True}, TypeError, "harmonics must be an integer, got True"),
        ({"harmonics": (2, 3)}, ValueError, r"harmonics must be one number or one for each of 1 periods, got \(2, 3\)"),
        ({"harmonics": (2.5,)}, TypeError, "harmonics must be an integer, got 2.5"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        Seasonal(**arguments)


def test_other_axes_than_its_own():
    with pytest.raises(ValueError, match=r"coords must have 2 axes \(y, x\), got shape \(5, 3\); .*Seasonal\(axes=3\)"):
        Seasonal(axes=2)(torch.zeros(5, 3))
