"""Small image sets on disk, and where the real one is."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FASHION = Path("/usr/share/datasets/fashion-mnist")
NO_FASHION = "Debian's dataset-fashion-mnist is not installed"
needs_fashion = pytest.mark.skipif(not FASHION.is_dir(), reason=NO_FASHION)


def write_idx(path, array):
    head = bytes((0, 0, 8, array.ndim)) + b"".join(side.to_bytes(4, "big") for side in array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + array.tobytes())


def write_mnist(folder, train=40, test=20, size=(5, 7), seed=0):
    """Random images in ten classes."""
    random = np.random.default_rng(seed)
    for prefix, count in (("train", train), ("t10k", test)):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", random.integers(256, size=(count, *size), dtype=np.uint8))
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8) % 10)


def write_picture(path, size=(12, 9), colour=(200, 30, 90), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)


def write_folder(root, classes=("cat", "dog", "emu"), count=4):
    for number, name in enumerate(classes):
        for picture in range(count):
            write_picture(root / name / f"{picture}.png", (12 + picture, 9 + number), (80 * number, 30, 20 * picture))
