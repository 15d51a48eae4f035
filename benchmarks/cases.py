"""The table of what is timed: encodings of ours, in the configuration that others have too, and these others."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmpos import create_encoding, normalise
from mmpos.catalogue import ENCODINGS, Kind
from mmpos.encodings import Encoding, RoPE, Rotation
from mmpos.frequencies import Bands

from . import peers as others
from . import rotation
from .specs import DIM, HEADS, WIDTH, coords_of, make, shape, spec

Size = tuple[int, ...]


def pixels(size: Size) -> Tensor:
    """From -1 to 1, ends included."""
    steps = torch.tensor([2 / max(side - 1, 1) for side in size], dtype=torch.float64)
    return coords_of(size) * steps - 1


def shares(size: Size) -> Tensor:
    """Centres of cells from -1 to 1."""
    return normalise(coords_of(size), size)


class Case(NamedTuple):
    """An encoding, where its tokens are, and what others call it."""

    kind: Kind
    make: Callable[[Size], Encoding]
    axes: int = 1
    peers: Mapping[str, others.Maker] = {}
    coords: Callable[[Size], Tensor] = coords_of


def of_factory(name: str, axes: int = 1, *, peers: Mapping[str, others.Maker] | None = None, **more: Any) -> Case:
    """A case of the factory's encoding, with further arguments."""
    return Case(ENCODINGS[name][0], lambda size: make({**spec(name, axes), **more}, size), axes, peers or {})


def preset(name: str, kind: Kind, axes: int, peers: Mapping[str, others.Maker], **more: Any) -> Case:
    return Case(kind, lambda size: create_encoding(name, **more), axes, peers)


FOURIER = {"num_bands": 64, "bands": Bands(224), "include_coords": True, "order": "wave axis band"}
MIXED = {"axes": 2, "base": 10.0, "spectrum": {"name": "Mixed"}, "num_heads": HEADS, "layout": "interleaved"}

_CASES: dict[str, Case] = {name: of_factory(name) for name in ENCODINGS} | {
    "Sinusoidal": of_factory("Sinusoidal", peers={"positional-encodings": others.positional_encodings}),
    "Sinusoidal, 2 axes": of_factory("Sinusoidal", 2, peers={"positional-encodings": others.positional_encodings}),
    "Sinusoidal, 3 axes": of_factory("Sinusoidal", 3, peers={"positional-encodings": others.positional_encodings}),
    "Sinusoidal, timm_sincos2d": preset("timm_sincos2d", "additive", 2, {"timm": others.timm_sincos}, dim=DIM),
    "Sinusoidal, whisper": preset("whisper", "additive", 1, {"transformers": others.whisper}, dim=DIM),
    "Sinusoidal, halves": of_factory(
        "Sinusoidal",
        peers={"diffusers": others.diffusers_steps, "x-transformers": others.x_transformers_sinusoids},
        layout="half",
    ),
    "LearnedTable": of_factory("LearnedTable", peers={"x-transformers": others.x_transformers_table}),
    "Fourier, 2 axes": Case(
        "additive",
        lambda size: create_encoding("Fourier", axes=2, **FOURIER),
        2,
        {"timm": others.timm_fourier, "transformers": others.perceiver},
        pixels,
    ),
    "GaussianFourier, 2 axes": of_factory("GaussianFourier", 2, peers={"transformers": others.sam})._replace(
        coords=shares
    ),
    "RoPE": of_factory(
        "RoPE",
        peers={
            "transformers": others.transformers_rope,
            "rotary-embedding-torch": others.rotary_embedding_torch,
            "x-transformers": others.x_transformers_rope,
            "diffusers": others.diffusers_rope,
        },
    ),
    "RoPE, 2 axes": of_factory(
        "RoPE", 2, peers={"timm": others.timm_rope, "rotary-embedding-torch": others.rotary_embedding_torch}, base=100.0
    ),
    "RoPE, mixed": Case(
        "rotary", lambda size: create_encoding("RoPE", head_dim=WIDTH, **MIXED), 2, {"timm": others.timm_mixed}
    ),
    "RoPE, flux": preset("flux", "rotary", 3, {"diffusers": others.flux}),
    "ALiBi": of_factory("ALiBi", peers={"x-transformers": others.x_transformers_alibi}),
    "T5Bias": of_factory(
        "T5Bias", peers={"transformers": others.transformers_t5, "x-transformers": others.x_transformers_t5}
    ),
    "SwinBias, 2 axes": of_factory("SwinBias", 2, peers={"timm": others.timm_swin}),
    "ContinuousBias, 2 axes": of_factory("ContinuousBias", 2, peers={"timm": others.timm_continuous}),
}

_ORDER = list(ENCODINGS)
CASES = dict(sorted(_CASES.items(), key=lambda item: _ORDER.index(item[0].partition(",")[0])))
"""By what the table calls them: the name in the factory, and how the encoding differs from its default."""

TURNS: dict[str, tuple[Callable[[Rotation], Callable[[Tensor], Tensor]], str]] = rotation.PEERS | {
    "diffusers, interleaved": (others.diffusers_turn, "interleaved"),
    "x-transformers, interleaved": (others.x_transformers_turn, "interleaved"),
}


def call_of(encoding: Encoding, kind: Kind, coords: Tensor) -> Callable[[], Any]:
    """A call that makes what the encoding hands to a model, with random queries, keys and tokens if it needs them."""
    if kind == "scale":
        visible = torch.full((len(coords),), len(coords), device=coords.device)
        return lambda: encoding(coords, visible=visible)
    if kind != "bias":
        return lambda: encoding(coords)
    generator = torch.Generator().manual_seed(2)
    shapes = {
        "query": (HEADS, len(coords), WIDTH),
        "key": (HEADS, len(coords), WIDTH),
        "tokens": (len(coords), DIM),
    }
    needed = {
        name: torch.randn(shape, generator=generator).to(coords.device)
        for name, shape in shapes.items()
        if name in encoding.needs
    }
    return lambda: encoding(coords, coords, **needed)


def alike(result: Any) -> Tensor:
    """Our result as one tensor: of a rotation its cosines beside its sines, the heads below each other."""
    if not isinstance(result, Rotation):
        return result
    return torch.cat([part.flatten(0, -2) for part in result[:2]], dim=-1)


def rotation_of(layout: str, tokens: int, device: torch.device) -> Rotation:
    """The rotation of a sequence, for heads of 64 channels."""
    return RoPE(WIDTH, layout=layout)(coords_of(shape(tokens, 1)).to(device))
