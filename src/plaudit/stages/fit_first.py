"""Train a policy on a reward model that is fitted first, where a config wants both in one command."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from plaudit.config.schema import Config, FitConfig
from plaudit.stages.common import check_env
from plaudit.stages.fit import fit
from plaudit.stages.train import train

logger = logging.getLogger("plaudit")


def fit_and_train(fitted: FitConfig | None, trained: Config | None, *, quiet: bool = False) -> dict[str, Any]:
    """Fits and trains what `load_training` gave.

    Args:
        fitted: What to fit; `None` to train only.
        trained: What to train, on the model that was fitted; `None` to fit only.
        quiet: No progress display.

    Returns:
        What the last of them gives, with that of a fit before it under `fit`.
    """
    if fitted is None:
        assert trained is not None
        return train(trained, quiet=quiet)
    if trained is not None:
        check_env(trained.env.id)  # A fit is long, and what comes after it should not end in a typo.
    result = fit(fitted, quiet=quiet)
    # One of several processes has no result; a fit that was stopped has no model yet.
    if trained is None or "artifact" not in result:
        if trained is not None and result.get("interrupted"):
            logger.info(
                "the policy is not trained yet; once the fit is done, train it with reward.training.enabled=false "
                "reward.checkpoint_path=%s",
                result["run"],
            )
        return result
    reward = trained.reward
    done = replace(reward.training, enabled=False)  # Or a resumed run would say that it fits, too.
    reward = replace(reward, training=done, checkpoint_path=result["artifact"])
    return {**train(replace(trained, reward=reward), quiet=quiet), "fit": result}
