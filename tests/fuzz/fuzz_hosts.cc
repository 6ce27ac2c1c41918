#include <cstdlib>

#include "muster/cluster/hostfile.h"
#include "muster/cluster/slurm_nodes.h"
#include "muster/cluster/switch_file.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

namespace {

// A host's name goes to ssh, and so begins with no dash.
void check_hosts(const std::vector<HostSpec>& hosts) {
  for (const HostSpec& host : hosts) {
    if (host.name.empty() || host.name[0] == '-' || host.nproc.value_or(1) < 0)
      std::abort();
  }
}

}  // namespace

// Hosts as users and Slurm list them, and the switches that they hang on.
void fuzz_hosts(const std::string& text) {
  answer_or_error([&] { check_hosts(parse_host_list(text, "--hosts")); });
  answer_or_error([&] { check_hosts(parse_hostfile(text, "fuzz")); });
  answer_or_error([&] { parse_slurm_nodes(text); });
  answer_or_error([&] { parse_slurm_counts(text); });
  answer_or_error([&] { parse_switch_file(text, "fuzz"); });
}

}  // namespace muster
