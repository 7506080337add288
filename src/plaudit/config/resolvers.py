"""What `${...}` may stand for beyond OmegaConf's own: values that suit the machine, or the task."""

from __future__ import annotations

from typing import Any

from plaudit.compute import has_gpu


def register_resolvers() -> None:
    """Makes known `${on_gpu:a,b}`, which is `a` where a GPU is used and `b` where the CPU is all there is, and
    `${on_task:name,a,b}`, which is `a` where `env.id` is that task, of whatever library, else `b`.
    """
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("on_gpu", _on_gpu, replace=True)
    OmegaConf.register_new_resolver("on_task", _on_task, replace=True)


def _on_gpu(gpu: Any, cpu: Any, *, _root_: Any) -> Any:
    """The first value if there is a GPU that `runtime.cuda` lets a run have, else the second."""
    from omegaconf import OmegaConf

    allowed = OmegaConf.select(_root_, "runtime.cuda", default=True)
    return gpu if allowed and has_gpu() else cpu


def _on_task(name: str, there: Any, elsewhere: Any, *, _root_: Any) -> Any:
    """The first value if the config's task is called so, else the second."""
    from omegaconf import OmegaConf

    return there if str(OmegaConf.select(_root_, "env.id", default="")).rpartition(":")[2] == name else elsewhere
