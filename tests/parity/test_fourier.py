import itertools
import math

import pytest
import torch

from mmpos import Bands, Geometric, grid_coords, normalise, rescale, sequence_coords
from mmpos.encodings.additive.fourier import Fourier, GaussianFourier

# The others form coordinates, frequencies and angles in float32, off by 2^-24 or two each: at angle x, by 2^-21 x.
ROUNDING = 2**-21


def pixels(*size):
    """From -1 to 1, ends included."""
    return grid_coords(*size, spacing=tuple(2 / (side - 1) for side in size), origin=-1)


@pytest.fixture
def timm_layers():
    return pytest.importorskip("timm.layers", reason="needs timm")


@pytest.mark.parametrize("include_grid", [False, True])
@pytest.mark.parametrize("linear_bands", [False, True])
@pytest.mark.parametrize("size, num_bands, max_res", [((5, 7), 6, 224), ((14, 3), 9, 40), ((9, 4), 64, 224)])
def test_timm_fourier_in_pixels(timm_layers, size, num_bands, max_res, linear_bands, include_grid):
    theirs = timm_layers.build_fourier_pos_embed(
        list(size), num_bands=num_bands, max_res=max_res, linear_bands=linear_bands, include_grid=include_grid
    )
    bands = Bands(max_res, "linear" if linear_bands else "octaves")
    ours = Fourier(axes=2, num_bands=num_bands, bands=bands, include_coords=include_grid, order="wave axis band")
    check_timm(ours(pixels(*size)), theirs, include_grid, math.pi * max_res / 2)


@pytest.mark.parametrize("include_grid", [False, True])
@pytest.mark.parametrize("indexing", ["ij", "xy"])
@pytest.mark.parametrize(
    "temperature, offset, reference", [(10000.0, 0.0, None), (100.0, 1.5, None), (50.0, 0.0, (7, 9))]
)
def test_timm_fourier_of_indices(timm_layers, temperature, offset, reference, indexing, include_grid):
    size = (14, 3)
    theirs = timm_layers.build_fourier_pos_embed(
        list(size), num_bands=6, temperature=temperature, in_pixels=False, grid_offset=offset,
        ref_feat_shape=None if reference is None else list(reference), grid_indexing=indexing,
        include_grid=include_grid,
    )  # fmt: skip
    coords = grid_coords(*size, origin=offset)
    if reference is not None:
        coords = rescale(coords, [new / old for new, old in zip(reference, size, strict=True)])
    coords = coords if indexing == "ij" else coords.flip(-1)
    bands = Geometric(temperature)
    ours = Fourier(axes=2, num_bands=6, bands=bands, include_coords=include_grid, order="wave axis band")(coords)
    check_timm(ours, theirs, include_grid, 16)


@pytest.mark.parametrize("by", ["separate", "max", "min"])
def test_timm_fourier_of_centred_cells(timm_layers, by):
    theirs = timm_layers.build_fourier_pos_embed(
        [14, 3], num_bands=6, max_res=20, grid_type="centered", normalize_coords=by, include_grid=True
    )
    bands = Bands(20, "octaves")
    ours = Fourier(axes=2, num_bands=6, bands=bands, include_coords=True, order="wave axis band")
    check_timm(ours(normalise(grid_coords(14, 3), (14, 3), by=by)), theirs, True, 10 * math.pi * 14 / 3)


def check_timm(ours, theirs, include_grid, largest):
    """Theirs: the grid if included, sines and cosines, each ``(height, width, axis, band)``."""
    assert len(theirs) == 2 + include_grid
    theirs = torch.cat([part.flatten(2) for part in theirs], dim=-1).flatten(0, 1)
    torch.testing.assert_close(ours, theirs, atol=ROUNDING * largest, rtol=2**-22)


@pytest.mark.parametrize("include_grid", [False, True])
@pytest.mark.parametrize("keep_spatial", [False, True])
def test_timm_fourier_embed(timm_layers, include_grid, keep_spatial):
    from timm.layers.pos_embed_sincos import FourierEmbed

    images = torch.randn(2, 3, 9, 5)
    theirs = FourierEmbed(max_res=30, num_bands=7, concat_grid=include_grid, keep_spatial=keep_spatial)(images)
    theirs = theirs[:, 3:].flatten(2).mT if keep_spatial else theirs[..., 3:]
    ours = Fourier(axes=2, num_bands=7, bands=Bands(30), include_coords=include_grid, order="wave band axis")
    want = ours(pixels(9, 5)).expand(2, -1, -1)
    torch.testing.assert_close(want, theirs, atol=ROUNDING * 15 * math.pi, rtol=0)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("size, resolution", [((50,), (50,)), ((9, 5), (18, 40)), ((2, 5, 3), (4, 60, 30))])
def test_perceiver(size, resolution, include):
    peer = pytest.importorskip("transformers.models.perceiver.modeling_perceiver", reason="needs transformers")
    theirs = peer.PerceiverFourierPositionEncoding(6, resolution, concat_pos=include)(
        size, batch_size=2, device="cpu", dtype=torch.float32
    )
    coords = torch.tensor(
        list(itertools.product(*([2 * i / (side - 1) - 1 for i in range(side)] for side in size))), dtype=torch.float64
    )
    bands = [Bands(side) for side in resolution]
    ours = Fourier(axes=len(size), num_bands=6, bands=bands, include_coords=include, order="wave axis band")
    assert ours.dim == theirs.shape[-1]
    want = ours(coords).expand_as(theirs)  # theirs has a batch only with the coordinates
    torch.testing.assert_close(want, theirs, atol=ROUNDING * math.pi * max(resolution) / 2, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_sam(scale):
    peer = pytest.importorskip("transformers.models.sam.modeling_sam", reason="needs transformers")
    config = peer.SamVisionConfig(num_pos_feats=10, scale=scale)
    theirs = peer.SamPositionalEmbedding(config)
    ours = GaussianFourier(dim=20, axes=2, sigma=scale)
    with torch.no_grad():
        ours.turns.copy_(theirs.positional_embedding.flip(0))  # rows (x, y) there
    height, width = 14, 9
    x, y = torch.meshgrid(torch.arange(width) + 0.5, torch.arange(height) + 0.5, indexing="xy")
    places = torch.stack([x / width, y / height], dim=-1)
    got = ours(normalise(grid_coords(height, width), (height, width)))
    largest = 2 * math.pi * ours.turns.abs().sum(0).max().item()
    torch.testing.assert_close(got, theirs(places).flatten(0, 1), atol=ROUNDING * largest, rtol=0)
    # Prompts: points in pixels of an image, with the size that divides them.
    points = torch.rand(2, 1, 5, 2) * torch.tensor([640.0, 480.0])
    share = points.flip(-1).double() / torch.tensor([480.0, 640.0])
    want = theirs(points, input_shape=(480, 640))
    torch.testing.assert_close(ours(2 * share - 1), want, atol=ROUNDING * largest, rtol=0)


def test_diffusers_gaussian_projection():
    peer = pytest.importorskip("diffusers.models.embeddings", reason="needs diffusers")
    theirs = peer.GaussianFourierProjection(embedding_size=9, scale=3.0, log=False, flip_sin_to_cos=False)
    ours = GaussianFourier(dim=18, axes=1, sigma=3.0)
    with torch.no_grad():
        ours.turns.copy_(theirs.weight[None])
    times = torch.linspace(-2, 2, 300)
    largest = 2 * math.pi * 2 * ours.turns.abs().max().item()
    torch.testing.assert_close(ours(times[:, None]), theirs(times), atol=ROUNDING * largest, rtol=0)
    assert ours(sequence_coords(5)).shape == (5, 18)
