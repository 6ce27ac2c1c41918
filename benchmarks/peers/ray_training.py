import ray.train
import torch
from ray.train.torch import TorchTrainer, get_device
from task import train


def main():
    return train(ray.train.get_context().get_world_rank(), get_device())


if __name__ == "__main__":
    scaling = ray.train.ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available())
    print(TorchTrainer(main, scaling_config=scaling).fit().return_value)
