// The hosts that a user lists, on the command line or in a file.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace muster {

struct HostSpec {
  std::string name{};          // as ssh takes it: a name, an address, user@name
  std::optional<int> nproc{};  // ranks there; nothing: one per device
  bool operator==(const HostSpec&) const = default;
};
using HostSpecs = std::vector<HostSpec>;

// "a:4,b:8,c", "[fe80::1]:4". Throws: invalid_argument naming `flag`.
HostSpecs parse_host_list(const std::string& text, const std::string& flag);

// Each line is a host, as mpirun, MPICH and DeepSpeed have them: "a slots=4", "a:4", "a"; # begins
// a comment. A host that comes again adds its slots. Throws: io; invalid_argument naming file and
// line.
HostSpecs read_hostfile(const std::string& path);
HostSpecs parse_hostfile(const std::string& text, const std::string& path);

}  // namespace muster
