"""torch_save.py FOLDER: what torch.save writes, in all its forms, each beside its tensors as safetensors."""
import argparse
import collections
import sys

try:
    import torch
    from safetensors.torch import save_file
except Exception:
    sys.exit(77)

folder = sys.argv[1]
torch.manual_seed(4)
base = torch.randn(6, 5)
net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
kinds = {str(dtype)[6:]: torch.arange(6).view(2, 3).to(dtype) for dtype in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool)}
contents = {
    "state_dict": net.state_dict(),
    "kinds": kinds,
    "views": {"whole": base, "row": base[2], "column": base[:, 3], "transposed": base.t(), "block": base[1:4, 2:],
              "scalar": torch.tensor(7.5), "empty": torch.empty(0, 4), "expanded": torch.ones(1).expand(3, 2)},
    "training": {"model": net.state_dict(), "epoch": 3, "lr": 0.5, "args": argparse.Namespace(width=2, names=["a", "b"]),
                 "history": [torch.ones(2), (1, None, True, -5, 2 ** 80)], "more": {"deep": {"x": torch.eye(2)}},
                 "set": {1, 2}, 7: torch.ones(1)},
    "parameters": collections.OrderedDict(w=torch.nn.Parameter(torch.rand(2, 2)), b=torch.nn.Parameter(torch.rand(2), False)),
}


def flat(value, name=""):
    if isinstance(value, torch.Tensor):
        return {name: value.detach().clone().contiguous()}
    found = {}
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, str):
                found.update(flat(item, f"{name}.{key}" if name else key))
    return found


for name, content in contents.items():
    save_file(flat(content), f"{folder}/{name}.safetensors")
    torch.save(content, f"{folder}/{name}.pth")
    torch.save(content, f"{folder}/{name}.old.pth", _use_new_zipfile_serialization=False)
    torch.save(content, f"{folder}/{name}.protocol4.pth", pickle_protocol=4)
torch.save({"x": torch.ones(2).to(torch.float8_e4m3fn)}, f"{folder}/fp8.pth")
again = {"x": 1}
for _ in range(31):
    again = {"a": again, "b": again}  # small in the file, and 2^31 values for whoever follows each
torch.save({"t": torch.ones(1), "z": again}, f"{folder}/again.pth")
torch.save([torch.ones(2)], f"{folder}/list.pth")
torch.save({"z": torch.ones(2, dtype=torch.complex64)}, f"{folder}/complex.pth")
unsigned = {str(dtype)[6:]: torch.arange(6).view(2, 3).to(dtype) for dtype in (torch.uint16, torch.uint32, torch.uint64)}
save_file(unsigned, f"{folder}/unsigned.safetensors")
torch.save(unsigned, f"{folder}/unsigned.pth")
eye = torch.eye(3)
torch.save({"plain": eye, "sparse": eye.to_sparse(), "rows": eye.to_sparse_csr(), "wide": eye.to(torch.complex128),
            "quantized": torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8)}, f"{folder}/others.pth")
if hasattr(torch.serialization, "set_crc32_options"):
    torch.serialization.set_crc32_options(False)
    torch.save({"plain": eye}, f"{folder}/no_checksums.pth")
    torch.serialization.set_crc32_options(True)
pair = torch.tensor([1 + 2j, 3 + 4j])
torch.save({"z": pair.conj()}, f"{folder}/conj.pth")
torch.save({"n": pair.conj().imag}, f"{folder}/neg.pth")
torch.save({"flags": torch.tensor([True, False, True])}, f"{folder}/flags.old.pth", _use_new_zipfile_serialization=False)


class Before04:
    """As PyTorch wrote a tensor until 0.4."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce_ex__(self, protocol):
        storage = self.tensor.storage()
        return torch._utils._rebuild_tensor, (storage, 0, tuple(self.tensor.shape), self.tensor.stride())


torch.save({"w": Before04(base)}, f"{folder}/before04.old.pth", _use_new_zipfile_serialization=False)
save_file({"w": base}, f"{folder}/before04.safetensors")
