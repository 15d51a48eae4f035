"""Real time as coordinates: elapsed time, fields of the calendar on the clock of any zone, events, frequencies."""

from .elapsed import time_coords
from .events import event_coords
from .fields import calendar_coords, calendar_fields
from .frequency import parse_frequency
from .ramps import calendar_ramps
from .steps import Frequency

__all__ = [
    "Frequency",
    "calendar_coords",
    "calendar_fields",
    "calendar_ramps",
    "event_coords",
    "parse_frequency",
    "time_coords",
]
