"""Recipes, defaults lists, interpolation, overrides, aliases, and the way back to a file."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from plaudit.config.algorithm_schema import ActorCriticConfig, PPOConfig
from plaudit.config.loader import is_saved_config, load_config, recipe_names, save_config
from plaudit.config.schema import Config, EnvConfig, NetworkConfig, PolicyConfig, RuntimeConfig
from plaudit.config.structured import fill, to_dict
from plaudit.config.validation import env_cfg
from plaudit.errors import ConfigError, OutputError

# EmbodiChain's RL tutorial's blocks as printed, with the runtime keys that it lists.
TUTORIAL = """{
   "runtime": {
     "exp_name": "push_cube_ppo", "seed": 42, "cuda": true, "headless": true, "iterations": 500,
     "rollout_steps": 1024, "eval_freq": 2000, "save_freq": 5000, "use_wandb": false,
     "wandb_project_name": "embodichain-push_cube"
   },
   "env": {
     "id": "PushCubeRL",
     "cfg": {
       "num_envs": 4,
       "obs_mode": "state",
       "episode_length": 100,
       "action_scale": 0.1,
       "success_threshold": 0.1
     }
   },
   "policy": {
     "name": "actor_critic",
     "cfg": {},
     "actor": {
       "type": "mlp",
       "hidden_sizes": [256, 256],
       "activation": "relu"
     },
     "critic": {
       "type": "mlp",
       "hidden_sizes": [256, 256],
       "activation": "relu"
     }
   },
   "algorithm": {
     "name": "ppo",
     "cfg": {
       "learning_rate": 0.0001,
       "n_epochs": 10,
       "batch_size": 64,
       "gamma": 0.99,
       "gae_lambda": 0.95,
       "clip_coef": 0.2,
       "ent_coef": 0.01,
       "vf_coef": 0.5,
       "max_grad_norm": 0.5
     }
   }
}"""

NETS = "policy: {actor: {type: mlp}, critic: {type: mlp}}\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_tutorials_json_loads_as_printed_without_a_notice(
    tmp_path: Path, registries: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, "train_config.json", TUTORIAL)
    config = load_config(None, config_file=path, registries=registries)
    assert config.env.id == "PushCubeRL" and config.env.cfg["action_scale"] == 0.1
    assert config.policy.critic == NetworkConfig("mlp", (256, 256), "relu")
    assert config.algorithm.cfg["n_epochs"] == 10 and config.runtime.rollout_steps == 1024
    assert caplog.records == []


def test_newer_embodichain_is_translated_with_one_line_per_spelling(
    tmp_path: Path, registries: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tree = json.loads(TUTORIAL)
    runtime = {**tree.pop("runtime"), "device": "cuda:0"}
    del runtime["cuda"]
    tree["trainer"] = runtime
    tree["policy"]["actor"] = {"type": "mlp", "network_cfg": {"hidden_sizes": [256, 256], "activation": "relu"}}
    path = write(tmp_path, "new.json", json.dumps(tree))
    with caplog.at_level(logging.INFO, "plaudit"):
        config = load_config(path, registries=registries)
    assert config == load_config(write(tmp_path, "old.json", TUTORIAL), registries=registries)
    assert len(caplog.records) == 3 and all("new.json" in record.getMessage() for record in caplog.records)
    assert load_config(path, ["trainer.device=cpu"]).runtime.cuda is False


@pytest.mark.parametrize("key", ["gym_config", "events"])
def test_what_cannot_be_translated_says_so(tmp_path: Path, key: str) -> None:
    path = write(tmp_path, "new.json", json.dumps({"trainer": {key: "x.json"}}))
    with pytest.raises(ConfigError, match=rf"new.json: trainer.{key}: not supported.*env.id"):
        load_config(path)


def test_shipped_recipes_load_and_have_a_description() -> None:
    names = recipe_names()
    tasks = ("push_cube", "pick_cube", "peg_insertion")
    assert {task + kind for task in tasks for kind in ("", "_sparse", "_learned")} | {"pendulum"} <= set(names)
    assert not any(name.startswith("_") for name in names)
    for name, description in names.items():
        learned = name.endswith("_learned")
        config = load_config(name, ["reward.checkpoint_path=model"] if learned else [])
        assert len(description) > 20 and config.runtime.exp_name in (name, "reward-model-training")
        assert config.policy.actor is not None


def test_save_and_load_give_an_equal_config(tmp_path: Path) -> None:
    config = Config(
        env=EnvConfig("X", {"a": [1, {"b": None}], "text": "1e-3", "c": r"\${x} ${y}"}, {"a": 1}, {"d": True}),
        runtime=RuntimeConfig(exp_name="yes", stop_at=1e-7, seed=12),
        policy=PolicyConfig("custom", {}, NetworkConfig("cnn", ()), None),
    )
    path = tmp_path / "config.yaml"
    save_config(config, path)
    assert load_config(path) == config
    save_config(load_config("push_cube"), path)
    assert load_config(path) == load_config("push_cube")
    assert [p.name for p in tmp_path.iterdir()] == ["config.yaml"]


def test_the_saved_file_says_how_to_run_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my runs"
    folder.mkdir()
    monkeypatch.chdir(folder)
    save_config(load_config("push_cube"), "config.yaml")
    first = (folder / "config.yaml").read_text().splitlines()[0]
    assert first == f"# Resolved by Plaudit; run it again with: plaudit train '{folder}/config.yaml'"
    assert is_saved_config("config.yaml", "train") and not is_saved_config("config.yaml", "fit")
    (folder / "own.yaml").write_bytes(b"# \xff by hand")
    assert not is_saved_config("own.yaml", "train") and not is_saved_config("none.yaml", "train")


def test_a_resolved_config_holds_every_value(tmp_path: Path, registries: Any) -> None:
    text = f"env: {{id: PushCube, cfg: {{num_envs: 9}}, eval: {{num_envs: 5, obs_mode: state}}}}\n{NETS}"
    text += "algorithm: {cfg: {learning_rate: 1, batch_size: 9}}\n"
    config = load_config(write(tmp_path, "a.yaml", text), registries=registries)
    assert config.env.cfg == {
        "num_envs": 9,
        "obs_mode": "state",
        "episode_length": 50,
        "action_scale": 0.05,
        "success_threshold": 0.1,
    }
    assert config.env.train == {} and config.env.eval == {"num_envs": 5, "obs_mode": "state"}
    assert config.policy.cfg == to_dict(ActorCriticConfig())
    assert config.algorithm.cfg == to_dict(PPOConfig(learning_rate=1.0, batch_size=9))
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml", registries=registries) == config


@dataclass(frozen=True)
class Lens:
    """A nested section."""

    width: int = 1
    height: int = 2


@dataclass(frozen=True)
class Needy:
    """A config that is not valid without its `size`."""

    size: int
    speed: float = 1.0
    corner: tuple[int, int] = (0, 0)
    lens: Lens = field(default_factory=Lens)
    kwargs: dict[str, Any] = field(default_factory=dict)


def test_overlays_stay_overlays_and_may_hold_what_is_required(tmp_path: Path) -> None:
    registries = {"env": lambda name: Needy}
    overlays = "train: {size: 1, lens: {width: 3}, kwargs: {a: 1}}, eval: {size: 2, speed: 3, lens: {width: 4}}"
    text = f"env: {{id: X, cfg: {{lens: {{}}, kwargs: {{b: 2}}}}, {overlays}}}\n{NETS}"
    config = load_config(write(tmp_path, "a.yaml", text), registries=registries)
    assert config.env.cfg == {"speed": 1.0, "corner": [0, 0], "lens": {"height": 2}, "kwargs": {"b": 2}}
    assert config.env.train == {"size": 1, "lens": {"width": 3}, "kwargs": {"a": 1}}
    assert fill(Needy, env_cfg(config, "train")) == Needy(1, lens=Lens(3), kwargs={"a": 1, "b": 2})
    assert fill(Needy, env_cfg(config, "eval")) == Needy(2, 3.0, lens=Lens(4), kwargs={"b": 2})
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml", registries=registries) == config


def test_the_env_is_checked_before_the_registries_that_import_torch(tmp_path: Path, registries: Any) -> None:
    def slow(name: str) -> type | None:
        raise AssertionError("asked too early")

    with pytest.raises(ConfigError, match=r"env.cfg.num_env: unknown key"):
        load_config("push_cube", ["env.cfg.num_env=1"], registries={**registries, "policy": slow, "algorithm": slow})


@pytest.mark.parametrize("network", ["actor", "critic"])
def test_one_of_two_networks_may_do_without_the_images(network: str, tmp_path: Path, registries: Any) -> None:
    path = write(tmp_path, "a.yaml", f"env: {{id: PushCube, cfg: {{num_envs: 16, obs_mode: rgb}}}}\n{NETS}")
    config = load_config(path, [f"policy.{network}.type=cnn"], registries=registries)
    assert {config.policy.actor, config.policy.critic} == {NetworkConfig("cnn"), NetworkConfig("mlp")}


@pytest.mark.parametrize("network", ["actor", "critic"])
def test_in_sac_both_networks_look_or_neither(network: str) -> None:
    with pytest.raises(ConfigError, match=rf"policy.{network}.type: 'mlp' cannot stand beside 'cnn'.*shown the same"):
        load_config("sac_push_cube_cnn", [f"policy.{network}.type=mlp"])


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "config.yaml", "old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match=r"cannot write .*config.yaml: No space left"):
        save_config(load_config("push_cube"), path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("config.yaml", "old")]


def test_defaults_list_order_groups_and_packages(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", f"env: {{id: Base, cfg: {{a: 1, b: 1}}}}\nruntime: {{seed: 1}}\n{NETS}")
    write(tmp_path, "algorithm/fast.yaml", "name: ppo\ncfg: {learning_rate: 1e-2}\n")
    write(tmp_path, "env/small.yaml", "defaults: [tiny]\nb: 2\n")
    write(tmp_path, "env/tiny.yaml", "b: 9\nc: 3\n")
    main = "defaults: [base, _self_, algorithm: fast, env/small@env.cfg, optional env: none, override hydra/x: y]\n"
    path = write(tmp_path, "main.yaml", main + "hydra: {run: {}}\nenv: {id: Main, cfg: {b: 0}}\nalgorithm: {name: x}\n")
    config = load_config(path)
    assert (config.env.id, config.runtime.seed) == ("Main", 1)
    assert config.env.cfg == {"a": 1, "b": 2, "c": 3}  # small comes after _self_, and itself has the word over tiny
    assert (config.algorithm.name, config.algorithm.cfg) == ("ppo", {"learning_rate": 0.01})


def test_without_self_a_file_has_the_last_word(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", "defaults: [push_cube]\nruntime: {seed: 7}\n")
    config = load_config(path)
    assert config.runtime.seed == 7 and config.env.id == "PushCube"


def test_a_file_may_build_on_the_shipped_one_of_its_own_name(tmp_path: Path) -> None:
    path = write(tmp_path, "push_cube.yaml", "defaults: [push_cube]\nruntime: {seed: 7}\n")
    assert load_config(path).env.id == "PushCube"


def test_interpolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAUDIT_TEST_NAME", "from_env")
    text = "env: {id: X, cfg: {n: '${runtime.seed}'}}\nruntime: {exp_name: '${oc.env:PLAUDIT_TEST_NAME}', seed: 3}\n"
    path = write(tmp_path, "a.yaml", text + NETS)
    config = load_config(path, ["runtime.seed=5", "runtime.wandb_project_name=${runtime.exp_name}_x"])
    assert config.runtime.exp_name == "from_env" and config.runtime.wandb_project_name == "from_env_x"
    assert config.env.cfg == {"n": 5}


def test_overrides_in_hydras_grammar() -> None:
    overrides = [
        "runtime.seed=2",
        "algorithm.cfg.learning_rate=3e-4",
        "+algorithm.cfg.clip_value=null",
        "++algorithm.cfg.gamma=0.5",
        "~algorithm.cfg.n_epochs",
        "policy.actor.hidden_sizes=[8,16]",
        "env.cfg={num_envs:64,word:'a, b'}",
        'runtime.exp_name="x=1"',
        "runtime.use_wandb=True",
    ]
    config = load_config("push_cube", overrides)
    before = load_config("push_cube").runtime
    assert config.runtime == replace(before, exp_name="x=1", seed=2, use_wandb=True)
    assert config.algorithm.cfg == {
        "learning_rate": 3e-4,
        "batch_size": 256,
        "gamma": 0.5,
        "gae_lambda": 0.9,
        "lr_schedule": "linear",
        "target_kl": 0.03,
        "clip_value": None,
    }
    assert config.policy.actor is not None and config.policy.actor.hidden_sizes == (8, 16)
    assert config.env.cfg == {"num_envs": 64, "word": "a, b"}


def test_config_file_is_laid_over_the_recipe_and_overrides_over_both(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yml", "runtime: {seed: 7, iterations: 8}\n")
    config = load_config("push_cube", ["runtime.iterations=9"], config_file=path)
    assert (config.runtime.seed, config.runtime.iterations, config.env.id) == (7, 9, "PushCube")


def test_env_cfg_lays_train_and_eval_over_cfg() -> None:
    config = Config(env=EnvConfig("X", {"n": 1, "cam": {"w": 1, "h": 2}}, {"n": 2}, {"cam": {"w": 3}}))
    assert env_cfg(config, "train") == {"n": 2, "cam": {"w": 1, "h": 2}}
    assert env_cfg(config, "eval") == {"n": 1, "cam": {"w": 3, "h": 2}}
    assert config.env.cfg == {"n": 1, "cam": {"w": 1, "h": 2}}
