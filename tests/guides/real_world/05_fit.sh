bash examples/reward/run_reward_training.sh \
     --data /path/to/collected_data \
     data.num_samples_per_episode=0 \
     data.fail_success_ratio=3.0 \
     actor.global_batch_size=32 \
     actor.micro_batch_size=16 \
     runner.max_epochs=100 \
     runner.val_check_interval=10 \
     runner.save_interval=10 \
     runner.early_stop.patience=10 \
     data.debug_save_dir="logs/training_data_debug_realworld" \
     runner.logger.log_path="logs/reward_model_realworld"
