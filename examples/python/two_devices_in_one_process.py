"""Two GPUs in one process: the halves of a model lie on a device each. On CPUs both halves share one."""
import torch

import muster


class Halves(torch.nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.devices = first, second
        self.encoder = torch.nn.Linear(16, 64).to(first)
        self.decoder = torch.nn.Linear(64, 16).to(second)

    def forward(self, inputs):
        hidden = self.encoder(inputs.to(self.devices[0])).relu()
        return self.decoder(hidden.to(self.devices[1]))


def train():
    muster.init()
    gpus = torch.cuda.device_count()  # a rank sees its own alone
    model = Halves(*(("cuda:0", "cuda:1") if gpus >= 2 else ("cpu", "cpu")))
    loss = model(torch.ones(4, 16)).square().mean()
    loss.backward()
    return loss.item() > 0, model.encoder.weight.grad is not None


if __name__ == "__main__":
    pairs = len(muster.devices()) // 2
    print(muster.spawn(train, n=pairs or 2, gpus_per_rank=2 if pairs else None, quiet=True))
