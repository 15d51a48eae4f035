import pytest
import timm
import torch

from mmpos import ALiBi, RoPE, Sinusoidal
from mmpos.adapters.timm import add_bias, add_rotary, replace_pos_embed
from mmpos.training import TimmClassifier
from mmpos.training.optim import split_by_decay

# 3 x 2 patches of 4 x 2 pixels, 2 heads of 16
OPTIONS = {
    "img_size": (12, 4), "patch_size": (4, 2), "in_chans": 1, "embed_dim": 32, "depth": 2, "num_heads": 2,
}  # fmt: skip
SMALL = {"name": "vit_tiny_patch16_224", "num_classes": 5, "options": OPTIONS}
ROPE = {"name": "RoPE", "axes": 2, "base": 50.0}


def images():
    return torch.randn(3, 1, 12, 4)


def test_slots_are_filled_as_by_the_adapters():
    slots = {"additive": {"name": "Sinusoidal", "axes": 2}, "rotary": ROPE, "bias": {"name": "ALiBi", "axes": 2}}
    classifier = TimmClassifier(**SMALL, **slots, positions={"normalise": "separate"}).eval()
    model = timm.create_model(SMALL["name"], num_classes=5, **OPTIONS).eval()
    where = classifier.network.mmpos_rotary.positions
    replace_pos_embed(model, Sinusoidal(32, axes=2), positions=where)
    add_rotary(model, RoPE(16, axes=2, base=50.0), positions=where)
    add_bias(model, ALiBi(2, axes=2), positions=where)
    model.load_state_dict(classifier.network.state_dict())
    x = images()
    torch.testing.assert_close(classifier(x), model(x), rtol=0, atol=0)
    plain = timm.create_model(SMALL["name"], num_classes=5, **OPTIONS).eval()
    plain.load_state_dict(classifier.network.state_dict(), strict=False)
    assert not torch.allclose(plain(x), classifier(x), atol=1e-3)


def test_empty_slots_leave_the_model_as_it_is():
    classifier = TimmClassifier(**SMALL).eval()
    model = timm.create_model(SMALL["name"], num_classes=5, **OPTIONS).eval()
    model.load_state_dict(classifier.network.state_dict())
    x = images()
    torch.testing.assert_close(classifier(x), model(x), rtol=0, atol=0)
    assert classifier.network.pos_embed is not None
    assert TimmClassifier(**SMALL, pos_embed=False).network.pos_embed is None
    # A model that takes none of our encodings trains all the same.
    assert TimmClassifier("test_resnet", num_classes=5)(torch.randn(2, 3, 64, 64)).shape == (2, 5)


def test_learned_rotations_are_of_each_layer_and_do_not_decay():
    classifier = TimmClassifier(**SMALL, rotary={**ROPE, "spectrum": {"name": "Mixed"}})
    slot = classifier.network.mmpos_rotary
    assert slot.layers == [0, 1]
    decayed, plain = (group["params"] for group in split_by_decay(classifier, 0.1))
    assert all(any(each is other for other in plain) for each in slot.parameters())
    assert any(each is classifier.network.blocks[0].mlp.fc1.weight for each in decayed)
    classifier(images()).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in slot.parameters())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "vit_tiny_patch17"}, "timm has no model 'vit_tiny_patch17'.*near it: .*vit_tiny"),
        ({"rotary": {**ROPE, "head_dim": 8}}, "head_dim .8. must be that of the heads of blocks.0.attn .16."),
        ({"name": "test_resnet", "options": None, "rotary": ROPE}, "ResNet is none of the models known"),
        ({"positions": {"normalize": "max"}}, "positions.*normalise"),
        ({"rotary": {"name": "RoPE", "axes": 3, "head_dim": 12}}, "must have 2 axes"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        TimmClassifier(**{**SMALL, **arguments})
