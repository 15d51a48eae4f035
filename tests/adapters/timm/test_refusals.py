"""What models of timm cannot take is refused, by its name, and leaves them as they were."""

import re
import threading

import pytest
import torch

from mmpos import ALiBi, LearnedTable, Mixed, RoPE, Sinusoidal, SwinBias
from mmpos.adapters.timm import add_bias, add_rotary, replace_pos_embed, set_input_size
from mmpos.models import GridPositions
from tests.adapters.timm.tiny import adapt, close, create, images, make, out, state, swin


def refused(model, change, match, error=ValueError):
    before = state(model)
    with pytest.raises(error, match=match):
        change(model)
    assert state(model) == before


@pytest.mark.parametrize("positions", ["separate", 3, GridPositions], ids=["name", "number", "class"])
def test_positions_that_make_no_coordinates(positions):
    match = re.escape(f"positions must be a GridPositions of mmpos.models, or have its coords(), got {positions!r}")
    for change in (
        lambda model: add_rotary(model, RoPE(32, axes=2), positions=positions),
        lambda model: add_bias(model, ALiBi(3, axes=2), positions=positions),
        lambda model: replace_pos_embed(model, Sinusoidal(96, axes=2), positions=positions),
    ):
        refused(make("ViT"), change, match, TypeError)
    refused(swin(), lambda model: add_bias(model, ALiBi(1, axes=2), positions=positions), match, TypeError)


def test_encodings_without_data():
    with torch.device("meta"):
        rope = RoPE(32, axes=2, base=10.0, spectrum=Mixed(), num_heads=3)
        bias, table = SwinBias(3, (3, 5)), LearnedTable(96, (3, 5))
    for name, change in {
        "rope": lambda model: add_rotary(model, [rope, None, rope]),
        "bias": lambda model: add_bias(model, bias),
        "encoding": lambda model: replace_pos_embed(model, table),
    }.items():
        refused(make("ViT"), change, f"{name} is on the meta device, but the model is not")
        model = make("ViT").to("meta")
        change(model)
        assert model(images().to("meta")).shape == (2, 7)


def test_a_model_without_layers():
    model = create("vit_tiny_patch16_224", img_size=(48, 80), depth=0, num_classes=7)
    refused(model, lambda model: add_rotary(model, RoPE(64, axes=2)), "VisionTransformer has no layers")
    refused(model, lambda model: add_bias(model, []), "VisionTransformer has no layers")
    replace_pos_embed(model, Sinusoidal(192, axes=2))
    assert out(model, images()).shape == (2, 7)


def test_modules_that_are_used_twice():
    model = make("ViT with registers")
    model.blocks[1].attn.k_norm = model.blocks[1].attn.q_norm
    match = r"blocks.1.attn.k_norm is the same module as blocks.1.attn.q_norm; give it one of its own"
    refused(model, lambda model: add_rotary(model, RoPE(32, axes=2)), match)
    for family in ("ViT", "BEiT"):
        model = make(family)
        model.blocks[2].attn = model.blocks[0].attn
        match = r"blocks.2.attn is the same module as blocks.0.attn"
        refused(model, lambda model: add_rotary(model, RoPE(32, axes=2)), match)
        refused(model, lambda model: add_bias(model, ALiBi(3, axes=2)), match)


def test_patch_dropout_that_may_drop_the_distillation_token():
    model, x = make("DeiT", patch_drop_rate=0.5), images()
    match = "patch_drop of VisionTransformerDistilled spares 1 of 2 prefix tokens"
    refused(model, lambda model: add_rotary(model, RoPE(32, axes=2)), match)
    refused(model, lambda model: add_bias(model, ALiBi(3, axes=2)), match)
    model.patch_drop.num_prefix_tokens = 2
    adapt(model, "DeiT").train()
    assert out(model, x).isfinite().all()
    set_input_size(make("DeiT", patch_drop_rate=0.5), 64, 32)  # which has nothing to do with it


def test_a_slot_may_be_undone_within_its_with_statement():
    model = make("ViT")
    before = state(model)
    with add_rotary(model, RoPE(32, axes=2)) as slot:
        slot.undo()
    assert state(model) == before
    with add_rotary(model, RoPE(32, axes=2)) as first:
        first.undo()
        add_rotary(model, RoPE(32, axes=2, base=50.0))
    assert model.mmpos_rotary.encodings[0].base == 50.0  # another one, which stays


def replica(module, done):
    """What DataParallel makes of a module for another device, where parameters are half of what they were."""
    if id(module) in done:
        return done[id(module)]
    copy = done[id(module)] = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        copy._modules[name] = None if child is None else replica(child, done)
    for name, parameter in module._parameters.items():
        if parameter is None:
            copy._parameters[name] = None
        else:
            setattr(copy, name, parameter.detach() / 2)
    return copy


def test_copies_of_data_parallel_compute_with_what_is_fixed_and_refuse_what_learns():
    model, halved, x = make("ViT"), make("ViT"), images()
    with torch.no_grad():
        for each in halved.parameters():
            each.mul_(0.5)
    for each in (model, halved):
        add_rotary(each, RoPE(32, axes=2, base=100.0))
        add_bias(each, ALiBi(3, axes=2))
    close(out(replica(model, {}), x), out(halved, x), atol=0)
    model.mmpos_bias.undo()
    add_bias(model, SwinBias(3, (3, 5)))
    with pytest.raises(RuntimeError, match="BiasSlot holds parameters, which DataParallel does not copy"):
        replica(model, {})(x)
    windows = swin()
    add_bias(windows, [SwinBias(heads, (4, 6)) for heads in (2, 2, 3, 3)])
    with pytest.raises(RuntimeError, match="BiasSlot holds parameters"):
        replica(windows, {})(images(64, 96))


def test_threads_do_not_see_each_others_images():
    model = make("ViT", dynamic_img_size=True)
    add_rotary(model, RoPE(32, axes=2, base=100.0))
    inside, other = threading.Event(), threading.Event()

    def wait(*given):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            assert other.wait(20)

    hook = model.norm_pre.register_forward_hook(wait)  # between the evaluation and the blocks
    expected, found = out(model, images(32, 64)), []
    thread = threading.Thread(target=lambda: found.append(out(model, images(32, 64))))
    thread.start()
    assert inside.wait(20)
    out(model, images(64, 32))  # as many patches
    other.set()
    thread.join()
    hook.remove()
    close(found[0], expected, atol=0)
