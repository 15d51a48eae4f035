"""The Lightning command line: ``python train.py fit --config configs/image/rope.yaml``."""

from pathlib import Path

from mmpos.cli import main

if __name__ == "__main__":
    main(base_config=Path(__file__).parent / "configs" / "base.yaml")
