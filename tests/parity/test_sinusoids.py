"""Sinusoids beside those of packages, and beside released code that no package holds, as formulas typed here."""

import importlib
import math

import pytest
import torch

from mmpos import (
    Axial,
    Given,
    Periods,
    Sinusoidal,
    grid_coords,
    normalise,
    padded_coords,
    rescale,
    sequence_coords,
    video_coords,
)
from mmpos.frequencies import Geometric

# Where the other works in float64, ours, which is float32, is the one that rounds.
EXACT = 2e-7
# Others form angles in float32, whose frequencies and products are off by 2^-24 each: at angle x, by 2^-23 x.
ROUNDING = 2**-23

MAE = {"layout": "axis_half", "spectrum": Axial(order=(1, 0))}
BIG_VISION = {"layout": "axis_half", "spectrum": Axial(order=(1, 0), series=Geometric(endpoint=True))}
TENSOR2TENSOR = {"layout": "half", "spectrum": Axial(series=Geometric(endpoint=True))}
# Half the channels to time and a quarter each to rows and columns; one third each, cut.
VJEPA = {"layout": "axis_half", "spectrum": Axial(weights=(2, 1, 1))}
VJEPA_UNIFORM = {"layout": "axis_half", "uneven": "round_up"}
COGVIDEOX = {"layout": "axis_half", "spectrum": Axial(weights=(2, 3, 3), order=(0, 2, 1))}


def detr(base=10000.0):
    """Coordinates are shares of the image, a turn of the first pair each."""
    return {"axes": 2, "spectrum": Axial(series=Periods(1, base, endpoint=False))}


def model(name):
    """The file of a model in transformers."""
    pytest.importorskip("transformers", reason="needs transformers")
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def diffusers():
    pytest.importorskip("diffusers", reason="needs diffusers")
    return importlib.import_module("diffusers.models.embeddings")


def same(ours, theirs, tolerance):
    torch.testing.assert_close(ours.double(), theirs.double(), atol=tolerance, rtol=0)


def shares(mask, origin=1.0, eps=1e-6):
    """DETR's coordinates: counted from ``origin`` along the real cells of each row and column, over their number."""
    totals = [mask.double().sum(axis, keepdim=True).expand_as(mask) for axis in (1, 2)]
    return (padded_coords(mask) + origin) / (torch.stack(totals, dim=-1).flatten(1, 2) + eps)


def masks():
    """Images of unequal sizes: one that fills all, one padded below and to the right, one above and to the left."""
    mask = torch.zeros(3, 5, 7, dtype=torch.bool)
    mask[0] = mask[1, :3, :6] = mask[2, 1:, 5:] = True
    return mask


# Packages


@pytest.mark.parametrize(
    "name, size, dims",
    [
        ("1D", (300,), (1, 2, 5, 10, 21)),
        ("2D", (9, 4), (1, 2, 5, 8, 10, 20, 23)),
        ("3D", (2, 5, 7), (1, 4, 10, 24, 25, 64)),
    ],
)
def test_positional_encodings(name, size, dims):
    peer = pytest.importorskip("positional_encodings.torch_encodings", reason="needs positional-encodings")
    coords = {1: sequence_coords, 2: grid_coords, 3: video_coords}[len(size)](*size)
    for dim in dims:
        theirs = getattr(peer, f"PositionalEncoding{name}")(dim)(torch.zeros(2, *size, dim))
        ours = Sinusoidal(dim, axes=len(size), uneven="round_up")(coords).expand(2, -1, -1)
        same(ours, theirs.flatten(1, -2), ROUNDING * max(size))
        if dim % (2 * len(size)) == 0:
            assert torch.equal(Sinusoidal(dim, axes=len(size))(coords), ours[0])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size, dim, base", [((5, 7), 24, 10000.0), ((9, 4), 8, 100.0), ((300, 2), 16, 10000.0)])
def test_timm_sincos2d(size, dim, base, interleaved, reverse):
    layers = pytest.importorskip("timm.layers", reason="needs timm")
    theirs = layers.build_sincos2d_pos_embed(
        list(size), dim, temperature=base, interleave_sin_cos=interleaved, reverse_coord=reverse
    )
    # Reversed it is the table of the transposed image, tokens column by column.
    coords = grid_coords(*reversed(size)) if reverse else grid_coords(*size)
    ours = Sinusoidal(dim, axes=2, base=base, layout="axis_half" if interleaved else "half")(coords)
    same(ours, theirs, ROUNDING * max(size))


@pytest.mark.parametrize("dim, base", [(16, 10000), (2, 10000), (24, 100)])
def test_x_transformers_scaled(dim, base):
    peer = pytest.importorskip("x_transformers.x_transformers", reason="needs x-transformers")
    theirs = peer.ScaledSinusoidalEmbedding(dim, theta=base)
    ours = Sinusoidal(dim, base=base, layout="half", learned_scale=True)
    same(ours.scale, theirs.scale, 1e-9)
    with torch.no_grad():
        theirs.scale.fill_(1.75)
    ours.load_state_dict(theirs.state_dict())
    same(ours(sequence_coords(300, offset=11)), theirs(torch.zeros(2, 300, dim), offset=11), 1.75 * ROUNDING * 311)


# Models in transformers: sequences


@pytest.mark.parametrize(
    "name, family",
    [("informer", "Informer"), ("autoformer", "Autoformer"), ("time_series_transformer", "TimeSeries"),
     ("marian", "Marian"), ("roformer", "RoFormer")],
)  # fmt: skip
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_sines_before_cosines(name, family, dim):
    theirs = getattr(model(name), f"{family}SinusoidalPositionalEmbedding")(301, dim).create_weight()
    same(Sinusoidal(dim, layout="half", uneven="odd")(sequence_coords(301)), theirs, EXACT)


@pytest.mark.parametrize("dim", [1, 5, 16])
def test_videomae(dim):
    theirs = model("videomae").get_sinusoid_encoding_table(301, dim)[0]
    same(Sinusoidal(dim, uneven="odd")(sequence_coords(301)), theirs, EXACT)


@pytest.mark.parametrize("dim", [4, 16])
def test_tensor2tensor_series(dim):
    same(Sinusoidal(dim, **TENSOR2TENSOR)(sequence_coords(301)), model("whisper").sinusoids(301, dim), ROUNDING * 301)
    theirs = model("speech_to_text").Speech2TextSinusoidalPositionalEmbedding.get_embedding(301, dim)
    same(Sinusoidal(dim, **TENSOR2TENSOR)(sequence_coords(301)), theirs, ROUNDING * 301)
    theirs = model("musicgen").MusicgenSinusoidalPositionalEmbedding.get_embedding(301, dim)
    same(Sinusoidal(dim, cos_first=True, **TENSOR2TENSOR)(sequence_coords(301)), theirs, ROUNDING * 301)


def test_an_odd_tensor2tensor_width_ends_with_a_zero():
    theirs = model("speech_to_text").Speech2TextSinusoidalPositionalEmbedding.get_embedding(301, 9)
    spectrum = Axial(weights=(1,), series=Geometric(endpoint=True))
    same(Sinusoidal(9, layout="half", spectrum=spectrum)(sequence_coords(301)), theirs, ROUNDING * 301)


@pytest.mark.parametrize("dim, shortest, longest", [(16, 1, 10000), (2, 1, 10000), (10, 4, 500)])
def test_timesfm(dim, shortest, longest):
    file = model("timesfm")
    config = file.TimesFmConfig(hidden_size=dim, min_timescale=shortest, max_timescale=longest)
    theirs = file.TimesFmPositionalEmbedding(config)
    # It multiplies with the shortest timescale, by which a position is divided in tensor2tensor.
    spectrum = Axial(series=Geometric(longest / shortest, endpoint=True))
    ours = Sinusoidal(dim, layout="half", spectrum=spectrum)
    same(ours(rescale(sequence_coords(300), shortest)), theirs(300)[0], ROUNDING * 300 * shortest)
    positions = torch.tensor([[0.0, 7.0, 3.0], [250.0, 1.0, 44.0]])
    same(ours(rescale(positions[..., None], shortest)), theirs(position=positions), ROUNDING * 300 * shortest)


def test_patchtst_centres_and_scales_the_table():
    file = model("patchtst")
    config = file.PatchTSTConfig(d_model=16, positional_encoding_type="sincos")
    theirs = file.PatchTSTPositionalEncoding._init_pe(config, 42)
    ours = Sinusoidal(16)(sequence_coords(42))
    ours = ours - ours.mean()
    same(ours / (10 * ours.std()), theirs, ROUNDING * 42)


# Models in transformers: images


@pytest.mark.parametrize("base", [10000.0, 20.0])
@pytest.mark.parametrize("name, family", [("detr", "Detr"), ("maskformer", "MaskFormer"), ("sam2", "Sam2")])
def test_detr(name, family, base):
    peer = getattr(model(name), f"{family}SinePositionEmbedding")
    mask = masks()
    shape = torch.Size((3, 1, *mask.shape[1:]))
    for normalise_by_size in (False, True):
        theirs = peer(12, temperature=base, normalize=normalise_by_size)
        if normalise_by_size:
            coords, encoding = shares, Sinusoidal(24, **detr(base))
        else:
            encoding = Sinusoidal(24, axes=2, base=base)

            def coords(mask):
                return padded_coords(mask) + 1

        whole = theirs(shape, "cpu", torch.float64).flatten(2).mT
        same(encoding(coords(torch.ones_like(mask))), whole, EXACT)
        padded = theirs(shape, "cpu", torch.float64, mask).flatten(2).mT
        real = mask.flatten(1)
        same(encoding(coords(mask))[real], padded[real], EXACT)
        assert (padded[real] - whole[real]).abs().max() > 0.1


def test_deformable_detr_takes_centres_of_cells():
    theirs = model("deformable_detr").DeformableDetrSinePositionEmbedding(12, normalize=True)
    mask = masks()
    want = theirs(torch.Size((3, 1, 5, 7)), "cpu", torch.float64, mask).flatten(2).mT
    got = Sinusoidal(24, **detr())(shares(mask, origin=0.5))
    same(got[mask.flatten(1)], want[mask.flatten(1)], EXACT)


@pytest.mark.parametrize("name", ["conditional_detr", "dab_detr", "grounding_dino"])
@pytest.mark.parametrize("axes, order", [(1, (0,)), (2, (1, 0)), (4, (1, 0, 2, 3))])
def test_anchors_of_detr(name, axes, order):
    """Points (x, y) and boxes (x, y, width, height) in shares of the image; rows come before columns."""
    boxes = torch.rand(2, 9, axes)
    theirs = model(name).encode_sinusoidal_position_embedding(boxes, num_pos_feats=6, temperature=20)
    spectrum = Axial(series=Periods(1, 20, endpoint=False), order=order)
    same(Sinusoidal(6 * axes, axes=axes, spectrum=spectrum)(boxes), theirs, ROUNDING * math.tau)


def test_prompts_of_sam():
    file = model("sam")
    theirs = file.SamPositionalEmbedding(file.SamVisionConfig(num_pos_feats=20)).double()
    size = (480, 640)
    points = torch.rand(2, 3, 11, 2, dtype=torch.float64) * torch.tensor([640, 480])  # (x, y), as there
    want = theirs(points + 0.5, size)
    freqs = theirs.positional_embedding.detach().flip(0) * math.tau
    ours = Sinusoidal(40, axes=2, layout="half", spectrum=Given(freqs.tolist()))
    same(ours(normalise(points.flip(-1), size)), want, EXACT)


@pytest.mark.parametrize("height, width, dim", [(5, 7, 24), (9, 4, 8), (2, 300, 16)])
def test_mae(height, width, dim):
    coords = grid_coords(height, width)
    rows_first = model("vit_mae").build_2d_sinusoidal_position_embedding(height, width, dim, dtype=torch.float64)
    same(Sinusoidal(dim, axes=2, layout="axis_half")(coords), rows_first, EXACT)
    y, x = rows_first.chunk(2, dim=-1)
    same(Sinusoidal(dim, axes=2, **MAE)(coords), torch.cat([x, y], dim=-1), EXACT)
    detr = model("rt_detr").RTDetrSinePositionEmbedding(dim)(width, height, torch.device("cpu"), torch.float64)[0]
    same(Sinusoidal(dim, axes=2, layout="axis_half")(coords), detr, EXACT)


def test_moco_v3_counts_column_by_column():
    """With w before h in its grid the tokens of its table are those of the transposed image."""
    peer = model("omdet_turbo").OmDetTurboHybridEncoder
    theirs = peer.build_2d_sincos_position_embedding(7, 5, 24, dtype=torch.float64)[0]
    same(Sinusoidal(24, axes=2, layout="axis_half")(grid_coords(7, 5)), theirs, EXACT)
    same(theirs, halves([grid_coords(7, 5)[:, axis, None] for axis in (0, 1)], [24 // 2] * 2), EXACT)


# Released code, as formulas


def halves(columns, widths, exponent=lambda i, n: i / n):
    """Sines, then cosines of each column by ``10000 ** -exponent``, one after another, in float64."""
    parts = []
    for column, width in zip(columns, widths, strict=True):
        freqs = [10000.0 ** -exponent(i, width // 2) for i in range(width // 2)]
        angles = column.double() * torch.tensor(freqs, dtype=torch.float64)
        parts += [angles.sin(), angles.cos()]
    return torch.cat(parts, dim=-1)


@pytest.mark.parametrize("height, width, dim", [(5, 7, 24), (9, 4, 8), (2, 300, 16)])
def test_mae_moco_v3_and_big_vision(height, width, dim):
    coords = grid_coords(height, width)
    y, x = coords[:, :1], coords[:, 1:]
    same(Sinusoidal(dim, axes=2, **MAE)(coords), halves([x, y], [dim // 2] * 2), EXACT)
    same(Sinusoidal(dim, axes=2, layout="axis_half")(coords), halves([y, x], [dim // 2] * 2), EXACT)
    ends = halves([x, y], [dim // 2] * 2, exponent=lambda i, n: i / (n - 1))
    same(Sinusoidal(dim, axes=2, **BIG_VISION)(coords), ends, EXACT)


@pytest.mark.parametrize("dim", [16, 48])
def test_v_jepa_2(dim):
    coords = video_coords(3, 5, 7)
    columns = coords.unsqueeze(-1).unbind(1)
    same(Sinusoidal(dim, axes=3, **VJEPA)(coords), halves(columns, [dim // 2, dim // 4, dim // 4]), EXACT)
    third = 2 * math.ceil(dim / 6)
    same(Sinusoidal(dim, axes=3, **VJEPA_UNIFORM)(coords), halves(columns, [third] * 3)[:, :dim], EXACT)


# diffusers


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("dim, scale", [(32, 1), (8, 1000), (9, 1), (4, 0.5)])
def test_timesteps_of_diffusion(dim, flip, shift, scale):
    times = torch.tensor([0.0, 1.0, 998.3897, 15.5, 0.125]) / scale
    theirs = diffusers().get_timestep_embedding(
        times, dim, flip_sin_to_cos=flip, downscale_freq_shift=shift, scale=scale
    )
    spectrum = Axial(weights=(1,), series=Geometric(endpoint=bool(shift)))
    ours = Sinusoidal(dim, layout="half", cos_first=flip, spectrum=spectrum)
    same(ours(rescale(times[:, None], scale)), theirs, ROUNDING * 1000)


@pytest.mark.parametrize("height, width", [(16, 16), (8, 32)])
def test_images_of_diffusers(height, width):
    theirs = diffusers().get_2d_sincos_pos_embed(24, (height, width), interpolation_scale=2.0, base_size=16)
    coords = rescale(grid_coords(height, width), (16 / height / 2, 16 / width / 2))
    same(Sinusoidal(24, axes=2, **MAE)(coords), theirs, EXACT)


def test_video_of_diffusers():
    theirs = diffusers().get_3d_sincos_pos_embed(32, (7, 5), 3, 2.0, 0.5)  # (width, height), frames
    coords = rescale(video_coords(3, 5, 7), (2.0, 0.5, 0.5))
    same(Sinusoidal(32, axes=3, **COGVIDEOX)(coords), theirs.flatten(0, 1), EXACT)
