import pytest
import torch

from mmpos import Sinusoidal, grid_coords, sequence_coords, video_coords

# The others form angles in float32, whose frequencies and products are off by 2^-24 each: at angle x, by 2^-23 x.
ROUNDING = 2**-23


@pytest.mark.parametrize(
    "name, size, dim",
    [("1D", (300,), 10), ("1D", (5,), 2), ("2D", (5, 7), 20), ("2D", (9, 4), 8), ("3D", (2, 5, 7), 24)],
)
def test_positional_encodings(name, size, dim):
    peer = pytest.importorskip("positional_encodings.torch_encodings", reason="needs positional-encodings")
    theirs = getattr(peer, f"PositionalEncoding{name}")(dim)(torch.zeros(2, *size, dim))
    coords = {1: sequence_coords, 2: grid_coords, 3: video_coords}[len(size)](*size)
    ours = Sinusoidal(dim, axes=len(size))(coords).expand(2, -1, -1)
    torch.testing.assert_close(ours, theirs.flatten(1, -2), atol=ROUNDING * max(size), rtol=0)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size, dim, base", [((5, 7), 24, 10000.0), ((9, 4), 8, 100.0), ((300, 2), 16, 10000.0)])
def test_timm_sincos2d(size, dim, base, interleaved):
    layers = pytest.importorskip("timm.layers", reason="needs timm")
    theirs = layers.build_sincos2d_pos_embed(list(size), dim, temperature=base, interleave_sin_cos=interleaved)
    ours = Sinusoidal(dim, axes=2, base=base)(grid_coords(*size)).unflatten(-1, (2, dim // 4, 2))
    # Ours: y then x, pairs side by side. timm: sines before cosines, within each axis if interleaved, else over both.
    ours = ours.transpose(-1, -2) if interleaved else ours.permute(0, 3, 1, 2)
    torch.testing.assert_close(ours.flatten(1), theirs, atol=ROUNDING * max(size), rtol=0)


def test_timm_sincos2d_reversed():
    layers = pytest.importorskip("timm.layers", reason="needs timm")
    theirs = layers.build_sincos2d_pos_embed([5, 7], 24, reverse_coord=True)
    ours = Sinusoidal(24, axes=2)(grid_coords(7, 5)).unflatten(-1, (2, 6, 2)).permute(0, 3, 1, 2)
    torch.testing.assert_close(ours.flatten(1), theirs, atol=ROUNDING * 7, rtol=0)
