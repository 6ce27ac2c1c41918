from lightning_fabric import Fabric
from task import train


def main(fabric):
    return train(fabric.global_rank, fabric.device)


if __name__ == "__main__":
    fabric = Fabric(devices=2, strategy="ddp_spawn")
    print(fabric.launch(main))
