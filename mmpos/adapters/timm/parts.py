"""Where the models of timm do what concerns positions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from timm.layers.attention import Attention, AttentionRope
from timm.models.beit import Attention as BeitAttention
from timm.models.beit import Beit
from timm.models.eva import Eva, EvaAttention
from timm.models.naflexvit import NaFlexVit
from timm.models.swin_transformer import SwinTransformer, WindowAttention
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from .attention import BiasedWindowAttention, TurningAttention

# Attention whose queries and keys a hook can reach, and which takes a mask.
OPEN = (Attention, AttentionRope, EvaAttention)


@dataclass(frozen=True)
class Parts:
    """The modules of a model between which encodings of ours come in.

    Args:
        model: The model.
        embed: Makes patches of images.
        entry: Takes prefix tokens and all patches, with the model's own position embedding.
        gate: Takes the tokens that the blocks will see, some patches left out.
        patch_drop: Leaves patches out.
        pos_drop: Dropout that the model calls only where it has a position embedding.
        layers: Attention modules of each layer, by their names.
        num_prefix_tokens: Class and register tokens in front.
    """

    model: Any
    embed: Any
    entry: Any
    gate: Any
    patch_drop: Any
    pos_drop: Any
    layers: list[dict[str, Any]]
    num_prefix_tokens: int

    def attentions(self) -> Iterator[tuple[int, str, Any]]:
        """Layer, name and module of all attention."""
        for number, layer in enumerate(self.layers):
            for name, attention in layer.items():
                yield number, name, attention


def parts_of(model: Any, *, windows: bool = False) -> Parts:
    """The parts of a model; refuses one that has others, and says which layer and why.

    Args:
        model: A model of timm.
        windows: Whether attention within windows will do.
    """
    kinds = (*OPEN, BeitAttention, TurningAttention)
    match model:
        case VisionTransformer():
            entry, gate, drop, pos_drop = model.patch_drop, model.norm_pre, model.patch_drop, model.pos_drop
        case Eva():
            entry, gate, drop, pos_drop = model.pos_drop, model.norm_pre, model.patch_drop, None
        case Beit():
            entry, gate, drop, pos_drop = model.pos_drop, model.pos_drop, None, None
        case NaFlexVit():
            entry, gate, drop, pos_drop = model.embeds.pos_drop, model.norm_pre, model.patch_drop, None
        case SwinTransformer() if windows:
            kinds = (WindowAttention, BiasedWindowAttention)
            entry, gate, drop, pos_drop = model.patch_embed, model.patch_embed, None, None
        case _:
            raise ValueError(_why_not(model))
    embed = model.embeds if isinstance(model, NaFlexVit) else model.patch_embed
    layers = [_attentions(name, block, kinds) for name, block in _blocks(model)]
    return Parts(model, embed, entry, gate, drop, pos_drop, layers, getattr(model, "num_prefix_tokens", 0))


def grid_of(model: Any) -> tuple[int, int]:
    """Rows and columns of patches that a model is made for, 1 x 1 where these may be any."""
    if isinstance(model, NaFlexVit):
        return 1, 1
    rows, columns = model.patch_embed.grid_size
    return rows, columns


def head_width(attention: Any) -> int:
    """Channels of each head."""
    if isinstance(attention, OPEN):
        return attention.head_dim
    return attention.qkv.out_features // (3 * attention.num_heads)


def _blocks(model: Any) -> Iterator[tuple[str, nn.Module]]:
    stages: dict[str, Any]
    stages = {"": model}
    if isinstance(model, SwinTransformer):
        stages = {f"layers.{number}.": stage for number, stage in model.layers.named_children()}
    for name, stage in stages.items():
        yield from ((f"{name}blocks.{number}", block) for number, block in stage.blocks.named_children())


def _attentions(name: str, block: nn.Module, kinds: tuple[type, ...]) -> dict[str, Any]:
    """The attention of a block. A class derived from a known one may compute otherwise, so it is not taken."""
    found = {f"{name}.{path}": part for path, part in block.named_modules() if type(part) in kinds}
    if not found:
        inside = [
            type(part).__name__
            for path, part in block.named_modules()
            if "Attention" in type(part).__name__ or path.endswith("attn")
        ]
        known = ", ".join(dict.fromkeys(kind.__name__ for kind in kinds if kind.__module__.startswith("timm")))
        raise ValueError(
            f"{name} is a {type(block).__name__}{' with ' + inside[0] if inside else ''}, whose queries and keys "
            f"cannot be reached; known: {known}"
        )
    return found


def check_told_apart(parts: Parts) -> None:
    """Refuses a model whose hooks could not tell layers, queries and keys, or patches and prefix tokens apart."""
    seen: dict[int, str] = {}
    for _, name, attention in parts.attentions():
        norms = {f"{name}.{norm}": getattr(attention, norm, None) for norm in ("q_norm", "k_norm")}
        for path, module in {name: attention, **norms}.items():
            if module is not None and seen.setdefault(id(module), path) != path:
                raise ValueError(f"{path} is the same module as {seen[id(module)]}; give it one of its own")
    own, prefix = type(parts.model).__name__, parts.num_prefix_tokens
    if getattr(parts.patch_drop, "num_prefix_tokens", prefix) != prefix:
        raise ValueError(
            f"patch_drop of {own} spares {parts.patch_drop.num_prefix_tokens} of {prefix} prefix tokens and may drop "
            f"the others; set model.patch_drop.num_prefix_tokens = {prefix}"
        )


def _why_not(model: nn.Module) -> str:
    name = type(model).__name__
    if "Swin" in name:
        return (
            f"layers.0.blocks.0 of {name} attends within windows, whose queries, keys and position it does not share; "
            "add_bias exchanges the bias of SwinTransformer, set_input_size resizes that of both"
        )
    return f"{name} is none of the models known: VisionTransformer, Eva, Beit, NaFlexVit, SwinTransformer of timm"
