"""Sound files as frames of log-mel energies that lie at seconds."""

import math
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

SUFFIXES = (".wav", ".flac")
SILENCE = 1e-10
"""Energy below which nothing is told apart, so that the logarithm has an end."""


def mel_filters(
    bands: int, bins: int, rate: float, *, low: float = 0.0, high: float | None = None
) -> Float[Tensor, "bins bands"]:
    """Weights of the energies of a spectrum in bands that are triangles of equal width on the mel scale.

    ``mel(f) = 2595 log10(1 + f / 700)``. Band ``i`` rises from corner ``i`` to corner ``i + 1``, where it is 1, and
    falls to corner ``i + 2``; the ``bands + 2`` corners lie at equal steps of mel from ``low`` to ``high``, and bin
    ``j`` at ``j / (bins - 1)`` of half the sampling rate.

    Args:
        bands: Number of bands.
        bins: Number of frequencies of the spectrum, from 0 to half the sampling rate.
        rate: Sampling rate in Hz.
        low: Lower end of the first band in Hz.
        high: Upper end of the last band in Hz; half the sampling rate unless given. Bands past that are empty.

    Raises:
        ValueError: If a number is not positive, or ``low`` not below ``high``.

    Reference:
        Young et al., The HTK Book, 2006, sec. 5.4. https://htk.eng.cam.ac.uk

    Example:
        >>> mel_filters(bands=2, bins=5, rate=8000).T
        tensor([[0.0000, 0.6759, 0.0000, 0.0000, 0.0000],
                [0.0000, 0.3241, 0.9055, 0.4528, 0.0000]])
    """
    high = rate / 2 if high is None else high
    if bands < 1 or bins < 2 or not rate > 0:
        raise ValueError(f"bands ({bands}), bins ({bins}) and rate ({rate}) must be at least 1, 2 and above 0")
    if not 0 <= low < high < math.inf:
        raise ValueError(f"low ({low:g}) must be at least 0 and below high ({high:g})")
    low_mel, high_mel = (2595 * math.log10(1 + edge / 700) for edge in (low, high))
    mels = low_mel + (high_mel - low_mel) * torch.arange(bands + 2, dtype=torch.float64) / (bands + 1)
    corners = 700 * (10 ** (mels / 2595) - 1)
    freqs = torch.arange(bins, dtype=torch.float64)[:, None] * rate / (2 * (bins - 1))
    rise = (freqs - corners[:-2]) / (corners[1:-1] - corners[:-2])
    fall = (corners[2:] - freqs) / (corners[2:] - corners[1:-1])
    return torch.minimum(rise, fall).clamp(min=0).float()


def log_mel(
    wave: Float[Tensor, " samples"],
    rate: float,
    *,
    bands: int = 40,
    window: float = 0.025,
    hop: float = 0.01,
    low: float = 20.0,
    high: float | None = 8000.0,
) -> tuple[Float[Tensor, "frames bands"], Float[Tensor, " frames"]]:
    """Logarithms of the energies in mel bands, and the second in the middle of each frame.

    A frame is a whole number of samples behind the one before it, the nearest to ``hop``, and its second is that of its
    middle sample: frames of any sampling rate and any hop are where they are on the clock.

    Args:
        wave: Samples.
        rate: Sampling rate in Hz.
        bands: Number of mel bands.
        window: Seconds that a frame sees, through a Hann window.
        hop: Seconds from a frame to the next.
        low: Lower end of the first band in Hz.
        high: Upper end of the last band in Hz. Bands that the sampling rate does not reach are silent.

    Raises:
        ValueError: If there are no samples, or a number is out of range.
        TypeError: If the samples are not floating point.

    Example:
        >>> second = torch.sin(440 * 2 * torch.pi * torch.arange(22050) / 22050)
        >>> energies, seconds = log_mel(second, rate=22050, hop=0.02)
        >>> energies.shape, seconds[-1]
        (torch.Size([51, 40]), tensor(1., dtype=torch.float64))
    """
    for name, value in (("rate", rate), ("window", window), ("hop", hop)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value}")
    if wave.ndim != 1 or not len(wave):
        raise ValueError(f"wave must be samples (n,), got shape {tuple(wave.shape)}")
    if not wave.is_floating_point():
        raise TypeError(f"wave must be floating point, from -1 to 1, got {wave.dtype}")
    width, step = max(round(window * rate), 2), max(round(hop * rate), 1)
    size = 1 << (width - 1).bit_length()
    look, filters = torch.hann_window(width), mel_filters(bands, size // 2 + 1, rate, low=low, high=high)
    spectrum = torch.stft(
        wave.float(), size, step, width, look.to(wave.device), pad_mode="constant", return_complex=True
    )
    # In float64, which autocast leaves alone: in half precision an energy has three digits.
    energies = (spectrum.abs().square().double().T @ filters.to(wave.device).double()).float()
    seconds = torch.arange(len(energies), dtype=torch.float64) * step / rate
    return energies.clamp(min=SILENCE).log(), seconds


def read_sound(path: Path) -> tuple[Float[Tensor, " samples"], int]:
    """The samples of a sound file from -1 to 1, as the mean of its channels, and its sampling rate in Hz.

    Raises:
        OSError: If the file is no sound file, or has no samples; the message names it.
        ImportError: If the package soundfile is not installed.
    """
    try:
        import soundfile  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("sound files need the package soundfile: pip install 'mmpos[audio]'") from error
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, RuntimeError, ValueError, TypeError) as error:  # what soundfile raises
        raise OSError(f"{path} cannot be read as sound: {error}") from error
    wave = torch.from_numpy(samples).mean(dim=1)
    if not len(wave):
        raise OSError(f"{path} has no samples")
    if not wave.isfinite().all():
        raise OSError(f"{path} has samples that are not finite")
    return wave, rate


def find_sounds(folder: Path) -> list[Path]:
    """Files below a folder whose names end as those of sound do, sorted."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
