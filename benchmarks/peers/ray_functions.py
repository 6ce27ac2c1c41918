import ray
import torch
from task import evaluate, fit, own_device

if __name__ == "__main__":
    ray.init()
    gpus = int(torch.cuda.is_available())
    runs = [ray.remote(num_gpus=gpus)(fit).remote(3.0, own_device()), ray.remote(num_gpus=gpus)(evaluate).remote(10, own_device())]
    print(ray.get(runs))
