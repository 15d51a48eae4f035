"""Where rotation, bias and logit scale meet scaled dot-product attention."""

from .cache import LayerCache
from .choice import Choice
from .function import attention, choose_backend
from .module import Attention

__all__ = ["Attention", "Choice", "LayerCache", "attention", "choose_backend"]
