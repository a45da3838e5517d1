"""The project with everything that single benchmarks put in front of it."""

from benchmarks.doors import application
from benchmarks.slow_reads import SLOW_ID

__all__ = ["SLOW_ID", "application"]
