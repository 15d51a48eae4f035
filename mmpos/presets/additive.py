"""Additive encodings of papers and released models."""

from ..encodings.additive import Octaves
from ..frequencies import Bands, Geometric, Periods
from ..spectra import Axial
from .base import Preset

ADDITIVE: dict[str, Preset] = {
    # Vaswani et al., Attention is all you need, 2017, sec. 3.5; the base model. https://arxiv.org/abs/1706.03762
    "transformer": Preset("Sinusoidal", {"dim": 512}),
    # Vaswani et al., Tensor2Tensor, 2018, released code; also M2M-100, NLLB, XGLM and Speech2Text, which count from
    # padding_idx + 1 = 2. https://arxiv.org/abs/1803.07416
    "tensor2tensor": Preset(
        "Sinusoidal", {"dim": 512, "layout": "half", "spectrum": Axial(series=Geometric(endpoint=True))}
    ),
    # Radford et al., Whisper, 2022, released code; the encoder of large. https://arxiv.org/abs/2212.04356
    "whisper": Preset(
        "Sinusoidal", {"dim": 1280, "layout": "half", "spectrum": Axial(series=Geometric(endpoint=True))}
    ),
    # Copet et al., MusicGen, 2023, released code; small. https://arxiv.org/abs/2306.05284
    "musicgen": Preset(
        "Sinusoidal",
        {"dim": 1024, "layout": "half", "cos_first": True, "spectrum": Axial(series=Geometric(endpoint=True))},
    ),
    # Das et al., TimesFM, 2023, and its released code, whose default timescales are 1 and 10000; others multiply
    # coordinates by the shortest and have the base longest / shortest. https://arxiv.org/abs/2310.10688
    "timesfm": Preset(
        "Sinusoidal", {"dim": 1280, "layout": "half", "spectrum": Axial(series=Geometric(endpoint=True))}
    ),
    # Zhou et al., Informer, 2020, as in transformers; also Autoformer, Marian and Pegasus.
    # https://arxiv.org/abs/2012.07436
    "informer": Preset("Sinusoidal", {"dim": 512, "layout": "half", "uneven": "odd"}),
    # x-transformers, ScaledSinusoidalEmbedding: one learned factor. https://github.com/lucidrains/x-transformers
    "scaled_sinusoidal": Preset("Sinusoidal", {"dim": 512, "layout": "half", "learned_scale": True}),
    # The package positional-encodings, any width. https://github.com/tatp22/multidim-positional-encoding
    "positional_encodings_1d": Preset("Sinusoidal", {"dim": 96, "uneven": "round_up"}),
    "positional_encodings_2d": Preset("Sinusoidal", {"dim": 96, "axes": 2, "uneven": "round_up"}),
    "positional_encodings_3d": Preset("Sinusoidal", {"dim": 96, "axes": 3, "uneven": "round_up"}),
    # timm, build_sincos2d_pos_embed, without and with interleave_sin_cos; reverse_coord takes the coordinates of the
    # transposed image, grid_coords(width, height). https://github.com/huggingface/pytorch-image-models
    "timm_sincos2d": Preset("Sinusoidal", {"dim": 768, "axes": 2, "layout": "half"}),
    "timm_sincos2d_interleaved": Preset("Sinusoidal", {"dim": 768, "axes": 2, "layout": "axis_half"}),
    # He et al., Masked autoencoders, 2021, released code: columns before rows; also DiT, I-JEPA and PixArt, which
    # rescale coordinates. https://arxiv.org/abs/2111.06377
    "mae": Preset("Sinusoidal", {"dim": 768, "axes": 2, "layout": "axis_half", "spectrum": Axial(order=(1, 0))}),
    # Chen et al., MoCo v3, 2021, released code, on square images; on others its tokens go column by column.
    # https://arxiv.org/abs/2104.02057
    "moco_v3": Preset("Sinusoidal", {"dim": 768, "axes": 2, "layout": "axis_half"}),
    # Beyer et al., Better plain ViT baselines, 2022, released code (big_vision, sincos2d).
    # https://arxiv.org/abs/2205.01580
    "big_vision": Preset(
        "Sinusoidal",
        {
            "dim": 384,
            "axes": 2,
            "layout": "axis_half",
            "spectrum": Axial(order=(1, 0), series=Geometric(endpoint=True)),
        },
    ),
    # Bardes et al., V-JEPA, 2024, and V-JEPA 2, released code: half the width to time, or equal shares, cut
    # (uniform_power). https://arxiv.org/abs/2404.08471
    "vjepa_sincos": Preset(
        "Sinusoidal", {"dim": 1024, "axes": 3, "layout": "axis_half", "spectrum": Axial(weights=(2, 1, 1))}
    ),
    "vjepa_sincos_uniform": Preset("Sinusoidal", {"dim": 1024, "axes": 3, "layout": "axis_half", "uneven": "round_up"}),
    # Yang et al., CogVideoX, 2024, the 2B model, as in diffusers. https://arxiv.org/abs/2408.06072
    "cogvideox_sincos": Preset(
        "Sinusoidal",
        {"dim": 1920, "axes": 3, "layout": "axis_half", "spectrum": Axial(weights=(2, 3, 3), order=(0, 2, 1))},
    ),
    # Szwarcman et al., Prithvi-EO-2.0, 2024, released code: columns, rows, time. https://arxiv.org/abs/2412.02732
    "prithvi": Preset(
        "Sinusoidal",
        {"dim": 1024, "axes": 3, "layout": "axis_half", "spectrum": Axial(weights=(2, 3, 3), order=(2, 1, 0))},
    ),
    # Carion et al., DETR, 2020, sec. A.4, and its released code; also MaskFormer, Conditional DETR and SAM 2.
    # Coordinates are shares of the image: normalise_padded(padded_coords(mask), mask), with offset=0.5 for Deformable
    # DETR. https://arxiv.org/abs/2005.12872
    "detr": Preset("Sinusoidal", {"dim": 256, "axes": 2, "spectrum": Axial(series=Periods(1, 10000, endpoint=False))}),
    # Liu et al., DAB-DETR, 2022, sec. 3.5, and Grounding DINO, released code: temperature 20; coordinates as for detr.
    # Boxes have four axes, (y, x, width, height). https://arxiv.org/abs/2201.12329
    "dab_detr": Preset("Sinusoidal", {"dim": 256, "axes": 2, "spectrum": Axial(series=Periods(1, 20, endpoint=False))}),
    # Ho et al., DDPM, 2020, released code: steps of the diffusion; an odd width ends with 0.
    # https://arxiv.org/abs/2006.11239
    "ddpm_timestep": Preset(
        "Sinusoidal",
        {"dim": 128, "layout": "half", "spectrum": Axial(weights=(1,), series=Geometric(endpoint=True))},
    ),
    # Rombach et al., Latent diffusion, 2021, released code, as in diffusers (flip_sin_to_cos, no shift); also ADM, DiT
    # and FLUX, whose times are multiplied by 1000. https://arxiv.org/abs/2112.10752
    "latent_diffusion_timestep": Preset(
        "Sinusoidal", {"dim": 320, "layout": "half", "cos_first": True, "spectrum": Axial(weights=(1,))}
    ),
    # Mildenhall et al., NeRF, 2020, sec. 5.1, as its released code has it with coordinates from -1 to 1 times pi.
    # https://arxiv.org/abs/2003.08934
    "nerf": Preset("Fourier", {"axes": 3, "num_bands": 10, "bands": Octaves(), "include_coords": True}),
    # Jaegle et al., Perceiver, 2021, sec. 3.2; images of 224 x 224, coordinates from -1 to 1.
    # https://arxiv.org/abs/2103.03206
    "perceiver": Preset(
        "Fourier",
        {"axes": 2, "num_bands": 64, "bands": Bands(224), "include_coords": True, "order": "wave axis band"},
    ),
    # Garnot and Landrieu, U-TAE, 2021, and its released code; also L-TAE, 2020: days since a reference date. There each
    # of 16 heads has these 16 channels: repeat(1, 16) makes them the 256 of a token. https://arxiv.org/abs/2107.07933
    "utae": Preset("Sinusoidal", {"dim": 16, "base": 1000.0}),
    # Taylor and Letham, Forecasting at scale (Prophet), 2017, and its released code: days since 1970. For steps of less
    # than a day it adds the period 1 with 4 harmonics. https://doi.org/10.7287/peerj.preprints.3190
    "prophet": Preset("Seasonal", {"periods": (365.25, 7), "harmonics": (10, 3)}),
    # Xu et al., TGAT, 2020, and its released code: time since an event, cosines of learned frequencies. Here channel 0
    # is a trend, and phases start at random instead of at 0. https://arxiv.org/abs/2002.07962
    "tgat": Preset("Time2Vec", {"dim": 101, "start": Geometric(1e9, endpoint=True), "wave": "cosine"}),
    # Cong et al., GraphMixer, 2023, and its released code: time since an event, the same frequencies, fixed. Its 100
    # channels are the cosines, the first half of these. https://arxiv.org/abs/2302.11636
    "graphmixer": Preset(
        "Sinusoidal",
        {"dim": 200, "layout": "half", "cos_first": True, "spectrum": Axial(series=Geometric(1e9, endpoint=True))},
    ),
    # Kim and Lee, CTLPE, 2024: a linear function of time. https://arxiv.org/abs/2409.20092
    "ctlpe": Preset("CoordinateMLP", {"hidden_dim": None}),
}
