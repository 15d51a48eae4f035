"""Rows of segments as one batch of coordinates."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from numbers import Real
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from ..arguments import check_device
from ..calendar.names import check_name
from .placement import Placement, Rule
from .rules import find_rule
from .segments import Audio, Bare, Image, Segment, Series, Text, Together, Video


class MultimodalCoords(NamedTuple):
    """Where the tokens of mixed rows are.

    Args:
        coords: Coordinates (t, y, x): int64 where the rule counts and float64 where it measures; pads have 0.
        mask: True where a token is real. Of packed rows the row that each token is from, for `masks.documents`.
        next_position: The position at which each row goes on, on the three axes, as generation needs it; of the dtype
            of ``coords``. A rule of integers goes on after the largest coordinate of the row, as `get_rope_index` of
            transformers says; its `generate` goes on after the last token, ``coords[:, -1] + 1`` with pads on the left,
            which is less behind a video that lasts longer than the text after it.

    Example:
        >>> _, mask, next_position = multimodal_coords([[Text(2), Image(2, 3)], [Text(1)]], "qwen2_vl")
        >>> next_position
        tensor([5, 1])
        >>> mask.sum(dim=1)
        tensor([8, 1])
    """

    coords: Shaped[Tensor, "rows n 3"]
    mask: Bool[Tensor, "rows n"] | Int[Tensor, "rows n"]
    next_position: Shaped[Tensor, " b"]


def multimodal_coords(
    rows: Sequence[Sequence[Segment | Bare]],
    rule: str | Rule,
    *,
    padding: str = "right",
    packed: bool = False,
    device: torch.device | str | None = None,
    **options: Any,
) -> MultimodalCoords:
    """Coordinates (t, y, x) of rows in which text, images, videos, audio and series stand in any order.

    Every row starts at position 0, and a rule places one segment after the other; `docs/multimodal.md` has them all.

    Args:
        rows: Each a list of `Text`, `Image`, `Video`, `Audio`, `Series`, `Together` or `Bare`, in the order of tokens.
        rule: "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen2_5_omni", "sequential", "videorope", "v2pe", "aligned", a
            name given to `register_rule`, or a function as described there.
        padding: Side on which shorter rows are padded, "right" or "left".
        packed: Rows stand one behind the other in one row without pads, each from position 0.
        device: Where the results lie.
        options: Options of the rule, such as ``after="max"`` of the Qwen family.

    Returns:
        ``coords (b, n, 3)``, ``mask (b, n)`` and ``next_position (b,)``; packed, the first two have one row.

    Raises:
        ValueError: If the rule or the padding is unknown, or a segment or an option is not what the rule can place.
        TypeError: If rows are not lists of segments, ``packed`` is not boolean, the rule has no such option, or a rule
            of the user's own does not give a position for each token.

    Example:
        >>> rows = [[Text(2), Image(2, 3), Text(1)], [Video(2, 1, 2, fps=1.0)]]
        >>> coords, mask, next_position = multimodal_coords(rows, rule="qwen2_vl", padding="left")
        >>> coords[0].T
        tensor([[0, 1, 2, 2, 2, 2, 2, 2, 5],
                [0, 1, 2, 2, 2, 3, 3, 3, 5],
                [0, 1, 2, 3, 4, 2, 3, 4, 5]])
        >>> coords[1, -4:].T
        tensor([[0, 0, 1, 1],
                [0, 0, 0, 0],
                [0, 1, 0, 1]])
        >>> mask[1], next_position
        (tensor([False, False, False, False, False,  True,  True,  True,  True]), tensor([6, 2]))
    """
    check_name("padding", padding, ("right", "left"))
    if not isinstance(packed, bool):
        raise TypeError(f"packed must be True or False, got {packed!r}")
    _check_rows(rows)
    check_device(device)
    place = find_rule(rule, options)
    device = torch.get_default_device() if device is None else device
    on_cpu = torch.get_default_device().type == "cpu"
    with nullcontext() if on_cpu else torch.device("cpu"):  # many small steps whose results are looked at
        # A token of text tells the dtype of the rule, for rows in which it places nothing.
        dtype = _read_placement(place(Text(1), 0), Text(1)).coords.dtype
        coords, mask, next_position = _join([_place_row(row, place) for row in rows], dtype, padding, packed)
    return MultimodalCoords(coords.to(device), mask.to(device), next_position.to(device))


def _join(
    placed: list[tuple[Tensor, float]], dtype: torch.dtype, padding: str, packed: bool
) -> tuple[Shaped[Tensor, "rows n 3"], Shaped[Tensor, "rows n"], Shaped[Tensor, " b"]]:
    """Rows as a batch."""
    if dtype.is_floating_point or any(coords.is_floating_point() for coords, _ in placed):
        dtype = torch.float64
    next_position = torch.tensor([position for _, position in placed], dtype=dtype)
    lengths = torch.tensor([len(coords) for coords, _ in placed], dtype=torch.int64)
    real = torch.cat([coords.to(dtype) for coords, _ in placed] or [torch.zeros(0, 3, dtype=dtype)])
    if packed:
        coords, mask = real[None], torch.arange(len(placed)).repeat_interleave(lengths)[None]
    else:
        places = torch.arange(int(lengths.max()) if placed else 0)
        mask = places < lengths[:, None] if padding == "right" else places >= len(places) - lengths[:, None]
        coords = torch.zeros(*mask.shape, 3, dtype=dtype)
        coords[mask] = real
    return coords, mask, next_position


def _check_rows(rows: Sequence[Sequence[Segment | Bare]]) -> None:
    if not isinstance(rows, Sequence) or isinstance(rows, str):  # an iterator would be used up by this look at it
        raise TypeError(f"rows must be a list of lists of segments, got {rows!r}")
    for number, row in enumerate(rows):
        if not isinstance(row, Sequence) or isinstance(row, str):
            raise TypeError(f"rows must be a list of lists of segments, got {row!r} at rows[{number}]")
        for place, segment in enumerate(row):
            if not isinstance(segment, Text | Bare | Image | Video | Audio | Series | Together):
                raise TypeError(f"rows[{number}][{place}] must be a segment such as Text(3), got {segment!r}")


def _place_row(row: Sequence[Segment | Bare], place: Rule) -> tuple[Shaped[Tensor, "n 3"], float]:
    """Coordinates of the tokens of a row that are kept, and the position at which it goes on."""
    position, coords, ends = 0, [], []
    for segment in row:
        if isinstance(segment, Bare):
            coords.append(torch.zeros(segment.size, 3, dtype=torch.int64))
            continue
        placed = _read_placement(place(segment, position), segment)
        position, own = placed.next_position, placed.coords
        keep = None if isinstance(segment, Text) else segment.keep
        if not own.is_floating_point():
            ends.append(int(own.max()) + 1)
        if placed.order is not None:
            own, keep = own[placed.order], None if keep is None else keep[placed.order]
        coords.append(own if keep is None else own[keep])
    return torch.cat(coords or [torch.zeros(0, 3, dtype=torch.int64)]), max([position, *ends])


def _read_placement(result: Placement | tuple[Tensor, float], segment: Segment) -> Placement:
    if not isinstance(result, tuple) or len(result) < 2:
        raise TypeError(f"a rule must give coordinates and the next position of {segment!r}, got {result!r}")
    placed = result if isinstance(result, Placement) else Placement(result[0], result[1])
    coords, order = placed.coords, placed.order
    dtypes = (torch.int64, torch.float32, torch.float64)
    if not isinstance(coords, Tensor) or coords.shape != (segment.size, 3) or coords.dtype not in dtypes:
        got = f"{coords.dtype} {tuple(coords.shape)}" if isinstance(coords, Tensor) else repr(coords)
        raise TypeError(f"a rule must place {segment!r} at int64 or float64 ({segment.size}, 3), got {got}")
    if not isinstance(placed.next_position, Real):
        raise TypeError(f"a rule must give the next position as a number, got {placed.next_position!r}")
    if not math.isfinite(placed.next_position):
        raise ValueError(f"a rule must give a finite next position, got {placed.next_position} behind {segment!r}")
    if order is not None and not torch.equal(torch.as_tensor(order).sort().values, torch.arange(segment.size)):
        raise ValueError(f"a rule must order each token of {segment!r} once, got {order!r}")
    return placed
