"""Forecasters and classifiers of series, and how timestamps become coordinates."""

import math
import re

import pytest
import torch

import mmpos
from mmpos.models import SeriesClassifier, SeriesForecaster, TokenTimes

HOUR, WEEK = 3600, 604800
START = 1_700_000_000
CALENDAR = ["fraction_of_day", "fraction_of_week"]
SMALL = {"patch": 4, "dim": 32, "depth": 2, "num_heads": 2}
SLOTS = {
    "none": {},
    "rope": {"rotary": {"name": "RoPE"}},
    "time rope": {"rotary": {"name": "RoPE"}, "times": {"coords": {"rotary": ["time"]}}},
    "calendar": {
        "additive": {"name": "Seasonal", "axes": 2, "harmonics": 3},
        "times": {"coords": {"additive": CALENDAR}},
    },
    "tables": {
        "additive": {"name": "FactorizedTable", "size": [24, 7]},
        "times": {"coords": {"additive": ["hour_of_day", "day_of_week"]}},
    },
    "time alibi": {"bias": {"name": "ALiBi"}, "times": {"coords": {"bias": ["time"]}, "per": "d"}},
    "seasons": {
        "bias": {"name": "PeriodicBias", "periods": [24, 168]},
        "times": {"coords": {"bias": ["time"]}},
    },
    "content": {  # a bias that each layer evaluates, beside rotation by other coordinates
        "rotary": {"name": "RoPE"},
        "bias": {"name": "RelativeLogits", "extent": 60},
        "times": {"coords": {"bias": ["time"]}},
    },
    "scale": {"rotary": {"name": "RoPE"}, "scale": {"name": "LogScale", "train_length": 8}},
}


def make(slots="calendar", model=SeriesForecaster, **options):
    torch.manual_seed(0)
    network = model(**{**(SMALL if model is SeriesForecaster else {}), **SLOTS[slots], **options}).eval()
    with torch.no_grad():  # learned encodings start small
        for parameter in network.encodings.parameters():
            parameter.normal_(std=0.5)
    return network


def windows(rows=2, n=12, horizon=7, channels=3, start=START):
    torch.manual_seed(1)
    times = start + torch.arange(rows)[:, None] * 50 * HOUR + torch.arange(n + horizon) * HOUR
    return torch.randn(rows, n, channels), times


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("n, horizon", [(12, 7), (10, 8), (5, 1)])
def test_rows_follow_for_every_slot(slots, n, horizon):
    network = make(slots)
    values, times = windows(n=n, horizon=horizon)
    forecast = network(values, times)
    assert forecast.shape == (2, horizon, 3)
    assert forecast.isfinite().all()
    alone = torch.cat([network(values[row, None], times[row, None]) for row in range(2)])
    torch.testing.assert_close(alone, forecast, atol=1e-5, rtol=1e-5)
    forecast.sum().backward()
    assert all(parameter.grad is not None for parameter in network.encodings.parameters())


def test_channels_are_series_of_their_own_with_the_same_weights():
    network = make()
    values, times = windows()
    forecast = network(values, times)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(network(values[..., order], times), forecast[..., order], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(network(values[..., :1], times), forecast[..., :1], atol=1e-5, rtol=1e-5)


def test_channels_as_an_axis_see_each_other():
    slots = {
        "bias": {"name": "GroupBias"},
        "times": {"coords": {"bias": ["variate"], "rotary": ["time"]}},
        "rotary": {"name": "RoPE"},
        "variates": "axis",
    }
    network = make("none", **slots)
    values, times = windows()
    forecast = network(values, times)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(network(values[..., order], times), forecast[..., order], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(network(values[..., :1], times), forecast[..., :1], atol=1e-3)
    without = make("none", **{**slots, "bias": None})
    assert not torch.allclose(without(values, times), forecast, atol=1e-3)


def test_a_forecast_moves_and_stretches_with_its_series():
    network = make()
    values, times = windows()
    values = 100 * values  # far above what the variance is kept from 0 by
    torch.testing.assert_close(network(3 * values - 500, times), 3 * network(values, times) - 500, atol=1e-3, rtol=1e-4)


def test_a_constant_series_and_one_without_values_have_forecasts():
    network = make()
    values, times = windows()
    values[..., 0], values[..., 1] = 7.0, math.nan
    forecast = network(values, times)
    assert forecast.isfinite().all()
    assert (forecast[..., 0] - 7).abs().max() < 0.1


def test_what_is_missing_is_told_from_what_is_there():
    network = make()
    values, times = windows(channels=1)
    missing = values.clone()
    missing[:, 3] = math.nan
    seen = torch.cat([values[:, :3], values[:, 4:]], dim=1)
    filled = missing.nan_to_num(seen.mean().item())
    forecast = network(missing, times)
    assert forecast.isfinite().all()
    assert not torch.allclose(forecast, network(values, times), atol=1e-4)
    assert not torch.allclose(forecast, network(filled, times), atol=1e-4)


def test_past_and_future_share_no_patch():
    """Rows in front that are missing do not matter, where they fill the first patch."""
    network = make()
    values, times = windows(n=10)
    front = torch.full((2, 2, 3), math.nan)
    early = times[:, :1].expand(-1, 2)
    padded = network(torch.cat([front, values], dim=1), torch.cat([early, times], dim=1))
    torch.testing.assert_close(padded, network(values, times), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("slots", ["time rope", "calendar", "time alibi", "seasons"])
def test_a_week_later_all_is_the_same(slots):
    network = make(slots)
    values, times = windows()
    torch.testing.assert_close(network(values, times + 300 * WEEK), network(values, times), atol=1e-5, rtol=1e-5)
    if slots == "calendar":
        assert not torch.allclose(network(values, times + 10 * HOUR), network(values, times), atol=1e-3)


def test_gaps_matter_to_encodings_of_time_and_not_of_the_index():
    values, times = windows()
    gap = times + 9 * HOUR * (torch.arange(times.shape[-1]) > 6)
    for slots in SLOTS:
        network = make(slots)
        same = torch.allclose(network(values, gap), network(values, times), atol=1e-4)
        assert same == (slots in ("none", "rope", "scale")), slots


def test_the_clock_on_the_wall_is_that_of_the_zone():
    values, times = windows(start=1_711_800_000)  # over the change to summer time in Berlin
    times = 3 * times - 2 * times[:, :1]
    shown = {"coords": {"additive": CALENDAR}, "timezone": "Europe/Berlin"}
    berlin, utc = make("calendar", times=shown), make("calendar")
    wall = mmpos.calendar_coords(times, CALENDAR, timezone="Europe/Berlin")
    got = berlin.times(times, "additive")
    assert torch.equal(got, wall)
    assert not torch.allclose(berlin(values, times), utc(values, times), atol=1e-4)
    later = times + 2 * HOUR * (times >= 1_711_846_800) + HOUR * (times < 1_711_846_800)
    torch.testing.assert_close(utc.times(later, "additive"), wall)


def test_it_compiles_whole_and_runs_in_bfloat16():
    network = make("calendar", rotary={"name": "RoPE"})
    values, times = windows()
    want = network(values, times)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(values, times), want, atol=1e-5, rtol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(network(values, times).float(), want, atol=0.1, rtol=0.1)


def test_coordinates_of_slots():
    times = torch.tensor([[0, 2 * HOUR, 5 * HOUR], [WEEK, WEEK + HOUR, WEEK + 30 * HOUR]])
    names = {"additive": ["index", "fraction_of_day"], "rotary": ["time"], "bias": ["time", "variate"]}
    clock = TokenTimes(coords=names, per="h")
    day = torch.tensor([[0, 2, 5], [0, 1, 6]], dtype=torch.float64) / 24
    index = torch.arange(3).expand(2, 3)
    torch.testing.assert_close(clock(times, "additive"), torch.stack([index.double(), day], dim=-1))
    hours = times[..., None].double() / HOUR
    assert torch.equal(clock(times, "rotary"), hours)
    assert torch.equal(clock(times, "rotary", variates=3, apart=True), hours.repeat_interleave(3, dim=0))
    assert clock(times, "bias", variates=3, apart=True)[:, 0, 1].tolist() == [0, 1, 2, 0, 1, 2]
    number = TokenTimes(coords={"additive": ["variate", "index"]})(times, "additive", variates=2, apart=True)
    assert number.tolist() == 2 * [[[0, 0], [0, 1], [0, 2]], [[1, 0], [1, 1], [1, 2]]]
    variates = clock(times, "bias", variates=4)
    assert variates.shape == (2, 12, 2)
    for channel in range(4):
        part = variates[:, 3 * channel : 3 * channel + 3]
        assert torch.equal(part[..., :1], hours)
        assert (part[..., 1] == channel).all()
    whole = TokenTimes(coords={"additive": ["hour_of_day", "day_of_week"]})
    assert whole(times, "additive", cells=True).tolist()[1] == [[0, 3], [1, 3], [6, 4]]
    assert TokenTimes()(times, "rotary").tolist() == [[0], [1], [2]]
    assert TokenTimes(coords={"bias": ["variate"]})(times, "bias", variates=2).flatten().tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    "make_it, error, message",
    [
        (lambda: TokenTimes(coords={"rotery": ["time"]}), ValueError, "unknown slot 'rotery'; did you mean 'rotary'?"),
        (
            lambda: TokenTimes(coords={"rotary": ["fraction_of_dya"]}),
            ValueError,
            "unknown coordinate 'fraction_of_dya'; did you mean 'fraction_of_day'",
        ),
        (lambda: TokenTimes(coords={"rotary": "time"}), ValueError, "must be a list of names, got 'time'"),
        (lambda: TokenTimes(per="hour"), ValueError, "unknown unit 'hour'"),
        (lambda: TokenTimes(timezone="Europe/Berlim"), ValueError, "Europe/Berlim"),
        (lambda: SeriesForecaster(patch=0), ValueError, "patch (0) must be positive"),
        (lambda: SeriesForecaster(variates="both"), ValueError, "variates must be 'independent' or 'axis'"),
        (lambda: SeriesForecaster(instance="mean"), ValueError, "instance must be one of standardise, centre, none"),
        (lambda: SeriesForecaster(times={"zone": "UTC"}), TypeError, "zone"),
        (
            lambda: make()(torch.zeros(2, 8, 1), torch.zeros(2, 8).long()),
            ValueError,
            "times must have (2, 8 + horizon)",
        ),
        (
            lambda: make("time rope", SeriesClassifier, channels=2, num_classes=3)(torch.zeros(2, 8, 2)),
            ValueError,
            "the coordinate 'time' needs timestamps",
        ),
    ],
)
def test_what_does_not_fit_is_named(make_it, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make_it()


@pytest.mark.parametrize("slots", ["none", "rope", "time rope", "time alibi", "calendar", "scale"])
def test_a_padded_series_is_classified_as_alone(slots):
    network = make(slots, SeriesClassifier, channels=5, num_classes=3, dim=32, num_heads=2)
    torch.manual_seed(2)
    values, times = torch.randn(3, 9, 5), START + torch.arange(9).expand(3, -1) * HOUR
    lengths = torch.tensor([9, 4, 1])
    real = torch.arange(9) < lengths[:, None]
    logits = network(values.masked_fill(~real[..., None], math.nan), times, real=real)
    alone = [network(values[row, None, :n], times[row, None, :n])[0] for row, n in enumerate(lengths)]
    torch.testing.assert_close(logits, torch.stack(alone), atol=1e-5, rtol=1e-5)
    order = network(values[:, torch.tensor([3, 0, 8, 1, 5, 2, 7, 6, 4])], times)
    assert torch.allclose(order, network(values, times), atol=1e-5) == (slots == "none")
