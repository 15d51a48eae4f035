"""Tiny models of timm with random weights, of every family."""

import timm
import torch

from mmpos import LearnedTable, Mixed, RoPE, SwinBias
from mmpos.adapters.timm import add_bias, add_rotary, replace_pos_embed

SIZE = (48, 80)  # 3 x 5 patches
GRID = (3, 5)
WIDTHS = {"embed_dim": 96, "depth": 3, "num_heads": 3, "num_classes": 7}
SHARED = {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True, "use_abs_pos_emb": True}
FACTORIZED = {"pos_embed_grid_size": GRID, "pos_embed_ar_preserving": False}
FAMILIES = {
    "ViT": ("vit_tiny_patch16_224", {}),
    "ViT with registers": ("vit_base_patch16_224", {"reg_tokens": 2, "no_embed_class": True, "qk_norm": True}),
    "parallel": ("vit_small_patch16_18x2_224", {}),
    "DeiT": ("deit_tiny_distilled_patch16_224", {}),
    "DeiT III": ("deit3_small_patch16_224", {}),
    "CLIP": ("vit_base_patch16_clip_224", {}),
    "SigLIP": ("vit_base_patch16_siglip_224", {}),
    "DINOv2": ("vit_small_patch14_reg4_dinov2", {"patch_size": 16}),
    "BEiT": ("beit_base_patch16_224", {}),
    "BEiT with a shared bias": ("beit_base_patch16_224", SHARED),
    "EVA-02": ("eva02_tiny_patch14_224", {"patch_size": 16}),
    "DINOv3": ("vit_small_patch16_dinov3", {}),
    "mixed RoPE": ("vit_small_patch16_rope_mixed_ape_224", {}),
    "Sapiens 2": ("vit_small_patch16_dinov3", {"attn_type": "rope", "qkv_fused": False, "num_kv_heads": 1}),
    "NaFlexViT": ("naflexvit_base_patch16_gap", {"pos_embed_grid_size": GRID}),
    "NaFlexViT, factorized": ("naflexvit_base_patch16_parfac_gap", FACTORIZED),
}
WITH_TABLE = [name for name in FAMILIES if name not in ("DeiT", "BEiT", "DINOv3", "Sapiens 2")]


def create(name, **options):
    """A model of timm with random weights, sharp enough for attention to depend on positions."""
    torch.manual_seed(3)
    model = timm.create_model(name, **options).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "rope" in key:
                continue
            weight.copy_(torch.randn_like(weight) * (0.15 if weight.ndim > 1 else 0.1))
            if weight.ndim == 1 and key.endswith("weight"):
                weight += 1
            if "gamma" in key:
                weight += 0.5
    return model


def make(family, **changes):
    name, options = FAMILIES[family]
    size = {} if "NaFlex" in family else {"img_size": SIZE}
    return create(name, **{**WIDTHS, **size, **options, **changes})


def swin(**changes):
    options = {"img_size": (64, 96), "window_size": (4, 6), "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 3)}
    return create("swin_tiny_patch4_window7_224", **{**options, "num_classes": 7, **changes})


def adapt(model, family="ViT"):
    """Fills all three slots with what learns."""
    torch.manual_seed(7)
    layout = "half" if family in ("DINOv3", "Sapiens 2") else "interleaved"
    heads = 1 if family == "Sapiens 2" else 3
    ropes = [RoPE(32, axes=2, base=10.0, spectrum=Mixed(), layout=layout, num_heads=heads) for _ in model.blocks]
    add_rotary(model, ropes)
    bias = SwinBias(3, (3, 5), prefix=True)
    table = LearnedTable(96, (3, 5))
    with torch.no_grad():
        for each in (*bias.parameters(), *table.parameters()):
            each.normal_()
    add_bias(model, bias)
    if family != "DeiT":
        replace_pos_embed(model, table)
    return model


def images(height=SIZE[0], width=SIZE[1], batch=2):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(5))


def state(model):
    """All that tells whether a model was changed."""
    parts = {
        name: (type(part), len(part._forward_hooks), len(part._forward_pre_hooks))
        for name, part in model.named_modules()
    }
    attributes = {name: sorted(vars(part)) for name, part in model.named_modules()}
    return parts, attributes, {name: (id(value), value.shape) for name, value in model.named_parameters()}


def out(model, x):
    with torch.no_grad():
        return model(x)


def close(one, other, atol=1e-5):
    torch.testing.assert_close(one, other, atol=atol, rtol=1e-5)
