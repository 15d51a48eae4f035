"""Which encoding for what: one table of situations, each with a choice, its reason and where that comes from."""

from collections.abc import Sequence
from typing import NamedTuple


class Advice(NamedTuple):
    """A row of the table.

    Args:
        topic: What the tokens are of: a modality, or "any".
        situation: What you have, or want.
        choice: What to take; names of mmpos stand in backticks.
        reason: Why.
        source: The paper, or the study of ours, that says so.
        url: Where that is: an address, or a page of the documents.
    """

    topic: str
    situation: str
    choice: str
    reason: str
    source: str
    url: str


ADVICE = (
    # Whatever the tokens are
    Advice(
        "any", "one length or grid for good, and data enough to learn it",
        "`LearnedTable`",
        "each place learns what helps there; another size needs the table resized",
        "ViT, 2020, app. D.4", "https://arxiv.org/abs/2010.11929",
    ),
    Advice(
        "any", "no parameters, and nothing changed inside attention",
        "`Sinusoidal`",
        "every place has its own vector, and a shift turns it; values past the trained length are new to the model",
        "Vaswani et al., 2017, sec. 3.5", "https://arxiv.org/abs/1706.03762",
    ),
    Advice(
        "any", "distances matter, places do not",
        "`RoPE`, or a bias of differences such as `T5Bias`",
        "logits depend on differences of coordinates, so they stay the same when all tokens move",
        "RoFormer, 2021, sec. 3.4", "https://arxiv.org/abs/2104.09864",
    ),
    Advice(
        "any", "no causal mask",
        "any encoding; do not leave it out",
        "without mask and encoding attention gives a token the same result in any order of the others",
        "Haviv et al., 2022", "https://arxiv.org/abs/2203.16634",
    ),
    Advice(
        "any", "what a token holds says how far it should look",
        "`RelativeLogits`",
        "each query has an inner product with a learned vector of the difference",
        "Shaw et al., 2018, sec. 3", "https://arxiv.org/abs/1803.02155",
    ),
    Advice(
        "any", "many more keys than in training",
        "`LogScale` or `SSMax` beside the encoding",
        "softmax flattens as keys grow in number; a factor by their logarithm counters that, in our study little",
        "Nakanishi, 2025, sec. 2", "https://arxiv.org/abs/2501.19399",
    ),
    Advice(
        "any", "weights that were trained with an encoding",
        "the same encoding: a preset, or an adapter",
        "systems differ in order of axes and channels, in frequencies and units, and a wrong one raises no error",
        "parity", "parity.md",
    ),
    # Text
    Advice(
        "text", "a decoder, at the length that it is trained on",
        "`RoPE`",
        "depends on differences, needs no parameters, and cached keys stay as they are",
        "our study of lengths", "text.md#past-the-trained-length",
    ),
    Advice(
        "text", "a rotary model, longer than trained",
        "`RoPE` with `YaRN`",
        "pairs that turned often in training stay, those that did not finish a turn are interpolated",
        "YaRN, 2023, sec. 3.2", "https://arxiv.org/abs/2309.00071",
    ),
    Advice(
        "text", "longer than trained, as simply as can be",
        "`ALiBi`",
        "a penalty that grows with the distance means the same at any length; far keys fade out",
        "Press et al., 2021, sec. 3", "https://arxiv.org/abs/2108.12409",
    ),
    Advice(
        "text", "a new model that is to read far past its trained length",
        "layers that rotate (`RoPE`) in a window, and some global ones that do not, with `LogScale`",
        "no layer meets a distance that it has not seen; the causal mask tells order to those without rotation",
        "our study of lengths", "text.md#past-the-trained-length",
    ),
    Advice(
        "text", "facts anywhere in a long input",
        "`FIRE` or `T5Bias`, rather than plain `RoPE`",
        "content can speak for itself far away; rotation finds what is near and loses the rest past its length",
        "our study of depth", "text.md#where-in-a-long-input-a-fact-is-found",
    ),
    # Images
    Advice(
        "images", "other sizes than in training",
        "`RoPE` with axes=2 and a base near 100, on coordinates that are rescaled to the trained range",
        "on a small grid pairs of base 10,000 hardly turn; coordinates that count on are new to the model",
        "our study of sizes", "images.md#other-sizes",
    ),
    Advice(
        "images", "slanting directions, and parameters to spare",
        "`RoPE` with `Mixed`",
        "each pair learns how fast it turns with either axis, so not only rows and columns are alike",
        "Heo et al., 2024, sec. 3.2", "https://arxiv.org/abs/2403.13298",
    ),
    Advice(
        "images", "attention in windows",
        "`SwinBias`; `ContinuousBias` where the window will change",
        "few offsets, each with a number of its own, or a small network that gives numbers to new offsets too",
        "Swin V2, 2022, sec. 3.3", "https://arxiv.org/abs/2111.09883",
    ),
    Advice(
        "images", "points anywhere in a box, not cells",
        "`Fourier` or `LearnableFourier`",
        "bands of frequencies let a network see fine detail in a few smooth coordinates",
        "Tancik et al., 2020, sec. 5", "https://arxiv.org/abs/2006.10739",
    ),
    # Video
    Advice(
        "video", "clips",
        "`RoPE` with axes=3, and time that follows the frame rate",
        "the same motion lies at the same coordinates whatever the rate; space keeps pairs of its own",
        "our study of clips", "video.md#which-encoding",
    ),
    Advice(
        "video", "longer films than in training",
        "`RoPE` with `YaRN` or `RIFLEx` on the axis of time alone",
        "rows and columns are no more than before; a pair that would turn again repeats the film",
        "RIFLEx, 2025, sec. 4", "https://arxiv.org/abs/2502.15894",
    ),
    # Sound
    Advice(
        "sound", "frames of one rate",
        "`RoPE`, or `Sinusoidal` as in Whisper",
        "frames are a sequence like any other",
        "Whisper, 2022, released code", "https://arxiv.org/abs/2212.04356",
    ),
    Advice(
        "sound", "several sampling rates or hops, or events in real time",
        "`RoPE` on seconds, with `Periods` from the finest to the longest span",
        "an instant has the same angle whatever the rate",
        "POYO, 2023", "https://arxiv.org/abs/2310.16046",
    ),
    # Time series
    Advice(
        "series", "regular rows, with a season longer than the window",
        "`Seasonal` on calendar coordinates",
        "which hour and weekday is forecast cannot be read from the window",
        "our study of series", "series.md#which-encoding",
    ),
    Advice(
        "series", "rows with gaps, or irregular ones",
        "`RoPE` on elapsed time with `Periods`, or `ALiBi` with `per`",
        "the number of a row says little about when it was",
        "our study of series", "series.md#which-encoding",
    ),
    Advice(
        "series", "events seconds to years apart",
        "`Time2Vec`, or `T5Bias` with boundaries in units of time",
        "learned waves or buckets that widen cover many orders of magnitude",
        "HSTU, 2024, released code", "https://arxiv.org/abs/2402.17152",
    ),
    Advice(
        "series", "every variate a token",
        "`GroupBias` beside the encoding of time",
        "which variate it is has no order, only same or other",
        "MOIRAI, 2024, sec. 3.1", "https://arxiv.org/abs/2402.02592",
    ),
    # Mixed sequences
    Advice(
        "mixed", "text with images or video",
        "`RoPE` with axes=3 and the rule of the model: `qwen2_vl`, `qwen3_vl`",
        "patches have rows, columns and frames, and text goes on behind them",
        "Qwen2-VL, 2024, sec. 2.1", "https://arxiv.org/abs/2409.12191",
    ),
    Advice(
        "mixed", "sight, sound and measurements that happen together",
        "`RoPE` with axes=3 and the rule \"aligned\", or \"qwen2_5_omni\" for Qwen2.5-Omni",
        "what happens at one moment has one time, whatever its rate",
        "Qwen2.5-Omni, 2025, sec. 2.2", "https://arxiv.org/abs/2503.20215",
    ),
)  # fmt: skip

TOPICS = tuple(dict.fromkeys(row.topic for row in ADVICE))


def advice(topics: Sequence[str] = ()) -> list[Advice]:
    """The rows of these topics, and those of any; all rows where none is named.

    Raises:
        ValueError: If a topic is unknown.

    Example:
        >>> from mmpos.diagnostics.advice import advice
        >>> [row.choice for row in advice(["sound"]) if row.topic == "sound"][0]
        '`RoPE`, or `Sinusoidal` as in Whisper'
    """
    for topic in topics:
        if topic not in TOPICS:
            raise ValueError(f"unknown topic {topic!r}; known: {', '.join(TOPICS)}")
    return [row for row in ADVICE if not topics or row.topic in ("any", *topics)]


def markdown(rows: Sequence[Advice]) -> str:
    """The rows as a table of Markdown, as it stands in the documents."""
    lines = ["| tokens | you have or want | take | because | source |", "|---|---|---|---|---|"]
    for row in rows:
        cells = (row.topic, row.situation, row.choice, row.reason, f"[{row.source}]({row.url})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
