"""What `${...}` may stand for beyond OmegaConf's own: values that suit the machine."""

from __future__ import annotations

from typing import Any

from plaudit.compute import has_gpu


def register_resolvers() -> None:
    """Makes `${on_gpu:a,b}` known: `a` where a GPU is used, `b` where the CPU is all there is."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("on_gpu", _on_gpu, replace=True)


def _on_gpu(gpu: Any, cpu: Any, *, _root_: Any) -> Any:
    """The first value if there is a GPU that `runtime.cuda` lets a run have, else the second."""
    from omegaconf import OmegaConf

    allowed = OmegaConf.select(_root_, "runtime.cuda", default=True)
    return gpu if allowed and has_gpu() else cpu
