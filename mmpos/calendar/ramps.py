"""Calendar fields on a straight line, as most libraries for time series have them."""

from collections.abc import Iterable
from datetime import tzinfo
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .fields import WHOLE, calendar_fields, field_names
from .timestamps import NAT, check_shape, read_timestamps

# How many values a field can take at most.
COUNTS = {
    "second_of_minute": 60, "minute_of_hour": 60, "hour_of_day": 24, "day_of_week": 7, "day_of_month": 31,
    "day_of_year": 366, "week_of_year": 53, "month_of_year": 12, "quarter_of_year": 4,
}  # fmt: skip


def calendar_ramps(
    timestamps: Any,
    fields: Iterable[str],
    *,
    unit: str = "s",
    timezone: str | tzinfo | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "*batch n f"]:
    """Calendar fields from -1/2 to 1/2, ``number / (count - 1) - 1/2``: GluonTS' time features, to the bit in float64.

    The count is the largest there is: 31 days of a month, 366 of a year, 53 weeks. These have a seam, 23:00 is at 1/2
    and 0:00 at -1/2, which `calendar_coords` and `Seasonal` do not have; they are here for models that were trained
    with them. (GluonTS has no quarters.)

    Args:
        timestamps: Instants ``(..., n)`` of any type that `time_coords` takes.
        fields: Names of fields, as in `calendar_fields`, one for each axis of the result.
        unit: What bare numbers count: "s", "ms", "us" or "ns".
        timezone: The clock on the wall to read, as in `calendar_fields`.
        device: Where the result lies; a tensor's own device unless given.

    Returns:
        Places on the line in float64. What is missing (NaT, the least int64, or NaN) is NaN.

    Raises:
        ValueError: If a field, unit or timezone is unknown.
        TypeError: If timestamps are bool, half precision, text or durations.

    Example:
        >>> times = torch.tensor([1709164800, 1711846800])  # 2024-02-29 00:00 and 2024-03-31 01:00 UTC
        >>> calendar_ramps(times, ["hour_of_day", "day_of_week", "day_of_month"])
        tensor([[-0.5000,  0.0000,  0.4333],
                [-0.4565,  0.5000,  0.5000]], dtype=torch.float64)

    Reference:
        Alexandrov et al., GluonTS, 2019, and its released code (time_feature). https://arxiv.org/abs/1906.05264
    """
    instants = read_timestamps(timestamps, unit, device)
    check_shape(instants)
    fields = field_names(fields, WHOLE)
    missing = instants.ticks == NAT
    numbers = calendar_fields(instants.ticks.masked_fill(missing, 0), fields, unit=instants.unit, timezone=timezone)
    last = torch.tensor([COUNTS[name] - 1 for name in fields], dtype=torch.float64, device=numbers.device)
    return (numbers / last - 0.5).masked_fill(missing[..., None], torch.nan)
