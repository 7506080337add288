bash examples/embodiment/train_reward_model.sh train_reward_model
python examples/embodiment/main_reward.py \
    --config-path examples/embodiment/config \
    --config-name train_reward_model
bash examples/embodiment/train_reward_model.sh train_reward_model \
    reward.gpu_id=1 \
    reward.global_batch_size=64 \
    reward.num_epochs=50 \
    reward.save_interval=500
