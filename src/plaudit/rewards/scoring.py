"""A model's scores of labelled frames."""

from __future__ import annotations

import numpy as np
import torch

from plaudit.rewards.feeds import Feed, moved, read_ahead
from plaudit.rewards.model import RewardModel
from plaudit.rewards.parallel import Alone, Ranks
from plaudit.rewards.scores import Scores

BATCH = 64
"""Frames that are scored together: enough for a CPU, and little memory with a large encoder."""


def score(model: RewardModel, feed: Feed, ranks: Ranks | None = None) -> Scores:
    """Scores of all frames of a feed; episodes are numbered as in its data set's source, and row i is `feed.rows[i]`.

    The model is in evaluation mode afterwards.

    Args:
        model: What scores.
        feed: The frames.
        ranks: Processes that all call this with the same model, and divide the frames; all get all scores.
    """
    ranks = ranks or Alone()
    device = next(model.parameters()).device
    model.eval()
    logits = torch.zeros(len(feed.rows), model.heads)
    # Whole batches, so that a frame is scored among the same others by however many processes.
    starts = range(0, len(feed.rows), BATCH)
    starts = starts[ranks.share(len(starts))]
    with torch.inference_mode():
        batches = read_ahead(lambda start: feed.read(feed.rows[start : start + BATCH]), starts)
        for start, batch in zip(starts, batches, strict=True):
            logits[start : start + BATCH] = feed.logits(model, moved(batch, device)).float().cpu()
    logits = ranks.add_up(logits)
    dataset = feed.dataset
    return Scores(
        logits=logits.mean(1).numpy(),
        labels=dataset.labels[feed.rows],
        episode=dataset.episodes[feed.rows].astype(np.int64),
        instant=feed.instants,
        spread=logits.std(1, correction=0).numpy() if model.heads > 1 else None,
    )
