"""Output for people: live progress display, videos and learning curves.

Heavy libraries are imported only when something is drawn.
"""

from plaudit.reporting.learning_curves import plot_curves
from plaudit.reporting.progress import ProgressDisplay
from plaudit.reporting.video import film_strip, tile, write_video

__all__ = ["ProgressDisplay", "film_strip", "plot_curves", "tile", "write_video"]
