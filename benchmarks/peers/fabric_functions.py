import torch.distributed as dist
from lightning_fabric import Fabric
from task import evaluate, fit


def main(fabric):
    result = fit(3.0, fabric.device) if fabric.is_global_zero else evaluate(10, fabric.device)
    results = [None, None]
    dist.all_gather_object(results, result)
    return results


if __name__ == "__main__":
    fabric = Fabric(devices=2, strategy="ddp_spawn")
    print(fabric.launch(main))
