"""Calendar and clock of an instant, by arithmetic on whole numbers.

Whole numbers are held in floats, where they are exact, division is quick on any device, and a missing instant is NaN
all the way through. The Gregorian calendar repeats every 400 years, which are 146,097 days and whole weeks, so after
one exact reduction of the int64 ticks no number is large.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .timestamps import NAT, values_at_hand

CYCLE = 146_097  # days in 400 years
MARCH_2000 = 11_017  # days from 1970-01-01 to 2000-03-01, after the leap day that opens a cycle


class Clock(NamedTuple):
    """What calendar and clock on the wall show.

    Args:
        day: Days since 1 March of 2000, of 1600 or of another year that 400 divides, in float32; less than `CYCLE`.
        second: Whole seconds since midnight, in float32.
        ticks: Ticks since the second began, with their fraction, in float64; None where a tick is a second.
        per_second: Ticks in a second.
    """

    day: Float[Tensor, "*shape"]
    second: Float[Tensor, "*shape"]
    ticks: Float[Tensor, "*shape"] | None
    per_second: int


class Date(NamedTuple):
    """Where a day lies in its year, counted from 0; ``leap`` is 1 in a leap year and 0 in others."""

    day_of_year: Float[Tensor, "*shape"]
    month: Float[Tensor, "*shape"]
    leap: Float[Tensor, "*shape"]


def quotient(number: Float[Tensor, "*shape"], divisor: int) -> Float[Tensor, "*shape"]:
    """``floor(number / divisor)`` of whole numbers, exact below 2^21 in float32 and 2^50 in float64.

    ``(number + 1/2) / divisor`` is at least ``1 / (2 divisor)`` away from any whole number, which is more than the two
    roundings of the product change it by.
    """
    return (number + 0.5).mul_(1 / divisor).floor_()


def remainder(number: Float[Tensor, "*shape"], divisor: int) -> Float[Tensor, "*shape"]:
    """``number`` modulo ``divisor``, from 0; exact where `quotient` is."""
    return quotient(number, divisor).mul_(-divisor).add_(number)


def read_clock(
    ticks: Int[Tensor, "*shape"],
    part: Float[Tensor, "*shape"] | None,
    per_second: int,
    offset: Int[Tensor, "*#shape"] | int = 0,
) -> Clock:
    """Day and time of day at instants given in ticks since 1970 and a fraction of a tick.

    Args:
        ticks: Whole ticks since 1970-01-01 00:00 UTC; any int64 is legal, the least one is missing.
        part: Fraction of a tick, from 0 to less than 1; None where all are 0.
        per_second: Ticks in a second.
        offset: Seconds by which the clock on the wall is ahead of UTC, less than two days.
    """
    per_day = 86_400 * per_second
    day = ticks.div(per_day, rounding_mode="floor")
    day, rest = day.double(), torch.sub(ticks, day, alpha=per_day).double()
    missing = ticks == NAT
    if not values_at_hand(missing) or missing.any():
        day, rest = day.masked_fill(missing, torch.nan), rest.masked_fill(missing, torch.nan)
    if isinstance(offset, Tensor) or offset:
        rest = rest + offset * per_second
        carry = quotient(rest, per_day)
        day, rest = day + carry, rest - carry * per_day
    day = remainder(day - MARCH_2000, CYCLE).float()
    if per_second == 1:
        return Clock(day, rest.float(), part, per_second)
    second = quotient(rest, per_second)
    rest = rest - second * per_second
    return Clock(day, second.float(), rest if part is None else rest + part, per_second)


def date_of(day: Float[Tensor, "*shape"]) -> Date:
    """The date of a day of the cycle.

    Counted from 1 March of a year that 400 divides, leap days come last in their year, their four years and their
    century. Were there one every four years, year and day would be two divisions; so the leap days that three of four
    centuries drop are counted back in first, and taken out of the day of the year at the end.

    Reference:
        Such divisions, and years from March, are those of Neri and Schneider, Euclidean affine functions and
        applications to calendar algorithms, 2021. https://arxiv.org/abs/2102.06959
    """
    century = quotient(4 * day + 3, CYCLE)
    january = day + century + 60  # days since 1 January 2000, were every fourth year a leap year
    year = quotient(4 * january, 1461)
    day_of_year = january - 365 * year - quotient(year + 3, 4)
    dropped = _nonzero(remainder(year, 400)) - _nonzero(remainder(year, 100))
    leap = 1 - _nonzero(remainder(year, 4)) - dropped
    day_of_year = day_of_year - dropped * after(59, day_of_year)
    # The months follow a straight line if February has 30 days.
    even = day_of_year + after(58 + leap, day_of_year) * (2 - leap)
    return Date(day_of_year, quotient(12 * even + 6, 367), leap)


def days_before(month: Float[Tensor, "*shape"], leap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Days of a year before its month 0 to 12; before month 12 lie all of them."""
    return quotient(367 * month + 5, 12) - after(1, month) * (2 - leap)


def after(mark: Float[Tensor, "*shape"] | int, number: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """1 where a whole number is larger than the mark, 0 elsewhere; arithmetic is quicker than comparing."""
    return (number - mark).clamp_(0, 1)


def _nonzero(number: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """1 where a whole number from 0 is not 0."""
    return number.clamp(max=1)


def weekday_of(day: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Day of the week, Monday 0, of a day of the cycle; the first is a Wednesday."""
    return remainder(day + 2, 7)
