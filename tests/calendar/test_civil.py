"""Division without dividing: exact over all numbers that the calendar divides."""

import pytest
import torch

from mmpos.calendar.civil import quotient, remainder


@pytest.mark.parametrize("divisor", [2, 3, 4, 7, 60, 100, 367, 400, 1461, 3600, 86_400, 146_097])
@pytest.mark.parametrize("dtype, reach", [(torch.float32, 2**21), (torch.float64, 2**50)])
def test_division_is_exact(divisor, dtype, reach):
    # Multiples are where a rounded product goes wrong: all of them in float32, and those near both ends in float64.
    multiples = torch.arange(0, min(reach, 10**5 * divisor), divisor)
    top = (reach - 1) // divisor * divisor
    numbers = torch.cat([multiples, multiples - 1, top - multiples[:1000], top - multiples[:1000] - 1])
    numbers = torch.cat([numbers, -numbers])
    assert numbers.abs().max() <= reach
    assert torch.equal(quotient(numbers.to(dtype), divisor), numbers.div(divisor, rounding_mode="floor").to(dtype))
    assert torch.equal(remainder(numbers.to(dtype), divisor), numbers.remainder(divisor).to(dtype))


def test_a_missing_number_stays_missing():
    assert remainder(torch.tensor([torch.nan, 5.0]), 3)[0].isnan()
