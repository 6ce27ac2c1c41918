// What is fed with anything: one function a parser. Each returns when the parser took the text or
// refused it with a muster::Error, and aborts or throws when the parser did anything else. Run by
// libFuzzer (libfuzzer_main.cc) and over the corpus by every `make test` (replay_main.cc).
//
// To add one: fuzz_<name>.cc with `fuzz_<name>`, here, in CMakeLists.txt, and corpus/<name>/ with a
// few files.
#pragma once

#include <string>

#include "muster/device/inventory.h"

namespace muster {

void fuzz_activity(const std::string& text);
void fuzz_cifar(const std::string& text);
void fuzz_csv(const std::string& text);
void fuzz_errors(const std::string& text);
void fuzz_etcd(const std::string& text);
void fuzz_fleet(const std::string& text);
void fuzz_gpus(const std::string& text);
void fuzz_hosts(const std::string& text);
void fuzz_hwloc(const std::string& text);
void fuzz_image(const std::string& text);
void fuzz_journal(const std::string& text);
void fuzz_json(const std::string& text);
void fuzz_manifest(const std::string& text);
void fuzz_message_frame(const std::string& text);
void fuzz_messages(const std::string& text);
void fuzz_nccl(const std::string& text);
void fuzz_npy(const std::string& text);
void fuzz_nvidia_smi_xml(const std::string& text);
void fuzz_pickle(const std::string& text);
void fuzz_rank_env(const std::string& text);
void fuzz_records(const std::string& text);
void fuzz_rendezvous(const std::string& text);
void fuzz_safetensors(const std::string& text);
void fuzz_store(const std::string& text);
void fuzz_tar(const std::string& text);
void fuzz_task_order(const std::string& text);
void fuzz_tasks(const std::string& text);
void fuzz_tokens(const std::string& text);
void fuzz_toml(const std::string& text);
void fuzz_topo(const std::string& text);
void fuzz_trace(const std::string& text);
void fuzz_welcome(const std::string& text);

// What holds of every inventory that a reader returns: as JSON and back it is the same.
void check_inventory(const Inventory& inventory);

// Calls `read` and lets muster::Error pass as an answer.
template <class Read>
void answer_or_error(const Read& read);

}  // namespace muster

#include "muster/base/error.h"

template <class Read>
void muster::answer_or_error(const Read& read) {
  try {
    read();
  } catch (const Error&) {
  }
}
