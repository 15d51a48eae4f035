"""Models of transformers with our rotary encoding, called in all the ways that users call them."""

import copy

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers")

import transformers

from mmpos import RoPE
from mmpos.adapters.transformers import describe, extend_context, remove_rope, replace_rope, rope_from_config
from mmpos.scaling import YaRN
from mmpos.spectra import Learned
from tests.adapters.test_transformers import (
    FAMILIES,
    GROUPED,
    REACH,
    VOCABULARY,
    close,
    continuation,
    logits,
    make,
    prompts,
    refused,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


WAYS = {
    "static": {"cache_implementation": "static"},
    "beams": {"num_beams": 3},
    "beams without a cache": {"num_beams": 2, "use_cache": False},
    "assisted": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["Llama", "Gemma3", "GPTNeoX", "Llama4", "Cohere2"])
def test_other_ways_to_generate(family, way):
    model, (ids, mask) = make(family), prompts()
    if way == "assisted":  # which takes one row
        ids, mask = ids[:1], mask[:1]
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, **WAYS[way]}
    told = model.generate(input_ids=ids, attention_mask=mask, **settings)
    replace_rope(model, rope_from_config(model.config))
    assert torch.equal(model.generate(input_ids=ids, attention_mask=mask, **settings), told)


POSITIONS = {
    "packed rows": torch.cat([torch.arange(12), torch.arange(8)])[None],
    "rows of their own": torch.arange(20) * torch.tensor([[1], [3]]),
    "backwards": torch.arange(20).flip(0)[None],
    "int32": torch.arange(20, dtype=torch.int32)[None],
}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_positions_given_by_hand(family, name):
    model, ids = make(family), torch.randint(1, VOCABULARY, (2, 20))
    given = {"input_ids": ids, "position_ids": POSITIONS[name].expand(2, -1), "use_cache": False}
    before = model(**given).logits
    replace_rope(model, rope_from_config(model.config))
    close(model(**given).logits, before)
    plain = model(**{**given, "position_ids": None}).logits
    assert (plain - before).abs().max() > 1e-4 or name == "int32"


@pytest.mark.parametrize("family, changes", [("Llama", {}), ("Llama4", {"no_rope_layers": [1]})])
def test_compiled_and_exported(family, changes):
    model, ids = make(family, num_hidden_layers=1, **changes), torch.randint(1, VOCABULARY, (2, 19))
    replace_rope(model, rope_from_config(model.config))
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
        close(compiled(input_ids=ids, use_cache=False).logits, expected)
        with torch._dynamo.config.patch(error_on_recompile=True):
            close(compiled(input_ids=ids[:, :7].contiguous(), use_cache=False).logits, expected[:, :7])
        told = {"input_ids": ids, "use_cache": False}
        program = torch.export.export(model, (), told, strict=False)
        close(program.module()(**told).logits, expected)


def test_a_model_made_without_data():
    for change in (remove_rope, lambda model: extend_context(model, YaRN(4, REACH))):
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**FAMILIES["Llama"])).eval()
            change(model)
        source, (ids, mask) = make("Llama"), prompts()
        change(source)
        model.to_empty(device="cpu")
        model.load_state_dict(source.state_dict())
        close(logits(model, ids, mask), logits(source, ids, mask))


def test_what_an_encoding_learns_lies_where_the_model_does():
    rope = RoPE(12, spectrum=Learned())
    model = make("Llama").to("meta")
    replace_rope(model, rope, write_config=False)
    assert all(each.is_meta for each in model.parameters())
    model = dinov3_on_meta()
    replace_rope(model, RoPE(16, axes=2, spectrum=Learned()), write_config=False)
    assert all(each.is_meta for each in model.parameters())
    with torch.device("meta"):
        rope = RoPE(12, spectrum=Learned())
    refused(make("Llama"), lambda model: replace_rope(model, rope, write_config=False), "rope is on the meta device")


def dinov3_on_meta():
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    with torch.device("meta"):
        return transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**sizes))


IMAGES = {
    "depth": 1,
    "embed_dim": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "intermediate_size": 16,
    "fullatt_block_indexes": [0],
    "deepstack_visual_indexes": [0],
}


SOUND = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "output_dim": 64}


def multimodal(family):
    """A model that reads images too, with its tokens and masks."""
    sections = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}
    text = {**GROUPED, "hidden_size": 64, "rope_parameters": sections}
    if family == "Qwen3VL":
        text["head_dim"] = 16
    images = {**IMAGES, "hidden_size": 64 if family == "Qwen2VL" else 32}
    sound = {}
    if family == "Qwen2_5OmniThinker":  # its config does not name the marks
        marks = ("vision_start", "vision_end", "audio_start", "audio_end")
        sound = {"audio_config": SOUND, **{f"{mark}_token_id": 60 + i for i, mark in enumerate(marks)}}
    config = getattr(transformers, f"{family}Config")(text_config=copy.deepcopy(text), vision_config=images, **sound)
    torch.manual_seed(1)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(torch.randn_like(each) * (0.15 if each.ndim > 1 else 0.1) + (each.ndim == 1))
    return model


def of_grids(model, ids, mask):
    """Logits of real tokens at positions of three axes."""
    positions = torch.randint(0, 30, (3, *ids.shape), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    return found[mask.bool()]


@pytest.mark.parametrize("family", ["Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Qwen2_5OmniThinker"])
def test_models_that_read_images_too(family, tmp_path):
    model, (ids, mask) = multimodal(family), prompts()
    before, told = of_grids(model, ids, mask), continuation(model, ids, mask)
    other = copy.deepcopy(model)
    replace_rope(other, rope_from_config(other.config))
    close(of_grids(other, ids, mask), before)
    assert torch.equal(continuation(other, ids, mask), told)
    assert torch.equal(continuation(other, ids, mask, use_cache=False), told)
    extend_context(model, YaRN(4, REACH))
    after = of_grids(model, ids, mask)
    assert (after - before).abs().max() > 1e-2
    model.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    close(of_grids(plain, ids, mask), after)
    assert not describe(plain).problems
