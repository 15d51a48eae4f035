"""Time of rotating queries and keys beside a copy of them and beside the peers: python -m benchmarks.rotation.

Queries and keys of 8 x 12 heads of 64 channels are turned by angles that were made before, as by each layer of a model.
Every peer is compared with our result first. All run in one process in turns; what is given is the median of the ratios
to cloning both in the same turn, which no rotation into fresh memory can beat by much, and for a forward and backward
pass to cloning both twice. Results go to ``results/rotation.csv``.
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from mmpos import RoPE, Rotation, sequence_coords

from .study import RESULTS, setting, write_rows
from .timing import ratios, take_turns

BATCH, HEADS, WIDTH = 8, 12, 64
TOKENS = (64, 256, 1024, 4096)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PASSES = ("forward", "training")
LIMIT = "clone"
TOLERANCE = 1e-4
PATH = RESULTS / "rotation.csv"

Turn = Callable[[Tensor], Tensor]


def ours(rotation: Rotation) -> Turn:
    return rotation.apply


def transformers(rotation: Rotation) -> Turn:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    cos, sin = (torch.cat([part, part], dim=-1) for part in rotation[:2])

    def turn(x: Tensor) -> Tensor:  # theirs takes a query and a key, in whose dtype the model has cos and sin
        return apply_rotary_pos_emb(x, x[:, :0], cos.to(x.dtype), sin.to(x.dtype))[0]

    return turn


def timm(rotation: Rotation) -> Turn:
    from timm.layers.pos_embed_sincos import apply_rot_embed_cat

    half = rotation.layout == "half"
    wide = (
        torch.cat([part, part], dim=-1) if half else part.repeat_interleave(2, dim=-1)
        for part in (rotation.sin, rotation.cos)
    )
    embed = torch.cat(list(wide), dim=-1)[0]
    return lambda x: apply_rot_embed_cat(x, embed, half=half)


def rotary_embedding_torch(rotation: Rotation) -> Turn:
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

    freqs = RotaryEmbedding(WIDTH)(torch.arange(rotation.cos.shape[-2], dtype=torch.float32)).detach()
    return lambda x: apply_rotary_emb(freqs, x)


PEERS = {
    "timm, half": (timm, "half"),
    "timm, interleaved": (timm, "interleaved"),
    "transformers, half": (transformers, "half"),
    "rotary-embedding-torch, interleaved": (rotary_embedding_torch, "interleaved"),
}


def contenders(tokens: int, compiled: bool) -> dict[str, Turn]:
    """What turns one tensor, by name: ours and the peers that are here, each equal to ours."""
    turns: dict[str, Turn] = {}
    x = torch.randn(2, 3, tokens, WIDTH, generator=torch.Generator().manual_seed(0))
    rotations = {layout: RoPE(WIDTH, layout=layout)(sequence_coords(tokens)) for layout in ("half", "interleaved")}
    for layout, rotation in rotations.items():
        turns[f"mmpos, {layout}"] = ours(rotation)
    for name, (make, layout) in PEERS.items():
        with suppress(ImportError):
            turns[name] = make(rotations[layout])
            error = (turns[name](x) - rotations[layout].apply(x)).abs().max().item()
            if error > TOLERANCE * max(tokens / 256, 1):  # for float32 angles of others
                raise ValueError(f"{name} differs from mmpos by {error:.1e} at {tokens} tokens")
    if compiled:
        turns |= {f"{name}, compiled": torch.compile(turn) for name, turn in turns.items()}
    return turns


def is_compiled(name: str) -> bool:
    return name.endswith(", compiled")


def is_peer(name: str) -> bool:
    return any(name.startswith(peer) for peer in PEERS)


def prepare(turn: Turn, q: Tensor, k: Tensor, which: str) -> Callable[[], object]:
    """One call for queries and keys."""
    if which == "forward":
        return torch.no_grad()(lambda: (turn(q), turn(k)))
    slopes = [torch.ones_like(q), torch.ones_like(k)]
    inputs = [part.detach().requires_grad_() for part in (q, k)]
    return lambda: torch.autograd.grad([turn(part) for part in inputs], inputs, slopes)


def measure(
    turns: dict[str, Turn], tokens: int, dtype: str, which: str, repeats: int, seconds: float
) -> list[dict[str, str]]:
    """A row for each, after as many turns as are asked for or fit into the time."""
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(BATCH, HEADS, tokens, WIDTH, generator=generator).to(DTYPES[dtype]) for _ in range(2))
    passes = 1 if which == "forward" else 2
    calls = {name: prepare(turn, q, k, which) for name, turn in turns.items()}
    calls = {LIMIT: lambda: [(q.clone(), k.clone()) for _ in range(passes)], **calls}
    times = take_turns(calls, q.device, repeats=repeats, seconds=seconds)
    to_clone = ratios(times, LIMIT)
    best = {
        mode: min((to_clone[name] for name in calls if is_peer(name) and is_compiled(name) == mode), default=None)
        for mode in (False, True)
    }

    def beside_peers(name: str) -> str:
        peer = best[is_compiled(name)]
        return "" if peer is None else f"{to_clone[name] / peer:.2f}"

    return [
        {
            "what": name,
            "tokens": str(tokens),
            "dtype": dtype,
            "pass": which,
            "ms": f"{median(times[name]):.3f}",
            "to_clone": f"{to_clone[name]:.2f}",
            "to_best_peer": beside_peers(name),
            "turns": str(len(times[name])),
            "threads": str(torch.get_num_threads()),
        }
        for name in calls
    ]


def table(rows: Sequence[dict[str, str]]) -> str:
    """Markdown: ratio to a clone and, in brackets, to the best peer, by number of tokens."""
    tokens = sorted({int(row["tokens"]) for row in rows})
    lines = [f"| what | dtype | pass | {' | '.join(f'{n:,}' for n in tokens)} |", "|---" * (len(tokens) + 3) + "|"]
    for key in dict.fromkeys((row["what"], row["dtype"], row["pass"]) for row in rows):
        cells = {int(row["tokens"]): row for row in rows if (row["what"], row["dtype"], row["pass"]) == key}
        texts = [
            f"{cells[n]['to_clone']} ({cells[n]['to_best_peer'] or 'no peer'})" if n in cells else "" for n in tokens
        ]
        lines.append(f"| {' | '.join(key)} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, writes the file and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", nargs="*", type=int, default=TOKENS)
    parser.add_argument("--dtypes", nargs="*", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--passes", nargs="*", choices=PASSES, default=PASSES)
    parser.add_argument("--repeats", type=int, default=30, help="turns of each, at least 3")
    parser.add_argument("--seconds", type=float, default=30, help="time after which no turn is begun, for each cell")
    parser.add_argument("--eager", action="store_true", help="nothing compiled")
    parser.add_argument("--quick", action="store_true", help="two lengths and short cells, in about a minute")
    parser.add_argument("--threads", type=int, help="threads of PyTorch; as many as it takes unless given")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where the file goes")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    tokens, seconds = ((64, 1024), 3.0) if arguments.quick else (arguments.tokens, arguments.seconds)
    rows: list[dict[str, str]] = []
    for count in tokens:
        for dtype in arguments.dtypes:
            for which in arguments.passes:
                torch.compiler.reset()  # no cell runs code that was compiled for another
                turns = contenders(count, not arguments.eager)
                rows += measure(turns, count, dtype, which, arguments.repeats, seconds)
        write_rows(arguments.folder / PATH.name, rows)
    for name in [name for name in PEERS if name not in {row["what"] for row in rows}]:
        print(f"{name}: not installed, left out.")
    print(f"{table(rows)}\n\nRatio to cloning queries and keys of {BATCH} x {HEADS} heads (to the best peer).")
    print(f"{setting()}, {torch.get_num_threads()} threads.")


if __name__ == "__main__":
    main()
