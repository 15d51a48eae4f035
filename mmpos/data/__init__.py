"""A LightningDataModule per modality."""

from mmpos.data.image import Digits

__all__ = ["Digits"]
