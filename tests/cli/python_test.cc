// Python programs under the real `muster run`: the environment is torchrun's own (asked of torchrun
// itself), DDP scripts run unchanged, exceptions reach the failure card. Needs PyTorch:
// MUSTER_TEST_PYTHON, or the one in .deps.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "muster/base/strings.h"
#include "muster/launch/port.h"
#include "muster_program.h"

namespace muster {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// A python with PyTorch, which is not imported for that; empty when there is none.
std::string torch_python() {
  const std::string python =
      get_env("MUSTER_TEST_PYTHON").value_or(MUSTER_SOURCE_DIR "/.deps/torch/bin/python");
  const ScratchFolder folder;
  ProgramSettings settings;
  settings.program = python;
  const char* const is_there =
      "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))";
  try {
    return Program({"-c", is_there}, folder, settings).finish().code == 0 ? python : "";
  } catch (const Error&) {
    return "";
  }
}

#define NEED_TORCH(python)                   \
  const std::string python = torch_python(); \
  if (python.empty())                        \
  GTEST_SKIP() << "no Python with PyTorch here"

constexpr const char* kDumpScript = R"(import json, os
with open(os.environ["DUMP_TO"] + os.environ["RANK"], "w") as file:
    json.dump(dict(os.environ), file)
)";

// These differ by design, or are free to: ports, ids and paths, threads, and who serves PyTorch's
// store.
const char* const kFree[] = {"MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_ERROR_FILE",
                             "OMP_NUM_THREADS",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "CUDA_VISIBLE_DEVICES",
                             "DUMP_TO"};

void compare_environments(const ScratchFolder& folder) {
  int num_ranks = 0;
  for (;; ++num_ranks) {
    const std::string their_file = cat(folder.path(), "/theirs", num_ranks);
    if (!std::filesystem::exists(their_file))
      break;
    const json want = json::parse(read_file(their_file));
    const json have = json::parse(read_file(cat(folder.path(), "/ours", num_ranks)));
    for (const auto& [name, value] : want.items()) {
      if (name == "OMP_NUM_THREADS" ||
          std::find(std::begin(kFree), std::end(kFree), name) == std::end(kFree)) {
        ASSERT_TRUE(have.contains(name)) << name << " of rank " << num_ranks;
      }
      if (std::find(std::begin(kFree), std::end(kFree), name) == std::end(kFree)) {
        EXPECT_EQ(have[name], value) << name << " of rank " << num_ranks;
      }
    }
  }
  EXPECT_GT(num_ranks, 0);
  EXPECT_FALSE(std::filesystem::exists(cat(folder.path(), "/ours", num_ranks)))
      << "one rank more than torchrun";
}

class TorchrunEnvironment : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(TorchrunEnvironment, IsMustersToo) {
  NEED_TORCH(python);
  const ScratchFolder folder;
  const std::string script = folder.write("dump.py", kDumpScript);
  std::vector<std::string> flags = GetParam();
  flags.push_back(script);

  ProgramSettings settings;
  settings.environment = {{"DUMP_TO", folder.path() + "/theirs"}, {"PYTHON_EXEC", python}};
  settings.program = python;
  std::vector<std::string> torchrun = {"-m", "torch.distributed.run"};
  torchrun.insert(torchrun.end(), flags.begin(), flags.end());
  const Ran theirs = Program(torchrun, folder, settings).finish();
  ASSERT_EQ(theirs.code, 0) << theirs.err;

  settings.program = ProgramSettings{}.program;
  settings.environment["DUMP_TO"] = folder.path() + "/ours";
  flags.insert(flags.begin(), "run");
  const Ran ours = Program(flags, folder, settings).finish();
  ASSERT_EQ(ours.code, 0) << ours.err;

  compare_environments(folder);
}

// The same with two hosts' agents, which share this machine.
TEST(TorchrunEnvironmentOfTwoHosts, IsMustersToo) {
  NEED_TORCH(python);
  const ScratchFolder folder;
  const std::string script = folder.write("dump.py", kDumpScript);
  const PortReservation port(0);  // held for both, one after the other
  ProgramSettings settings;
  settings.environment = {{"PYTHON_EXEC", python}, {"MUSTER_RUNTIME_DIR", ""}};
  const auto run_both = [&](const std::string& program,
                            const std::vector<std::string>& first_words) {
    settings.program = program;
    std::vector<std::unique_ptr<Program>> nodes;
    for (int node = 0; node < 2; ++node) {
      std::vector<std::string> args = first_words;
      for (const std::string& flag : {std::string("--nnodes=2"),
                                      cat("--node-rank=", node),
                                      std::string("--nproc-per-node=2"),
                                      std::string("--master-addr=127.0.0.1"),
                                      cat("--master-port=", port.port()),
                                      std::string("--max-restarts=1"),
                                      script})
        args.push_back(flag);
      nodes.push_back(std::make_unique<Program>(args, folder, settings));
    }
    for (const auto& node : nodes) {
      const Ran ran = node->finish();
      ASSERT_EQ(ran.code, 0) << ran.err;
    }
  };
  settings.environment["DUMP_TO"] = folder.path() + "/theirs";
  run_both(python, {"-m", "torch.distributed.run"});
  settings.environment["DUMP_TO"] = folder.path() + "/ours";
  run_both(ProgramSettings{}.program, {"run"});
  compare_environments(folder);
}

INSTANTIATE_TEST_SUITE_P(
    Grid,
    TorchrunEnvironment,
    testing::Values(std::vector<std::string>{"--nproc-per-node=2"},
                    std::vector<std::string>{
                        "--standalone", "--nproc_per_node=3", "--max_restarts=2", "--role=trainer"},
                    std::vector<std::string>{"--nproc-per-node=1",
                                             "--virtual-local-rank",
                                             "--rdzv-backend=c10d",
                                             "--rdzv-endpoint=localhost:0",
                                             "--rdzv-id=j7"}));

TEST(Python, DdpScriptRunsUnchanged) {
  NEED_TORCH(python);
  const ScratchFolder folder;
  const std::string script = folder.write("train.py", R"(import os, sys, torch
import torch.distributed as dist

dist.init_process_group("gloo")
weight = torch.ones(1, 4)
if "train" in sys.argv:
    torch.manual_seed(dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    weight = model.module.weight.data
weights = [torch.zeros(1, 4) for _ in range(dist.get_world_size())]
dist.all_gather(weights, weight)
assert all(torch.equal(weights[0], other) for other in weights)
print("agreed", dist.get_rank(), os.environ["MASTER_PORT"], flush=True)
dist.destroy_process_group()
os._exit(0)  # without, a thread of Gloo's fails at the interpreter's end, one run in ten, under torchrun too
)");
  ProgramSettings settings;
  settings.environment = {{"PYTHON_EXEC", python}};
  // Twice in a row on the one port: the second finds the first's closed connections.
  const std::vector<std::string> args = {"run", "-q", "-n", "2", script, "train"};
  const Ran ran = Program(args, folder, settings).finish();
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("[0] agreed 0 "));
  EXPECT_THAT(ran.out, HasSubstr("[1] agreed 1 "));
  const size_t at = ran.out.find("agreed 0 ") + 9;
  const std::string port = ran.out.substr(at, ran.out.find('\n', at) - at);
  const Ran again =
      Program({"run", "-q", "-n", "2", "--master-port", port, script}, folder, settings).finish();
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("agreed 1 " + port));
}

TEST(Python, RecordedExceptionIsOnTheCard) {
  NEED_TORCH(python);
  const ScratchFolder folder;
  const std::string script = folder.write("fail.py", R"(import os, time

if os.environ["RANK"] == "0":
    time.sleep(1000)

from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ValueError("the batch is bad")

main()
)");
  ProgramSettings settings;
  settings.environment = {{"PYTHON_EXEC", python}};
  const Ran ran =
      Program({"run", "-q", "-n", "2", "--run-dir", "out", script}, folder, settings).finish();
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("rank 1 failed first: exit code 1"));
  EXPECT_THAT(ran.err, HasSubstr("error     ValueError: the batch is bad"));
  const json failure = failure_of(folder);
  EXPECT_EQ(failure["first"]["message"], "ValueError: the batch is bad");
  EXPECT_THAT(failure["first"]["stack"], HasSubstr("in main"));
}

// Two ranks listen at MASTER_PORT, as PyTorch itself says it, with libuv and without.
TEST(Python, APortThatPyTorchFindsInUseIsNamed) {
  NEED_TORCH(python);
  for (const char* with_libuv : {"True", "False"}) {
    const ScratchFolder folder;
    const std::string script = folder.write("listen.py",
                                            cat(R"(import os, time
import torch.distributed as dist

if os.environ["RANK"] == "1":
    while not os.path.exists("listens"):
        time.sleep(0.01)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=True,
                      wait_for_workers=False, use_libuv=)",
                                                with_libuv,
                                                R"()
open("listens", "w").close()
time.sleep(1000)
)"));
    ProgramSettings settings;
    settings.environment = {{"PYTHON_EXEC", python}};
    const Ran ran =
        Program({"run", "-q", "-n", "2", "--run-dir", "out", script}, folder, settings).finish();
    EXPECT_EQ(ran.code, 1);
    EXPECT_THAT(ran.err, HasSubstr("rank 1 failed first: exit code 1"));
    EXPECT_THAT(ran.err, HasSubstr("meaning   a process listens at MASTER_PORT ")) << with_libuv;
  }
}

// Plain Python, no PyTorch needed.
TEST(Python, ScriptsAndModules) {
  const ScratchFolder folder;
  folder.write("pkg/__init__.py", "");
  folder.write("pkg/hello.py", "import sys; print('hello', sys.argv[1:], __name__)\n");
  const Ran module = muster({"run", "-q", "-n", "1", "-m", "pkg.hello", "--x"}, folder);
  if (module.code == 127)
    GTEST_SKIP() << "no python3 here";
  EXPECT_EQ(module.out, "hello ['--x'] __main__\n") << module.err;
  EXPECT_EQ(muster({"run", "-q", "-n", "1", "pkg/hello.py", "-n", "2"}, folder).out,
            "hello ['-n', '2'] __main__\n");
}

}  // namespace
}  // namespace muster
