"""How the timestamps of tokens become the coordinates of each slot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int, Int64, Shaped
from torch import Tensor

from ..calendar import calendar_coords, calendar_fields, time_coords
from ..calendar.fields import SHARES, WHOLE
from ..calendar.names import check_name
from ..calendar.timestamps import NANOSECONDS
from ..calendar.zones import read_zone

SLOTS = ("additive", "rotary", "bias")
OWN = ("index", "time", "variate")


@dataclass(frozen=True)
class TokenTimes:
    """The coordinates of tokens that have timestamps, each slot its own.

    Names of coordinates are "index", the number of the token; "time", what `time_coords` gives, in ``per``; "variate",
    the number of the channel; and the fields of `calendar_coords`, such as "fraction_of_day". To an encoding that needs
    whole cells, such as a table, "hour_of_day" and its like are the whole numbers of `calendar_fields`.

    Args:
        coords: Names of the coordinates of the slots "additive", "rotary" and "bias", in order; ``["index"]`` unless
            given. A logit scale shares those of the bias.
        unit: What timestamps count: "s", "ms", "us" or "ns".
        per: Unit of the coordinate "time".
        timezone: Zone of the clock on the wall whose calendar is read; UTC if None.

    Raises:
        ValueError: If a slot, a coordinate, a unit or the zone is unknown.

    Example:
        >>> times = TokenTimes(coords={"rotary": ["time"], "additive": ["index", "fraction_of_week"]}, per="h")
        >>> times(torch.tensor([[0, 3600, 10800]]), "rotary")[0, :, 0]
        tensor([0., 1., 3.], dtype=torch.float64)
    """

    coords: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unit: str = "s"
    per: str = "h"
    timezone: str | None = None

    def __post_init__(self):
        for slot, names in self.coords.items():
            check_name("slot", slot, SLOTS)
            if isinstance(names, str) or not names:
                raise ValueError(f"coords of the {slot} slot must be a list of names, got {names!r}")
            for name in names:
                check_name("coordinate", name, (*OWN, *SHARES, *WHOLE))
        for unit in (self.unit, self.per):
            check_name("unit", unit, NANOSECONDS)
        if self.timezone is not None:
            read_zone(self.timezone, 1)

    def __call__(
        self,
        times: Int64[Tensor, "b n"] | None,
        slot: str,
        *,
        cells: bool = False,
        index: Int[Tensor, "*b n 1"] | None = None,
        variates: int | None = None,
        apart: bool = False,
    ) -> Shaped[Tensor, "*rows m a"]:
        """Coordinates of a slot.

        Args:
            times: Timestamps of the tokens; None if only their order is known.
            slot: "additive", "rotary" or "bias".
            cells: Whether the fields that count are whole numbers.
            index: Number of each token; counted from 0 unless given.
            variates: Channels whose tokens follow each other in a row, all at the same times.
            apart: Whether each channel is a row of its own instead.
        """
        names = self.coords.get(slot, ("index",))
        if index is None:
            assert times is not None
            index = torch.arange(times.shape[-1], device=times.device)[:, None]
        parts = [self._column(name, times, index, cells) for name in names if name != "variate"]
        dtype = torch.int64 if all(part.dtype == torch.int64 for part in parts) else torch.float64
        found = torch.cat(torch.broadcast_tensors(*parts), dim=-1).to(dtype) if parts else index[..., :0]
        if variates is None or (apart and found.ndim == 2 and "variate" not in names):
            return found
        if apart and times is not None:
            found = found.expand(*times.shape[:-1], *found.shape[-2:])
        number = torch.arange(variates, device=found.device)[:, None, None]
        grid = found.unsqueeze(-3).expand(*found.shape[:-2], variates, -1, -1)
        number = number.expand(*grid.shape[:-1], 1).to(dtype)
        columns = iter(grid.split(1, dim=-1))
        grid = torch.cat([number if name == "variate" else next(columns) for name in names], dim=-1)
        return grid.flatten(0, -3) if apart else grid.flatten(-3, -2)

    def _column(self, name: str, times: Any, index: Tensor, cells: bool) -> Tensor:
        if name == "index":
            return index
        if times is None:
            raise ValueError(f"the coordinate {name!r} needs timestamps")
        if name == "time":
            return time_coords(times, self.unit, per=self.per)
        read = calendar_fields if cells and name in WHOLE else calendar_coords
        return read(times, [name], unit=self.unit, timezone=self.timezone)
