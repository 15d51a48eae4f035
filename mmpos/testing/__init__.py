"""The conformance suite: does an encoding of your own keep the promises that all of mmpos' do?

`check_encoding` takes a built encoding of any of the four interfaces, calls copies of it in every way that models,
trainers and compilers do, and reports all points that fail at once, by name. One line in a test of yours is enough:

    >>> import torch
    >>> from mmpos import AttentionBias
    >>> from mmpos.encodings.checks import check_coords
    >>> from mmpos.testing import check_encoding
    >>>
    >>> class Nearness(AttentionBias):
    ...     "Minus the squared distance between tokens over ``2 * width ** 2``, the same in every head."
    ...
    ...     def __init__(self, num_heads: int, axes: int = 1, width: float = 8.0):
    ...         super().__init__()
    ...         self.num_heads, self.axes, self.width = num_heads, axes, width
    ...
    ...     def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
    ...         check_coords(q_coords, self.axes, "q_coords")
    ...         check_coords(k_coords, self.axes, "k_coords")
    ...         steps = q_coords.double()[..., :, None, :] - k_coords.double()[..., None, :, :]
    ...         bias = -steps.square().sum(-1) / (2 * self.width**2)
    ...         bias = bias.masked_fill(~bias.isfinite(), torch.nan)
    ...         return bias.float().unsqueeze(-3).repeat_interleave(self.num_heads, dim=-3)
    >>>
    >>> report = check_encoding(Nearness(num_heads=6, axes=2))
    >>> "call_order" in report.passed, report.skipped["parameter_gradients"]
    (True, 'it learns nothing')

What fails is an `EncodingError`, an assertion that pytest shows in full. Without ``check_coords`` above it would read::

    Nearness() fails 3 of 22 points
      wrong_axes: expected a ValueError for q_coords of shape (23, 3), got RuntimeError: The size of tensor a (3) ...
      half_precision_coordinates: expected a TypeError for q_coords in torch.float16, got no error
      boolean_coordinates: expected a TypeError for q_coords in torch.bool, got no error

What the suite needs to know it asks of the encoding:

* ``axes``: the number of axes of its coordinates.
* ``example_coords(n)``, an optional method: ``n`` coordinates that it holds, where its range is limited as that of a
  table is. Everything in the box that they span must be legal. Without this method any coordinate is.
* ``dim`` or ``num_heads``, if it has them: the width of its results, or their heads.
* ``num_heads`` and ``head_dim``, or ``dim``, if it is a bias that ``needs`` queries and keys, or tokens.

`POINTS` has all points in reading order with a line on each; ``points=[...]`` checks some of them.
"""

from .subject import Subject
from .suite import POINTS, EncodingError, Report, check_encoding

__all__ = ["POINTS", "EncodingError", "Report", "Subject", "check_encoding"]
