"""Meta-World's tasks one by one, in Gymnasium's registry: `gym:metaworld/push-v3`.

The package itself registers them as parts of its benchmarks only, which draw fifty goals whenever an env is made and do
not heed the seed of a reset. Here a task is an env like any other: every episode has a goal of its own, which is in the
observation and follows from the seed.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.sawyer_xyz_env import SawyerXYZEnv

ENTRY = "plaudit.envs.gym.metaworld:make_task"


class _Seeded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Brings the seed of a reset to where the goal is drawn."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.env.unwrapped.seed(seed)  # type: ignore[attr-defined]  # Meta-World's, not Gymnasium's.
        return self.env.reset(options=options)


def make_task(task: str, render_mode: str | None = None, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """One task, `push-v3` for example; `kwargs` are its constructor's, such as camera_name, width and height."""
    constructor: Any = ALL_V3_ENVIRONMENTS[task]
    env = constructor(render_mode=render_mode, **kwargs)
    # What the package's own variants with visible goals set, save that theirs then keep one goal for ever.
    env._partially_observable = False
    env._freeze_rand_vec = False
    env._set_task_called = True
    env.seeded_rand_vec = True
    del env.sawyer_observation_space
    env.observation_space = env.sawyer_observation_space
    return _Seeded(env)


for _task in ALL_V3_ENVIRONMENTS:
    gymnasium.register(
        f"metaworld/{_task}", entry_point=ENTRY, max_episode_steps=SawyerXYZEnv.max_path_length, kwargs={"task": _task}
    )
