"""Time and memory of attention with each bias, beside attention without: python -m benchmarks.bias.

One row of 8 heads of 64 channels in float32. All run in one process in turns, and medians are compared with those of
PyTorch's attention with the same mask and no bias. Memory is the largest sum of all tensors that PyTorch's allocator
holds at a time beyond what it held before the call, the result among them; buffers that libraries allocate themselves
are not in it. Results go to ``results/bias.csv`` and ``.png``.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from mmpos import AttentionBias, attention, grid_coords, sequence_coords
from mmpos.attend import choose_backend
from mmpos.catalogue import ENCODINGS
from mmpos.factory import build

from .study import RESULTS, setting, write_rows
from .timing import peak

BIASES = [name for name, (kind, _) in ENCODINGS.items() if kind == "bias"]
HEADS, WIDTH, DIM = 8, 64, 512
TOKENS = (1024, 2048, 4096, 8192, 16384)
MASKS = ("causal", "none")
PASSES = ("forward", "training")
PLAIN = "no bias"
# What constructors need besides sizes: the waves of a day and a week of hours, and differences up to 128.
MORE: dict[str, dict] = {
    "PeriodicBias": {"periods": (24, 168), "harmonics": 2},
    "RelativeLogits": {"extent": 128},
}
MILLION = 1e6
PATH = RESULTS / "bias.csv"


def make(name: str, tokens: int) -> tuple[AttentionBias, Tensor]:
    """The bias for so many tokens, and their coordinates: a sequence, or a grid if it has two axes."""
    arguments = {"kind": "bias", "dim": DIM, "num_heads": HEADS, "head_dim": WIDTH}
    spec = {"name": name, **MORE.get(name, {})}
    bias = build(spec, size=(tokens,), **arguments)
    if bias.axes == 1:
        return bias, sequence_coords(tokens)
    height = 2 ** (tokens.bit_length() // 2)
    return build(spec, size=(height, tokens // height), **arguments), grid_coords(height, tokens // height)


def prepare(name: str, tokens: int, mask: str, which: str) -> tuple[Callable[[], object], str]:
    """One call with fixed inputs, and the backend that it takes."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, tokens, WIDTH, generator=generator) for _ in range(3))
    is_causal, trains = mask == "causal", which == "training"
    inputs = [part.requires_grad_(trains) for part in (q, k, v)]
    if name == PLAIN:
        attend, backend = partial(F.scaled_dot_product_attention, q, k, v, is_causal=is_causal), "sdpa"
    else:
        bias, coords = make(name, tokens)
        bias.requires_grad_(trains)
        options = {"bias": bias, "q_coords": coords, "tokens": torch.randn(1, tokens, DIM, generator=generator)}
        inputs += [part for part in bias.parameters() if part.requires_grad]
        with torch.set_grad_enabled(trains):
            backend = choose_backend(q, k, v, is_causal=is_causal, **options).backend
        attend = partial(attention, q, k, v, is_causal=is_causal, **options)
    return (partial(train, attend, inputs) if trains else torch.no_grad()(attend)), backend


def train(attend: Callable[[], Tensor], inputs: Sequence[Tensor]) -> object:
    """Forward and backward pass."""
    return torch.autograd.grad(attend().sum(), inputs, allow_unused=True)


def seconds(call: Callable[[], object]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(names: Sequence[str], tokens: int, mask: str, which: str, repeats: int) -> list[dict[str, str]]:
    """A row for each bias."""
    prepared = {name: prepare(name, tokens, mask, which) for name in names}
    memory = {name: peak(call, torch.device("cpu")) for name, (call, _) in prepared.items()}
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, (call, _) in prepared.items():
            times[name].append(seconds(call))
    plain = median(times[PLAIN])
    return [
        {
            "bias": name,
            "tokens": str(tokens),
            "mask": mask,
            "pass": which,
            "backend": prepared[name][1],
            "ms": f"{1000 * median(times[name]):.1f}",
            "ratio": f"{median(times[name]) / plain:.2f}",
            "memory_mb": f"{memory[name] / MILLION:.1f}",
            "dense_bias_mb": f"{4 * HEADS * tokens**2 / MILLION:.1f}",
        }
        for name in names
    ]


def table(rows: Sequence[dict[str, str]]) -> str:
    """Markdown: a row for each bias, mask and pass, with its ratio and its memory at each number of tokens."""
    tokens = sorted({int(row["tokens"]) for row in rows})
    lines = [
        f"| bias | mask | pass | {' | '.join(f'{n:,}' for n in tokens)} |",
        "|---" * (len(tokens) + 3) + "|",
    ]
    for key in dict.fromkeys((row["bias"], row["mask"], row["pass"]) for row in rows):
        cells = {int(row["tokens"]): row for row in rows if (row["bias"], row["mask"], row["pass"]) == key}
        texts = [f"{cells[n]['ratio']}, {float(cells[n]['memory_mb']):.0f} MB" if n in cells else "" for n in tokens]
        lines.append(f"| {' | '.join(key)} | {' | '.join(texts)} |")
    return "\n".join(lines)


def plot(rows: Sequence[dict[str, str]], path: Path) -> None:
    """Times and memory over tokens, a line for each bias, of causal attention or what there is."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    first = (rows[0]["mask"], rows[0]["pass"])
    rows = [row for row in rows if (row["mask"], row["pass"]) == first]
    names, tokens = (list(dict.fromkeys(row[column] for row in rows)) for column in ("bias", "tokens"))
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for axis, column, unit in zip(axes, ("ms", "memory_mb"), ("ms", "MB"), strict=True):
        for name, color in zip(names, plt.get_cmap("tab20").colors, strict=False):
            own = [row for row in rows if row["bias"] == name]
            style = {"color": "black", "linewidth": 2} if name == PLAIN else {"color": color, "marker": "."}
            label = name if unit == "ms" else None
            axis.plot([int(row["tokens"]) for row in own], [float(row[column]) for row in own], label=label, **style)
        axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel=unit, title=f"{first[1]}, mask {first[0]}")
        axis.set_xticks([int(count) for count in tokens], [f"{int(count):,}" for count in tokens])
        axis.minorticks_off()
    dense = {int(row["tokens"]): float(row["dense_bias_mb"]) for row in rows}
    axes[1].plot(dense.keys(), dense.values(), "--", color="gray", label="a tensor of all pairs")
    figure.legend(loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measures, writes the two files and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--biases", nargs="*", default=BIASES, help="names of the factory")
    parser.add_argument("--tokens", nargs="*", type=int, default=TOKENS)
    parser.add_argument("--masks", nargs="*", choices=MASKS, default=["causal"])
    parser.add_argument("--passes", nargs="*", choices=PASSES, default=["forward"])
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each, fewer above 4,096 tokens")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where the files go")
    arguments = parser.parse_args()
    rows = []
    for tokens in arguments.tokens:
        for mask in arguments.masks:
            for which in arguments.passes:
                repeats = max(min(arguments.repeats, arguments.repeats * 4096 // tokens), 1)
                rows += measure([PLAIN, *arguments.biases], tokens, mask, which, repeats)
                write_rows(arguments.folder / PATH.name, rows)
                print(table(rows[-len(arguments.biases) - 1 :]), flush=True)
    plot(rows, arguments.folder / "bias.png")
    print(f"{table(rows)}\n\nRatio of times to no bias, and memory beyond the inputs; {setting()}.")


if __name__ == "__main__":
    main()
