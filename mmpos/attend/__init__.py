"""Where rotation, bias and logit scale meet scaled dot-product attention."""

from .function import attention
from .module import Attention

__all__ = ["Attention", "attention"]
