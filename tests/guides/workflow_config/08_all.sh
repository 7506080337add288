bash examples/embodiment/run_embodiment.sh maniskill_ppo_cnn \
    reward.collect_data=True \
    reward.use_reward_model=False

bash examples/embodiment/train_reward_model.sh train_reward_model \
    reward.data.positive_dir=./reward_data/positive \
    reward.data.negative_dir=./reward_data/negative

bash examples/embodiment/run_embodiment.sh maniskill_ppo_cnn \
    reward.use_reward_model=True \
    reward.collect_data=False \
    reward.reward_model.checkpoint_path=./checkpoints/reward_model.pt
