"""Models of timm for images of another size."""

import warnings
from math import prod
from typing import Any

from timm.models.naflexvit import NaFlexVit
from timm.models.swin_transformer import WindowAttention
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import Tensor, nn

from ...resample import resample_bias_table, resample_pos_embed, resample_table
from .parts import grid_of, parts_of
from .slot import slots_of

PREFIX_ROWS = 3  # of BEiT's tables


def set_input_size(model: nn.Module, height: int, width: int) -> None:
    """Brings a model to another image size, with whatever it knows of positions, its own and ours.

    Tables are resampled (bicubic, antialiased), as are the tables of relative biases, whose rows of prefix tokens stay
    as they are; Swin's windows grow with the grid. Rotations follow the coordinates and need nothing. Resampled
    parameters are new ones: make the optimiser afterwards.

    Args:
        model: A model as `add_bias` takes, or a SwinTransformerV2, changed in place.
        height: Height of the images in pixels, a multiple of the patch's.
        width: Their width.

    Raises:
        ValueError: If the patches do not divide the size, or the model is not known. The model is then as it was.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2)
        >>> set_input_size(model, 320, 192)
        >>> model.pos_embed.shape, model(torch.randn(1, 3, 320, 192)).shape  # 1 + 20 * 12
        (torch.Size([1, 241, 192]), torch.Size([1, 1000]))
    """
    if not isinstance(model, SwinTransformerV2):
        parts_of(model, windows=True)
    rows, columns = _grid(model, height, width)
    slots = slots_of(model)
    for slot in slots:
        slot.swap()
    try:
        if isinstance(model, NaFlexVit):
            _resize_naflex(model.embeds, rows, columns)
        else:
            _resize(model, height, width)
    finally:
        for slot in slots:
            slot.swap()
    for slot in slots:
        slot.resize(rows, columns)


def _grid(model: Any, height: int, width: int) -> tuple[int, int]:
    embed: Any = model.embeds if isinstance(model, NaFlexVit) else model.patch_embed
    for name, side in (("height", height), ("width", width)):
        if isinstance(side, bool) or not isinstance(side, int) or side < 1:
            raise ValueError(f"{name} must be a positive integer, got {side!r}")
    if not embed.dynamic_img_pad and (height % embed.patch_size[0] or width % embed.patch_size[1]):
        raise ValueError(
            f"the image size ({height} x {width}) must be a multiple of the patches ({embed.patch_size[0]} x "
            f"{embed.patch_size[1]})"
        )
    return embed.dynamic_feat_size((height, width))


def _resize(model: Any, height: int, width: int) -> None:
    """Has timm change the shapes, and puts our resampled tables there."""
    grid, own = grid_of(model), getattr(model, "pos_embed", None)
    tables: dict[Any, tuple[Tensor, tuple[int, ...]]] = {
        part: (part.relative_position_bias_table, tuple(part.window_size))
        for part in model.modules()
        if getattr(part, "relative_position_bias_table", None) is not None
    }
    with warnings.catch_warnings():  # what timm's interpolation of tables warns of, and gives, is not used
        warnings.simplefilter("ignore")
        model.set_input_size(img_size=(height, width))
    if own is not None and grid_of(model) != grid:
        prefix = own.shape[1] - prod(grid)
        model.pos_embed = _parameter(
            resample_pos_embed(own.detach(), grid_of(model), old_size=grid, num_prefix_tokens=prefix), own
        )
    for part, (table, window) in tables.items():
        rows = 0 if isinstance(part, WindowAttention) else PREFIX_ROWS
        new = tuple(map(int, part.window_size))
        if new == window:
            continue
        part.relative_position_bias_table = _parameter(
            resample_bias_table(table.detach(), new, old_window=window, num_prefix_rows=rows), table
        )


def _resize_naflex(embeds: Any, rows: int, columns: int) -> None:
    """Resamples tables as the model does at each forward for images of another grid, which then is its own."""
    size = (max(rows, columns),) * 2 if embeds.pos_embed_ar_preserving else (rows, columns)
    options = {
        "mode": embeds.pos_embed_interp_mode,
        "antialias": embeds.pos_embed_antialias,
        "align_corners": embeds.pos_embed_align_corners,
    }
    if embeds.pos_embed is not None:
        table = resample_table(embeds.pos_embed.detach()[0], size, **options)
        embeds.pos_embed = _parameter(table[None], embeds.pos_embed)
    for name, side in (("pos_embed_y", size[0]), ("pos_embed_x", size[1])):
        own = getattr(embeds, name)
        if own is not None:
            table = resample_table(own.detach()[0], (side,), mode="bilinear", antialias=False)
            setattr(embeds, name, _parameter(table[None], own))
    embeds.pos_embed_grid_size = size


def _parameter(table: Tensor, like: Tensor) -> nn.Parameter:
    """A parameter of its own memory, trained where ``like`` is."""
    return nn.Parameter(table.clone().contiguous(), requires_grad=like.requires_grad)
