"""Small scores with known content, and random ones for properties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from plaudit.reward_models.evaluation.scores import Scores

FEW = settings(deadline=None, max_examples=50)
"""Enough for small arrays, and no failure because the machine is busy."""


def make_scores(*episodes: tuple[Sequence[float], Sequence[int]]) -> Scores:
    """Scores of some episodes, each given by its logits and labels, with a frame at every instant."""
    lengths = [len(logits) for logits, _ in episodes]
    return Scores(
        logits=np.concatenate([logits for logits, _ in episodes]).astype(np.float32),
        labels=np.concatenate([labels for _, labels in episodes]).astype(np.int8),
        episode=np.repeat(np.arange(len(episodes)), lengths),
        instant=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
    )


@st.composite
def any_scores(draw: st.DrawFn) -> Scores:
    """One to eight episodes of one to six frames. Many logits are equal, some are huge."""
    logit = st.sampled_from([-1e4, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 1e4]) | st.floats(-20, 20, width=32)
    frame = st.tuples(logit, st.integers(0, 1))
    episodes = draw(st.lists(st.lists(frame, min_size=1, max_size=6), min_size=1, max_size=8))
    return make_scores(*[([z for z, _ in episode], [y for _, y in episode]) for episode in episodes])


def logit(probability: float) -> float:
    """The logit of a probability."""
    return float(np.log(probability / (1 - probability)))
