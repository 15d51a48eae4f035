"""Every encoding beside a copy of its result and beside other packages: python -m benchmarks [--quick].

Three things are timed. "make": coordinates become what a model takes, vectors, cosines and sines, a bias or factors;
the limit is a copy of that. "add": vectors are made and added to the tokens of 8 rows; "turn": queries and keys of 8
rows of 12 heads of 64 channels are rotated by cosines and sines that were made before. Their limit is a copy of the
tokens, or of queries and keys. What other packages make is compared with ours before the clock starts.

All run in one process in turns. A ratio is formed in each turn, and its median is what the table has: to the copy and,
in brackets, to the fastest of the other packages. Results go to ``encodings.csv`` and ``encodings.png``.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from . import costs
from .cases import CASES, TURNS, Case, alike, call_of, rotation_of
from .peers import Problem
from .rotation import BATCH, HEADS, WIDTH
from .specs import shape
from .study import RESULTS, write_rows
from .timing import Call, clone, peak, ratios, setting, take_turns

OURS, LIMIT = "mmpos", "clone"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WHATS = ("make", "add", "turn")
TOKENS = (256, 1024, 4096, 65536)
QUICK = (256, 1024)
# Tensors of all pairs, or of all tokens of 8 rows, are not made for more tokens than these.
MOST = {"bias": 1024, "add": 4096, "turn": 4096}
MILLION = 1e6
PATH = RESULTS / "encodings.csv"

Cell = tuple[dict[str, str], dict[str, Call]]


def check(label: str, peer: str, got: Tensor, want: Tensor, coords: float) -> None:
    """Refuses to time what is not the same, up to the float32 angles of others."""
    if got.shape != want.shape:
        raise ValueError(f"{label}: {peer} has shape {tuple(got.shape)}, mmpos {tuple(want.shape)}")
    error = (got.double() - want.double()).abs().max().item()
    if not error <= 1e-4 * max(coords / 256, 1):
        raise ValueError(f"{label}: {peer} differs from mmpos by {error:.1e}")


class Left:
    """What was left out and why, told once each."""

    def __init__(self):
        self.told: set[str] = set()

    def out(self, peer: str, error: Exception) -> None:
        if peer not in self.told:
            self.told.add(peer)
            print(f"{peer}: left out, {type(error).__name__}: {str(error).partition(chr(10))[0]}", flush=True)


def made(label: str, case: Case, tokens: int, dtypes: Sequence[str], whats: Sequence[str], device: torch.device,
         left: Left) -> Iterator[Cell]:  # fmt: skip
    """What is timed of an encoding: making, and adding if it is added."""
    size = shape(tokens, case.axes)
    coords = case.coords(size).to(device)
    encoding = case.make(size).to(device)
    call = call_of(encoding, case.kind, coords)
    want = alike(call())
    calls: dict[str, Callable] = {OURS: call}
    for name, maker in case.peers.items():
        try:
            peer = maker(Problem(encoding, size, coords))
            check(label, name, peer.alike(peer.call()), want, coords.max().item())
        except (ImportError, RuntimeError) as error:  # not installed, or not on this device
            left.out(name, error)
        else:
            calls[name] = peer.call
    about = {"encoding": label, "kind": case.kind, "tokens": str(tokens), "device": device.type}
    if "make" in whats:
        yield about | {"what": "make", "dtype": "float32"}, {LIMIT: clone(call()), **calls}
    if "add" in whats and case.kind == "additive" and tokens <= MOST["add"]:
        for dtype in dtypes:
            x = torch.randn(BATCH, tokens, want.shape[-1], device=device).to(DTYPES[dtype])
            encoding.to(DTYPES[dtype])
            added = {name: (lambda make=make, x=x: x + make().to(x.dtype)) for name, make in calls.items()}
            yield about | {"what": "add", "dtype": dtype}, {LIMIT: x.clone, **added}


def turned(tokens: int, dtypes: Sequence[str], device: torch.device, left: Left) -> Iterator[Cell]:
    """What is timed of rotating queries and keys, in both layouts."""
    for layout in ("half", "interleaved"):
        label, turn = f"RoPE, {layout}", rotation_of(layout, tokens, device)
        turns: dict[str, Callable[[Tensor], Tensor]] = {OURS: turn.apply}
        q, k = (torch.randn(BATCH, HEADS, tokens, WIDTH, device=device) for _ in range(2))
        for name, (maker, own) in TURNS.items():
            if own != layout:
                continue
            package = name.partition(",")[0]
            try:
                with device:
                    apply = maker(turn)
                check(label, package, apply(q), turn.apply(q), tokens)
            except (ImportError, RuntimeError) as error:
                left.out(package, error)
            else:
                turns[package] = apply
        for dtype in dtypes:
            pair = [x.to(DTYPES[dtype]) for x in (q, k)]
            calls = {name: (lambda apply=apply, pair=pair: [apply(x) for x in pair]) for name, apply in turns.items()}
            about = {"encoding": label, "kind": "rotary", "tokens": str(tokens), "device": device.type}
            yield (
                about | {"what": "turn", "dtype": dtype},
                {LIMIT: lambda pair=pair: [x.clone() for x in pair], **calls},
            )


def measure(about: dict[str, str], calls: dict[str, Call], device: torch.device, repeats: int, seconds: float) -> list[
    dict[str, str]
]:  # fmt: skip
    """A row for the copy, for ours and for each of the other packages."""
    memory = {name: peak(call, device) for name, call in calls.items()}
    times = take_turns(calls, device, repeats=repeats, seconds=seconds)
    to_limit = ratios(times, LIMIT)
    others = {name: ratio for name, ratio in to_limit.items() if name not in (OURS, LIMIT)}
    best = min(others, key=others.__getitem__, default="")
    to_best = ratios(times, best) if best else {}
    return [
        about
        | {
            "package": name,
            "ms": f"{median(times[name]):.4f}",
            "to_clone": f"{to_limit[name]:.2f}",
            "best_peer": best,
            "to_best_peer": f"{to_best[name]:.3f}" if best else "",
            "memory_mb": f"{memory[name] / MILLION:.2f}",
            "clone_mb": f"{memory[LIMIT] / MILLION:.2f}",
            "turns": str(len(times[name])),
        }
        for name in calls
    ]


def table(rows: Sequence[dict[str, str]]) -> str:
    """Markdown: a row for each encoding and what is timed of it, with ratios of time and memory at each size."""
    rows = [row for row in rows if row["package"] == OURS]
    sizes = sorted({int(row["tokens"]) for row in rows})
    lines = [f"| encoding | what | dtype | best peer | {' | '.join(f'{n:,}' for n in sizes)} |"]
    lines.append("|---" * (len(sizes) + 4) + "|")
    keys = dict.fromkeys((row["encoding"], row["what"], row["dtype"]) for row in rows)
    for key in sorted(keys, key=lambda key: WHATS.index(key[1])):
        own = {int(row["tokens"]): row for row in rows if (row["encoding"], row["what"], row["dtype"]) == key}
        best = own[max(own)]["best_peer"]
        lines.append(f"| {' | '.join(key)} | {best} | {' | '.join(cell(own.get(n)) for n in sizes)} |")
    return "\n".join(lines)


def cell(row: dict[str, str] | None) -> str:
    """Time over a copy's (over the best peer's), memory over a copy's."""
    if row is None:
        return ""
    peer = f" ({float(row['to_best_peer']):.2f})" if row["to_best_peer"] else ""
    held = float(row["memory_mb"]) / float(row["clone_mb"]) if float(row["clone_mb"]) else 0
    return f"{float(row['to_clone']):.1f}{peer}, {held:.1f}"


def plot(rows: Sequence[dict[str, str]], path: Path) -> None:
    """Growth with size: ours as lines, the best of the other packages dashed, copies grey."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = [("make", "additive"), ("make", "rotary"), ("make", "bias"), ("add", "additive"), ("turn", "rotary")]
    panels = [panel for panel in panels if any((row["what"], row["kind"]) == panel for row in rows)]
    figure, grid = plt.subplots(len(panels), 1, figsize=(11, 4.2 * len(panels)), layout="constrained", squeeze=False)
    for axis, panel in zip(grid[:, 0], panels, strict=True):
        own = [row for row in rows if (row["what"], row["kind"]) == panel and row["dtype"] == rows[0]["dtype"]]
        labels = dict.fromkeys(row["encoding"] for row in own)
        for number, label in enumerate(labels):
            color = plt.get_cmap("tab20")(number % 20)
            of = [row for row in own if row["encoding"] == label]
            series = {
                OURS: {"color": color, "marker": "os^"[number // 20], "markersize": 4, "label": label},
                LIMIT: {"color": "silver", "linewidth": 1},
                of[0]["best_peer"]: {"color": color, "linestyle": "--"},
            }
            for package, style in series.items():
                points = [row for row in of if row["package"] == package]
                axis.plot([int(p["tokens"]) for p in points], [float(p["ms"]) for p in points], **style)
        sizes = sorted({int(row["tokens"]) for row in own})
        axis.set(xscale="log", yscale="log", ylabel="time (ms)", title=f"{panel[0]}: {panel[1]}")
        axis.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axis.minorticks_off()
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="x-small", ncols=1 + len(labels) // 16)
    grid[-1, 0].set_xlabel("tokens; dashed: the fastest other package, grey: a copy")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def run(arguments: argparse.Namespace) -> list[dict[str, str]]:
    """All rows, written as they come."""
    device, left, rows = torch.device(arguments.device), Left(), []
    for tokens in arguments.tokens:
        cells = []
        for label, case in CASES.items():
            if (not arguments.encodings or label.partition(",")[0] in arguments.encodings) and (
                case.kind != "bias" or tokens <= MOST["bias"]
            ):
                cells.append(made(label, case, tokens, arguments.dtypes, arguments.what, device, left))
        if "turn" in arguments.what and tokens <= MOST["turn"] and "RoPE" in (arguments.encodings or ["RoPE"]):
            cells.append(turned(tokens, arguments.dtypes, device, left))
        for each in cells:
            for about, calls in each:
                rows += measure(about, calls, device, arguments.repeats, arguments.seconds)
        write_rows(arguments.output / PATH.name, rows)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, writes the files and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="two sizes and short cells, in under two minutes")
    parser.add_argument("--encodings", nargs="*", default=[], help="names of the factory; all unless given")
    parser.add_argument("--what", nargs="*", choices=WHATS, default=WHATS)
    parser.add_argument("--tokens", nargs="*", type=int, default=None, help="powers of two")
    parser.add_argument("--dtypes", nargs="*", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="threads of PyTorch; as many as it takes unless given")
    parser.add_argument("--repeats", type=int, default=25, help="turns of each, at least 3")
    parser.add_argument("--seconds", type=float, default=None, help="time after which no turn is begun, for each cell")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the files")
    arguments = parser.parse_args(argv)
    arguments.tokens = arguments.tokens or (QUICK if arguments.quick else TOKENS)
    arguments.seconds = arguments.seconds or (0.1 if arguments.quick else 2.0)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    start = time.perf_counter()
    with torch.no_grad():
        rows = run(arguments)
    plot(rows, arguments.output / "encodings.png")
    print(f"{table(rows)}\n\nTime over that of a copy (over the fastest other package), peak memory over the copy's.")
    print(costs.report(torch.device(arguments.device), quick=arguments.quick))
    print(f"\n{setting(torch.device(arguments.device))}; {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
