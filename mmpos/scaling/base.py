"""What a scaling is."""

from abc import ABC, abstractmethod
from decimal import Decimal

from ..frequencies import Place


class Scaling(ABC):
    """Maps the frequency of a pair on one axis to another; to the same one with ``factor=1``."""

    @abstractmethod
    def frequency(self, freq: Decimal, place: Place | None) -> Decimal:
        """The new frequency of a pair, in radians per coordinate unit."""

    def attention(self) -> float:
        """What cosine and sine of a scaled pair are multiplied with; logits take its square."""
        return 1.0


def series_place(scaling: Scaling, place: Place | None) -> Place:
    """The place of a pair in its geometric series, which it must have."""
    if place is None:
        raise ValueError(
            f"{type(scaling).__name__} needs the base of a geometric series, which this spectrum does not have; "
            "PositionInterpolation serves any spectrum"
        )
    return place


def ntk_power(place: Place) -> Decimal:
    """A base times ``s ** (width / (width - 2))`` multiplies the frequency of a pair by ``s`` to this power."""
    return Decimal(0) if place.width == 2 else Decimal(-2 * place.number) / (place.width - 2)
