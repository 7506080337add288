"""The audit: episodes sorted by hand, alarms just above and just below their bounds, and pictures that stay few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learned_samples import Slider, brightness, manager
from numpy.typing import NDArray
from score_samples import make_scores

from plaudit.config.reward_schema import AuditConfig
from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN
from plaudit.reward_models.evaluation.confidence_bounds import rate_bounds
from plaudit.rewards import reward_env as module
from plaudit.rewards.audit.audit import KINDS, Audit, Reference, kinds_of
from plaudit.rewards.audit.frame_recorder import EPISODES, PER_EPISODE, Followed, Watched
from plaudit.rewards.callbacks import ScoredSteps, Shown
from plaudit.rewards.reward_env import RewardedEnv
from plaudit.rewards.reward_function import RewardBatch

torch.set_num_threads(1)

NAN = np.nan


def seen(
    logits: Any, success: Any, done: Any, looks_done: Any = None, shown: tuple[Shown, ...] = (), threshold: float = 0.0
) -> ScoredSteps:
    """T steps of N envs, each (T, N): a success to the model is a logit above `threshold`."""
    scores = np.stack([np.array(logits, np.float32), np.zeros_like(logits, np.float32)], axis=-1)
    verdict = np.nan_to_num(scores[..., 0], nan=-np.inf) > threshold
    zeros = np.zeros(verdict.shape)
    judged = RewardBatch(zeros.astype(np.float32), zeros, verdict, zeros, 0.5)

    def truth(values: Any) -> NDArray[np.bool_] | None:
        return None if values is None else np.array(values, bool)

    return ScoredSteps(
        judged, scores, np.array(done, bool), zeros.astype(np.float32), truth(success), truth(looks_done), shown
    )


def ended(*episodes: tuple[float, bool], count: int = 1) -> ScoredSteps:
    """Episodes of one step each in one env, as (logit, success), `count` times over."""
    every = list(episodes) * count
    return seen([[logit] for logit, _ in every], [[true] for _, true in every], [[True]] * len(every))


def instants(watched: Watched) -> list[int]:
    return [one.instant for one in watched.moments]


def kinds(audit: Audit) -> list[str]:
    return [KINDS[kind] for kind in kinds_of(audit.episodes)]


CASES: dict[str, tuple[list[float], list[int], str, str]] = {
    # Logits and truth of the steps; what the episode is where success once counts, and where success at the end does.
    "all right": ([-1, 1, 2], [0, 1, 1], "agreed_success", "agreed_success"),
    "never anything": ([-1, -1, -2], [0, 0, 0], "agreed_failure", "agreed_failure"),
    "a success that was none": ([-1, 1, -1], [0, 0, 0], "fooled", "fooled"),
    "before it was one": ([1, -1, 1], [0, 0, 1], "early", "early"),
    "only before it was one": ([1, -1, -1], [0, 0, 1], "early", "early"),
    "not seen": ([-1, -1, -1], [0, 1, 0], "missed", "missed"),
    "true where nobody asked": ([NAN, NAN, -1], [0, 1, 0], "agreed_failure", "agreed_failure"),
    "gone by the end, though it says otherwise": ([NAN, NAN, 1], [0, 1, 0], "early", "fooled"),
    "right, and then gone": ([-1, 1, -1], [0, 1, 0], "agreed_success", "agreed_success"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_what_an_episode_is_however_its_steps_are_told(name: str, cut: int) -> None:
    logits, truth, once, at_end = CASES[name]
    done = [0, 0, 1]
    for headline, expected in (("success_once", once), ("success_at_end", at_end)):
        audit = Audit(2, AuditConfig(), headline)  # type: ignore[arg-type]
        # The other env is in the midst of an episode at which the model fires.
        steps = [np.stack([np.array(part), np.ones(3) * other], 1) for part, other in ((logits, 1), (truth, 0))]
        ends = np.stack([np.array(done), np.zeros(3)], 1)
        for part in (slice(0, cut), slice(cut, 3)):
            if part.stop > part.start:
                audit.on_rewards(seen(steps[0][part], steps[1][part], ends[part]))
        assert kinds(audit) == [expected]


def test_episodes_follow_each_other_in_an_env() -> None:
    audit = Audit(2, AuditConfig())
    # Env 0: fooled, then a failure, then one that goes on. Env 1: right after three steps, then one that goes on.
    logits = [[1, -1], [-1, -1], [-1, 2], [3, 3]]
    truth = [[0, 0], [0, 0], [0, 1], [0, 0]]
    done = [[1, 0], [0, 0], [1, 1], [0, 0]]
    audit.on_rewards(seen(logits, truth, done))
    assert kinds(audit) == ["fooled", "agreed_failure", "agreed_success"]
    assert audit.episodes["steps"].tolist() == [1, 2, 3]
    assert audit.ended.tolist() == [2, 1]
    assert audit.report() == pytest.approx(
        {
            "audit/agreement": 2 / 3,
            "audit/claimed": 2 / 3,
            "audit/true_success": 1 / 3,
            "audit/fooled": 1 / 2,
            "audit/early": 0.0,
            "audit/missed": 0.0,
            "audit/out_of_range": 0.0,
        }
    )
    audit.on_reset()  # Those that go on are broken off, with the model's claims in them.
    audit.on_rewards(seen([[-1, -1]], [[0, 0]], [[1, 1]]))
    assert kinds(audit)[-2:] == ["agreed_failure", "agreed_failure"]


def test_early_is_a_share_of_what_the_model_called_a_success() -> None:
    audit = Audit(1, AuditConfig())
    audit.on_rewards(ended((1, True), (1, False), (1, True), (-1, False), (-1, True)))
    audit.on_rewards(seen([[1], [1]], [[0], [1]], [[0], [1]]))  # It fires a step before the success.
    assert audit.report()["audit/early"] == 1 / 4
    assert audit.report()["audit/agreement"] == 4 / 6  # Early ones are in agreement here.


def test_only_the_last_episodes_are_in_the_window() -> None:
    audit = Audit(1, AuditConfig(window=3, min_claims=1))
    audit.on_rewards(ended((1, False), (1, False), (-1, False), (1, True), (-1, True)))
    assert kinds(audit) == ["agreed_failure", "agreed_success", "missed"]


def test_of_an_evaluation_only_the_episodes_that_count() -> None:
    audit = Audit(2, AuditConfig(), quota=np.array([2, 1]))
    for _ in range(2):  # What was played before does not count the second time.
        audit.on_reset()
        # Env 0 ends three times, env 1 twice: 2 and 1 of them count.
        audit.on_rewards(seen([[1, 1], [1, 1], [1, -1], [-1, -1]], [[1, 0]] * 4, [[1, 1], [0, 0], [1, 1], [1, 0]]))
        assert kinds(audit) == ["agreed_success", "fooled", "agreed_success"]


@pytest.mark.parametrize(("fooled", "alarms"), [(10, False), (11, True)])
def test_an_alarm_just_below_and_just_above_the_bound(fooled: int, alarms: bool) -> None:
    # 95 % bounds of 10 in 20 begin at 27 %, of 11 in 20 at 32 %.
    assert (rate_bounds(fooled, 20)[0] > 0.3) is alarms
    audit = Audit(1, AuditConfig())
    audit.on_rewards(ended((1, False), count=fooled))
    audit.on_rewards(ended((1, True), count=20 - fooled))
    audit.on_rewards(ended((-1, False), count=5))
    alarm = audit.check()
    assert (alarm is not None) is alarms
    if alarm is not None:
        assert alarm.reason == "fooled"
        assert "of 20 episodes that it called a success, 11 never were one (55%" in alarm.message
        assert "in the last 25 training episodes, of which 36% were successes in truth" in alarm.message


@pytest.mark.parametrize(("fooled", "alarms"), [(91, False), (92, True)])
def test_while_few_episodes_are_claimed_only_hacking_in_many_of_all_counts(fooled: int, alarms: bool) -> None:
    # All that it calls a success is none, but only the 95 % bounds of 92 in 256 begin above 30 %.
    assert (rate_bounds(fooled, 256)[0] > 0.3) is alarms
    audit = Audit(1, AuditConfig())
    audit.on_rewards(ended((1, False), count=fooled))
    audit.on_rewards(ended((-1, False), count=256 - fooled))
    assert (audit.check() is not None) is alarms


@pytest.mark.parametrize(("claimed", "alarms"), [(69, False), (70, True)])
def test_once_most_episodes_are_claimed_their_share_counts(claimed: int, alarms: bool) -> None:
    # 32 are few of 100 episodes, but too many of 70 that are called a success.
    audit = Audit(1, AuditConfig())
    audit.on_rewards(ended((1, False), count=32))
    audit.on_rewards(ended((1, True), count=claimed - 32))
    audit.on_rewards(ended((-1, False), count=100 - claimed))
    assert (audit.check() is not None) is alarms


def test_what_only_looks_done_fools_nobody() -> None:
    audit = Audit(4, AuditConfig(), "success_at_end")
    logits = [[-1, 1, 1, 1], [1, 1, -1, 1]]
    success, looks_done = [[0, 0, 0, 1], [0, 0, 0, 0]], [[0, 1, 0, 1], [1, 0, 1, 1]]
    audit.on_rewards(seen(logits, success, [[0] * 4, [1] * 4], looks_done))
    assert kinds(audit) == ["agreed_success", "fooled", "fooled", "agreed_success"]
    assert audit.tally.true == 0


def test_too_few_claims_raise_no_alarm() -> None:
    audit = Audit(1, AuditConfig())
    audit.on_rewards(ended((1, False), count=19))
    assert audit.check() is None
    audit.on_rewards(ended((1, False)))
    assert audit.check() is not None


def test_an_honest_model_raises_no_alarm() -> None:
    audit = Audit(4, AuditConfig(), "success_once", Reference(-3.0, 3.0, 1.5))
    random = np.random.default_rng(0)
    for share in np.linspace(0.02, 1.0, 60):  # A policy that gets better, and a model that is wrong 1 time in 20.
        truth = random.random((8, 4)) < share
        right = random.random((8, 4)) < 0.95
        logits = np.where(truth == right, 1.0, -1.0) + random.normal(0, 0.5, (8, 4))
        audit.on_rewards(seen(np.where(truth == right, abs(logits), -abs(logits)), truth, np.ones((8, 4))))
        assert audit.check() is None
    assert audit.tally.fooled > 0


def test_an_alarm_comes_again_only_in_a_new_window() -> None:
    audit = Audit(1, AuditConfig(window=30))
    audit.on_rewards(ended((1, False), count=30))
    assert audit.check() is not None
    audit.on_rewards(ended((1, False), count=29))
    assert audit.check() is None
    audit.on_rewards(ended((1, False)))
    assert audit.check() is not None
    audit.renew(Reference())  # Another model: at once, if it is fooled too.
    assert audit.check() is None
    audit.on_rewards(ended((1, False), count=20))
    assert audit.check() is not None


@pytest.mark.parametrize("renewed", [False, True])
@pytest.mark.parametrize(("claimed", "alarms"), [(70, True), (69, False)])
def test_a_refreshed_model_is_watched_closely(claimed: int, alarms: bool, renewed: bool) -> None:
    # 9 of 70 are surely more than 5 %, and surely not more than 30 %.
    audit = Audit(1, AuditConfig())
    if renewed:
        before = Audit(1, AuditConfig())
        before.renew(Reference())
        audit.load_state_dict(before.state_dict(pictures=False))
    audit.on_rewards(ended((1, False), count=9))
    audit.on_rewards(ended((1, True), count=claimed - 9))
    audit.on_rewards(ended((-1, False), count=100 - claimed))
    assert (audit.check() is not None) is (alarms and renewed)


@pytest.mark.parametrize(("outside", "alarms"), [(9, False), (20, True)])
def test_scores_out_of_range_need_no_truth(outside: int, alarms: bool) -> None:
    audit = Audit(1, AuditConfig(), "success_once", Reference(-2.0, 2.0))
    logits = [[2.5]] * outside + [[1.9]] * (30 - outside)
    audit.on_rewards(seen(logits, None, [[1]] * 30))
    alarm = audit.check()
    assert (alarm is not None) is alarms
    if alarm is not None:
        assert alarm.reason == "out_of_range" and "67% of its scores" in alarm.message
    # No truth, no word on agreement.
    assert set(audit.report()) == {"audit/claimed", "audit/out_of_range"}
    assert audit.report()["audit/out_of_range"] == pytest.approx(outside / 30)


def test_an_episode_counts_once_however_many_frames_are_out_of_range() -> None:
    audit = Audit(1, AuditConfig(), "success_once", Reference(-2.0, 2.0))
    done = np.zeros((50, 1), bool)
    done[-1] = True
    for _ in range(19):
        audit.on_rewards(seen(np.full((50, 1), 3.0), None, done))
    assert audit.tally.outside == 19 * 50
    assert audit.check() is None  # Too few episodes, though there are hundreds of frames.
    audit.on_rewards(seen(np.full((50, 1), 3.0), None, done))
    assert audit.check() is not None


def test_the_range_and_the_shift_are_against_the_validation_scores() -> None:
    scores = make_scores(([-3, -1, 1], [0, 0, 1]), ([-2, 2, 5], [0, 1, 1]))
    artifact = brightness()
    object.__setattr__(artifact, "validation", scores)
    found = Reference.of(manager(artifact))
    # From -3 to 5, and a quarter of these 8 more on either side; 1, 2 and 5 are over the threshold.
    assert found == Reference(-5.0, 7.0, pytest.approx(8 / 3))
    assert Reference.of(manager()).high == np.inf
    audit = Audit(1, AuditConfig(), "success_once", found)
    audit.on_rewards(ended((4, True), (6, True), (-6, False)))
    assert audit.report()["audit/claimed_shift"] == pytest.approx(5 - 8 / 3)
    assert audit.report()["audit/out_of_range"] == pytest.approx(1 / 3)


def test_truth_that_comes_late_is_not_made_up() -> None:
    audit = Audit(1, AuditConfig())
    audit.on_rewards(seen([[1], [1]], None, [[1], [0]]))
    audit.on_rewards(seen([[1]], [[0]], [[1]]))  # The first step of this episode was not told.
    audit.on_rewards(ended((1, False)))
    assert audit.tally.episodes == 3 and audit.tally.told == 1 and audit.tally.fooled == 1
    assert audit.tally.claimed == 3 and audit.tally.claims == 1


def test_it_goes_on_from_its_state_as_if_nothing_had_been() -> None:
    one, other = (
        Audit(2, AuditConfig(window=30), "success_once", Reference(0, 9, 1), followed=Followed(np.array([1])))
        for _ in range(2)
    )
    first = seen(np.ones((25, 2)), np.zeros((25, 2)), np.arange(50).reshape(25, 2) % 3 == 0, shown=(picture(24, 1),))
    one.on_rewards(first)
    assert one.check() is None
    other.load_state_dict(one.state_dict(pictures=True))
    for audit in (one, other):
        audit.on_rewards(ended_twice())
    assert one.tally == other.tally and one.ended.tolist() == other.ended.tolist()
    assert one.followed is not None and other.followed is not None
    assert [kept.id for kept in one.followed.fooled] == [kept.id for kept in other.followed.fooled]
    assert [instants(kept) for kept in other.followed.fooled] == [[2, 3], [1]]
    (a, b) = (audit.check() for audit in (one, other))
    assert a == b and a is not None


def test_with_other_envs_no_episode_has_the_name_of_one_before() -> None:
    one = Audit(3, AuditConfig())
    one.on_rewards(seen(np.ones((4, 3)), np.zeros((4, 3)), [[1, 1, 1], [0, 1, 1], [0, 1, 0], [0, 1, 0]]))
    names = {(env, number) for env, count in enumerate(one.ended) for number in range(count)}
    for count in (2, 5):
        followed = Followed(np.arange(count))
        other = Audit(count, AuditConfig(), followed=followed)
        other.load_state_dict(one.state_dict(pictures=True))
        shape = (1, count)
        other.on_rewards(seen(np.ones(shape), np.zeros(shape), np.ones(shape), shown=(picture(0, *range(count)),)))
        assert len(followed.fooled) == count and not names & {(kept.env, kept.number) for kept in followed.fooled}


def ended_twice() -> ScoredSteps:
    return seen(np.ones((10, 2)), np.zeros((10, 2)), np.ones((10, 2)), shown=(picture(0, 1), picture(5, 1)))


def picture(step: int, *envs: int, value: int = 7) -> Shown:
    return Shown(step, np.array(envs), {"a": np.full((len(envs), 2, 3, 3), value, np.uint8)})


def test_pictures_have_the_truth_that_they_can_show() -> None:
    followed = Followed(np.array([0, 2]))
    audit = Audit(3, AuditConfig(), followed=followed)
    assert audit.follows.tolist() == [0, 2]
    shown = (picture(0, 0, 2), picture(1, 0, 2), picture(2, 0, value=9))
    logits = [[-1, 0, -1], [2, 0, 1], [1, 0, 1]]
    success, looks_done = [[0, 0, 0], [0, 0, 1], [0, 0, 1]], [[0, 0, 0], [1, 0, 1], [0, 0, 1]]
    audit.on_rewards(seen(logits, success, [[0, 0, 0], [0, 0, 1], [1, 0, 0]], looks_done, shown))
    (fooled,), (other,) = followed.fooled, followed.others
    assert (fooled.id, other.id) == ("audit-e0000-000000", "audit-e0002-000000")
    assert [one.label for one in fooled.moments] == [FAILURE, UNKNOWN, FAILURE]
    assert [one.label for one in other.moments] == [FAILURE, SUCCESS]
    assert instants(fooled) == [1, 2, 3] and fooled.moments[2].frames["a"][0, 0, 0] == 9
    assert fooled.worst.instant == 2 and fooled.worst.logit == 2.0
    made = other.episode("simulator", {"policy_step": 5})
    assert made.positive and made.length == 2 and made.meta["policy_step"] == 5


def test_few_pictures_are_kept_and_the_telling_ones_among_them() -> None:
    followed = Followed(np.array([0]))
    audit = Audit(1, AuditConfig(), followed=followed)
    logits = np.linspace(-2, -1, 200)
    logits[[40, 41, 120]] = [3, 2, 1]
    done = np.arange(200) == 199
    shown = tuple(picture(t, 0) for t in range(200))
    for part in range(EPISODES + 5):
        audit.on_rewards(seen(logits[:, None], np.zeros((200, 1)), done[:, None], shown=shown))
        assert len(followed.running[0]) <= 2 * PER_EPISODE, part
    assert len(followed.fooled) == EPISODES
    kept = instants(followed.fooled[-1])
    assert len(kept) == PER_EPISODE and {41, 42, 121, 200} <= set(kept)
    assert followed.fooled[-1].number == EPISODES + 4


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("settings", [{}, {"reward_mode": "terminal"}, {"terminate_on_success": True}])
def test_in_an_env_it_sees_the_pictures_of_the_envs_that_it_follows(deferred: bool, settings: dict[str, Any]) -> None:
    followed = Followed(np.array([1, 3]))
    audit = Audit(4, AuditConfig(), followed=followed)
    inner = Slider(4, length=3)
    env = RewardedEnv(inner, manager(**settings), [audit])
    env.defer(deferred)
    env.reset(0)
    for t in range(12):
        inner.place[:] = torch.tensor([-0.5, 0.25, -0.5, 0.75])
        env.step(torch.zeros(4, 1))
        if t % 5 == 4:
            env.settle()
    env.settle()
    # Above 0 is a success to the model, above 0.5 in truth: env 1 fools it every time.
    ends = 12 if settings.get("terminate_on_success") else 4
    assert audit.ended.tolist() == [4, ends, 4, ends]
    assert {one.env for one in followed.fooled} == {1} and {one.env for one in followed.others} == {3}
    assert len(followed.fooled) == ends
    assert {one.frames["base_camera"][0, 0, 0] for one in followed.fooled[0].moments} == {128 + 16}
    assert env.report()["audit/fooled"] == 0.5


def test_pictures_that_wait_to_be_shown_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHOWN", 10 * 4 * 6 * 3)  # Room for ten of one env.
    followed = Followed(np.array([0]))
    env = RewardedEnv(Slider(2, length=40), manager(), [Audit(2, AuditConfig(), followed=followed)])
    env.defer(True)
    env.reset(0)
    for _ in range(40):
        env.step(torch.zeros(2, 1))
        assert len(env._gathered._kept) <= 10
    env.settle()
    (kept,) = [*followed.fooled, *followed.others]
    assert instants(kept)[-1] == 40 and instants(kept)[0] <= 20  # Of the whole episode, not of its beginning.


@pytest.mark.parametrize("room", [6, 7, 8, 9])
def test_how_episodes_end_is_shown_however_few_pictures_there_is_room_for(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHOWN", room * 4 * 6 * 3)
    followed = Followed(np.array([0, 1]))
    inner = Slider(2, length=6)
    env = RewardedEnv(inner, manager(), [Audit(2, AuditConfig(), followed=followed)])
    env.defer(True)
    env.reset(0)
    inner.clock[1] = 3  # So that at each end the other env goes on.
    for _ in range(9):
        env.step(torch.zeros(2, 1))
        assert sum(part.size for part in env._gathered._kept) <= module.SHOWN
    env.settle()
    ends = {(kept.env, kept.number): instants(kept)[-1] for kept in (*followed.fooled, *followed.others)}
    assert ends == {(0, 0): 6, (1, 0): 3, (1, 1): 6}
