#include "muster/cluster/slurm_nodes.h"

#include <algorithm>

#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr const char* kNodeList = "SLURM_JOB_NODELIST";
constexpr const char* kNodeCpus = "SLURM_JOB_CPUS_PER_NODE";
constexpr size_t kMostNodes = 100'000;
constexpr size_t kMostDigits = 9;

[[noreturn]] void refuse_nodes(const char* variable,
                               const std::string& expected,
                               const std::string& text) {
  throw Error(ErrorCode::invalid_argument,
              cat("Slurm: expected ",
                  expected,
                  " in ",
                  variable,
                  ", got '",
                  printable(text.substr(0, 200)),
                  "'; give the hosts with --hosts"));
}

[[noreturn]] void refuse_node_list(const std::string& text) {
  refuse_nodes(kNodeList, "nodes as in a[1-3,5],b", text);
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() <= kMostDigits &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "1-3" or "07", with as many digits as the first has.
std::vector<std::string> numbers_of_range(const std::string& range, const std::string& whole) {
  const std::vector<std::string> ends = split(range, '-');
  if (ends.size() > 2 || !is_number(ends.front()) || !is_number(ends.back()))
    refuse_node_list(whole);
  const int64_t last = *parse_int(ends.back());
  std::vector<std::string> numbers;
  for (int64_t number = *parse_int(ends.front()); number <= last; ++number) {
    if (numbers.size() == kMostNodes)
      refuse_node_list(whole);
    std::string text = cat(number);
    if (text.size() < ends.front().size())
      text.insert(0, ends.front().size() - text.size(), '0');
    numbers.push_back(text);
  }
  if (numbers.empty())
    refuse_node_list(whole);
  return numbers;
}

// One piece between commas that stand in no brackets: "a[1-2]r[3,4]" is a product.
std::vector<std::string> expand_piece(const std::string& piece, const std::string& whole) {
  std::vector<std::string> names = {""};
  for (size_t from = 0; from < piece.size();) {
    const bool bracket = piece[from] == '[';
    const size_t to =
        bracket ? piece.find(']', from) : std::min(piece.find('[', from), piece.size());
    if (to == std::string::npos)
      refuse_node_list(whole);
    std::vector<std::string> parts;
    if (bracket) {
      for (const std::string& range : split(piece.substr(from + 1, to - from - 1), ',')) {
        const auto numbers = numbers_of_range(range, whole);
        parts.insert(parts.end(), numbers.begin(), numbers.end());
      }
    } else {
      parts = {piece.substr(from, to - from)};
    }
    if (names.size() * parts.size() > kMostNodes)
      refuse_node_list(whole);
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& part : parts)
        longer.push_back(name + part);
    }
    names = std::move(longer);
    from = bracket ? to + 1 : to;
  }
  return names;
}

// It becomes an argument of srun: what looks like an option must not.
void check_node_name(const std::string& name, const std::string& whole) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
  if (name.empty() || name[0] == '-' || !plain)
    refuse_node_list(whole);
}

}  // namespace

std::vector<std::string> parse_slurm_nodes(const std::string& text) {
  std::vector<std::string> names;
  int depth = 0;
  std::string piece;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && (text[i] != ',' || depth > 0)) {
      depth += text[i] == '[' ? 1 : text[i] == ']' ? -1 : 0;
      piece += text[i];
      continue;
    }
    for (std::string& name : expand_piece(piece, text)) {
      check_node_name(name, text);
      names.push_back(std::move(name));
    }
    piece.clear();
    if (names.size() > kMostNodes)
      refuse_node_list(text);
  }
  return names;
}

std::vector<int> parse_slurm_counts(const std::string& text) {
  std::vector<int> counts;
  for (const std::string& piece : split(text, ',')) {
    const size_t open = piece.find("(x");
    const std::string count = piece.substr(0, open);
    std::string times = "1";
    if (open != std::string::npos && piece.ends_with(')'))
      times = piece.substr(open + 2, piece.size() - open - 3);
    const bool whole = open == std::string::npos || piece.ends_with(')');
    if (!whole || !is_number(count) || !is_number(times) ||
        counts.size() + static_cast<size_t>(*parse_int(times)) > kMostNodes)
      refuse_nodes(kNodeCpus, "counts as in 2(x3),1", text);
    counts.insert(
        counts.end(), static_cast<size_t>(*parse_int(times)), static_cast<int>(*parse_int(count)));
  }
  return counts;
}

std::optional<std::vector<SlurmNode>> slurm_nodes_of_environment() {
  const auto list = get_env(kNodeList);
  if (!get_env("SLURM_JOB_ID") || !list || inside_srun_step())
    return std::nullopt;
  std::vector<SlurmNode> nodes;
  for (std::string& name : parse_slurm_nodes(*list))
    nodes.push_back({.name = std::move(name)});
  const auto counts =
      get_env(kNodeCpus) ? parse_slurm_counts(*get_env(kNodeCpus)) : std::vector<int>();
  const std::string here = get_env("SLURMD_NODENAME").value_or("");
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i < counts.size())
      nodes[i].cpus = counts[i];
    nodes[i].here = nodes[i].name == here;
  }
  return nodes;
}

std::vector<std::string> srun_command(const std::string& node,
                                      const std::vector<std::string>& program) {
  // All of the node that the allocation has; what the batch script asked of its own steps is not
  // meant.
  std::vector<std::string> argv = {"srun",
                                   "--overlap",
                                   "--nodes=1",
                                   "--ntasks=1",
                                   "--ntasks-per-node=1",
                                   "--nodelist=" + node,
                                   "--cpu-bind=none",
                                   "--mpi=none",
                                   "--export=ALL"};
  argv.insert(argv.end(), program.begin(), program.end());
  return argv;
}

Environment srun_environment() {
  Environment environment = own_environment();
  for (const char* const name : {"SLURM_LABELIO",
                                 "SLURM_STDINMODE",
                                 "SLURM_STDOUTMODE",
                                 "SLURM_STDERRMODE",
                                 "SLURM_GPUS_PER_TASK",
                                 "SLURM_CPUS_PER_TASK"})
    environment.erase(name);
  return environment;
}

}  // namespace muster
