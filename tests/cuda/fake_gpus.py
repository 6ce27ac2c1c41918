"""The environment in which programs of a build have two GPUs: those of fake_gpu.cc, and a driver that lists them."""

GPU = "uuid=GPU-{name},name={name},total=8589934592,free=8589934592,cc=9.0,pci=00000000:0{bus}:00.0"


def two_gpus(build):
    return {"MUSTER_NVML_LIBRARY": f"{build}/lib/libfake_nvml.so", "MUSTER_CUDA_LIBRARY": f"{build}/lib/libfake_cuda.so",
            "FAKE_CUDA": "GPU-a,GPU-b", "FAKE_NVML": "|".join(["version=570.1", GPU.format(name="a", bus=1), GPU.format(name="b", bus=2)])}
