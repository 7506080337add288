cd examples/embodiment
./run_embodiment.sh maniskill_train_resnet_reward
