"""Encodings that add a bias to attention logits."""

from .alibi import ALiBi

__all__ = ["ALiBi"]
