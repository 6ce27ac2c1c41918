"""python_safetensors.py write|read|rewrite FILE [OTHER]: the other side of the safetensors tests."""

import json
import sys

try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
except Exception:
    sys.exit(77)

DTYPES = {
    "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "u16": torch.uint16,
    "i32": torch.int32, "u32": torch.uint32, "i64": torch.int64, "u64": torch.uint64, "f16": torch.float16,
    "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
}

action, path = sys.argv[1:3]
if action == "write":
    tensors = {name: torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype) for name, dtype in DTYPES.items()}
    tensors["scalar"] = torch.tensor(7)
    tensors["empty"] = torch.zeros(0, 5)
    save_file(tensors, path, metadata={"format": "pt", "note": "from Python, ü"})
elif action == "read":
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    described = {name: {"dtype": str(t.dtype), "shape": list(t.shape), "values": t.double().flatten().tolist()}
                 for name, t in load_file(path).items()}
    print(json.dumps({"metadata": metadata, "tensors": described}))
elif action == "rewrite":
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), sys.argv[3], metadata=metadata)
