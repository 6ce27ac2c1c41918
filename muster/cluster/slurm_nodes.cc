// Slurm writes the nodes of an allocation as "a[1-3,5],b", and numbers of each node as "2(x3),1".
// Both come from the environment, so what is too long or malformed is refused.
#include "muster/cluster/slurm_nodes.h"

#include <cctype>
#include <cstdint>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/env_count.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"
#include "muster/base/zero_padded.h"

namespace muster {

namespace {

constexpr auto kNodeList = "SLURM_JOB_NODELIST";
constexpr auto kNodeCpus = "SLURM_JOB_CPUS_PER_NODE";
constexpr size_t kMaxNodes = 100'000;
constexpr size_t kMaxDigits = 9;  // of a number that an int holds

[[noreturn]] void refuse(const char* variable,
                         const std::string& expected,
                         const std::string& text) {
  throw invalid_argument("Slurm: expected ",
                         expected,
                         " in ",
                         variable,
                         ", got '",
                         printable(text.substr(0, 200)),
                         "'; give the hosts with --hosts");
}

[[noreturn]] void refuse_node_list(const std::string& text) {
  refuse(kNodeList, "nodes as in a[1-3,5],b", text);
}

void check_number_of_nodes(size_t number, const std::string& whole) {
  if (number > kMaxNodes)
    refuse_node_list(whole);
}

// Whether it has digits only, and few enough for an int.
bool is_number(const std::string& text) {
  return !text.empty() && text.size() <= kMaxDigits && text.find_first_not_of("0123456789") == npos;
}

// The numbers of "1-3" or "07", each with as many digits as the first has.
Strings numbers_of_range(const std::string& range, const std::string& whole) {
  const Strings ends = split(range, '-');
  if (ends.size() > 2 || !is_number(ends.front()) || !is_number(ends.back()))
    refuse_node_list(whole);
  const int64_t first = *parse_int(ends.front());
  const int64_t last = *parse_int(ends.back());
  if (last < first)
    refuse_node_list(whole);
  check_number_of_nodes(last - first + 1, whole);
  return mapped_indices(last - first + 1, [&](int64_t place) {
    return zero_padded(cat(first + place), ends.front().size());
  });
}

// The numbers of "1-3,5".
Strings numbers_of_ranges(const std::string& ranges, const std::string& whole) {
  Strings all;
  for (const auto& range : split(ranges, ',')) {
    append_all(all, numbers_of_range(range, whole));
    check_number_of_nodes(all.size(), whole);
  }
  return all;
}

// Takes off `rest` the part with which it begins: a text, or brackets. Returns what that stands
// for.
Strings take_parts(std::string& rest, const std::string& whole) {
  if (!rest.starts_with('[')) {
    const auto text = rest.substr(0, rest.find('['));
    rest.erase(0, text.size());
    return {text};
  }
  const size_t close = rest.find(']');
  if (close == npos)
    refuse_node_list(whole);
  const auto ranges = rest.substr(1, close - 1);
  rest.erase(0, close + 1);
  return numbers_of_ranges(ranges, whole);
}

// The names that a piece stands for: "a[1-2]r[3,4]" is a1r3, a1r4, a2r3 and a2r4.
Strings expand_piece(std::string piece, const std::string& whole) {
  Strings names = {""};
  while (!piece.empty()) {
    const Strings parts = take_parts(piece, whole);
    check_number_of_nodes(names.size() * parts.size(), whole);
    Strings longer;
    for (const auto& name : names) {
      for (const auto& part : parts)
        longer.push_back(name + part);
    }
    names = std::move(longer);
  }
  return names;
}

// Splits the text at the commas that stand in no brackets.
Strings pieces_of(const std::string& text) {
  Strings pieces = {""};
  int depth = 0;
  for (const char c : text) {
    depth += (c == '[') - (c == ']');
    if (c == ',' && depth <= 0) {
      pieces.emplace_back();
    } else {
      pieces.back() += c;
    }
  }
  return pieces;
}

// A name becomes an argument of srun, so it must not look like an option.
void check_node_name(const std::string& name, const std::string& whole) {
  const bool plain = all_of(name, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || is_one_of(c, '.', '-', '_');
  });
  if (name.empty() || name[0] == '-' || !plain)
    refuse_node_list(whole);
}

}  // namespace

// Pieces may stand for many names each, so the number is checked after each piece.
Strings parse_slurm_nodes(const std::string& text) {
  Strings names;
  for (const auto& piece : pieces_of(text)) {
    for (std::string& name : expand_piece(piece, text)) {
      check_node_name(name, text);
      names.push_back(std::move(name));
    }
    check_number_of_nodes(names.size(), text);
  }
  return names;
}

Ints parse_slurm_counts(const std::string& text) {
  if (auto counts = slurm_counts(text))
    return *std::move(counts);
  refuse(kNodeCpus, "counts as in 2(x3),1", text);
}

namespace {

// Adds the nodes of an allocation, or of one component, whose variables end in `suffix`.
void add_nodes_of(const std::string& suffix, int het_group, std::vector<SlurmNode>& nodes) {
  const auto here = get_env("SLURMD_NODENAME").value_or("");
  const auto told = get_env((kNodeCpus + suffix).c_str());
  const auto counts = told ? parse_slurm_counts(*told) : Ints();
  const auto names = parse_slurm_nodes(get_env((kNodeList + suffix).c_str()).value_or(""));
  for (const size_t i : indices_of(names)) {
    if (contains(nodes, names[i], &SlurmNode::name)) {
      log_warning(
          "Slurm: node ",
          names[i],
          " belongs to several components of this heterogeneous job; only what the first has "
          "there is used");
      continue;
    }
    nodes.push_back({.name = names[i],
                     .cpus = i < counts.size() ? counts[i] : 0,
                     .here = names[i] == here,
                     .het_group = het_group});
  }
}

}  // namespace

// The nodes of a batch script or an interactive shell; a step of srun has its place already.
std::optional<std::vector<SlurmNode>> slurm_nodes_of_environment() {
  if (!get_env("SLURM_JOB_ID") || !get_env(kNodeList) || inside_srun_step())
    return std::nullopt;
  std::vector<SlurmNode> nodes;
  const int components = get_env_count("SLURM_HET_SIZE").value_or(0);
  if (std::cmp_greater(components, kMaxNodes))
    refuse("SLURM_HET_SIZE", "a number of components", cat(components));
  for (int group = 0; group < components; ++group)
    add_nodes_of(cat("_HET_GROUP_", group), group, nodes);
  if (components < 1)
    add_nodes_of("", -1, nodes);
  return nodes;
}

// The step gets all of the node that the allocation has, whatever the batch script asked of its own
// steps.
Strings srun_command(const SlurmNode& node, const Strings& program) {
  Strings argv = {"srun",
                  "--overlap",
                  "--nodes=1",
                  "--ntasks=1",
                  "--ntasks-per-node=1",
                  "--nodelist=" + node.name,
                  "--cpu-bind=none",
                  "--mpi=none",
                  "--export=ALL"};
  if (node.het_group >= 0)
    argv.push_back(cat("--het-group=", node.het_group));
  append_all(argv, program);
  return argv;
}

// Variables that a batch script sets for its own steps would change how the agents start and speak.
Environment srun_environment() {
  Environment environment = own_environment();
  for (const char* const name : {"SLURM_LABELIO",
                                 "SLURM_STDINMODE",
                                 "SLURM_STDOUTMODE",
                                 "SLURM_STDERRMODE",
                                 "SLURM_GPUS_PER_TASK",
                                 "SLURM_TRES_PER_TASK",
                                 "SLURM_GPU_BIND",
                                 "SLURM_CPUS_PER_TASK"})
    environment.erase(name);
  return environment;
}

}  // namespace muster
