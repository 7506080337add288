"""The stages: the only place that reads the config tree and connects the parts."""

from plaudit.stages.collect import collect
from plaudit.stages.common import load, load_fit, load_run, load_training
from plaudit.stages.convert import convert
from plaudit.stages.data import doctor, process, process_realworld
from plaudit.stages.fit import fit, resume_fit
from plaudit.stages.fit_first import fit_and_train
from plaudit.stages.listing import bench, env_keys, envs
from plaudit.stages.report import report
from plaudit.stages.run import resume_run, run
from plaudit.stages.train import evaluate, resume, train

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
