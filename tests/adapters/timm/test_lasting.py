"""Adapted models are saved, copied and asked for features as others are."""

import copy
import io

import pytest
import timm
import torch
from timm.optim import param_groups_weight_decay

from mmpos import ALiBi, LearnedTable, RoPE
from mmpos.adapters.timm import add_bias, add_rotary, replace_pos_embed
from tests.adapters.timm.tiny import FAMILIES, adapt, close, images, make, out, state, swin

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.parametrize("family", ["ViT", "DeiT", "BEiT", "EVA-02", "DINOv3", "NaFlexViT, factorized"])
def test_a_model_survives_saving_and_loading_and_copying(family):
    plain = state(make(family))
    model, x = adapt(make(family), family), images()
    expected, file = out(model, x), io.BytesIO()
    model(x).sum().backward()  # what this computed, with its gradient graph, must not be copied
    torch.save(model, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    for other in (loaded, copy.deepcopy(model)):
        close(out(other, x), expected, atol=0)
        with torch.no_grad():
            for each in other.parameters():
                each.zero_()
        assert not out(other, x).any()
        close(out(model, x), expected, atol=0)
        for name in ("mmpos_rotary", "mmpos_bias", "mmpos_additive"):
            if getattr(other, name, None) is not None:
                getattr(other, name).undo()
        assert state(other)[:2] == plain[:2]
    fresh = adapt(make(family), family)
    with torch.no_grad():
        for each in fresh.parameters():
            each.mul_(0.5)
    fresh.load_state_dict(model.state_dict())
    close(out(fresh, x), expected, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_names_of_the_model_stay(family):
    model = make(family)
    names, own = set(model.state_dict()), {"rope.freqs", "rel_pos_bias.relative_position_bias_table"}
    adapt(model, family)
    gone = {name for name in names - set(model.state_dict()) if not name.endswith("bias_table")} - own
    assert gone <= {"pos_embed", "embeds.pos_embed", "embeds.pos_embed_y", "embeds.pos_embed_x"}
    assert all(name.startswith("mmpos_") for name in set(model.state_dict()) - names)


def test_what_is_put_back_follows_the_model():
    model, x = make("mixed RoPE"), images()
    expected = out(make("mixed RoPE").double(), x.double())
    slots = [
        add_rotary(model, RoPE(32, axes=2, layout="interleaved")),
        replace_pos_embed(model, LearnedTable(96, (3, 5))),
    ]
    model.double()
    for slot in slots:
        slot.undo()
    assert model.pos_embed.dtype == model.rope.freqs.dtype == torch.float64
    close(out(model, x.double()), expected, atol=1e-4)


@pytest.mark.parametrize("family", ["ViT with registers", "BEiT", "EVA-02", "NaFlexViT"])
def test_features(family):
    model, x = adapt(make(family), family), images()
    maps, seen = model.forward_intermediates(x, intermediates_only=True), []
    blocks = [block.register_forward_hook(lambda *given: seen.append(given[-1])) for block in model.blocks]
    model(x)
    for hook in blocks:
        hook.remove()
    for map_, tokens in zip(maps, seen, strict=True):
        close(map_.flatten(2).mT, tokens[:, model.num_prefix_tokens :])


def test_a_model_made_for_features():
    options = {"img_size": (48, 80), "embed_dim": 96, "depth": 3, "num_heads": 3}
    wrapped = timm.create_model("vit_tiny_patch16_224", features_only=True, **options).eval()
    before = [each.detach().clone() for each in wrapped(images())]
    with add_rotary(wrapped.model, RoPE(32, axes=2)):
        assert all((a - b).abs().max() > 1e-4 for a, b in zip(wrapped(images()), before, strict=True))
    for one, other in zip(wrapped(images()), before, strict=True):
        close(one, other, atol=0)


def test_optimisers_of_timm_decay_no_encoding():
    model = adapt(make("ViT"))
    groups = param_groups_weight_decay(model, 0.1, no_weight_decay_list=model.no_weight_decay())
    kept = {id(each) for group in groups if group["weight_decay"] == 0 for each in group["params"]}
    names = [name for name, each in model.named_parameters() if id(each) in kept]
    ours = [name for name, _ in model.named_parameters() if name.startswith("mmpos")]
    assert len(ours) == 7  # of three ropes, a bias, its prefix, a table, the prefix of the own table
    assert set(ours) <= set(names)
    assert model.blocks[0].attn.qkv.weight.ndim == 2
    assert "blocks.0.attn.qkv.weight" not in names


def test_slots_do_not_depend_on_the_order_in_which_they_are_undone():
    for order in ([0, 1, 2], [2, 0, 1]):
        model, x = make("ViT", patch_drop_rate=0.3), images()
        before, expected = state(model), out(model, x)
        slots = [
            add_rotary(model, RoPE(32, axes=2)),
            add_bias(model, ALiBi(3, axes=2)),
            replace_pos_embed(model, LearnedTable(96, (3, 5))),
        ]
        for number in order:
            model.train()(x)
            slots[number].undo()
        assert state(model.eval()) == before
        close(out(model, x), expected, atol=0)


def test_swin_survives_saving():
    model, x = swin(), images(64, 96)
    keys = [name for name in model.state_dict() if "bias_table" not in name]
    add_bias(model, [ALiBi(heads, axes=2) for heads in (2, 2, 3, 3)])
    expected, file = out(model, x), io.BytesIO()
    torch.save(model, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    close(out(loaded, x), expected, atol=0)
    close(out(copy.deepcopy(model), x), expected, atol=0)
    assert list(model.state_dict()) == keys
    loaded.mmpos_bias.undo()
    close(out(loaded, x), out(swin(), x), atol=0)
