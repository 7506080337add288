"""Acting and learning at the same time, each in a process of its own: `runtime.mode: async`, for SAC and RLPD.

Who has what:

- The *acting* process is the run's own. It has the envs, the reward model (whose pictures only it has: every transition
  leaves with its reward), the audit, evaluations, the log, the display, and Ctrl-C. `Actor` is its algorithm; the
  trainer around it is the one that always is.
- The *learning* process has critics, optimisers, temperature and demonstrations, and writes the checkpoints and the
  replay's files, since a disk may be slow and an arm cannot wait for one. `Learner` is all it does, and knows no env.
- Between them stands an `Exchange`: transitions go one way, the actor's weights the other, and nobody holds a lock.
  The replay's own columns lie in memory that both see; who acts says how far it has written and how far it may be
  writing, and who learns reads nothing else (`reader`). Weights are put into two places in turn (`Mailbox`). What is
  rare goes through a pipe (`process`): the handing over at the start, requests to save, the log, an error.

What is promised:

- The ratio: never more gradient steps than `update_ratio` allows for the env steps so far; those that are still owed
  when the last env step is taken are worked off before the run ends, and none is taken while nobody acts after that.
- Staleness: acting takes the newest weights before every step, and they are put out after `learner.TOGETHER` gradient
  steps at the latest.
- Waiting: learning waits only where no step is owed, and tells how long. Acting never waits for learning where the
  world goes on meanwhile (`VecEnv.real_time`). A simulation, whose time stands still, is held back once it is two
  rollouts ahead: it would else be over before there was a policy worth acting with, and be no earlier for it.
- Checkpoints: one is being written, and of those that wait for it a newer one takes the place of one of its kind.
- An end of either process, however it comes, is the other one's end too, and leaves neither process nor memory behind:
  the memory has no name. What is lost is what came since the last checkpoint.

Where an `Exchange` over a network takes the place of this one, both sides can be workers on other machines.
"""
