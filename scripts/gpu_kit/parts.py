"""What the kit runs, in the order of worth: a part a line of the table at the end."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    command: str  # of a shell in the kit's folder, with BUILD, SOURCE, PYTHON and OUT
    limit: int  # seconds
    expect: str = ""  # a pattern that its output must have
    gpu: bool = True
    shows: int = 0  # so many last lines of its output are results


RUN = "$BUILD/bin/muster run --run-dir $OUT/runs/$PART"
SHARED = "--gpus 0 --surplus share --nproc-per-node"
COMPARE = "$BUILD/bin/muster $BUILD/tests/{program} $PYTHON 1 $OUT/runs/$PART nccl"
SANITIZER = "compute-sanitizer --report-api-errors no --error-exitcode 9"
SANITIZER_THERE = "command -v compute-sanitizer >/dev/null || { echo skipped: no compute-sanitizer here; exit 77; }"
# NCCL refuses ranks that share a GPU, unless they say that they are on different hosts.
APART = ("sh -c 'MUSTER_HOST_ID=host$RANK NCCL_HOSTID=host$RANK NCCL_SOCKET_IFNAME=lo MUSTER_BACKEND=nccl exec \"$0\" \"$@\"'")
CPU = RUN + " --nproc-per-node cpu --cpu-slots"
TWO_THERE = "[ \"$(nvidia-smi -L | grep -c '^GPU ')\" -gt 1 ] || { echo skipped: one GPU here; exit 77; }"


def on_gpu(kind, program, folder="ddp"):
    return f"$SOURCE/tests/{folder}/compare_{kind}.sh {COMPARE.format(program=program)}"


def bench_ddp(model):
    return f"$BUILD/bin/muster bench ddp -n 1 --model {model} --kinds nccl --python $PYTHON --steps 30 --rounds 2"


PARTS = [
    # --- the first look -----------------------------------------------------------------------------------------------
    Part("machine", "uname -a; ldd --version | sed -n 1p; nvidia-smi; nvidia-smi topo -m; "
         "$PYTHON -c 'import sys, torch; print(sys.version, torch.__version__, torch.cuda.nccl.version())'", 60),
    Part("devices", "$BUILD/bin/muster devices && $BUILD/bin/muster devices --json && $PYTHON -B $SOURCE/tests/device/nvidia_smi_test.py $BUILD/bin/muster",
         60, "as nvidia-smi has them"),
    Part("conformance over NCCL", f"{RUN} --gpus 0 $BUILD/tests/conformance_ranks", 120, "checks hold on 1 ranks over nccl"),
    Part("conformance over NCCL, three ranks on one GPU", f"{RUN} {SHARED} 3 {APART} $BUILD/tests/conformance_ranks", 90,
         "checks hold on 3 ranks over nccl"),
    Part("groups that end, over NCCL", f"{RUN} {SHARED} 2 {APART} $BUILD/tests/gpu_probe 'drop groups'", 30, "drop groups holds"),
    Part("losses as Python's, bit for bit", on_gpu("losses", "ddp_losses"), 120, "the same bits"),
    Part("a rank that dies, over NCCL", f"! {RUN} {SHARED} 3 {APART} $BUILD/tests/gpu_probe dies", 20, "rank 2 failed first: killed by SIGKILL"),
    Part("doctor", "$BUILD/bin/muster doctor --python $PYTHON", 60, shows=20),
    Part("conformance over NCCL, nonblocking", f"TORCH_NCCL_USE_COMM_NONBLOCKING=1 {RUN} --gpus 0 $BUILD/tests/conformance_ranks", 120,
         "checks hold on 1 ranks over nccl"),
    Part("conformance of ranks that share a GPU", f"{RUN} {SHARED} 3 $BUILD/tests/conformance_ranks", 60, "checks hold on 3 ranks over shm"),
    Part("conformance over NCCL, a GPU a rank", f"{TWO_THERE}; {RUN} $BUILD/tests/conformance_ranks", 60, r"checks hold on \d+ ranks over nccl"),
    Part("averages, over NCCL", f"{RUN} {SHARED} 2 {APART} $BUILD/tests/gpu_probe averages", 20, "averages holds"),
    Part("a call's own limit, over NCCL", f"! {RUN} {SHARED} 2 {APART} $BUILD/tests/gpu_probe limit", 30, "rank 0 threw: .*missing rank.s. 1"),
    Part("the job's limit, over NCCL", f"! MUSTER_COLLECTIVE_TIMEOUT=5 {RUN} {SHARED} 2 {APART} $BUILD/tests/gpu_probe late", 30,
         r"timed out after 5.*missing rank\(s\) 1"),
    Part("steps that are left out on the GPU", f"{RUN} {SHARED} 2 {APART} $BUILD/tests/gpu_probe 'leave out'", 40, "leave out holds"),
    Part("ranks replaced in place, over NCCL", "KILLS=4 $PYTHON -B $SOURCE/tests/cuda/in_place_test.py", 120, "OK"),
    Part("waits for the GPU", f"{RUN} --gpus 0 env LD_PRELOAD=$BUILD/lib/libcount_waits.so $BUILD/tests/gpu_probe 'count waits'", 60, "count waits holds",
         shows=10),
    Part("steps as CUDA graphs", f"{RUN} --gpus 0 env LD_PRELOAD=$BUILD/lib/libcount_waits.so $BUILD/tests/gpu_probe graphed", 40, "graphed holds", shows=6),
    Part("steps as CUDA graphs, and faults", f"{RUN} --gpus 0 $BUILD/tests/gpu_probe 'graphed faults'", 30, "graphed faults holds"),
    Part("steps as CUDA graphs, two ranks over NCCL", f"{RUN} {SHARED} 2 {APART} $BUILD/tests/gpu_probe 'graphed small'", 40, "graphed small holds", shows=10),
    Part("a whole step by PyTorch", "$PYTHON -B $SOURCE/benchmarks/gpu_step.py", 60, shows=2),
    # --- training, beside Python's ------------------------------------------------------------------------------------
    Part("steps as Python's (AMP, clipping, averages)", on_gpu("step", "step_losses", "train"), 60, "the same bits"),
    Part("training on GPUs", "$PYTHON -B $SOURCE/tests/cuda/gpu_programs_test.py Training", 240, "OK"),
    Part("faults on GPUs", "$PYTHON -B $SOURCE/tests/cuda/gpu_programs_test.py Faults", 240, "OK"),
    Part("losses as Python's over NCCL, two ranks on one GPU", f"ON_ONE_GPU=1 $SOURCE/tests/ddp/compare_losses.sh $BUILD/bin/muster "
         "$BUILD/tests/ddp_losses $PYTHON 2 $OUT/runs/$PART nccl", 120, "the same bits"),
    Part("table of models as Python's", on_gpu("table", "ddp_table"), 240),
    Part("hooks as Python's", on_gpu("hooks", "hook_table"), 90),
    Part("optimizers, scripts and join as Python's", on_gpu("more", "ddp_more"), 90),
    Part("batches on the GPU", "$BUILD/tests/data_test --gtest_filter=DataLoaderOnAGpu.PutsBatchesThere:LoaderOnAGpu.*", 60, r"\[  PASSED  \] [1-9]"),
    Part("transforms of batches on the GPU", "$BUILD/tests/data_test --gtest_filter=ImagesOnAGpu.ChangeAtRandom*:ImagesOnAGpu.HaveNoise*", 60,
         r"\[  PASSED  \] 2"),
    Part("ResNet, bf16 and SyncBatchNorm", f"{RUN} {SHARED} 2 $BUILD/bin/resnet --epochs 1 --precision bf16 --digits $SOURCE/data/digits.csv.gz",
         180, shows=2),
    # --- what is measured ---------------------------------------------------------------------------------------------
    Part("DDP ÷ the bare loop, MLP", bench_ddp("mlp"), 120, shows=12),
    Part("DDP ÷ the bare loop, GPT", bench_ddp("gpt"), 120, shows=12),
    Part("DDP ÷ the bare loop, ResNet-18", bench_ddp("cnn"), 120, shows=12),
    Part("what the device can do", "$BUILD/bin/muster bench device --again && $BUILD/bin/muster bench device --again --dtype bfloat16", 120, shows=8),
    Part("launch with the driver asked", "$PYTHON -B $SOURCE/scripts/gpu_kit/launch_times.py", 120, shows=4),
    Part("prefetch", f"{RUN} --gpus 0 $BUILD/benchmarks/gpu_bench prefetch", 120, shows=4),
    Part("staging", f"{RUN} --gpus 0 $BUILD/benchmarks/gpu_bench staging", 120, shows=4),
    Part("ranks of one GPU, shared memory and Gloo", "$BUILD/bin/muster bench collectives -n 3 --backends shm,gloo --max 64M --seconds 0.3", 180, shows=16),
    # --- the rest -----------------------------------------------------------------------------------------------------
    Part("Python module", "CUDA_VISIBLE_DEVICES= MUSTER_TEST_MODULE=$PYTHON_MODULE $PYTHON -B $SOURCE/tests/python/module_test.py -v Collectives", 240, "OK", gpu=False),
    Part("muster.init over NCCL", f"PYTHON_EXEC=$PYTHON {RUN} --gpus 0 $SOURCE/tests/python/context.py meet", 60, "rank 0 of 1: ok"),
    Part("muster.init of ranks that share a GPU", f"PYTHON_EXEC=$PYTHON {RUN} {SHARED} 2 $SOURCE/tests/python/context.py meet", 60, "rank 1 of 2: ok"),
    Part("compute-sanitizer over NCCL", f"{SANITIZER_THERE}; {RUN} --gpus 0 {SANITIZER} $BUILD/tests/conformance_ranks", 300, "ERROR SUMMARY: 0 errors"),
    Part("compute-sanitizer over a shared GPU", f"{SANITIZER_THERE}; {RUN} {SHARED} 2 {SANITIZER} $BUILD/tests/conformance_ranks", 300,
         "ERROR SUMMARY: 0 errors"),
    # --- without a GPU ------------------------------------------------------------------------------------------------
    Part("conformance on the CPU", f"{CPU} 3 $BUILD/tests/conformance_ranks && MUSTER_BACKEND=gloo {CPU} 3 $BUILD/tests/conformance_ranks",
         120, "checks hold on 3 ranks over gloo", gpu=False),
    Part("training on the CPU", f"{CPU} 2 $BUILD/bin/train --epochs 2 --digits $SOURCE/data/digits.csv.gz", 120, gpu=False, shows=2),
    Part("losses as Python's over Gloo", "$SOURCE/tests/ddp/compare_losses.sh $BUILD/bin/muster $BUILD/tests/ddp_losses $PYTHON 2 $OUT/runs/$PART",
         120, "the same bits", gpu=False),
    Part("training and faults on fake GPUs", "$PYTHON -B $SOURCE/tests/cuda/gpu_programs_test.py --fake", 600, "OK", gpu=False),
    Part("groups", "$BUILD/tests/comm_test --gtest_filter=LateWatch*:Agreement*:TwoRanks*", 120, r"\[  PASSED  \]", gpu=False),
    Part("data", "$BUILD/tests/data_test --gtest_filter=DataLoader*:Stream*:Transforms*", 120, r"\[  PASSED  \]", gpu=False),
]
