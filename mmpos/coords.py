"""Where tokens are: coordinates ``(..., n, a)`` with the axes in the order (t, y, x).

This file alone decides the order of axes and of tokens: row-major, zero-based, the last axis fastest.
Coordinates are int64 where they are indices and float64 where they are real numbers.
"""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Integer, Shaped
from torch import Tensor

from .arguments import check_count, check_device, check_int64, check_integers, check_mask, check_real, is_sequence, move


def sequence_coords(
    length: int, offset: int | Integer[Tensor, "*batch"] = 0, *, device: torch.device | str | None = None
) -> Int[Tensor, "*batch n 1"]:
    """Positions ``offset, offset + 1, ...`` of the tokens of a sequence.

    Args:
        length: Number of tokens ``n``.
        offset: Position of the first token: one for all, or an integer tensor with one per row, as decoding
            with a cache needs it (the number of tokens seen so far).
        device: Where the result lies; the offset's device if that is a tensor.

    Raises:
        ValueError: If ``length`` is negative, or int64 does not hold the positions.
        TypeError: If ``length`` or ``offset`` is not an integer.

    Example:
        >>> sequence_coords(3, offset=torch.tensor([0, 7]))[..., 0]
        tensor([[0, 1, 2],
                [7, 8, 9]])
    """
    check_count("length", length)
    check_device(device)
    if not isinstance(offset, Tensor):
        check_int64("offset", offset)
        if isinstance(offset, Integral) and offset + length > 2**63:
            raise ValueError(f"offset ({offset}) + length ({length}) must be at most 2^63, the end of int64")
        return (torch.arange(length, device=device) + offset)[:, None]
    check_integers("offset", offset)
    offset = move("offset", offset, device).to(torch.int64)
    return (torch.arange(length, device=offset.device) + offset[..., None])[..., None]


def grid_coords(
    height: int,
    width: int,
    spacing: float | Sequence[float] = 1,
    origin: float | Sequence[float] = 0,
    *,
    device: torch.device | str | None = None,
) -> Shaped[Tensor, "n 2"]:
    """Coordinates (y, x) of the cells of an image grid, row by row.

    Args:
        height: Number of rows.
        width: Number of columns.
        spacing: Distance between neighbours in coordinate units, one for both axes or one for each.
        origin: Coordinate of the first cell, one for both axes or one for each.
        device: Where the result lies.

    Returns:
        ``(height * width, 2)``: int64 if spacing and origin are integers, float64 otherwise.

    Raises:
        ValueError: If a size is negative, or spacing or origin does not have one number per axis.
        TypeError: If a size is not an integer, or spacing or origin not a number.

    Example:
        >>> grid_coords(height=2, width=3).T
        tensor([[0, 0, 0, 1, 1, 1],
                [0, 1, 2, 0, 1, 2]])
    """
    return _lattice({"height": height, "width": width}, spacing, origin, device)


def video_coords(
    frames: int,
    height: int,
    width: int,
    spacing: float | Sequence[float] = 1,
    origin: float | Sequence[float] = 0,
    *,
    device: torch.device | str | None = None,
) -> Shaped[Tensor, "n 3"]:
    """Coordinates (t, y, x) of the cells of a video, frame by frame and row by row.

    Args:
        frames: Number of frames.
        height: Number of rows.
        width: Number of columns.
        spacing: Distance between neighbours in coordinate units, one for all axes or one for each; for example
            ``(1 / fps, 1, 1)`` for seconds on the first axis.
        origin: Coordinate of the first cell, one for all axes or one for each.
        device: Where the result lies.

    Returns:
        ``(frames * height * width, 3)``: int64 if spacing and origin are integers, float64 otherwise.

    Raises:
        ValueError: If a size is negative, or spacing or origin does not have one number per axis.
        TypeError: If a size is not an integer, or spacing or origin not a number.

    Example:
        >>> video_coords(frames=2, height=3, width=4)[13]
        tensor([1, 0, 1])
    """
    return _lattice({"frames": frames, "height": height, "width": width}, spacing, origin, device)


def volume_coords(
    depth: int,
    height: int,
    width: int,
    spacing: float | Sequence[float] = 1,
    origin: float | Sequence[float] = 0,
    *,
    device: torch.device | str | None = None,
) -> Shaped[Tensor, "n 3"]:
    """Coordinates (z, y, x) of the voxels of a volume, slice by slice and row by row.

    Args:
        depth: Number of slices.
        height: Number of rows.
        width: Number of columns.
        spacing: Distance between neighbours, one for all axes or one for each; for example the voxel size in
            millimetres ``(5.0, 0.7, 0.7)`` of a scan with thick slices.
        origin: Coordinate of the first voxel, one for all axes or one for each.
        device: Where the result lies.

    Returns:
        ``(depth * height * width, 3)``: int64 if spacing and origin are integers, float64 otherwise.

    Raises:
        ValueError: If a size is negative, or spacing or origin does not have one number per axis.
        TypeError: If a size is not an integer, or spacing or origin not a number.

    Example:
        >>> volume_coords(depth=2, height=3, width=4, spacing=(5.0, 1.0, 1.0))[12]
        tensor([5., 0., 0.], dtype=torch.float64)
    """
    return _lattice({"depth": depth, "height": height, "width": width}, spacing, origin, device)


def packed_coords(
    lengths: Sequence[int] | Integer[Tensor, " documents"], gap: int = 0, *, device: torch.device | str | None = None
) -> tuple[Int[Tensor, "n 1"], Int[Tensor, " n"]]:
    """Positions and document numbers of documents packed end to end into one row.

    Token ``i`` of document ``j`` stands at ``i + j * gap``: by default every document starts at 0 again.

    Args:
        lengths: Tokens of each document; a document may be empty.
        gap: Distance from the start of one document to the start of the next, in positions.
        device: Where the results lie; the device of ``lengths`` if that is a tensor.

    Returns:
        Positions ``(n, 1)`` and the document of each token ``(n,)``, both int64. Only a mask made of the latter
        keeps attention from reaching across documents.

    Raises:
        ValueError: If a length is negative or ``lengths`` has more than one axis.
        TypeError: If lengths or gap are not integers.

    Example:
        >>> coords, document = packed_coords([3, 2])
        >>> coords[:, 0], document
        (tensor([0, 1, 2, 0, 1]), tensor([0, 0, 0, 1, 1]))
    """
    check_int64("gap", gap)
    check_device(device)
    total = None
    if not isinstance(lengths, Tensor):
        if not isinstance(lengths, Sequence) or isinstance(lengths, str | bytes):
            raise TypeError(f"lengths must be a sequence or a tensor of integers, got {lengths!r}")
        for length in lengths:
            check_count("lengths", length)
        total, lengths = sum(lengths), torch.tensor(lengths, dtype=torch.int64, device=device)
    check_integers("lengths", lengths)
    if lengths.ndim != 1:
        raise ValueError(f"lengths must have one axis, got shape {tuple(lengths.shape)}")
    if isinstance(gap, Integral) and abs(gap) * max(len(lengths) - 1, 1) >= 2**62:
        raise ValueError(f"gap ({gap}) times the {len(lengths)} documents must fit into int64")
    lengths = move("lengths", lengths, device).to(torch.int64)
    if lengths.is_meta and total is None:
        raise ValueError("lengths must be numbers where they lie on the meta device, which holds none")
    if lengths.numel() and not lengths.is_meta and lengths.min() < 0:
        raise ValueError(f"lengths must not be negative, got {lengths.min().item()}")
    document = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths, output_size=total)
    start = lengths.cumsum(0) - lengths
    position = torch.arange(len(document), device=lengths.device) - start[document]
    return (position + document * gap)[:, None], document


def padded_coords(mask: Bool[Tensor, "b *grid"], *, device: torch.device | str | None = None) -> Int[Tensor, "b n a"]:
    """Positions of the real tokens of padded rows, counted per row and per axis; pads get 0.

    Padding may stand on any side. A mask of images ``(b, height, width)`` gives grids (y, x), one of videos
    ``(b, frames, height, width)`` gives (t, y, x), with tokens in row-major order.

    Args:
        mask: True where a token is real.
        device: Where the result lies; the mask's device unless given.

    Raises:
        TypeError: If the mask is not boolean.
        ValueError: If the mask has no axis besides the batch.

    Example:
        >>> padded_coords(torch.tensor([[False, False, True, True], [True, True, True, False]]))[..., 0]
        tensor([[0, 0, 0, 1],
                [0, 1, 2, 0]])

    Reference:
        Counting real cells along each axis of an image follows DETR: Carion et al., 2020, sec. A.4.
        https://arxiv.org/abs/2005.12872
    """
    check_mask("mask", mask, "is a real token")
    check_device(device)
    if mask.ndim < 2:
        raise ValueError(f"mask must have a batch axis and at least one other, got shape {tuple(mask.shape)}")
    mask = move("mask", mask, device)
    counts = [(mask.cumsum(axis) - 1).where(mask, 0) for axis in range(1, mask.ndim)]
    return torch.stack(counts, dim=-1).flatten(1, -2)


def sphere_coords(
    latitude: Shaped[Tensor, "..."] | float | Sequence[float],
    longitude: Shaped[Tensor, "..."] | float | Sequence[float],
    *,
    device: torch.device | str | None = None,
) -> Float[Tensor, "*batch n 3"]:
    """Unit vectors (z, y, x) of places on a sphere: z to the north pole, x to longitude 0, y to 90 degrees east.

    Near places have near coordinates: there is no seam at 180 degrees, and a pole is one point whatever the longitude.
    At multiples of 90 degrees coordinates are exact.

    Args:
        latitude: Degrees north of the equator, from -90 to 90. Shapes ``(..., n)`` broadcast; a number is one token.
        longitude: Degrees east, any number; 180 and -180 are the same.
        device: Where the result lies; the device of a tensor among the two unless given.

    Returns:
        ``(..., n, 3)`` in float64: ``(sin lat, cos lat sin lon, cos lat cos lon)``. The tokens of a grid of latitudes
        and longitudes stand row by row in ``sphere_coords(latitude[:, None], longitude).flatten(0, 1)``.

    Raises:
        ValueError: If a latitude is outside -90 to 90 (compiled and on the meta device such a place is NaN), or the
            shapes do not broadcast.
        TypeError: If they are boolean, complex or half precision.

    Example:
        >>> sphere_coords([0, 90, -30], longitude=[180, 12.5, 90])
        tensor([[ 0.0000,  0.0000, -1.0000],
                [ 1.0000,  0.0000,  0.0000],
                [-0.5000,  0.8660,  0.0000]], dtype=torch.float64)
    """
    check_device(device)
    if device is None:
        device = next((each.device for each in (latitude, longitude) if isinstance(each, Tensor)), None)
    lat, lon = _degrees("latitude", latitude, device), _degrees("longitude", longitude, device)
    if lat.device != lon.device:
        raise ValueError(f"latitude is on {lat.device} but longitude on {lon.device}")
    try:
        lat, lon = torch.broadcast_tensors(lat, lon)
    except RuntimeError as error:
        raise ValueError(
            f"latitude and longitude must broadcast, got shapes {tuple(lat.shape)} and {tuple(lon.shape)}"
        ) from error
    outside = lat.abs() > 90
    if not torch.compiler.is_compiling() and not lat.is_meta and outside.any():
        raise ValueError(f"latitude must be from -90 to 90 degrees, got {lat[outside][0].item():g}")
    (z, radius), (east, front) = _sin_cos(lat.masked_fill(outside, torch.nan)), _sin_cos(lon)
    # Adding 0 turns the zeros that have a sign into those that have none.
    coords = torch.stack([z, radius * east, radius * front], dim=-1) + 0.0
    return coords if coords.ndim > 1 else coords[None]


def _degrees(name: str, value: Tensor | float | Sequence[float], device) -> Float[Tensor, "..."]:
    if isinstance(value, Tensor) and (
        value.dtype == torch.bool or value.is_complex() or (value.is_floating_point() and value.dtype.itemsize < 4)
    ):
        raise TypeError(f"{name} must be degrees in integers, float32 or float64, got {value.dtype}")
    if isinstance(value, Tensor):
        return move(name, value, device).double()
    try:
        found = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"{name} must be degrees, a number or a sequence of numbers, got {value!r}") from error
    return found.to(device)


def _sin_cos(degrees: Float[Tensor, "*shape"]) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Sine and cosine, exact at multiples of 90 degrees: what is left of whole quarters is exact and at most 45."""
    quarters = (degrees / 90).round()
    rest = torch.deg2rad(degrees - 90 * quarters)
    sin, cos, quarters = rest.sin(), rest.cos(), quarters.remainder(4)
    odd = quarters.remainder(2) == 1
    sin, cos = cos.where(odd, sin), sin.where(odd, cos)
    return (-sin).where(quarters >= 2, sin), (-cos).where((quarters == 1) | (quarters == 2), cos)


def _lattice(sizes: dict[str, int], spacing, origin, device) -> Shaped[Tensor, "n a"]:
    """All points of a regular grid with named sizes, the last axis fastest."""
    check_device(device)
    for name, size in sizes.items():
        check_count(name, size)
    steps, starts = _per_axis("spacing", spacing, sizes), _per_axis("origin", origin, sizes)
    dtype = torch.int64 if all(isinstance(number, Integral) for number in steps + starts) else torch.float64
    for (name, size), step, start in zip(sizes.items(), steps, starts, strict=True):
        if dtype == torch.int64 and max(abs(start), abs(step * size + start)) >= 2**63:
            raise ValueError(f"origin ({start}) + spacing ({step}) * {name} ({size}) must fit into int64")
    axes = [
        torch.arange(size, dtype=dtype, device=device) * step + start
        for size, step, start in zip(sizes.values(), steps, starts, strict=True)
    ]
    return torch.stack(torch.meshgrid(axes, indexing="ij"), dim=-1).flatten(0, -2)


def _per_axis(name: str, value: float | Sequence[float], sizes: dict[str, int]) -> list[float]:
    values: list[Any] = list(value) if is_sequence(value) else [value] * len(sizes)
    if len(values) != len(sizes):
        raise ValueError(f"{name} must be one number or one for each of {', '.join(sizes)}, got {value!r}")
    for number in values:
        if isinstance(number, bool) or not isinstance(number, Real):
            raise TypeError(f"{name} must be made of numbers, got {value!r}")
        check_real(name, number)
    return values
