import pytest
import torch

from mmpos import calendar_ramps

from .reference import WHOLE, numbers, seconds, wall

COUNTS = {
    "second_of_minute": 60, "minute_of_hour": 60, "hour_of_day": 24, "day_of_week": 7, "day_of_month": 31,
    "day_of_year": 366, "week_of_year": 53, "month_of_year": 12, "quarter_of_year": 4,
}  # fmt: skip


def test_all_fields_by_the_formula():
    times = [seconds(2024, 2, 29, 12, 30, 15), seconds(2020, 12, 31, 23, 59, 59), seconds(1970, 1, 1), -(10**9)]
    rows = [[number / (COUNTS[name] - 1) - 0.5 for name, number in zip(WHOLE, numbers(wall(time)), strict=True)]
            for time in times]  # fmt: skip
    got = calendar_ramps(times, WHOLE)
    assert got.dtype == torch.float64
    assert got.tolist() == rows
    assert (
        calendar_ramps(torch.tensor(times).view(2, 2), WHOLE[2:4]).tolist()
        == torch.tensor(rows, dtype=torch.float64).view(2, 2, 9)[..., 2:4].tolist()
    )


def test_the_ends_of_a_field_are_a_half():
    days = calendar_ramps([seconds(2024, 1, 1), seconds(2024, 12, 31)], iter(["day_of_year", "month_of_year"]))
    assert days.tolist() == [[-0.5, -0.5], [0.5, 0.5]]


def test_what_is_missing_is_nan():
    got = calendar_ramps(torch.tensor([float("nan"), 3600.5, float("inf")]), ["hour_of_day"], timezone="+02:00")
    assert got[:, 0].isnan().tolist() == [True, False, True]
    assert got[1, 0] == 3 / 23 - 0.5
    integers = torch.tensor([-(2**63), 0])
    assert calendar_ramps(integers, ["day_of_week"]).isnan()[:, 0].tolist() == [True, False]


def test_names_and_shapes_are_checked():
    with pytest.raises(ValueError, match="unknown calendar field 'hour'; did you mean"):
        calendar_ramps([0], ["hour"])
    with pytest.raises(ValueError, match="fraction_of_day is no whole number; calendar_coords has it"):
        calendar_ramps([0], ["fraction_of_day"])
    with pytest.raises(TypeError, match="fields must be a list of names, got 'hour_of_day'"):
        calendar_ramps([0], "hour_of_day")
    with pytest.raises(ValueError, match="got a single one; put it into a list"):
        calendar_ramps(0, ["hour_of_day"])
