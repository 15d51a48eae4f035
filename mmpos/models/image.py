"""A Vision Transformer for images of any size that its patches divide."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from timm.layers.patch_embed import PatchEmbed
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..arguments import check_count
from ..coords import grid_coords
from ..factory import Slot
from ..values import check_arguments
from .blocks import LAYER_NORM, check_blocks, make_blocks, no_weight_decay_names, share_weights
from .grid import GridPositions, check_kept
from .stack import SCALINGS, AdditiveTo, StackEncodings

Size = int | tuple[int, int]
"""A side of a square, or (height, width)."""

Extension = Literal["extend", "rescale", "interpolate", "ntk", "yarn"]


class VisionTransformer(nn.Module):
    """Classifies images: patches become tokens, blocks mix them, their mean or a class token is read out.

    Coordinates are made from the image at hand, so any size works that the patches divide, as far as the encodings
    reach; `at_size` helps them reach further. Names are timm's, whose weights load.

    Args:
        image_size: Size that the model is made for in pixels, a multiple of ``patch_size``; it shapes learned tables.
        patch_size: Size of a patch in pixels.
        in_chans: Channels of an image.
        num_classes: Width of the output; with 0 the output is what the head would read.
        dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads per block.
        drop_path: Probability that a sample skips a branch in training, in the last block; it grows linearly to that.
        class_token: Whether a learned token stands in front.
        reg_tokens: Number of register tokens behind it.
        pool: What is read out: the class "token", or the average ("avg") of the patches. By default the class token
            where there is one.
        patch_drop: Share of the patches of each image that are left out in training.
        block: Further arguments of the blocks, such as ``{"qk_norm": True, "init_values": 1e-5}``; see `Block`.
        positions: How patches become coordinates; `GridPositions` or its arguments.
        norm_layer: Makes a normalisation of so many channels.
        additive: Slot of what is added to the tokens.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        scale: Slot of what multiplies the logits.
        additive_to: Where the additive encoding enters: "tokens", once, or "queries_keys", of every block.

    Raises:
        ValueError: If the patches do not divide the image, the heads do not divide ``dim``, a slot cannot be built, or
            a class token is to be read out that is not there.

    Example:
        >>> rope = {"name": "RoPE", "axes": 2, "base": 100.0}
        >>> vit = VisionTransformer(image_size=(8, 12), patch_size=(4, 2), dim=32, depth=2, rotary=rope)
        >>> vit(torch.randn(3, 1, 8, 12)).shape, vit(torch.randn(3, 1, 16, 6)).shape
        (torch.Size([3, 10]), torch.Size([3, 10]))

    Reference:
        Dosovitskiy et al., An image is worth 16x16 words, 2020, sec. 3.1. https://arxiv.org/abs/2010.11929
    """

    def __init__(
        self,
        image_size: Size = 8,
        patch_size: Size = 2,
        in_chans: int = 1,
        num_classes: int = 10,
        dim: int = 64,
        depth: int = 4,
        num_heads: int = 4,
        *,
        drop_path: float = 0.0,
        class_token: bool = False,
        reg_tokens: int = 0,
        pool: Literal["token", "avg"] | None = None,
        patch_drop: float = 0.0,
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
        pool = pool or ("token" if class_token else "avg")
        if pool not in ("token", "avg") or (pool == "token" and not class_token):
            raise ValueError(f"pool must be 'avg', or 'token' where there is a class_token, got {pool!r}")
        if not 0 <= patch_drop < 1:
            raise ValueError(f"patch_drop must be at least 0 and less than 1, got {patch_drop}")
        if not isinstance(positions, GridPositions):
            check_arguments("positions", GridPositions, positions or {})
            positions = GridPositions(**positions or {})
        check_blocks(dim, depth, num_heads, drop_path, block or {})
        check_count("in_chans", in_chans, 1)
        check_count("num_classes", num_classes)
        check_count("reg_tokens", reg_tokens)
        self.patch_size = _sides("patch_size", patch_size)
        self.in_chans, self.pool, self.patch_drop = in_chans, pool, patch_drop
        self.positions, self.grad_checkpointing = positions, False
        height, width = _sides("image_size", image_size)
        self.grid = self.made_for = self._count_patches("image_size", height, width)
        # Without a size, which it would check in a way that compiles for this size only; sizes are checked here.
        self.patch_embed = PatchEmbed(None, self.patch_size, in_chans, dim)  # pyright: ignore[reportArgumentType]
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if class_token else None
        self.reg_token = nn.Parameter(torch.empty(1, reg_tokens, dim)) if reg_tokens else None
        self.num_prefix_tokens = class_token + reg_tokens
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
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the class and register tokens anew; what the parts learn is theirs to draw."""
        for token in (self.cls_token, self.reg_token):
            if token is not None:
                nn.init.normal_(token, std=1e-6)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that an optimiser should not decay."""
        tokens = {"cls_token": self.cls_token, "reg_token": self.reg_token}
        return no_weight_decay_names(self) | {name for name, token in tokens.items() if token is not None}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Whether training keeps the inputs of blocks only and computes the rest again for the backward pass."""
        self.grad_checkpointing = enable

    def at_size(self, image_size: Size, how: Extension = "extend") -> "VisionTransformer":
        """The same model, with the same weights, for images of another size. Learned tables are resized.

        Args:
            image_size: A side or (height, width) in pixels, a multiple of the patch size.
            how: What becomes of coordinates: "extend" counts on, "rescale" maps them to the range of the grid that the
                model was made for. The others count on and scale the rotary encoding, on each axis by the ratio of the
                new side to that which the model was made for: `PositionInterpolation`, `NTK` or `YaRN`.

        Raises:
            ValueError: If the patches do not divide the size, ``how`` is unknown, or the model has no rotary encoding
                that takes the scaling.
        """
        grid = self._count_patches("image_size", *_sides("image_size", image_size))
        model = share_weights(self)
        model.encodings.resize(*grid)
        if how == "rescale":
            model.positions = replace(model.positions, trained=self.made_for)
        elif how != "extend":
            if how not in SCALINGS:
                raise ValueError(f"how must be one of extend, rescale, {', '.join(SCALINGS)}, got {how!r}")
            model.encodings.extend(how, self.made_for, grid)
        model.grid = grid
        return model

    def forward(
        self, images: Float[Tensor, "b c height width"], *, keep: Int[Tensor, "b kept"] | None = None
    ) -> Float[Tensor, "b classes"]:
        """Logits of the classes.

        Args:
            images: Images of any size that the patches divide.
            keep: Numbers, in row-major order, of the patches that the model sees; each keeps its own position.
        """
        x = self.forward_features(images, keep=keep)
        return self.head(x[:, 0] if self.pool == "token" else x[:, self.num_prefix_tokens :].mean(dim=1))

    def forward_features(
        self, images: Float[Tensor, "b c height width"], *, keep: Int[Tensor, "b kept"] | None = None
    ) -> Float[Tensor, "b m dim"]:
        """Prefix tokens and patches behind the last block and the norm; arguments as those of `forward`."""
        *_, x = self._run(images, keep)
        return self.norm(x)

    def intermediates(
        self, images: Float[Tensor, "b c height width"], layers: Sequence[int]
    ) -> list[Float[Tensor, "b dim rows columns"]]:
        """Maps of the patches behind the blocks of these numbers, from 0; negative ones count from the last."""
        depth = len(self.blocks)
        if any(not -depth <= layer < depth for layer in layers):
            raise ValueError(f"layers must be from {-depth} to {depth - 1}, got {list(layers)}")
        rows = images.shape[-2] // self.patch_size[0]
        outputs = [x[:, self.num_prefix_tokens :].mT.unflatten(-1, (rows, -1)) for x in self._run(images, None)]
        return [outputs[layer] for layer in layers]

    def _run(self, images: Tensor, keep: Tensor | None) -> Iterator[Float[Tensor, "b m dim"]]:
        """The tokens behind each block."""
        if images.ndim != 4 or images.shape[1] != self.in_chans:
            raise ValueError(f"images must be (b, {self.in_chans}, height, width), got shape {tuple(images.shape)}")
        rows, columns = self._count_patches("the image size", *images.shape[-2:])
        coords = self.positions.coords(rows, columns, training=self.training, device=images.device)
        # A table has a row for each cell, whatever the coordinates of the cells are.
        cells = grid_coords(rows, columns, device=images.device)
        x = self.encodings.add(self.patch_embed(images), coords, cells=cells)
        keep = self._kept(x, keep)
        if keep is not None:
            x, coords, cells = x.take_along_dim(keep[..., None], dim=1), coords[keep], cells[keep]
        prefix = [token.expand(x.shape[0], -1, -1) for token in (self.cls_token, self.reg_token) if token is not None]
        x = torch.cat([*prefix, x], dim=1)
        layers = self.encodings(coords, cells=cells, num_prefix_tokens=self.num_prefix_tokens)
        for block, encodings in zip(self.blocks, layers, strict=True):
            run = partial(block, coords=coords, num_prefix_tokens=self.num_prefix_tokens)
            if self.grad_checkpointing and self.training:
                x = checkpoint(run, x, encodings, use_reentrant=False)
            else:
                x = run(x, encodings)
            yield x

    def _kept(self, x: Float[Tensor, "b n dim"], keep: Tensor | None) -> Int[Tensor, "b kept"] | None:
        """Numbers of the patches that are kept; None for all."""
        b, n, _ = x.shape
        if keep is None:
            if not (self.training and self.patch_drop):
                return None
            kept = max(round(n * (1 - self.patch_drop)), 1)
            return torch.rand(b, n, device=x.device).argsort(dim=1)[:, :kept].sort(dim=1).values
        check_kept(keep, x)
        return keep

    def _count_patches(self, name: str, height: int, width: int) -> tuple[int, int]:
        rows, columns = self.patch_size
        if height < 1 or width < 1 or height % rows or width % columns:
            raise ValueError(f"{name} ({height} x {width}) must be a multiple of patch_size ({rows} x {columns})")
        return height // rows, width // columns


def _sides(name: str, size: Size) -> tuple[int, int]:
    height, width = size if isinstance(size, Sequence) and len(size) == 2 else (size, size)
    for side in (height, width):
        if isinstance(side, bool) or not isinstance(side, int) or side < 1:
            raise ValueError(f"{name} must be a positive integer or (height, width), got {size!r}")
    return height, width
