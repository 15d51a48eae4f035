"""Who may attend to whom: conditions on a query and a key, which join by ``&``.

The last query is aligned with the last key: query ``i`` of ``q`` has the place ``i + k - q`` among ``k`` keys.

Example:
    >>> mask = window(2) & padding(torch.tensor([True, True, False, True]))
    >>> mask.dense(queries=2, keys=4)
    tensor([[False,  True, False, False],
            [False, False, False,  True]])
"""

from .conditions import AttentionMask, causal, documents, padding, window
from .sight import Sight, Span

__all__ = ["AttentionMask", "Sight", "Span", "causal", "documents", "padding", "window"]
