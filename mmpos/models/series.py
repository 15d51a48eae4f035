"""Transformers for time series, whose rows lie at timestamps: a forecaster on patches and a classifier of rows."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from ..coords import padded_coords
from ..factory import Slot
from ..masks import padding
from ..values import check_arguments
from .blocks import check_blocks, make_blocks, no_weight_decay_names
from .stack import StackEncodings
from .times import TokenTimes

Variates = Literal["independent", "axis"]
Instance = Literal["standardise", "centre", "none"]


class SeriesForecaster(nn.Module):
    """Forecasts series: patches of what is known and of what is not become tokens, which all see each other.

    A token of the past is a linear map of the values of its patch and of which of them are there; a token of the future
    has none, and what it says comes from where it lies. So the calendar of the future is known to the model as far as
    its encodings tell it. Each series is less its mean in the window, and over its standard deviation there, and the
    forecast is brought back (reversible instance normalisation). The first patch is padded in front and the last
    behind, so that past and future do not share one.

    Args:
        patch: Rows of a token.
        dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads per block.
        variates: "independent": each channel is a series of its own, with the same weights. "axis": the tokens of all
            channels see each other. The coordinate "variate" tells channels apart.
        instance: "standardise" as above; "centre" leaves the scale as it is: for channels that are mostly still, such
            as rain, whose deviation in a window says little; "none" leaves the level too: for series that come back to
            a mean, such as temperatures, if the data are scaled as a whole.
        drop_path: Probability that a sample skips a branch in training, in the last block; it grows linearly to that.
        block: Further arguments of the blocks, such as ``{"proj_drop": 0.1}``; see `Block`.
        times: How timestamps become coordinates, the arguments of `TokenTimes`: ``coords`` names those of each slot.
        additive: Slot of what is added to the tokens.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        scale: Slot of what multiplies the logits.

    Raises:
        ValueError: If a size is out of range, a slot cannot be built or a name is unknown.

    Example:
        >>> seasons = {"name": "Seasonal", "axes": 2}
        >>> calendar = {"coords": {"additive": ["fraction_of_day", "fraction_of_week"]}}
        >>> forecaster = SeriesForecaster(patch=8, dim=32, num_heads=4, times=calendar, additive=seasons)
        >>> hours = torch.arange(96 + 48) * 3600 + 1_700_000_000
        >>> forecaster(torch.randn(2, 96, 3), hours.expand(2, -1)).shape
        torch.Size([2, 48, 3])

    Reference:
        Nie et al., A time series is worth 64 words (PatchTST), 2023, sec. 3. https://arxiv.org/abs/2211.14730
        Kim et al., Reversible instance normalization, 2022. https://openreview.net/forum?id=cGDAkQo1C0p
    """

    def __init__(
        self,
        patch: int = 8,
        dim: int = 64,
        depth: int = 3,
        num_heads: int = 4,
        *,
        variates: Variates = "independent",
        instance: Instance = "standardise",
        drop_path: float = 0.0,
        block: Mapping[str, Any] | None = None,
        times: Mapping[str, Any] | None = None,
        additive: Slot = None,
        rotary: Slot = None,
        bias: Slot = None,
        scale: Slot = None,
    ):
        super().__init__()
        if patch < 1:
            raise ValueError(f"patch ({patch}) must be positive")
        if variates not in ("independent", "axis"):
            raise ValueError(f"variates must be 'independent' or 'axis', got {variates!r}")
        if instance not in get_args(Instance):
            raise ValueError(f"instance must be one of {', '.join(get_args(Instance))}, got {instance!r}")
        self.patch, self.variates = patch, variates
        self.instance: Instance = instance
        self.embed = nn.Linear(2 * patch, dim)
        self.future = nn.Parameter(torch.empty(dim))
        self.times, self.encodings, self.blocks = _stack(
            dim, depth, num_heads, drop_path, block, times, additive=additive, rotary=rotary, bias=bias, scale=scale
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, patch)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the token of rows to come anew; what the parts learn is theirs to draw."""
        nn.init.normal_(self.future, std=0.02)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that an optimiser should not decay."""
        return no_weight_decay_names(self) | {"future"}

    def forward(self, values: Float[Tensor, "b n c"], times: Int64[Tensor, "b m"]) -> Float[Tensor, "b h c"]:
        """The values of the rows that follow.

        Args:
            values: Known values, NaN where one is missing.
            times: Timestamps of the known rows and of those to forecast, as the model's ``times`` read them.
        """
        b, n, c = values.shape
        horizon = times.shape[-1] - n
        if horizon < 1 or len(times) != b:
            raise ValueError(f"times must have ({b}, {n} + horizon) entries, got {tuple(times.shape)}")
        values, mean, std = _standardise(values, self.instance)
        front, back = -n % self.patch, -horizon % self.patch
        seen = F.pad(values.isfinite().to(values.dtype), (0, 0, front, 0))
        rows = torch.stack([F.pad(values.nan_to_num(0, 0, 0), (0, 0, front, 0)), seen], dim=-1)
        past = self.embed(rows.unflatten(1, (-1, self.patch)).movedim(3, 1).flatten(3))  # (b, c, patches, dim)
        future = self.future.expand(b, c, (horizon + back) // self.patch, -1)
        x = torch.cat([past, future.to(past.dtype)], dim=2)
        firsts = self._first_rows(n, front, times)
        x = self._mix(x, firsts)[:, :, past.shape[2] :]
        ahead = self.head(self.norm(x)).flatten(2)[..., :horizon].mT
        return ahead * std + mean

    def _first_rows(self, n: int, front: int, times: Int64[Tensor, "b m"]) -> Int64[Tensor, "b p"]:
        """Times of the first real row of each patch."""
        past = torch.arange(-front, n, self.patch, device=times.device).clamp(min=0)
        future = torch.arange(n, times.shape[-1], self.patch, device=times.device)
        return times[:, torch.cat([past, future])]

    def _mix(self, x: Float[Tensor, "b c p dim"], times: Int64[Tensor, "b p"]) -> Float[Tensor, "b c p dim"]:
        b, c, p, _ = x.shape
        if self.variates == "axis":
            at = partial(self.times, times, variates=c)
            return _transform(self, x.flatten(1, 2), at).unflatten(1, (c, p))
        at = partial(self.times, times, variates=c, apart=True)
        return _transform(self, x.flatten(0, 1), at).unflatten(0, (b, c))


class SeriesClassifier(nn.Module):
    """Classifies ragged series of several channels: a row of values is a token, and the mean over them is read out.

    Args:
        channels: Values of a row.
        num_classes: Number of classes.
        dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads per block.
        drop_path: Probability that a sample skips a branch in training, in the last block; it grows linearly to that.
        block: Further arguments of the blocks; see `Block`.
        times: How timestamps become coordinates, see `TokenTimes`; without timestamps the only one is "index".
        additive: Slot of what is added to the tokens.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        scale: Slot of what multiplies the logits.

    Raises:
        ValueError: If a slot cannot be built or a name is unknown.

    Example:
        >>> classifier = SeriesClassifier(channels=12, num_classes=9, dim=32, num_heads=4, rotary={"name": "RoPE"})
        >>> classifier(torch.randn(2, 29, 12), real=torch.arange(29) < torch.tensor([[29], [7]])).shape
        torch.Size([2, 9])
    """

    def __init__(
        self,
        channels: int,
        num_classes: int,
        dim: int = 64,
        depth: int = 2,
        num_heads: int = 4,
        *,
        drop_path: float = 0.0,
        block: Mapping[str, Any] | None = None,
        times: Mapping[str, Any] | None = None,
        additive: Slot = None,
        rotary: Slot = None,
        bias: Slot = None,
        scale: Slot = None,
    ):
        super().__init__()
        self.embed = nn.Linear(channels, dim)
        self.times, self.encodings, self.blocks = _stack(
            dim, depth, num_heads, drop_path, block, times, additive=additive, rotary=rotary, bias=bias, scale=scale
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that an optimiser should not decay."""
        return no_weight_decay_names(self)

    def forward(
        self,
        values: Float[Tensor, "b n c"],
        times: Int64[Tensor, "b n"] | None = None,
        *,
        real: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b classes"]:
        """Logits of the classes.

        Args:
            values: Rows of values.
            times: Their timestamps; None if only their order is known.
            real: False where a row is a pad; all are real unless given.
        """
        real = torch.ones_like(values[..., 0], dtype=torch.bool) if real is None else real
        x = self.embed(values.masked_fill(~real[..., None], 0))
        at = partial(self.times, times, index=padded_coords(real))
        x = self.norm(_transform(self, x, at, mask=padding(real)))
        weights = real.to(x.dtype)[..., None]
        return self.head((x * weights).sum(1) / weights.sum(1).clamp(min=1))


def _stack(
    dim: int,
    depth: int,
    num_heads: int,
    drop_path: float,
    block: Mapping[str, Any] | None,
    times: Mapping[str, Any] | None,
    **slots: Any,
) -> tuple[TokenTimes, StackEncodings, nn.ModuleList]:
    """What both models have: coordinates of the slots, encodings and blocks."""
    options = dict(block or {})
    check_blocks(dim, depth, num_heads, drop_path, options)
    check_arguments("times", TokenTimes, times or {})
    encodings = StackEncodings(
        depth,
        dim=dim,
        num_heads=num_heads,
        num_kv_heads=options.get("num_kv_heads"),
        head_dim=options.get("head_dim"),
        **slots,
    )
    blocks = make_blocks(dim, depth, num_heads, drop_path, options)
    return TokenTimes(**times or {}), encodings, blocks


def _transform(model: Any, x: Float[Tensor, "b n dim"], at: partial, **options: Any) -> Float[Tensor, "b n dim"]:
    """Encodes where the tokens are, and runs the blocks."""
    encodings: StackEncodings = model.encodings
    if encodings.additive is not None:
        x = encodings.add(x, at("additive", cells=encodings.additive.needs_cells))
    coords = at("rotary")
    bias_coords = at("bias", cells=any(bias.needs_cells for bias in encodings.bias)) if len(encodings.bias) else coords
    for block, layer in zip(model.blocks, encodings(coords, bias_coords=bias_coords), strict=True):
        x = block(x, layer, coords=bias_coords, **options)
    return x


def _standardise(
    values: Float[Tensor, "b n c"], instance: Instance
) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b 1 c"], Float[Tensor, "b 1 c"]]:
    """The values less their mean and over their standard deviation in the window, and both; what is missing is not."""
    seen = values.isfinite()
    count = seen.sum(1, keepdim=True).clamp(min=1)
    mean = values.where(seen, 0).sum(1, keepdim=True) / count
    centred = values - mean
    if instance == "none":
        return values, torch.zeros_like(mean), torch.ones_like(mean)
    if instance == "centre":
        return centred, mean, torch.ones_like(mean)
    variance = centred.where(seen, 0).square().sum(1, keepdim=True) / count
    std = (variance + 1e-5).sqrt()
    return centred / std, mean, std
