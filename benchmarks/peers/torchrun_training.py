import os

import torch
import torch.distributed as dist
from task import device_of, train

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
device = device_of(int(os.environ["LOCAL_RANK"]))
if device.type == "cuda":
    torch.cuda.set_device(device)
loss = train(dist.get_rank(), device)
if dist.get_rank() == 0:
    print(loss)
dist.destroy_process_group()
