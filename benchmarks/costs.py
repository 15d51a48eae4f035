"""What encodings cost a model: making each beside a forward pass, a million positions beside a copy, and the import.

The model is a ViT-S/16 of this package for 8 images of 224 x 224, as ``python -m benchmarks`` prints it at its end.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from statistics import median

import torch

from mmpos import RoPE, Sinusoidal, grid_coords
from mmpos.calendar import calendar_coords, calendar_fields
from mmpos.catalogue import ENCODINGS

from .cases import call_of
from .peers import pandas_fields
from .specs import FIELDS, WIDTH, coords_of, make, spec
from .timing import Call, clone, ratios, take_turns

GRID = (14, 14)
TIMES = 14 * 14


def make_calls(device: torch.device) -> dict[str, Callable[[], object]]:
    """Making what each encoding of the factory hands to a model, and coordinates: of 14 x 14 patches, or 196 tokens."""
    calls: dict[str, Callable[[], object]] = {"calendar": partial(calendar_coords, stamps(TIMES), FIELDS)}
    for name, (kind, _) in ENCODINGS.items():
        size = GRID
        encoding = make(spec(name, 2), size)
        if encoding.axes != 2:
            size = (TIMES,)
            encoding = make(spec(name), size)
        made = call_of(encoding.to(device), kind, coords_of(size).to(device))
        calls[name] = lambda made=made, size=size: (coords_of(size).to(device), made())
    return calls


def share_of_a_model(device: torch.device, repeats: int) -> str:
    """Markdown: time to make each encoding, as a share of the forward pass that it is made for."""
    from mmpos.models import VisionTransformer

    model = VisionTransformer(224, 16, 3, 1000, 384, 12, 6, class_token=True).to(device).eval()
    images = torch.randn(8, 3, 224, 224, device=device)
    passes = take_turns({"forward": lambda: model(images)}, device, repeats=repeats, seconds=repeats)["forward"]
    calls, forward = make_calls(device), median(passes)
    times = take_turns(calls, device, repeats=repeats, seconds=2)
    lines = ["| encoding, 196 tokens | ms | % of the forward pass |", "|---|---|---|"]
    lines += [f"| {name} | {median(each):.3f} | {100 * median(each) / forward:.2f} |" for name, each in times.items()]
    return "\n".join(
        [*lines, "", f"Forward pass of a ViT-S/16 without positions, 8 images of 224 x 224: {forward:.0f} ms."]
    )


def at_scale(device: torch.device, number: int, repeats: int) -> str:
    """Markdown: encodings of many positions and times beside a copy of their result."""
    side = int(number**0.5)
    coords = grid_coords(side, side, device=device)
    calls = {
        "RoPE, 2 axes, 64 channels": partial(RoPE(WIDTH, axes=2), coords),
        "Sinusoidal, 2 axes, 64 channels": partial(Sinusoidal(WIDTH, axes=2), coords),
    }
    lines = [f"| {number:,} positions | ms | ratio to a copy | ratio to pandas |", "|---|---|---|---|"]
    for name, call in calls.items():
        times = take_turns({"clone": clone(call()), name: call}, device, repeats=repeats, seconds=3)
        lines.append(f"| {name} | {median(times[name]):.1f} | {ratios(times, 'clone')[name]:.1f} | |")
    for zone in (None, "Europe/Berlin"):
        lines += calendars(stamps(number), zone, device, repeats)
    return "\n".join(lines)


def calendars(seconds: torch.Tensor, zone: str | None, device: torch.device, repeats: int) -> list[str]:
    """Rows of the calendar in UTC or a zone, beside pandas where that is installed."""
    ticks = seconds.to(device)
    fields = partial(calendar_fields, ticks, FIELDS, timezone=zone)
    calls: dict[str, Call] = {
        "calendar_fields": fields,
        "calendar_coords": partial(calendar_coords, ticks, FIELDS, timezone=zone),
    }
    with suppress(ImportError):
        peer = pandas_fields(seconds, zone)
        if not torch.equal(peer.alike(peer.call()), fields().cpu()):
            raise ValueError(f"fields differ from pandas', timezone {zone}")
        calls["pandas, accessors"] = peer.call
    rows = []
    times = take_turns({"clone": clone(fields()), **calls}, device, repeats=repeats, seconds=6)
    to_clone, to_peer = ratios(times, "clone"), ratios(times, list(calls)[-1])
    for name in calls:
        ratio = f"{to_peer[name]:.2f}" if len(calls) > 2 else ""
        rows.append(f"| {name}, {zone or 'UTC'} | {median(times[name]):.1f} | {to_clone[name]:.1f} | {ratio} |")
    return rows


def stamps(number: int) -> torch.Tensor:
    """Unix seconds of the last half century."""
    return torch.randint(1_800_000_000, (number,), generator=torch.Generator().manual_seed(0))


def import_seconds(repeats: int) -> dict[str, float]:
    """Median processor seconds of ``import torch`` and of ``import mmpos`` behind it, in processes of their own."""
    code = (
        "import time; a = time.process_time(); import torch; b = time.process_time(); import mmpos; "
        "print(b - a, time.process_time() - b)"
    )
    runs = [
        [float(text) for text in subprocess.check_output([sys.executable, "-c", code], text=True).split()]
        for _ in range(repeats)
    ]
    torch_alone, mmpos_alone = (median(column) for column in zip(*runs, strict=True))
    return {"torch": torch_alone, "mmpos": mmpos_alone}


def report(device: torch.device, *, quick: bool) -> str:
    """All of it as Markdown."""
    imports = import_seconds(2 if quick else 5)
    return "\n\n".join(
        [
            share_of_a_model(device, 3 if quick else 9),
            at_scale(device, 2**16 if quick else 10**6, 3 if quick else 9),
            f"`import torch` takes {imports['torch']:.2f} s, `import mmpos` behind it {imports['mmpos']:.2f} s.",
        ]
    )
