"""Turns of few rows and columns, made once for each, are those made for each token."""

from fractions import Fraction

import pytest
import torch

from mmpos import (
    Axial,
    Given,
    RoPE,
    Sections,
    Sinusoidal,
    grid_coords,
    padded_coords,
    phases,
    sequence_coords,
    video_coords,
)
from mmpos.phases import exact_cos_sin, phase_steps

GRID = torch.tensor([2**31 - 9, -(2**40)]) + grid_coords(5, 70)
CASES = {
    "rows and columns": (RoPE(12, axes=2), GRID),
    "columns first": (RoPE(12, axes=2, spectrum=Axial(order=(1, 0))), GRID),
    "blocks of two widths": (RoPE(12, axes=2, spectrum=Axial(weights=(1, 2))), GRID),
    "sections": (RoPE(20, axes=3, spectrum=Sections((2, 5, 3))), video_coords(6, 7, 11)),
    "sections by turns": (RoPE(20, axes=3, spectrum=Sections((4, 3, 3), interleaved=True)), video_coords(6, 7, 11)),
    "rows of a batch": (RoPE(8), padded_coords(torch.ones(13, 60, dtype=torch.bool))),
    "int32": (RoPE(12, axes=2), grid_coords(9, 40).int()),
    "one place": (RoPE(8), sequence_coords(1, offset=7).expand(90, 1)),
}


@pytest.fixture
def tables(monkeypatch):
    """Sizes of the tensors of coordinates that turns are made for."""
    sizes, make = [], phases._integer_limbs
    monkeypatch.setattr(phases, "MANY", 1)
    monkeypatch.setattr(phases, "_integer_limbs", lambda coords: sizes.append(coords.numel()) or make(coords))
    return sizes


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_the_same(case, tables, monkeypatch):
    encoding, coords = CASES[case]
    got = encoding(coords)
    assert sum(tables) < coords.numel() / 3  # it was made of tables
    monkeypatch.setattr(phases, "FEWER", 10**30)
    want = encoding(coords)
    assert got.cos.shape == want.cos.shape
    assert torch.equal(got.cos, want.cos)
    assert torch.equal(got.sin, want.sin)


def test_pairs_that_stand_still_and_heads_of_their_own(tables):
    # Head 0 turns its pairs with (y, x, none), head 1 with (y, x, x), at multiples of known turns.
    turns = [[[Fraction(1, 8), 0, 0], [0, Fraction(1, 4), 0]], [[Fraction(1, 2), 0, 0], [0, 0, Fraction(1, 8)]]]
    freqs = [[[phases.TURN * turn.numerator / turn.denominator if turn else phases.TURN * 0 for turn in row]
              for row in head] for head in turns]  # fmt: skip
    coords = grid_coords(9, 40)
    cos, sin = exact_cos_sin(coords, phase_steps(freqs))
    assert sum(tables) == 9 + 40
    angle = (
        2
        * torch.pi
        * (coords.double() @ torch.tensor([[[float(t) for t in row] for row in h] for h in turns]).double())
    )
    torch.testing.assert_close(cos.double(), angle.cos(), rtol=0, atol=1e-7)
    torch.testing.assert_close(sin.double(), angle.sin(), rtol=0, atol=1e-7)
    assert torch.equal(cos[0, :, 2], torch.ones(360))


@pytest.mark.parametrize(
    "encoding, coords",
    [
        (RoPE(12, axes=2), torch.tensor([[0, 0], [2**62, 5]]).repeat(50, 1)),
        (RoPE(12, axes=2), torch.tensor([[-(2**63), 0], [2**63 - 1, 5]]).repeat(50, 1)),
        (RoPE(12, axes=2), grid_coords(5, 70).double()),
        (RoPE(8), sequence_coords(400)),
        (RoPE(8), torch.empty(0, 1, dtype=torch.int64)),
        (RoPE(4, axes=2, spectrum=Given(((1.0, 0.5), (0.7, 0.0)))), GRID),  # the first pair turns with both axes
    ],
)
def test_no_table_where_none_helps(encoding, coords, tables):
    assert encoding(coords).cos.shape[-2] == len(coords)
    assert sum(tables) == coords.numel()


def test_mapped_coordinates_cannot_be_looked_at(tables):
    encoding, coords = RoPE(12, axes=2), GRID.expand(3, -1, -1)
    mapped = torch.func.vmap(lambda row: encoding(row).cos)(coords)
    assert torch.equal(mapped, encoding(coords).cos)


def test_sinusoids_are_made_of_tables_too(tables):
    encoding, coords = Sinusoidal(dim=16, axes=2), grid_coords(9, 40)
    rows = torch.cat([encoding(coords[i : i + 1]) for i in range(len(coords))])
    tables.clear()
    assert torch.equal(encoding(coords), rows)
    assert sum(tables) == 9 + 40
