"""With the same weights our ViT gives the logits of timm's: with a learned table, and with axial and mixed rotation."""

import pytest
import torch

from mmpos.models import VisionTransformer

timm = pytest.importorskip("timm", reason="timm is the oracle")

OURS = {"image_size": (32, 48), "patch_size": 8, "in_chans": 3, "num_classes": 7, "dim": 48, "depth": 3, "num_heads": 4}
THEIRS = {"img_size": (32, 48), "patch_size": 8, "num_classes": 7, "embed_dim": 48, "depth": 3, "num_heads": 4}


def spread(module):
    """Weights that make every part matter: timm starts with biases of 0 and layer scales of 1e-5."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return module.eval()


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "init_values": 0.1}], ids=["plain", "norms and scales"])
def test_learned_table(options):
    theirs = spread(timm.models.vision_transformer.VisionTransformer(**THEIRS, reg_tokens=2, **options))
    ours = VisionTransformer(
        **OURS, class_token=True, reg_tokens=2, block=options, additive={"name": "LearnedTable"}
    ).eval()
    weights = theirs.state_dict()
    table = weights.pop("pos_embed")  # the class and register tokens have rows of it too
    prefix = table[:, :3]
    weights["cls_token"] = weights["cls_token"] + prefix[:, :1]
    weights["reg_token"] = weights["reg_token"] + prefix[:, 1:]
    weights["encodings.additive.weight"] = table[0, 3:].unflatten(0, (4, 6))
    ours.load_state_dict(weights)
    images = torch.randn(2, 3, 32, 48)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["axial", "mixed"])
def test_rotation(kind):
    theirs = spread(
        timm.models.eva.Eva(
            **THEIRS, attn_type="rope", qkv_bias=True, init_values=0.1, class_token=True, global_pool="token",
            use_abs_pos_emb=False, use_rot_pos_emb=True, rope_grid_indexing="xy", use_fc_norm=False,
            rope_temperature=100.0 if kind == "axial" else 10.0, rope_type="cat" if kind == "axial" else "mixed",
        )
    )  # fmt: skip
    preset = {"name": f"rope_vit_{kind}", **({"per_layer": True} if kind == "mixed" else {})}
    ours = VisionTransformer(**OURS, class_token=True, block={"init_values": 0.1}, rotary=preset).eval()
    weights = {}
    for name, weight in theirs.state_dict().items():
        layer, _, part = name.rpartition(".")
        if name == "rope.freqs":  # (x and y, depth, heads, pairs)
            for depth, freqs in enumerate(weight.unbind(1)):
                weights[f"encodings.rotary.{depth}.freqs"] = freqs.flip(0).transpose(0, 1)
        elif part in ("gamma_1", "gamma_2"):
            weights[f"{layer}.ls{part[-1]}.gamma"] = weight
        elif part == "q_bias":
            weights[f"{layer}.qkv.bias"] = torch.cat(
                [weight, torch.zeros_like(weight), theirs.get_parameter(f"{layer}.v_bias")]
            )
        elif part not in ("k_bias", "v_bias"):
            weights[name] = weight
    ours.load_state_dict(weights)
    images = torch.randn(2, 3, 32, 48)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)
