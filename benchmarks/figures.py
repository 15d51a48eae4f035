"""The figures of docs/diagnostics.md: python -m benchmarks.figures writes them all to docs/images.

Those of a trained model are of a small vision transformer with two slots, trained for some seconds on the handwritten
digits that scikit-learn ships.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from sklearn.datasets import load_digits

import mmpos
from mmpos import diagnostics as look
from mmpos.diagnostics import plots
from mmpos.models import VisionTransformer
from mmpos.presets.rotary import PHI3_LONG

from .study import ROOT

FOLDER = ROOT / "docs" / "images"
EPOCHS = 6
TRAINED, FACTOR = 4096, 32


def heatmap() -> Axes:
    return plots.plot_heatmap(mmpos.Sinusoidal(dim=128), mmpos.sequence_coords(50))


def periods() -> Axes:
    rows = look.period_rows(mmpos.RoPE(head_dim=64), [512])
    return plots.plot_periods(rows, [512], title="RoPE(head_dim=64): periods, seen on 512 tokens")


def grid_periods() -> Axes:
    rows = look.period_rows(mmpos.RoPE(head_dim=64, axes=2), [14, 10])
    return plots.plot_periods(rows, [14, 10], title="RoPE(head_dim=64, axes=2): periods, seen on 14 x 10 tokens")


def similarity() -> Axes:
    coords = mmpos.sequence_coords(200)
    far = look.distances(coords, coords)
    dims = (16, 64, 256)
    curves = [look.by_distance(look.similarity(mmpos.Sinusoidal(dim=dim), coords, coords), far) for dim in dims]
    ax = plots.plot_similarity(
        curves[0][0], torch.cat([curve for _, curve in curves]), title="Similarity of sinusoidal positions"
    )
    for line, dim in zip(ax.get_legend_handles_labels()[0], dims, strict=True):
        line.set_label(f"dim {dim}")
    ax.legend(fontsize="small")
    return ax


def similarity_map() -> Axes:
    cells, at = mmpos.grid_coords(14, 20), (4, 13)
    rope = mmpos.RoPE(head_dim=64, axes=2, base=100.0)
    values = look.similarity(rope, torch.tensor([at]), cells)[0, 0].unflatten(0, (14, 20))
    return plots.plot_map(values, at, title="RoPE(head_dim=64, axes=2, base=100): similarity to the marked cell")


def decay() -> Axes:
    coords, rope = mmpos.sequence_coords(512), mmpos.RoPE(head_dim=64)
    far, curve = look.by_distance(look.similarity(rope, coords, coords), look.distances(coords, coords))
    return plots.plot_decay(
        far, curve, look.rotary_decay(rope, coords), title="RoPE(head_dim=64): decay of logits with distance"
    )


def bias() -> Axes:
    coords = mmpos.sequence_coords(65)
    behind, curve = look.by_distance(
        look.bias_matrix(mmpos.ALiBi(num_heads=8), coords, coords), look.offsets(coords, coords)
    )
    return plots.plot_bias_curves(behind, curve, title="ALiBi(num_heads=8): slopes and reach")


def rotation() -> Axes:
    coords, encoding = mmpos.sequence_coords(50), mmpos.Sinusoidal(dim=128)
    waves = look.additive_waves(encoding)
    gaps = {float(k): look.rotation_gap(encoding, coords, k, waves=waves) for k in (1, 7, 1000)}
    return plots.plot_gaps(gaps, title="Sinusoidal(dim=128): PE(n + k) against the rotation of PE(n)")


def vector() -> Axes:
    coords = mmpos.sequence_coords(50)
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    moved = {
        "added, Sinusoidal": look.turned(mmpos.Sinusoidal(dim=64), x, coords),
        "turned, RoPE": look.turned(mmpos.RoPE(head_dim=64), x, coords),
    }
    return plots.plot_turned(coords[:, 0].double(), moved)


def extension() -> Axes:
    scalings = look.usual_scalings(FACTOR, TRAINED, long_factors=PHI3_LONG)
    found = look.extended_periods(mmpos.RoPE(head_dim=96), scalings, FACTOR * TRAINED)
    return plots.plot_extension(found, TRAINED, FACTOR * TRAINED, title="Periods under extension")


FIGURES: dict[str, Callable[[], Axes]] = {
    "heatmap": heatmap,
    "periods": periods,
    "grid_periods": grid_periods,
    "similarity": similarity,
    "map": similarity_map,
    "decay": decay,
    "bias": bias,
    "rotation": rotation,
    "vector": vector,
    "extension": extension,
}


def train() -> tuple[VisionTransformer, torch.Tensor, torch.Tensor]:
    """A model with a rotation and a table, and images and labels that it has not seen."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target)
    model = VisionTransformer(
        dim=48,
        depth=3,
        num_heads=4,
        additive={"name": "LearnedTable"},
        rotary={"name": "RoPE", "axes": 2, "base": 100.0},
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for batch in torch.randperm(1400).split(100):
            optimiser.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimiser.step()
    return model.eval(), images[1400:], labels[1400:]


def of_a_model() -> dict[str, Axes]:
    """How far heads look, how logits fall, what slots contribute."""
    model, images, labels = train()
    with torch.no_grad(), look.record_attention(model) as calls:
        model(images)
    coords = calls[0].q_coords
    assert coords is not None
    far = look.distances(coords, coords)
    reach = [look.attention_distance(call.weights(), far) for call in calls]
    spread = [look.attention_entropy(call.weights()) for call in calls]
    scores = look.slot_contributions(model, lambda: F.cross_entropy(model(images), labels).item())
    return {
        "attention_distance": plots.plot_by_layer(
            reach, "mean distance of the keys (tokens)", title="How far each head looks"
        ),
        "attention_entropy": plots.plot_by_layer(
            spread, "mean entropy of the weights (nats)", title="How spread each head's attention is"
        ),
        "logits": plots.plot_logits(*look.by_distance(calls[0].logits(), far), title="Layer 0: logits by distance"),
        "slots": plots.plot_contributions(scores, "cross entropy on images not seen (nats)"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, axes in ({name: draw() for name, draw in FIGURES.items()} | of_a_model()).items():
        plots.save(axes, folder / f"{name}.png")
        print(folder / f"{name}.png")


if __name__ == "__main__":
    main()
