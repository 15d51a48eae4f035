"""Rules by name: functions of a segment and the running position."""

import inspect
from functools import partial
from typing import Any

from ...calendar.names import check_name, unknown
from ..placement import Rule
from .general import aligned, sequential, v2pe, videorope
from .qwen import qwen2_5_omni, qwen2_5_vl, qwen2_vl, qwen3_vl

RULES: dict[str, Rule] = {
    "aligned": aligned,
    "qwen2_5_omni": qwen2_5_omni,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen2_vl": qwen2_vl,
    "qwen3_vl": qwen3_vl,
    "sequential": sequential,
    "v2pe": v2pe,
    "videorope": videorope,
}


def register_rule(name: str, rule: Rule) -> None:
    """Makes a rule of the user's own known by name to `multimodal_coords`.

    Args:
        name: The name; not one that is taken.
        rule: A function ``rule(segment, position, *, options) -> (coords, next position)`` that places a `Text`,
            `Image`, `Video`, `Audio`, `Series` or `Together` at the running position: coordinates ``(size, 3)`` of all
            its tokens, dropped ones too, int64 always or float64 always. Keyword-only arguments are options.

    Raises:
        ValueError: If the name is taken.
        TypeError: If the rule is not callable, or the name not text.

    Example:
        >>> def halves(segment, position, *, step=0.5):
        ...     positions = position + step * torch.arange(segment.size, dtype=torch.float64)
        ...     return positions[:, None].expand(-1, 3), positions[-1].item() + step
        >>> multimodal_coords([[Text(2), Image(1, 2)]], halves).coords[0, :, 0]  # or by name, once it is registered
        tensor([0.0000, 0.5000, 1.0000, 1.5000], dtype=torch.float64)
    """
    if not isinstance(name, str):
        raise TypeError(f"name of a rule must be text, got {name!r}")
    if name in RULES:
        raise ValueError(f"the rule name {name!r} is taken")
    if not callable(rule):
        raise TypeError(f"rule must be a function of a segment and a position, got {rule!r}")
    RULES[name] = rule


def find_rule(rule: str | Rule, options: dict[str, Any]) -> Rule:
    """The rule of this name, or the one given, with its options set."""
    if callable(rule):
        name, function = getattr(rule, "__name__", "rule"), rule
    else:
        check_name("rule", rule, RULES)
        name, function = rule, RULES[rule]
    known = [key for key, each in inspect.signature(function).parameters.items() if each.kind is each.KEYWORD_ONLY]
    for key in options:
        if key not in known:
            raise TypeError(unknown(f"option of rule {name!r}", key, known, ", ".join(known) or "none"))
    return partial(function, **options)
