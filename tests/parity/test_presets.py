import math

import pytest
import torch

pytest.importorskip("diffusers")
pytest.importorskip("timm")
pytest.importorskip("transformers")

from diffusers.models.embeddings import apply_rotary_emb, get_3d_rotary_pos_embed
from diffusers.models.transformers import transformer_ltx
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from diffusers.models.transformers.transformer_flux2 import Flux2PosEmbed
from diffusers.models.transformers.transformer_hunyuan_video import HunyuanVideoRotaryPosEmbed
from diffusers.models.transformers.transformer_qwenimage import QwenEmbedRope, apply_rotary_emb_qwen
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed
from timm.layers import apply_rot_embed_cat, create_rope_embed
from transformers import (
    DeepseekV3Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    Phi3Config,
    PixtralVisionConfig,
    Qwen2VLTextConfig,
    Qwen3VLTextConfig,
)
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.gpt_neox import modeling_gpt_neox as gpt_neox
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama import modeling_llama as llama
from transformers.models.phi3 import modeling_phi3 as phi3
from transformers.models.pixtral import modeling_pixtral as pixtral
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3_vl

from mmpos import create_encoding, grid_coords, normalise, sequence_coords, video_coords
from mmpos.presets.rotary import ROTARY
from tests.rotary_checks import angles_of, blocks, check_spectrum, check_turns, geometric, half_width

HEIGHT, WIDTH, FRAMES = 9, 14, 3


# Text: frequencies in float64, and a rotary module of transformers on two rows


def on_rows(module, apply, freqs, *, end=4300, factor=1.0, coords=None):
    coords = sequence_coords(300, offset=torch.tensor([0, end - 300])) if coords is None else coords
    positions = coords[..., 0] if coords.shape[-1] == 1 else coords.movedim(-1, 0)
    cos, sin = module(torch.zeros(1), positions)
    full = cos.shape[-1] == 2 * freqs.shape[-1]
    tables = [half_width(part[:, None], "half") if full else part[:, None] for part in (cos, sin)]
    return {
        "coords": coords,
        "freqs": freqs,
        "shipped": lambda x: apply(x, x, cos, sin)[0],
        "tables": tables,
        "factor": factor,
        "length": end,
    }


def ramp_between(turns, num_pairs, base, train_length, whole):
    """YaRN's share of interpolation of each pair."""
    ends = [num_pairs * math.log(train_length / (2 * math.pi * turn)) / math.log(base) for turn in turns]
    low, high = ends if whole else (math.floor(ends[0]), math.ceil(ends[1]))
    return ((torch.arange(num_pairs, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)


def check_llama2():
    config = LlamaConfig(hidden_size=4096, num_attention_heads=32)
    return on_rows(llama.LlamaRotaryEmbedding(config), llama.apply_rotary_pos_emb, geometric(10000, 128)[None])


def check_llama3_1():
    parameters = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = LlamaConfig(
        hidden_size=4096, num_attention_heads=32, max_position_embeddings=131072, rope_parameters=parameters
    )
    freqs = geometric(500000, 128)
    kept = ((8192 * freqs / (2 * math.pi) - 1) / 3).clamp(0, 1)
    freqs = freqs * (kept + (1 - kept) / 8)
    return on_rows(llama.LlamaRotaryEmbedding(config), llama.apply_rotary_pos_emb, freqs[None], end=9000)


def check_qwen2_vl():
    parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    config = Qwen2VLTextConfig(hidden_size=3584, num_attention_heads=28, rope_parameters=parameters)
    freqs = blocks(*geometric(1e6, 128).split([16, 24, 24]))
    module, coords = qwen2_vl.Qwen2VLRotaryEmbedding(config), torch.randint(0, 4300, (2, 300, 3))
    return on_rows(module, qwen2_vl.apply_rotary_pos_emb, freqs, coords=coords)


def check_qwen3_vl():
    parameters = {
        "rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True
    }  # fmt: skip
    config = Qwen3VLTextConfig(hidden_size=4096, num_attention_heads=32, rope_parameters=parameters)
    owners = torch.tensor([0, 1, 2] * 20 + [0] * 4)
    freqs = geometric(5e6, 128) * (owners == torch.arange(3)[:, None])
    module, coords = qwen3_vl.Qwen3VLTextRotaryEmbedding(config), torch.randint(0, 4300, (2, 300, 3))
    return on_rows(module, qwen3_vl.apply_rotary_pos_emb, freqs, coords=coords)


def check_gpt_neox():
    config = GPTNeoXConfig(hidden_size=6144, num_attention_heads=64)
    return on_rows(gpt_neox.GPTNeoXRotaryEmbedding(config), gpt_neox.apply_rotary_pos_emb, geometric(10000, 24)[None])


def check_gpt_oss():
    ramp = ramp_between((32, 1), 32, 150000, 4096, whole=True)
    freqs = geometric(150000, 64) * (1 - ramp * (1 - 1 / 32))
    module, factor = gpt_oss.GptOssRotaryEmbedding(GptOssConfig()), 0.1 * math.log(32) + 1
    return on_rows(module, gpt_oss.apply_rotary_pos_emb, freqs[None], factor=factor)


def check_phi3_long(end=4300):
    # Lists of Phi-3-vision-128k-instruct's config.
    short = [1.05, 1.05, 1.05, 1.1, 1.1, 1.1, 1.2500000000000002, 1.2500000000000002, 1.4000000000000004,
             1.4500000000000004, 1.5500000000000005, 1.8500000000000008, 1.9000000000000008, *[2.000000000000001] * 19,
             2.1000000000000005, 2.1000000000000005, 2.2, *[2.3499999999999996] * 4, 2.3999999999999995,
             2.3999999999999995, 2.6499999999999986, 2.6999999999999984, 2.8999999999999977, 2.9499999999999975,
             *[3.049999999999997] * 3]  # fmt: skip
    long = [1.0299999713897705, 1.0499999523162842, 1.0499999523162842, 1.0799999237060547, 1.2299998998641968,
            1.2299998998641968, 1.2999999523162842, 1.4499999284744263, 1.5999999046325684, 1.6499998569488525,
            1.8999998569488525, 2.859999895095825, 3.68999981880188, 5.419999599456787, 5.489999771118164,
            5.489999771118164, 9.09000015258789, 11.579999923706055, 15.65999984741211, 15.769999504089355,
            15.789999961853027, 18.360000610351562, 21.989999771118164, 23.079999923706055, 30.009998321533203,
            32.35000228881836, 32.590003967285156, 35.56000518798828, 39.95000457763672, 53.840003967285156,
            56.20000457763672, 57.95000457763672, 59.29000473022461, 59.77000427246094, 59.920005798339844,
            61.190006256103516, 61.96000671386719, 62.50000762939453, 63.3700065612793, 63.48000717163086,
            63.48000717163086, 63.66000747680664, 63.850006103515625, 64.08000946044922, 64.760009765625,
            64.80001068115234, 64.81001281738281, 64.81001281738281]  # fmt: skip
    parameters = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": long}
    config = Phi3Config(
        max_position_embeddings=131072, original_max_position_embeddings=4096, rope_parameters=parameters
    )
    freqs = geometric(10000, 96) / torch.tensor(long if end > 4096 else short, dtype=torch.float64)
    factor = math.sqrt(1 + math.log(32) / math.log(4096))
    return on_rows(phi3.Phi3RotaryEmbedding(config), phi3.apply_rotary_pos_emb, freqs[None], end=end, factor=factor)


def check_deepseek_v3():
    parameters = {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 4096,
        "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    }  # fmt: skip
    config = DeepseekV3Config(max_position_embeddings=163840, rope_parameters=parameters)
    ramp = ramp_between((32, 1), 32, 10000, 4096, whole=False)
    freqs = geometric(10000, 64) * (1 - ramp * (1 - 1 / 40))

    def apply(q, k, cos, sin):
        # Theirs turns the decoupled channels alone and leaves their pairs in the half layout.
        turned = deepseek.apply_rotary_pos_emb_interleave(q[..., :64], k[..., :64], cos, sin)[0]
        return (torch.cat([turned.unflatten(-1, (2, 32)).mT.flatten(-2), q[..., 64:]], dim=-1),)

    # What the attention factor is not, theirs has in the scale of its attention.
    assert deepseek.yarn_apply_mscale(config.rope_parameters, 1.0) == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    return on_rows(deepseek.DeepseekV3RotaryEmbedding(config), apply, freqs[None])


# Images


def on_grid(embed, coords, freqs, layout):
    sin, cos = embed.chunk(2, -1)
    return {
        "coords": coords,
        "freqs": freqs,
        "shipped": lambda x: apply_rot_embed_cat(x, embed, half=layout == "half"),
        "tables": [half_width(part, layout) for part in (cos, sin)],
    }


def check_eva02():
    module = create_rope_embed("cat", 768, 12, in_pixels=False, ref_feat_shape=(16, 16))
    coords = grid_coords(HEIGHT, WIDTH, spacing=(16 / HEIGHT, 16 / WIDTH))
    return on_grid(module.get_embed((HEIGHT, WIDTH)), coords, blocks(*[geometric(10000, 32)] * 2), "interleaved")


def check_dinov3():
    module = create_rope_embed("dinov3", 768, 12)
    coords = normalise(grid_coords(HEIGHT, WIDTH), (HEIGHT, WIDTH))
    return on_grid(module.get_embed((HEIGHT, WIDTH)), coords, blocks(*[2 * math.pi * geometric(100, 32)] * 2), "half")


def check_rope_vit_axial():
    module = create_rope_embed("cat", 768, 12, in_pixels=False, temperature=100.0, grid_indexing="xy")
    freqs = blocks(*[geometric(100, 32)] * 2).flip(0)
    return on_grid(module.get_embed((HEIGHT, WIDTH)), grid_coords(HEIGHT, WIDTH), freqs, "interleaved")


def check_rope_vit_mixed():
    module = create_rope_embed("mixed", 768, 12, depth=2)
    freqs = module.freqs.detach()[:, 1].flip(0).movedim(0, 1)  # theirs are (x, y)
    embed = module.get_embed((HEIGHT, WIDTH)).detach()[1]
    return {**on_grid(embed, grid_coords(HEIGHT, WIDTH), freqs, "interleaved"), "heads": 12}


def check_pixtral():
    module = pixtral.PixtralVisionRotaryEmbedding(PixtralVisionConfig())
    coords = grid_coords(HEIGHT, WIDTH)
    cos, sin = module(torch.zeros(1), coords.mT[None])
    freqs = geometric(10000, 64)
    return {
        "coords": coords,
        "freqs": blocks(freqs[0::2], freqs[1::2]),
        "shipped": lambda x: pixtral.apply_rotary_pos_emb(x[None], x[None], cos, sin)[0][0],
        "tables": [half_width(part[0], "half") for part in (cos, sin)],
    }


# Images and video in diffusers


def in_pairs(coords, freqs, cos, sin):
    return {
        "coords": coords,
        "freqs": freqs,
        "shipped": lambda x: apply_rotary_emb(x[None], (cos, sin))[0],
        "tables": [half_width(part, "interleaved") for part in (cos, sin)],
    }


def check_flux():
    coords = video_coords(1, HEIGHT, WIDTH)
    freqs = blocks(geometric(10000, 16), geometric(10000, 56), geometric(10000, 56))
    return in_pairs(coords, freqs, *FluxPosEmbed(theta=10000, axes_dim=[16, 56, 56])(coords))


def check_flux2():
    image = torch.nn.functional.pad(video_coords(2, HEIGHT, WIDTH, origin=(10, 0, 0)), (0, 1))
    coords = torch.cat([image, torch.nn.functional.pad(sequence_coords(40), (3, 0))])
    return in_pairs(coords, blocks(*[geometric(2000, 32)] * 4), *Flux2PosEmbed(theta=2000, axes_dim=[32] * 4)(coords))


def check_qwen_image():
    module = QwenEmbedRope(theta=10000, axes_dim=[16, 56, 56], scale_rope=True)
    image, text = module((1, HEIGHT, WIDTH), max_txt_seq_len=300)
    table = torch.cat([text, image])
    coords = torch.cat(
        [
            sequence_coords(300, offset=max(HEIGHT // 2, WIDTH // 2)).expand(-1, 3),
            video_coords(1, HEIGHT, WIDTH, origin=(0, HEIGHT // 2 - HEIGHT, WIDTH // 2 - WIDTH)),
        ]
    )
    return {
        "coords": coords,
        "freqs": blocks(geometric(10000, 16), geometric(10000, 56), geometric(10000, 56)),
        "shipped": lambda x: apply_rotary_emb_qwen(x.movedim(0, 1)[None], table, use_real=False)[0].movedim(1, 0),
        "tables": [table.real, table.imag],
    }


def check_hunyuan_video():
    module = HunyuanVideoRotaryPosEmbed(patch_size=2, patch_size_t=1, rope_dim=[16, 56, 56], theta=256.0)
    tables = module(torch.zeros(1, 16, FRAMES, 2 * HEIGHT, 2 * WIDTH))
    freqs = blocks(geometric(256, 16), geometric(256, 56), geometric(256, 56))
    return in_pairs(video_coords(FRAMES, HEIGHT, WIDTH), freqs, *tables)


def check_wan():
    module = WanRotaryPosEmbed(attention_head_dim=128, patch_size=(1, 2, 2), max_seq_len=1024)
    tables = module(torch.zeros(1, 16, FRAMES, 2 * HEIGHT, 2 * WIDTH))
    freqs = blocks(geometric(10000, 44), geometric(10000, 42), geometric(10000, 42))
    return in_pairs(video_coords(FRAMES, HEIGHT, WIDTH), freqs, *(part[0, :, 0] for part in tables))


def check_cogvideox():
    # A grid of 9 x 14 over the 12 x 21 cells of another resolution.
    tables = get_3d_rotary_pos_embed(64, ((0, 0), (12, 21)), (HEIGHT, WIDTH), FRAMES)
    coords = video_coords(FRAMES, HEIGHT, WIDTH, spacing=(1, 12 / HEIGHT, 21 / WIDTH))
    return in_pairs(coords, blocks(geometric(10000, 16), geometric(10000, 24), geometric(10000, 24)), *tables)


def check_ltx_video():
    module = transformer_ltx.LTXVideoRotaryPosEmbed(dim=2048)
    tables = module(torch.zeros(1, 1), FRAMES, HEIGHT, WIDTH, rope_interpolation_scale=(8 / 25, 32, 32))
    coords = video_coords(FRAMES, HEIGHT, WIDTH, spacing=(8 / 25 / 20, 32 / 2048, 32 / 2048), origin=-0.5)
    rising = math.pi * 10000 ** (torch.arange(341, dtype=torch.float64) / 340)
    pairs = (rising[:, None, None] * torch.eye(3)).flatten(0, 1)  # t, y and x in turn
    freqs = torch.cat([torch.zeros(1, 3), pairs]).unflatten(0, (32, 32)).mT

    def shipped(x):
        wide = x.movedim(0, 1).flatten(1)[None]
        return transformer_ltx.apply_rotary_emb(wide, tables)[0].unflatten(-1, (32, 64)).movedim(1, 0)

    halves = [half_width(part[0], "interleaved").unflatten(-1, (32, 32)).movedim(1, 0) for part in tables]
    # Theirs raises 10000 to exponents in float32: what rounds an exponent up to 1 comes out ln(10000) times as large.
    slack = 1 + math.log(10000) / 4
    return {"coords": coords, "freqs": freqs, "shipped": shipped, "tables": halves, "heads": 32, "slack": slack}


# torch_brain, which has POYO's, is not among the packages to compare with; test_presets.py has its formula.
COMPARED = [name for name in ROTARY if name != "poyo"]
CHECKS = {name: globals()[f"check_{name}"] for name in COMPARED}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMPARED)
def test_preset(name):
    case = CHECKS[name]()
    coords, freqs = case.pop("coords"), case.pop("freqs")
    rope = create_encoding(name)
    if name == "rope_vit_mixed":
        with torch.no_grad():
            rope.freqs.copy_(freqs)
    else:
        check_spectrum(rope, freqs, length=case.get("length"))
    check_turns(rope, coords, angles_of(coords, freqs), **case)


@pytest.mark.filterwarnings("ignore")
def test_phi3_up_to_its_trained_length():
    case = check_phi3_long(end=4096)
    coords, freqs = case.pop("coords"), case.pop("freqs")
    check_turns(create_encoding("phi3_long"), coords, angles_of(coords, freqs), **case)


@pytest.mark.parametrize("head_dim", [40, 64, 96, 128])
def test_wan_splits_any_head_as_it_is_published(head_dim):
    module = WanRotaryPosEmbed(attention_head_dim=head_dim, patch_size=(1, 1, 1), max_seq_len=16)
    freqs = blocks(*(geometric(10000, width) for width in (module.t_dim, module.h_dim, module.w_dim)))
    check_spectrum(create_encoding("wan", head_dim=head_dim), freqs)
