// Each line is of one of the two forms. Slurm's lines name what is below a switch, and come in any
// order. So its paths are made when all lines are known, from each host upwards.
#include "muster/cluster/switch_file.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/cluster/slurm_nodes.h"

namespace muster {

namespace {

// A longer path is a ring, or no network that anybody has.
constexpr size_t kMaxSwitches = 32;

class SwitchFile {
 public:
  SwitchFile(const std::string& text, const std::string& path) : path_(path) {
    for (const auto& line : split(without_byte_order_mark(text), '\n')) {
      ++line_;
      std::string without_comment(trim(std::string_view(line).substr(0, line.find('#'))));
      std::ranges::replace(without_comment, '\t', ' ');
      if (!without_comment.empty())
        add(without_comment);
    }
  }

  SwitchPaths paths() {
    for (const auto& [host, above] : above_host_) {
      line_ = lines_.at(above);
      if (!paths_.emplace(host, path_to(above)).second)
        fail("each host once", host);
    }
    if (paths_.empty())
      fail("hosts, as in 'a1 spine/leaf1' or Slurm's 'SwitchName=leaf1 Nodes=a[1-4]'", "none");
    return std::move(paths_);
  }

 private:
  [[noreturn]] void fail(const std::string& expected, std::string_view got) const {
    const std::string quoted = got == "none" ? "none" : in_quotes(printable(got.substr(0, 200)));
    throw invalid_argument(
        "--topology ", path_, ":", line_, ": expected ", expected, ", got ", quoted);
  }

  void add(const std::string& line) {
    const StringViews words = words_of(line);
    if (contains(words.front(), '='))
      return add_slurm(words, line);
    if (words.size() != 2)
      fail("a host and its switches, as in 'a1 spine/leaf1'", line);
    Strings switches = split(words[1], '/');
    if (any_of(switches, &std::string::empty) || switches.size() > kMaxSwitches)
      fail("switches from the root to the nearest, as in spine/leaf1", words[1]);
    if (!paths_.emplace(words[0], std::move(switches)).second)
      fail("each host once", words[0]);
  }

  // Other keys (LinkSpeed, BlockSizes) do not tell what is below a switch.
  void add_slurm(const StringViews& words, const std::string& line) {
    auto values = slurm_values(words, line);
    const std::string& name = values[values.contains("blockname") ? "blockname" : "switchname"];
    const std::string& nodes = values["nodes"];
    const std::string& switches = values["switches"];
    if (name.empty() && values.contains("blocksizes"))
      return;
    if (name.empty() || (nodes.empty() && switches.empty()))
      fail("a switch and what is below it, as in SwitchName=leaf1 Nodes=a[1-4]", line);
    lines_[name] = line_;
    put_below(name, nodes, above_host_);
    put_below(name, switches, above_switch_);
  }

  // The line's values, by their keys in lower case.
  std::map<std::string, std::string> slurm_values(const StringViews& words,
                                                  const std::string& line) const {
    std::map<std::string, std::string> values;
    for (const std::string_view word : words) {
      const size_t equals = word.find('=');
      if (equals == npos || equals + 1 == word.size())
        fail("KEY=VALUE, as in SwitchName=leaf1 Nodes=a[1-4]", line);
      values[lower_case(std::string(word.substr(0, equals)))] = word.substr(equals + 1);
    }
    return values;
  }

  // Notes that the names of `list`, in Slurm's form a[1-4],b, are below the switch.
  void put_below(const std::string& name,
                 const std::string& list,
                 std::map<std::string, std::string>& above) const {
    if (list.empty())
      return;
    for (const auto& below : nodes_of(list))
      if (!above.emplace(below, name).second)
        fail("each host and switch below one switch", below);
  }

  Strings nodes_of(const std::string& list) const {
    try {
      return parse_slurm_nodes(list);
    } catch (const Error&) {
      fail("names as in a[1-3,5],b", list);
    }
  }

  // The switches from the root to this one.
  Strings path_to(const std::string& name) const {
    Strings path{name};
    for (auto above = above_switch_.find(name); above != above_switch_.end();
         above = above_switch_.find(above->second)) {
      path.insert(path.begin(), above->second);
      if (path.size() > kMaxSwitches)
        fail("switches that are not below themselves", name);
    }
    return path;
  }

  const std::string& path_;
  int line_ = 0;
  SwitchPaths paths_;
  std::map<std::string, std::string> above_host_;  // the switch that is next to it
  std::map<std::string, std::string> above_switch_;
  std::map<std::string, int> lines_;  // by switch
};

}  // namespace

SwitchPaths parse_switch_file(const std::string& text, const std::string& path) {
  return SwitchFile(text, path).paths();
}

SwitchPaths read_switch_file(const std::string& path) {
  return parse_switch_file(read_small_file(path), path);
}

}  // namespace muster
