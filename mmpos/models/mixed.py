"""Rows of segments with what stands in them."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..multimodal import Audio, Image, Text, Together, Video

KINDS: dict[type, str] = {Text: "tokens", Image: "patches", Video: "patches", Audio: "sound"}
"""What stands in a segment."""

CONTENTS = tuple(dict.fromkeys(KINDS.values()))


class MixedRows:
    """Rows of segments with what stands in them, as one batch; it moves to a device as a tensor does.

    Args:
        rows: Each a list of pairs of a segment and its content: numbers of tokens ``(length,)`` for `Text`, patches
            ``(tokens, p)`` for `Image` and `Video`, frames ``(tokens, c)`` for `Audio`, a list of these for `Together`.
            Where ``keep`` drops tokens, the content is of those that are kept.

    Raises:
        TypeError: If a row is no list of pairs, a segment is of a kind that has no content, text is not int64 or
            anything else not floating point.
        ValueError: If a content is not as long as its segment, or not as wide as the others of its kind.

    Example:
        >>> row = [(Text(2), torch.tensor([72, 105])), (Image(2, 3), torch.randn(6, 16))]
        >>> mixed = MixedRows([row, row[:1]])
        >>> mixed.tokens.shape, mixed.patches.shape, len(mixed)
        (torch.Size([4]), torch.Size([6, 16]), 2)
    """

    def __init__(self, rows: Sequence[Sequence[tuple[Any, Any]]]):
        for number, row in enumerate(rows):
            if not isinstance(row, Sequence) or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in row):
                raise TypeError(f"rows[{number}] must be a list of pairs of a segment and its content, got {row!r}")
        self.segments = [[segment for segment, _ in row] for row in rows]
        found: dict[str, list[Tensor]] = {name: [] for name in CONTENTS}
        for segment, content in (pair for row in rows for pair in row):
            parts = segment.segments if isinstance(segment, Together) else (segment,)
            contents = content if isinstance(segment, Together) else (content,)
            if not isinstance(contents, Sequence | Tensor):
                raise TypeError(f"the content of {segment!r} must be a list of those of its segments, got {contents!r}")
            if len(contents) != len(parts):
                raise ValueError(f"{segment!r} needs a content for each of its segments, got {len(contents)}")
            for part, own in zip(parts, contents, strict=True):
                found[kind_of(part)].append(_check_content(part, own))
        for name, contents in found.items():
            if name != "tokens" and len(widths := {content.shape[1] for content in contents}) > 1:
                raise ValueError(f"{name} must be of one width, got {', '.join(map(str, sorted(widths)))}")
        self.tokens: Int64[Tensor, " text"] = torch.cat([torch.empty(0, dtype=torch.int64), *found["tokens"]])
        self.patches: Float[Tensor, "visual p"] = torch.cat(found["patches"] or [torch.empty(0, 0)])
        self.sound: Float[Tensor, "frames c"] = torch.cat(found["sound"] or [torch.empty(0, 0)])

    def __len__(self) -> int:
        return len(self.segments)

    def to(self, device: torch.device | str, **options: Any) -> "MixedRows":
        """The same rows on another device."""
        moved = object.__new__(MixedRows)
        moved.segments = self.segments
        moved.tokens = self.tokens.to(device, **options)
        moved.patches, moved.sound = self.patches.to(device, **options), self.sound.to(device, **options)
        return moved


def kind_of(segment: Any) -> str:
    """What stands in a segment: "tokens", "patches" or "sound"."""
    if type(segment) not in KINDS:
        raise TypeError(f"rows of a model are made of Text, Image, Video, Audio and Together, got {segment!r}")
    return KINDS[type(segment)]


def _check_content(segment: Any, content: Tensor) -> Tensor:
    text = isinstance(segment, Text)
    if not isinstance(content, Tensor):
        raise TypeError(f"the content of {segment!r} must be a tensor, got {content!r}")
    if not text and not content.is_floating_point():
        raise TypeError(f"the content of {segment!r} must be floating point, got {content.dtype}")
    count = segment.size if isinstance(segment, Text) or segment.keep is None else int(segment.keep.sum())
    if text and content.dtype != torch.int64:
        raise TypeError(f"the content of {segment!r} must be int64, got {content.dtype}")
    if content.ndim != (1 if text else 2) or len(content) != count:
        shape = f"({count},)" if text else f"({count}, width)"
        raise ValueError(f"the content of {segment!r} must have shape {shape}, got {tuple(content.shape)}")
    return content
