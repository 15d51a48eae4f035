"""Real time as coordinates: elapsed time, calendar fields on the clock of any time zone, and frequencies."""

from .elapsed import time_coords
from .fields import calendar_coords, calendar_fields
from .frequency import parse_frequency
from .steps import Frequency

__all__ = ["Frequency", "calendar_coords", "calendar_fields", "parse_frequency", "time_coords"]
