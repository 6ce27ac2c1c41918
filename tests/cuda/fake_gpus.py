"""The environment in which programs of a build have some GPUs: those of fake_gpu.cc, and a driver that lists them. And how many
this machine has itself."""
import subprocess


GPU = "uuid=GPU-{name},name={name},total=8589934592,free=8589934592,cc=9.0,pci=00000000:0{bus}:00.0"


def some_gpus(build, count):
    names = "abcdefgh"[:count]
    listed = [GPU.format(name=name, bus=bus) for bus, name in enumerate(names, 1)]
    return {"MUSTER_NVML_LIBRARY": f"{build}/lib/libfake_nvml.so", "MUSTER_CUDA_LIBRARY": f"{build}/lib/libfake_cuda.so",
            "FAKE_CUDA": ",".join(f"GPU-{name}" for name in names), "FAKE_NVML": "|".join(["version=570.1", *listed])}


def two_gpus(build):
    return some_gpus(build, 2)


def num_true_gpus():
    """Whole ones: nvidia-smi lists MIG's instances below theirs."""
    listed = subprocess.run("nvidia-smi -L", shell=True, capture_output=True, text=True)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0
