"""A model's scores of labelled frames."""

from __future__ import annotations

import numpy as np
import torch

from plaudit.rewards.feeds import Feed, moved, read_ahead
from plaudit.rewards.model import RewardModel
from plaudit.rewards.scores import Scores

BATCH = 64
"""Frames that are scored together: enough for a CPU, and little memory with a large encoder."""


def score(model: RewardModel, feed: Feed) -> Scores:
    """Scores of all frames of a feed; episodes are numbered as in its data set's source, and row i is `feed.rows[i]`.

    The model is in evaluation mode afterwards.
    """
    device = next(model.parameters()).device
    model.eval()
    found = []
    with torch.inference_mode():
        starts = range(0, len(feed.rows), BATCH)
        for batch in read_ahead(lambda start: feed.read(feed.rows[start : start + BATCH]), starts):
            found.append(feed.logits(model, moved(batch, device)).float().cpu())
    logits = torch.cat(found)
    dataset = feed.dataset
    return Scores(
        logits=logits.mean(1).numpy(),
        labels=dataset.labels[feed.rows],
        episode=dataset.episodes[feed.rows].astype(np.int64),
        instant=feed.instants,
        spread=logits.std(1, correction=0).numpy() if model.heads > 1 else None,
    )
