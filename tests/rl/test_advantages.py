import torch

from plaudit.rl.algorithms.gae import gae

# One env, three steps, gamma 0.5, lambda 0.5, so that a trace decays by 0.25:
#   rewards 1, 2, 3; values 4, 5, 6; value of the observation after the last step 8; of a final observation 10.
REWARDS = torch.tensor([[1.0], [2.0], [3.0]])
VALUES = torch.tensor([[4.0], [5.0], [6.0]])
LAST = torch.tensor([8.0])
FINAL = torch.full((3, 1), 10.0)


def run(terminated: list[bool], truncated: list[bool]) -> list[float]:
    as_column = [torch.tensor(flags)[:, None] for flags in (terminated, truncated)]
    advantages, returns = gae(REWARDS, VALUES, LAST, *as_column, FINAL, gamma=0.5, gae_lambda=0.5)
    torch.testing.assert_close(returns, advantages + VALUES)
    return advantages.flatten().tolist()


def test_episode_that_goes_on() -> None:
    # deltas: 1 + 0.5*5 - 4 = -0.5;  2 + 0.5*6 - 5 = 0;  3 + 0.5*8 - 6 = 1
    # A2 = 1;  A1 = 0 + 0.25*1 = 0.25;  A0 = -0.5 + 0.25*0.25 = -0.4375
    assert run([False] * 3, [False] * 3) == [-0.4375, 0.25, 1.0]


def test_terminated_step_has_no_future_and_cuts_the_trace() -> None:
    # delta1 = 2 + 0 - 5 = -3, and A1 takes nothing from A2;  A0 = -0.5 + 0.25*-3 = -1.25
    assert run([False, True, False], [False] * 3) == [-1.25, -3.0, 1.0]


def test_truncated_step_is_valued_by_its_final_observation_and_cuts_the_trace() -> None:
    # delta1 = 2 + 0.5*10 - 5 = 2 (the final observation's 10, not the next episode's 6);  A0 = -0.5 + 0.25*2 = 0
    assert run([False] * 3, [False, True, False]) == [0.0, 2.0, 1.0]


def test_last_step_terminated_ignores_the_value_after_it() -> None:
    # A2 = 3 - 6 = -3;  A1 = 0 + 0.25*-3 = -0.75;  A0 = -0.5 + 0.25*-0.75 = -0.6875
    assert run([False, False, True], [False] * 3) == [-0.6875, -0.75, -3.0]


def test_last_step_truncated_uses_its_final_observation() -> None:
    # A2 = 3 + 0.5*10 - 6 = 2;  A1 = 0.25*2 = 0.5;  A0 = -0.5 + 0.25*0.5 = -0.375
    assert run([False] * 3, [False, False, True]) == [-0.375, 0.5, 2.0]


def test_envs_do_not_mix() -> None:
    both = gae(
        REWARDS.repeat(1, 2),
        VALUES.repeat(1, 2),
        LAST.repeat(2),
        torch.tensor([[False, False], [True, False], [False, False]]),
        torch.zeros(3, 2, dtype=torch.bool),
        FINAL.repeat(1, 2),
        0.5,
        0.5,
    )[0]
    assert both[:, 0].tolist() == [-1.25, -3.0, 1.0]
    assert both[:, 1].tolist() == [-0.4375, 0.25, 1.0]


def test_lambda_one_gives_discounted_returns() -> None:
    # With lambda 1 the return is the discounted sum: 1 + 0.5*2 + 0.25*3 + 0.125*8 = 3.75
    _, returns = gae(
        REWARDS, VALUES, LAST, torch.zeros(3, 1, dtype=torch.bool), torch.zeros(3, 1, dtype=torch.bool), FINAL, 0.5, 1.0
    )
    assert returns[0].item() == 3.75
