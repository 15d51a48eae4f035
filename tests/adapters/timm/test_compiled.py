"""Adapted models are compiled and exported as others are."""

import copy

import pytest
import torch

from mmpos import ALiBi, RoPE
from mmpos.adapters.timm import add_bias, add_rotary
from tests.adapters.timm.tiny import adapt, close, images, make, out

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::torch.jit.TracerWarning"
)


@pytest.mark.parametrize("family", ["ViT with registers", "BEiT", "NaFlexViT, factorized"])
def test_compiled(family):
    model, x = adapt(make(family, depth=1), family), images()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected, found = model(x), compiled(x)
    close(found, expected)
    gradients = [
        torch.autograd.grad(each.sum(), model.mmpos_rotary.encodings[0].freqs)[0] for each in (expected, found)
    ]
    close(*gradients)


def test_compiled_for_any_size():
    model = make("ViT with registers", depth=1, dynamic_img_size=True)
    add_rotary(model, RoPE(32, axes=2))
    add_bias(model, ALiBi(3, axes=2))
    model.patch_embed.img_size = None  # for timm's check of the size is compiled for this size only
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for number, size in enumerate(((80, 32), (32, 112), (48, 96))):
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            close(out(compiled, images(*size)), out(model, images(*size)))


@pytest.mark.parametrize("family", ["ViT with registers", "BEiT", "DINOv3"])
def test_exported(family):
    model, x = adapt(make(family, depth=1), family), images()
    expected = out(model, x)
    program = torch.export.export(model, (x,))
    close(out(program.module(), x), expected)
    model(x)
    copy.deepcopy(model)


@pytest.mark.parametrize("family", ["ViT", "BEiT"])
def test_traced(family):
    model = adapt(make(family, depth=1), family)
    traced = torch.jit.trace(model, images(), check_trace=False)
    close(out(traced, images(batch=3)), out(model, images(batch=3)))
