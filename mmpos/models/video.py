"""A Vision Transformer for clips: tubelets of pixels over a few frames become tokens."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Literal, get_args

import torch
from einops import rearrange
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ..arguments import check_count
from ..coords import sequence_coords, video_coords
from ..factory import Slot
from ..transforms import rescale
from ..values import check_arguments
from .blocks import LAYER_NORM, check_blocks, make_blocks, no_weight_decay_names, share_weights
from .grid import GridPositions, check_kept
from .image import Extension
from .stack import SCALINGS, AdditiveTo, StackEncodings

Rate = float | Int[Tensor, " b"] | Float[Tensor, " b"]
"""Frames per second: one number for all clips, or one for each."""

Attention = Literal["joint", "factorised"]
Axes = Literal["all", "time", "space"]


class VideoTransformer(nn.Module):
    """Classifies clips: tubelets become tokens with coordinates (t, y, x), blocks mix them, their mean is read out.

    ``y`` and ``x`` count patches. ``t`` is the time at which a tubelet begins, in tubelets at the rate ``fps`` or in
    seconds. So a clip of another rate, which its call names, has the times that it has, and the same motion in twice
    the frames lies on the same coordinates. Any number of frames and any size work that the tubelets divide, as far as
    the encodings reach; `at_size` helps them reach further.

    Args:
        clip_size: (frames, height, width) that the model is made for, a multiple of ``tubelet_size``; it shapes
            learned tables, which hold cells of the grid whatever the rate is.
        tubelet_size: (frames, height, width) of a tubelet.
        in_chans: Channels of a frame.
        num_classes: Width of the output; with 0 the output is what the head would read.
        dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads per block.
        fps: Frames per second of clips whose call names no rate.
        time: Unit of ``t``: "tubelets", whole numbers at the rate ``fps``, or "seconds".
        attention: "joint": all tokens see each other. "factorised": the blocks take turns; those of even number see the
            tokens of a frame, the others those of a place at all times.
        drop_path: Probability that a sample skips a branch in training, in the last block; it grows linearly to that.
        block: Further arguments of the blocks, such as ``{"qk_norm": True}``; see `Block`.
        positions: How patches of a frame become coordinates (y, x); `GridPositions` or its arguments.
        norm_layer: Makes a normalisation of so many channels.
        additive: Slot of what is added to the tokens.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        scale: Slot of what multiplies the logits.
        additive_to: Where the additive encoding enters: "tokens", once, or "queries_keys", of every block, which see
            all tokens then.

    Raises:
        ValueError: If the tubelets do not divide the clip, the heads do not divide ``dim``, a slot cannot be built, or
            a name or the rate is none.

    Example:
        >>> rope = {"name": "RoPE", "axes": 3, "base": 100.0}
        >>> vit = VideoTransformer((4, 8, 12), (2, 4, 2), dim=48, depth=2, fps=8.0, rotary=rope)
        >>> vit(torch.randn(2, 1, 4, 8, 12)).shape, vit(torch.randn(2, 1, 8, 8, 12), fps=16.0).shape
        (torch.Size([2, 10]), torch.Size([2, 10]))

    Reference:
        Arnab et al., ViViT, 2021, sec. 3.2 and 3.3; "factorised" has a whole block for space and one for time, where
        its model 3 has one MLP behind both attentions. https://arxiv.org/abs/2103.15691
    """

    def __init__(
        self,
        clip_size: tuple[int, int, int] = (8, 24, 24),
        tubelet_size: tuple[int, int, int] = (1, 12, 12),
        in_chans: int = 1,
        num_classes: int = 10,
        dim: int = 48,
        depth: int = 4,
        num_heads: int = 4,
        *,
        fps: float = 8.0,
        time: Literal["tubelets", "seconds"] = "tubelets",
        attention: Attention = "joint",
        drop_path: float = 0.0,
        block: Mapping[str, Any] | None = None,
        positions: GridPositions | Mapping[str, Any] | None = None,
        norm_layer: Callable[[int], nn.Module] = LAYER_NORM,
        additive: Slot = None,
        rotary: Slot = None,
        bias: Slot = None,
        scale: Slot = None,
        additive_to: AdditiveTo = "tokens",
    ):
        super().__init__()
        if time not in ("tubelets", "seconds"):
            raise ValueError(f"time must be 'tubelets' or 'seconds', got {time!r}")
        if attention not in get_args(Attention):
            raise ValueError(f"attention must be 'joint' or 'factorised', got {attention!r}")
        if attention == "factorised" and additive_to == "queries_keys":
            raise ValueError("additive_to='queries_keys' needs attention='joint': each token adds its whole position")
        if not isinstance(positions, GridPositions):
            check_arguments("positions", GridPositions, positions or {})
            positions = GridPositions(**positions or {})
        check_blocks(dim, depth, num_heads, drop_path, block or {})
        check_count("in_chans", in_chans, 1)
        check_count("num_classes", num_classes)
        self.tubelet_size = _sides("tubelet_size", tubelet_size)
        if isinstance(fps, Tensor):
            raise TypeError(f"fps must be one number, got a tensor of shape {tuple(fps.shape)}")
        self.in_chans, self.fps, self.time, self.attention = in_chans, float(check_rate(fps)), time, attention
        self.positions, self.trained_frames = positions, None
        self.grid = self.made_for = self._count_tubelets("clip_size", *_sides("clip_size", clip_size))
        frames, height, width = self.tubelet_size
        self.tubelet_embed = nn.Linear(in_chans * frames * height * width, dim)
        options = {"norm_layer": norm_layer, **(block or {})}
        self.encodings = StackEncodings(
            depth,
            dim=dim,
            num_heads=num_heads,
            num_kv_heads=options.get("num_kv_heads"),
            head_dim=options.get("head_dim"),
            size=self.grid,
            additive=additive,
            rotary=rotary,
            bias=bias,
            scale=scale,
            additive_to=additive_to,
        )
        self.blocks = make_blocks(dim, depth, num_heads, drop_path, options)
        self.norm = norm_layer(dim)
        self.head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that an optimiser should not decay."""
        return no_weight_decay_names(self)

    def at_size(
        self, clip_size: tuple[int, int, int], how: Extension = "extend", *, axes: Axes = "all"
    ) -> "VideoTransformer":
        """The same model, with the same weights, for clips of another size. Learned tables are resized.

        The rate of a clip is none of its size: ``fps`` of a call says how fast time goes, ``how`` what becomes of a
        grid with more tubelets. Frames that lie closer in the same seconds need the former only; more seconds at the
        same rate are what the latter can do for time.

        Args:
            clip_size: (frames, height, width), a multiple of the tubelet size.
            how: What becomes of coordinates: "extend" counts on, "rescale" maps them to the range of the grid that the
                model was made for. The others count on and scale the rotary encoding, on each axis by the ratio of the
                new side to that which the model was made for: `PositionInterpolation`, `NTK` or `YaRN`.
            axes: Axes that ``how`` is for; the others count on.

        Raises:
            ValueError: If the tubelets do not divide the size, ``how`` or ``axes`` is unknown, or the model has no
                rotary encoding that takes the scaling.
        """
        grid = self._count_tubelets("clip_size", *_sides("clip_size", clip_size))
        if how not in get_args(Extension):
            raise ValueError(f"how must be one of extend, rescale, {', '.join(SCALINGS)}, got {how!r}")
        if axes not in get_args(Axes):
            raise ValueError(f"axes must be one of {', '.join(get_args(Axes))}, got {axes!r}")
        model = share_weights(self)
        model.encodings.resize(*grid)
        if how == "rescale":
            if axes != "space":
                model.trained_frames = self.made_for[0]
            if axes != "time":
                model.positions = replace(model.positions, trained=self.made_for[1:])
        elif how != "extend":
            frames, *sides = self.made_for
            old = (frames if axes != "space" else grid[0], *(sides if axes != "time" else grid[1:]))
            model.encodings.extend(how, old, grid)
        model.grid = grid
        return model

    def forward(
        self,
        clips: Float[Tensor, "b c frames height width"],
        fps: Rate | None = None,
        *,
        keep: Int[Tensor, "b kept"] | None = None,
    ) -> Float[Tensor, "b classes"]:
        """Logits of the classes.

        Args:
            clips: Clips of any size that the tubelets divide.
            fps: Frames per second of the clips, one number or one for each; what the model is made for unless given.
            keep: Numbers, frame by frame and row by row, of the tubelets that the model sees; each keeps its own
                position. Only where attention is joint.
        """
        return self.head(self.forward_features(clips, fps, keep=keep).mean(dim=1))

    def forward_features(
        self,
        clips: Float[Tensor, "b c frames height width"],
        fps: Rate | None = None,
        *,
        keep: Int[Tensor, "b kept"] | None = None,
    ) -> Float[Tensor, "b m dim"]:
        """Tokens behind the last block and the norm; arguments as those of `forward`."""
        if clips.ndim != 5 or clips.shape[1] != self.in_chans:
            raise ValueError(
                f"clips must be (b, {self.in_chans}, frames, height, width), got shape {tuple(clips.shape)}"
            )
        if not clips.is_floating_point():
            raise TypeError(f"clips must be floating point, got {clips.dtype}")
        grid = self._count_tubelets("the clip size", *clips.shape[2:])
        times = self._times(grid[0], clips.shape[0], fps, clips.device)
        places = self.positions.coords(*grid[1:], training=self.training, device=clips.device)
        coords = _product(times, places)
        # A table has a row for each cell, whatever the coordinates of the cells are.
        cells = video_coords(*grid, device=clips.device).expand(coords.shape)
        frames, height, width = self.tubelet_size
        tubelets = rearrange(clips, "b c (t i) (y j) (x k) -> b (t y x) (c i j k)", i=frames, j=height, k=width)
        x = self.encodings.add(self.tubelet_embed(tubelets), coords, cells=cells)
        if self.attention == "factorised":
            if keep is not None:
                raise ValueError("keep needs attention='joint': what is left of a frame or a place differs")
            return self.norm(self._take_turns(x, times, places, grid))
        if keep is not None:
            check_kept(keep, x)
            x = x.take_along_dim(keep[..., None], dim=1)
            coords, cells = (
                each.expand(x.shape[0], -1, -1).take_along_dim(keep[..., None], dim=1) for each in (coords, cells)
            )
        for block, encodings in zip(self.blocks, self.encodings(coords, cells=cells), strict=True):
            x = block(x, encodings, coords=coords)
        return self.norm(x)

    def _take_turns(
        self, x: Float[Tensor, "b n dim"], times: Shaped[Tensor, "*batch t 1"], places: Shaped[Tensor, "s 2"], grid
    ) -> Float[Tensor, "b n dim"]:
        """Blocks within frames and within places in turn.

        What is seen together has one time or one place, and encodings of attention read differences: it is left at 0.
        """
        frames, rows, columns = grid
        time = _product(times, places.new_zeros(1, 2))
        if time.ndim > 2:  # every place of a clip has the times of that clip
            time = time.repeat_interleave(rows * columns, dim=0)
        space = _product(times.new_zeros(1, 1), places)
        turns = []
        for coords, size in ((space, (1, rows, columns)), (time, (frames, 1, 1))):
            cells = video_coords(*size, device=x.device).expand(coords.shape)
            turns.append((coords, self.encodings(coords, cells=cells)))
        x = x.unflatten(1, (frames, rows * columns))
        for number, block in enumerate(self.blocks):
            coords, encodings = turns[number % 2]
            if number % 2:
                x = x.transpose(1, 2)
            x = block(x.flatten(0, 1), encodings[number], coords=coords).unflatten(0, x.shape[:2])
            if number % 2:
                x = x.transpose(1, 2)
        return x.flatten(1, 2)

    def _times(
        self, frames: int, clips: int, fps: Rate | None, device: torch.device
    ) -> Shaped[Tensor, "t 1"] | Float[Tensor, "b t 1"]:
        """When each tubelet begins: the same for all clips, or for each."""
        index = sequence_coords(frames, device=device)
        if self.trained_frames not in (None, frames):
            index = rescale(index, self.trained_frames / frames)
        fps = self.fps if fps is None else check_rate(fps, clips)
        # At the rate that tubelets are counted by, they are counted: whole numbers stay whole.
        unit = self.fps if self.time == "tubelets" else self.tubelet_size[0]
        if isinstance(fps, Tensor):
            return index * (unit / fps.to(device=device, dtype=torch.float64))[:, None, None]
        return index if fps == unit else rescale(index, unit / fps)

    def _count_tubelets(self, name: str, *size: int) -> tuple[int, int, int]:
        if any(side < 1 or side % step for side, step in zip(size, self.tubelet_size, strict=True)):
            is_, unit = (" x ".join(map(str, sides)) for sides in (size, self.tubelet_size))
            raise ValueError(f"{name} ({is_}) must be a multiple of tubelet_size ({unit})")
        frames, rows, columns = (side // step for side, step in zip(size, self.tubelet_size, strict=True))
        return frames, rows, columns


def check_rate(fps: Rate, clips: int | None = None) -> Rate:
    """The frames per second, if they are: a positive number, or one for each of so many clips.

    Raises:
        ValueError: If a rate is not positive and finite, or there are not as many as clips.
        TypeError: If they are no numbers, or a tensor in half precision, which has no room for 29.97.
    """
    if not isinstance(fps, Tensor):
        if isinstance(fps, bool) or not isinstance(fps, Real):
            raise TypeError(f"fps must be a number or a tensor, got {fps!r}")
        if not 0 < fps < math.inf:
            raise ValueError(f"fps must be positive and finite, got {fps}")
        return float(fps)
    if fps.dtype == torch.bool or fps.is_complex() or (fps.is_floating_point() and fps.dtype.itemsize < 4):
        raise TypeError(f"fps must be integers, float32 or float64, got {fps.dtype}")
    if fps.shape != (clips,):
        raise ValueError(f"fps must be a number or have one for each of {clips} clips, got shape {tuple(fps.shape)}")
    if not torch.compiler.is_compiling() and not fps.is_meta:
        wrong = ~(fps > 0) | fps.isinf()
        if wrong.any():
            raise ValueError(f"fps must be positive and finite, got {fps[wrong][0].item():g}")
    return fps


def _product(times: Shaped[Tensor, "*batch t 1"], places: Shaped[Tensor, "s 2"]) -> Shaped[Tensor, "*batch n 3"]:
    """Coordinates (t, y, x) of all places at all times, frame by frame."""
    *batch, frames, _ = times.shape
    times = times.unsqueeze(-2).expand(*batch, frames, len(places), 1)
    return torch.cat([times, places.expand(*batch, frames, -1, -1)], dim=-1).flatten(-3, -2)


def _sides(name: str, size: Sequence[int]) -> tuple[int, int, int]:
    sides = tuple(size) if isinstance(size, Sequence) and not isinstance(size, str) else ()
    if len(sides) != 3 or any(isinstance(side, bool) or not isinstance(side, Integral) or side < 1 for side in sides):
        raise ValueError(f"{name} must be three positive integers (frames, height, width), got {size!r}")
    frames, height, width = map(int, sides)
    return frames, height, width
