"""Several additive encodings as one, each on axes of its own."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ..base import AdditiveEncoding
from ..checks import check_coords, check_length
from .finite import finite_or_nan

Axes = tuple[tuple[int, ...], ...]


class Sum(AdditiveEncoding):
    """Adds up what several encodings give, each on the axes that are its own.

    Args:
        parts: Additive encodings of the same ``dim``.
        on: The axes of the coordinates that each part takes, from 0, in the order in which it takes them; all axes
            for all parts if None. An axis may serve several parts, and none may be left out.

    Raises:
        ValueError: If there is no part, widths differ, or ``on`` does not fit the parts.
        TypeError: If a part is no additive encoding, or ``on`` is not made of integers.

    Example:
        >>> when, where = Sinusoidal(dim=384), LearnedTable(dim=384, size=(14, 10))
        >>> encoding = Sum([when, where], on=[(0,), (1, 2)])
        >>> encoding(video_coords(frames=4, height=14, width=10)).shape
        torch.Size([560, 384])
    """

    def __init__(self, parts: Sequence[AdditiveEncoding], on: Sequence[Sequence[int]] | None = None):
        super().__init__()
        self.on, self.axes = _place("Sum", parts, on)
        widths = [part.dim for part in parts]
        if len(set(widths)) > 1:
            raise ValueError(
                f"parts of Sum must have the same dim, got {_listed(widths)}; Concat puts parts side by side instead"
            )
        self.parts, self.dim = nn.ModuleList(parts), widths[0]
        self.needs_cells = any(part.needs_cells for part in parts)

    @property
    def example_coords(self) -> Callable[[int], Tensor] | None:
        """Where a part holds some places only: makes ``n`` coordinates that all parts hold, for tests."""
        return _example(self)

    def no_weight_decay(self) -> set[str]:
        return _no_weight_decay(self)

    def reset_parameters(self) -> None:
        """Resets every part that can be."""
        _reset(self)

    def resize(self, *size: int) -> "Sum":
        """A new sum of parts for a grid of this size, each of the sides of its axes; itself if no part has a size."""
        parts = _resize(self, size)
        return self if parts is None else Sum(parts, self.on).train(self.training)

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        results = _evaluate(self, coords, length)
        return sum(results[1:], results[0])

    def extra_repr(self) -> str:
        return f"on={self.on}"


class Concat(AdditiveEncoding):
    """Puts what several encodings give side by side, each on the axes that are its own.

    Args:
        parts: Additive encodings, whose widths add up to ``dim``.
        on: The axes of the coordinates that each part takes, from 0, in the order in which it takes them; all axes
            for all parts if None. An axis may serve several parts, and none may be left out.

    Raises:
        ValueError: If there is no part or ``on`` does not fit the parts.
        TypeError: If a part is no additive encoding, or ``on`` is not made of integers.

    Example:
        >>> encoding = Concat([Sinusoidal(dim=128), LearnableFourier(dim=256, axes=2)], on=[(0,), (1, 2)])
        >>> encoding(video_coords(frames=4, height=14, width=10)).shape
        torch.Size([560, 384])
    """

    def __init__(self, parts: Sequence[AdditiveEncoding], on: Sequence[Sequence[int]] | None = None):
        super().__init__()
        self.on, self.axes = _place("Concat", parts, on)
        self.parts, self.dim = nn.ModuleList(parts), sum(part.dim for part in parts)
        self.needs_cells = any(part.needs_cells for part in parts)

    @property
    def example_coords(self) -> Callable[[int], Tensor] | None:
        """Where a part holds some places only: makes ``n`` coordinates that all parts hold, for tests."""
        return _example(self)

    def no_weight_decay(self) -> set[str]:
        return _no_weight_decay(self)

    def reset_parameters(self) -> None:
        """Resets every part that can be."""
        _reset(self)

    def resize(self, *size: int) -> "Concat":
        """A new one with parts for a grid of this size, each of the sides of its axes; itself if no part has a size."""
        parts = _resize(self, size)
        return self if parts is None else Concat(parts, self.on).train(self.training)

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        return torch.cat(_evaluate(self, coords, length), dim=-1)

    def extra_repr(self) -> str:
        return f"on={self.on}"


def _place(name: str, parts: Sequence[AdditiveEncoding], on: Sequence[Sequence[int]] | None) -> tuple[Axes, int]:
    """The axes of each part, and how many there are."""
    if not isinstance(parts, Sequence) or not parts:
        raise ValueError(f"parts of {name} must be a sequence of one additive encoding or more, got {parts!r}")
    for part in parts:
        if not isinstance(part, AdditiveEncoding):
            raise TypeError(f"parts of {name} must be built additive encodings, got {part!r}")
    if on is None:
        counts = [part.axes for part in parts]
        if len(set(counts)) > 1:
            raise ValueError(f"parts have axes={_listed(counts)}: say with on which axes each takes")
        return (tuple(range(counts[0])),) * len(parts), counts[0]
    rows = [on, *on] if isinstance(on, Sequence) else [on]
    if any(isinstance(row, str | bytes) or not isinstance(row, Sequence) for row in rows):
        raise TypeError(f"on must be a sequence of axes for each part, got {on!r}")
    if len(on) != len(parts):
        raise ValueError(f"on must have axes for each of the {len(parts)} parts, got {on!r}")
    placed: Axes = tuple(tuple(axes) for axes in on)
    used = [axis for axes in placed for axis in axes]
    if any(isinstance(axis, bool) or not isinstance(axis, int) for axis in used):
        raise TypeError(f"on must be made of integers, got {on!r}")
    if sorted(set(used)) != list(range(len(set(used)))) or any(len(set(axes)) != len(axes) for axes in placed):
        raise ValueError(f"on must name every axis from 0 up, and none twice for a part, got {on!r}")
    for part, axes in zip(parts, placed, strict=True):
        if part.axes != len(axes):
            raise ValueError(f"{type(part).__name__} has axes={part.axes}, but on gives it {axes}")
    return placed, len(set(used))


def _parts(combined: Sum | Concat) -> list[tuple[AdditiveEncoding, tuple[int, ...]]]:
    return list(zip(cast(list[AdditiveEncoding], list(combined.parts)), combined.on, strict=True))


def _evaluate(combined: Sum | Concat, coords: Tensor, length: int | Tensor | None) -> list[Tensor]:
    """The vectors of each part; all are NaN for a token with a coordinate that is no number on any axis."""
    check_coords(coords, combined.axes)
    check_length(length)
    columns = finite_or_nan(coords).unbind(-1)
    return [
        part(torch.stack([columns[axis] for axis in axes], dim=-1), length=length) for part, axes in _parts(combined)
    ]


def _no_weight_decay(combined: Sum | Concat) -> set[str]:
    names = {f"parts.{i}.{name}" for i, (part, _) in enumerate(_parts(combined)) for name in part.no_weight_decay()}
    return names & {name for name, _ in combined.named_parameters()}  # a part that stands twice has one name


def _reset(combined: Sum | Concat) -> None:
    for part, _ in _parts(combined):
        reset = getattr(part, "reset_parameters", None)
        if reset is not None:
            reset()


def _resize(combined: Sum | Concat, size: Sequence[int]) -> list[AdditiveEncoding] | None:
    """Parts for another size, which share nothing with the old ones; None if all would stay as they are."""
    if len(size) != combined.axes:
        raise ValueError(f"size must be {combined.axes} numbers, one for each axis, got {tuple(size)}")
    resized = [(part, part.resize(*(size[axis] for axis in axes))) for part, axes in _parts(combined)]
    if all(new is old for old, new in resized):
        return None
    return [copy.deepcopy(new) if new is old else new for old, new in resized]


def _example(combined: Sum | Concat) -> Callable[[int], Tensor] | None:
    limited = any(getattr(part, "example_coords", None) is not None for part, _ in _parts(combined))
    return partial(_example_coords, combined) if limited else None


def _example_coords(combined: Sum | Concat, n: int) -> Shaped[Tensor, "n a"]:
    columns: dict[int, Tensor] = {}
    for part, axes in _parts(combined):
        example = getattr(part, "example_coords", None)
        if example is not None:
            for axis, column in zip(axes, example(n).unbind(-1), strict=True):
                columns[axis] = torch.minimum(columns[axis], column) if axis in columns else column
    return torch.stack([columns.get(axis, torch.arange(n)) for axis in range(combined.axes)], dim=-1)


def _listed(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))
