"""Every block of config, shell and Python that the guides of the reward workflow and the RL tutorial print.

The blocks are in `guides/`, one file each, in the order in which they are printed, with their keys and values and none
of their prose. Configs are loaded, commands carried out, from the shell scripts on, with small numbers and on `Marble`
in place of ManiSkill's envs; on ManiSkill itself where that is installed.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from guide_cases import CONFIGS, LATER, MODULES, Case
from guide_shell import GUIDES, ROOT, Shell
from marble import Marble, MarbleConfig

import plaudit
from plaudit.compat.key_rename import get_key
from plaudit.config.loader import read_file
from plaudit.config.structured import to_dict
from plaudit.data.formats.episode_pkl import EpisodePklWriter
from plaudit.data.formats.safe_pickle import load_npy, load_pickle
from plaudit.envs import TaskEnv
from plaudit.envs.registry import ENVS, build_env
from plaudit.pipelines import load, load_fit
from plaudit.rewards import RewardArtifact, build_reward_model
from plaudit.rl import ALGORITHMS, POLICIES, Policy

torch.set_num_threads(1)

TINY = [
    *("runtime.cuda=false", "runtime.threads=1", "runtime.iterations=2", "runtime.rollout_steps=12"),
    *("runtime.eval_episodes=4", "runtime.eval_freq=0", "runtime.video_episodes=0", "reward.backend=torch"),
    *("env.cfg.num_envs=4", "env.eval.num_envs=4", "algorithm.cfg.batch_size=24", "algorithm.cfg.n_epochs=1"),
    *("--json", "--quiet"),
]
ENOUGH = [f"reward.data_collection.max_{kind}_trajectories=6" for kind in ("positive", "negative")]
COLLECTED = [*TINY, *ENOUGH, "runtime.iterations=6"]
FITTED = ["runtime.cuda=false", "runtime.threads=1", "reward.training.max_steps=2", "--json", "--quiet"]
STAND_IN = ["env.id=guides/Marble"]

COMMANDS = {
    "resnet_reward": ("01_collect.sh", "04_fit.sh", "06_train.sh"),
    "workflow_arguments": ("02_collect.sh", "04_fit.sh", "09_fit.sh", "07_train.sh"),
    "workflow_config": ("02_collect.sh", "05_fit.sh", "07_train.sh", "08_all.sh"),
    "real_world": ("03_collect.sh", "04_process.sh", "05_fit.sh"),
    "rl_tutorial": ("04_train.sh",),
}
CODE = (
    *(f"resnet_reward/{name}.py.txt" for name in ("03_episode", "08_collector", "09_worker", "10_manager")),
    *(f"workflow_arguments/{name}.py.txt" for name in ("03_trajectory", "05_checkpoint")),
    "workflow_config/03_trajectory.py.txt",
    *(f"rl_tutorial/{name}.py.txt" for name in ("05_policy", "06_algorithm", "07_policy", "08_env")),
    "rl_tutorial/09_env.json",
)


def test_every_block_is_loaded_or_run_or_still_to_come() -> None:
    printed = sorted(str(path.relative_to(GUIDES)) for path in GUIDES.glob("*/[0-9]*"))
    run = [f"{guide}/{name}" for guide, names in COMMANDS.items() for name in names]
    assert printed == sorted([*CONFIGS, *run, *CODE, *LATER])
    assert (len(printed), len(CONFIGS), len(run), len(CODE), len(LATER)) == (45, 16, 15, 12, 2)


@pytest.mark.parametrize(("name", "case"), CONFIGS.items(), ids=list(CONFIGS))
def test_config(
    name: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EMBODIED_PATH", "here")
    text = (GUIDES / name).read_text()
    file = tmp_path / Path(name).name
    file.write_text(f"{{{text}}}" if file.suffix == ".json" else text)
    if case.under:
        file.write_text(json.dumps({case.under: read_file(file)}))
    with caplog.at_level(logging.WARNING, "plaudit"):
        config = load(case.base, [], file) if case.base else load_fit(None, [], file)
    assert {key: get_key(to_dict(config), key) for key in case.values} == dict(case.values)
    assert notices(caplog) == dict(case.notices)


def notices(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Foreign keys, and what they are read as; nothing where they are not used."""
    found = (re.search(r"'([\w.]+)' is (?:read as '([\w.]+)'|not used)", line.getMessage()) for line in caplog.records)
    return {match[1]: match[2] or "" for match in found if match}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for drawn in ("plaudit.reporting.learning_curves.plot_curves", "plaudit.pipelines.fit_results._draw"):
        monkeypatch.setattr(drawn, lambda *arguments: None)  # Pictures take longer than all else here.
    return Shell.open(tmp_path / "checkout", monkeypatch, capsys)


def keys(value: Any) -> Any:
    """The names in nested dicts, and in the first of a list."""
    if isinstance(value, dict):
        return {key: keys(item) for key, item in value.items()}
    return [keys(value[0])] if isinstance(value, list) else None


def has_keys(value: Any, wanted: Any) -> bool:
    """Whether all names are there that are wanted."""
    if isinstance(wanted, dict):
        return all(key in value and has_keys(value[key], inner) for key, inner in wanted.items())
    return has_keys(value[0], wanted[0]) if isinstance(wanted, list) else True


def kinds(value: Any) -> Any:
    """The types of the arrays in nested dicts."""
    return {key: kinds(item) for key, item in value.items()} if isinstance(value, dict) else value.dtype


def printed_trajectory(guide: str) -> Any:
    """What a guide says that a collected file holds."""
    dictionary = ast.parse((GUIDES / guide / "03_trajectory.py.txt").read_text()).body[-1]
    assert isinstance(dictionary, ast.Expr)
    return eval(compile(ast.Expression(dictionary.value), guide, "eval"), {"np": np})


def test_commands_of_the_resnet_guide(shell: Shell) -> None:
    guide = "resnet_reward"
    (collect,) = shell.noted(f"{guide}/01_collect.sh")
    first = shell.run(collect, *STAND_IN, *COLLECTED)
    data = shell.home / "examples" / "embodiment" / "data"
    assert first["data"]["complete"]
    positive, negative = (sorted((data / kind).glob("episode_[0-9]*.pkl")) for kind in ("success", "failure"))
    assert len(positive) == len(negative) == 6
    episode = load_pickle(positive[0])
    assert has_keys(episode, keys(ast.literal_eval((GUIDES / guide / "03_episode.py.txt").read_text())))
    assert (episode["label"], load_pickle(negative[0])["label"]) == (1, 0)

    (fit,) = shell.noted(f"{guide}/04_fit.sh")
    fitted = shell.run(fit, *FITTED)
    place = shell.home / "logs" / "reward_checkpoints"
    assert Path(fitted["checkpoint"]).resolve() == place / "reward_model_best.pt"
    assert RewardArtifact.load(place / "best_model.pt").id == fitted["artifact_id"]

    (train,) = shell.noted(f"{guide}/06_train.sh")
    resumed = f"runner.resume_dir={first['run']}"
    assert shell.run(train, *STAND_IN, *TINY, resumed)["reward_model"]["id"] == fitted["artifact_id"]

    both = shell.run(fit, *STAND_IN, *TINY, "reward.training.max_steps=2", "reward_training.only=False")
    assert both["reward_model"]["id"] == both["fit"]["artifact_id"] and both["steps"] == 96
    saved = read_file(shell.home / "examples" / "embodiment" / both["run"] / "config.yaml")
    assert saved["reward"]["training"]["enabled"] is False  # A resumed run does not fit again.


def test_commands_of_the_workflow_with_arguments(shell: Shell) -> None:
    guide = "workflow_arguments"
    plain, collect = shell.noted(f"{guide}/02_collect.sh")
    assert shell.run(plain, *STAND_IN, *TINY)["steps"] == 96
    assert shell.run(collect, *STAND_IN, *COLLECTED)["data"]["complete"]
    trajectory = load_npy(shell.home / "reward_data" / "positive" / "000000.npy")
    assert kinds(trajectory) == printed_trajectory(guide)
    images = trajectory["images"]["base_camera"]
    assert images.shape == (len(trajectory["labels"]), 3, 64, 64) and images.max() == 1

    encoder = build_reward_model({"model_type": "binary_classifier"}, pretrained=False).encoder.encoders()[0]
    torch.save(encoder.state_dict(), shell.home / "resnet10_pretrained.pt")
    for command in (*shell.noted(f"{guide}/04_fit.sh"), *shell.noted(f"{guide}/09_fit.sh")):
        (shell.home / "checkpoints" / "reward_model.pt").unlink(missing_ok=True)
        shell.run(command, "--epochs", "1")
        content = torch.load(shell.home / "checkpoints" / "reward_model.pt", weights_only=True)
        wanted = ast.parse((GUIDES / guide / "05_checkpoint.py.txt").read_text(), mode="eval").body
        assert isinstance(wanted, ast.Dict) and {key.value for key in wanted.keys} <= {*content}
    assert list((shell.home / "positive_samples_vis").glob("positive_00000*_frame*.png"))

    again, learned = shell.noted(f"{guide}/07_train.sh")
    assert again == plain
    assert shell.run(learned, *STAND_IN, *TINY)["reward_model"]["path"] == "checkpoints/reward_model.pt"


def test_commands_of_the_workflow_with_a_config(shell: Shell) -> None:
    guide = "workflow_config"
    shell.run(shell.noted(f"{guide}/02_collect.sh")[1], *STAND_IN, *COLLECTED)
    collected = load_npy(shell.home / "reward_data" / "negative" / "000000.npy")
    assert kinds(collected) == printed_trajectory(guide)
    for command in shell.noted(f"{guide}/05_fit.sh"):
        fitted = shell.run(command, *FITTED, "reward.save_interval=1")
        place = shell.home.parent / "results" / "reward-model-training" / "checkpoints"
        assert (place / "step_2" / "checkpoint.pt").is_file()
        assert RewardArtifact.load(place).id == fitted["artifact_id"]
    assert shell.run(shell.noted(f"{guide}/07_train.sh")[1], *STAND_IN, *TINY)["reward_model"]

    shutil.rmtree(shell.home / "reward_data")
    shutil.rmtree(shell.home / "checkpoints")
    collect, fit, train = shell.noted(f"{guide}/08_all.sh")
    shell.run(collect, *STAND_IN, *COLLECTED)
    fitted = shell.run(fit, *FITTED)
    assert shell.run(train, *STAND_IN, *TINY)["reward_model"]["id"] == fitted["artifact_id"]


def test_commands_of_the_real_world_guide(shell: Shell) -> None:
    guide, random = "real_world", "reward.data_collection.actors=[{kind: random}]"
    (collect,) = shell.noted(f"{guide}/03_collect.sh")
    few = ["reward.data_collection.num_envs=4", "runtime.threads=1", "--json", "--quiet"]
    place = Path(shell.run(collect, *STAND_IN, random, *ENOUGH, *few)["data"])
    assert re.fullmatch(r"logs/\d{8}-\d{6}", str(place)) and (shell.home / place / "data.pkl").is_file()
    (process,) = shell.noted(f"{guide}/04_process.sh", **{"your/input_data.pkl": str(place / "data.pkl")})
    shell.run(process)
    (fit,) = shell.noted(f"{guide}/05_fit.sh", collected_data=str(place / "collected_data"))
    small = ["actor.model.arch=resnet10", "actor.model.encoder_stages=1"]
    fitted = shell.run(fit, *FITTED, *small)
    assert fitted["artifact"] == "logs/reward_model_realworld/checkpoints/best_model"
    assert len(plaudit.load_episodes(place / "collected_data")) == 12
    saved = read_file(Path(fitted["run"]) / "config.yaml")["reward"]["training"]
    assert saved["data"]["num_samples_per_episode"] == 0 and saved["micro_batch_size"] == 16
    assert list(Path("logs/training_data_debug_realworld").rglob("*_prob0.*.png"))


def test_a_folder_of_configs_that_is_named_is_the_one_that_is_read(tmp_path: Path) -> None:
    def said(folder: str) -> str:
        script = str(ROOT / "examples" / "embodiment" / "train_embodied_agent.py")
        words = ["--config-path", folder, "--config-name", "maniskill_ppo_cnn"]
        done = subprocess.run([sys.executable, script, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2
        return done.stderr

    assert "--config-path: there is no folder 'nowhere'" in said("nowhere")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "maniskill_ppo_cnn.yml").write_text("nonsense: 1")
    assert "mine/maniskill_ppo_cnn.yml" in said("mine")  # And not the recipe of that name.


def test_the_command_of_the_tutorial(shell: Shell) -> None:
    (train,) = shell.noted("rl_tutorial/04_train.sh")
    result = shell.run(train, *TINY)
    run = Path(result["run"])
    assert run.parent == Path("outputs") and re.fullmatch(r"push_cube_ppo_\d{8}-\d{6}", run.name)
    assert list((run / "logs").glob("events.out.tfevents.*")) and (run / "checkpoints" / "latest.pt").is_file()
    shipped, printed = read_file(ROOT / "configs/agents/rl/push_cube/train_config.json"), {}
    for name in ("01_env", "02_policy", "03_algorithm"):
        printed |= json.loads(f"{{{(GUIDES / 'rl_tutorial' / f'{name}.json').read_text()}}}")
    assert {key: shipped[key] for key in printed} == printed


def executed(name: str, **known: Any) -> dict[str, Any]:
    """What a block of Python defines, with our modules in its import lines."""
    text = (GUIDES / name).read_text()
    for theirs, ours in MODULES.items():
        text = text.replace(f"from {theirs} import", f"from {ours} import")
    names = {"torch": torch, "Tuple": tuple, "__name__": "blocks", **known}
    exec(compile(text, name, "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize(
    ("name", "cls", "methods"),
    [
        ("08_collector", "DataCollectorWrapper", {"reset": [], "step": ["action"]}),
        (
            "09_worker",
            "RewardWorker",
            {"init_worker": [], "compute_batch_rewards": ["observations"], "save_checkpoint": ["path", "step"]},
        ),
        ("10_manager", "RewardManager", {"compute_rewards": ["observations"], "to_device": ["device"]}),
    ],
)
def test_classes_of_the_resnet_guide(name: str, cls: str, methods: dict[str, list[str]]) -> None:
    found = executed(f"resnet_reward/{name}.py.txt")[cls]
    for method, wanted in methods.items():
        assert [*inspect.signature(getattr(found, method)).parameters][1 : 1 + len(wanted)] == wanted


def test_code_of_the_tutorial(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (ALGORITHMS, POLICIES, ENVS):  # What the blocks register is new, and gone again after this test.
        others = {name: entry for name, entry in registry._entries.items() if not name.startswith("my_")}
        monkeypatch.setattr(registry, "_entries", others)
    theirs = executed("rl_tutorial/05_policy.py.txt")["Policy"]
    for method in theirs.__abstractmethods__:
        wanted = inspect.signature(getattr(theirs, method)).parameters
        ours = inspect.signature(getattr(Policy, method)).parameters
        assert [*ours][: len(wanted)] == [*wanted] and all(ours[key].default == wanted[key].default for key in wanted)
    policy = executed("rl_tutorial/07_policy.py.txt")["MyPolicy"](None, None, torch.device("cpu"), {})
    made = executed("rl_tutorial/06_algorithm.py.txt")["MyAlgorithm"](SimpleNamespace(device="cpu"), policy)
    made.initialize_buffer(3, 2, 5, 1)
    assert made.collect_rollout(None, policy, None, 3) == {} and made.update() == {"loss": 0.0}
    assert {"my_algo", "my_policy"} <= {*ALGORITHMS.names(), *POLICIES.names()}

    executed("rl_tutorial/08_env.py.txt", EmbodiedEnv=Marble, MyTaskEnvCfg=MarbleConfig)
    block = json.loads(f"{{{(GUIDES / 'rl_tutorial' / '09_env.json').read_text()}}}")["env"]
    env = build_env(block["id"], block["cfg"])
    assert isinstance(env, TaskEnv) and env.max_episode_steps == 100


ON_MANISKILL = [
    *(*TINY, "env.id=maniskill:PushCube-v1", "runtime.iterations=1", "runtime.eval_episodes=2"),
    *("env.cfg.max_episode_steps=6", "env.cfg.num_envs=2", "env.eval.num_envs=2"),
]


def failures(count: int) -> list[str]:
    """Chance pushes no cube in six steps."""
    limits = {"positive": 0, "negative": count}
    return [f"reward.data_collection.max_{kind}_trajectories={limit}" for kind, limit in limits.items()]


@pytest.fixture
def maniskill() -> None:
    if importlib.util.find_spec("mani_skill") is None and "PLAUDIT_TEST_MANISKILL" not in os.environ:
        pytest.skip("ManiSkill is not installed; 'make test-maniskill' installs it and runs these")


def test_stages_of_the_resnet_guide_on_maniskill_itself(maniskill: None, shell: Shell) -> None:
    (collect,) = shell.noted("resnet_reward/01_collect.sh")
    first = shell.run(collect, *ON_MANISKILL, "runtime.iterations=3", *failures(8))
    assert first["data"]["negative"] == 8
    data = shell.home / "examples" / "embodiment" / "data"
    collected = list(plaudit.load_episodes(data))
    frames = collected[0].frames["base_camera"]
    assert frames.shape[1:] == (64, 64, 3) and frames.std() > 10
    shutil.rmtree(data)
    # A model is fitted to both kinds, so every other failure passes for a success.
    EpisodePklWriter(data).add(
        [
            dataclasses.replace(episode, labels=np.full_like(episode.labels, number % 2), success=bool(number % 2))
            for number, episode in enumerate(collected)
        ]
    )

    (fit,) = shell.noted("resnet_reward/04_fit.sh")
    fitted = shell.run(fit, *FITTED)
    (train,) = shell.noted("resnet_reward/06_train.sh")
    # So short a fit may find no threshold that keeps false positives down.
    words = [f"runner.resume_dir={first['run']}", "reward.reward_threshold=0.5"]
    trained = shell.run(train, *ON_MANISKILL, *words)
    assert trained["reward_model"]["id"] == fitted["artifact_id"] and trained["steps"] == 24


def test_a_policy_that_looks_on_maniskill_itself(maniskill: None, shell: Shell) -> None:
    _, learns = shell.noted("workflow_arguments/02_collect.sh")
    assert shell.run(learns, *ON_MANISKILL, *failures(2))["data"]["negative"] == 2
    trajectory = load_npy(Path("reward_data/negative/000000.npy"))
    assert trajectory["images"]["base_camera"].shape == (len(trajectory["labels"]), 3, 64, 64)
