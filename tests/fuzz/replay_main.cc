// Runs every file of a folder through one fuzz target, whole and cut off at several places.
//
//   fuzz_replay TARGET FOLDER
#include <cstdio>
#include <filesystem>
#include <string>

#include "muster/base/fd.h"
#include "tests/fuzz/fuzz_targets.h"

namespace {

struct Target {
  const char* name;
  void (*run)(const std::string& text);
};

constexpr Target kTargets[] = {
    {"activity", muster::fuzz_activity},
    {"errors", muster::fuzz_errors},
    {"etcd", muster::fuzz_etcd},
    {"fleet", muster::fuzz_fleet},
    {"gpus", muster::fuzz_gpus},
    {"hosts", muster::fuzz_hosts},
    {"hwloc", muster::fuzz_hwloc},
    {"journal", muster::fuzz_journal},
    {"json", muster::fuzz_json},
    {"manifest", muster::fuzz_manifest},
    {"message_frame", muster::fuzz_message_frame},
    {"messages", muster::fuzz_messages},
    {"nccl", muster::fuzz_nccl},
    {"nvidia_smi_xml", muster::fuzz_nvidia_smi_xml},
    {"pickle", muster::fuzz_pickle},
    {"rank_env", muster::fuzz_rank_env},
    {"records", muster::fuzz_records},
    {"rendezvous", muster::fuzz_rendezvous},
    {"safetensors", muster::fuzz_safetensors},
    {"store", muster::fuzz_store},
    {"task_order", muster::fuzz_task_order},
    {"tasks", muster::fuzz_tasks},
    {"toml", muster::fuzz_toml},
    {"topo", muster::fuzz_topo},
    {"trace", muster::fuzz_trace},
    {"welcome", muster::fuzz_welcome},
#ifdef MUSTER_FUZZ_FORMATS
    {"cifar", muster::fuzz_cifar},
    {"csv", muster::fuzz_csv},
    {"image", muster::fuzz_image},
    {"npy", muster::fuzz_npy},
    {"tar", muster::fuzz_tar},
    {"tokens", muster::fuzz_tokens},
#endif
};
constexpr size_t kCuts = 16;

int replay(const Target& target, const char* folder) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string text = muster::read_file(entry.path());
    std::printf("%s\n", entry.path().filename().c_str());
    std::fflush(stdout);  // the last line names the file that was too much
    target.run(text);
    for (size_t i = 0; i < kCuts; ++i)
      target.run(text.substr(0, text.size() * i / kCuts));
    ++files;
  }
  std::printf("%d files\n", files);
  return files > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  for (const Target& target : kTargets) {
    if (argc == 3 && target.name == std::string(argv[1]))
      return replay(target, argv[2]);
  }
  std::fputs("usage: fuzz_replay TARGET FOLDER\n", stderr);
  return 2;
}
