"""The stages: the only place that reads the config tree and connects the parts."""

from plaudit.pipelines.builders import load, load_fit, load_run, load_training
from plaudit.pipelines.collect import collect
from plaudit.pipelines.datasets import convert, doctor, process, process_realworld
from plaudit.pipelines.fit import fit, resume_fit
from plaudit.pipelines.listing import bench, env_keys, envs
from plaudit.pipelines.report import report
from plaudit.pipelines.run import resume_run, run
from plaudit.pipelines.train import evaluate, fit_and_train, resume, train

__all__ = [
    "bench",
    "collect",
    "convert",
    "doctor",
    "env_keys",
    "envs",
    "evaluate",
    "fit",
    "fit_and_train",
    "load",
    "load_fit",
    "load_run",
    "load_training",
    "process",
    "process_realworld",
    "report",
    "resume",
    "resume_fit",
    "resume_run",
    "run",
    "train",
]
