bash examples/embodiment/train_reward_model.sh
python -m rlinf.models.reward_model.train_reward_model \
    --positive-dir ./reward_data/positive \
    --negative-dir ./reward_data/negative \
    --output-checkpoint ./checkpoints/reward_model.pt \
    --pretrained-encoder-path ./resnet10_pretrained.pt \
    --backbone resnet10 \
    --image-key base_camera \
    --image-size 3 64 64 \
    --batch-size 128 \
    --epochs 30 \
    --lr 1e-4 \
    --hidden-dim 256 \
    --num-spatial-blocks 8 \
    --visualize-positive \
    --vis-output-dir ./positive_samples_vis
