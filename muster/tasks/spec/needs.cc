// Every key of an alternative is read on its own, so that one problem does not hide another.
// Whether the keys go together is checked only when each is good.
#include "muster/tasks/spec/needs.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr size_t kMaxAlternatives = 16;

// Reads the alternatives of one task.
class NeedReader {
 public:
  NeedReader(int ranks, const SpecValues& values) : ranks_(ranks), values_(values) {}

  // Nothing when the table has a problem, which is told then.
  std::optional<TaskNeed> read(const toml::table& table) const {
    bool good = values_.check_keys(table, "needs", {"gpus", "memory", "model", "cpus"});
    TaskNeed need;
    const auto take = [&](const char* key, auto& target, const auto& reader) {
      const toml::node* const value = table.get(key);
      if (value == nullptr)
        return;
      if (const auto read = reader(*value)) {
        target = *read;
      } else {
        good = false;
      }
    };
    // Memory or a model without a number of GPUs means one GPU a rank.
    if (table.contains("memory") || table.contains("model"))
      need.gpus = ranks_;
    take("gpus", need.gpus, [&](const toml::node& value) { return gpus(value); });
    take("memory", need.memory_bytes, [&](const toml::node& value) {
      return values_.size(value, "memory");
    });
    take("model", need.model, [&](const toml::node& value) { return model(value); });
    take("cpus", need.cpus, [&](const toml::node& value) {
      return values_.integer(value, "cpus", 1, kMaxTaskCpus);
    });
    if (!good)
      return std::nullopt;
    return check(table, need) ? std::optional(need) : std::nullopt;
  }

 private:
  // None, a part of one GPU for a task without ranks, or as many whole ones for each rank.
  bool is_number_of_gpus(double number) const {
    if (number == 0)
      return true;
    if (number < 1)
      return ranks_ == 1 && number >= kLeastGpuShare;
    const bool is_whole = std::floor(number) == number;
    return is_whole && number <= kMaxTaskGpus && std::fmod(number, ranks_) == 0;
  }

  // The number of the whole task's GPUs; nothing when it has a problem, which is told then.
  std::optional<double> gpus(const toml::node& value) const {
    const auto number = value.value<double>();
    if (number && value.is_number() && is_number_of_gpus(*number))
      return number;
    if (ranks_ > 1) {
      values_.wrong(value,
                    cat("a multiple of ranks (", ranks_, ") for gpus, which are the whole task's"));
    } else {
      values_.wrong(value,
                    cat("a whole number up to ",
                        kMaxTaskGpus,
                        ", or a part of one GPU (from ",
                        kLeastGpuShare,
                        " to below 1), for gpus"));
    }
    return std::nullopt;
  }

  // An empty model would be any, which is said by leaving it out.
  std::optional<std::string> model(const toml::node& value) const {
    auto text = values_.text(value, "model");
    if (text && trim(*text).empty()) {
      values_.wrong(value, "a piece of a GPU's model (\"A100\") for model");
      text.reset();
    }
    return text;
  }

  // Whether the keys go together.
  bool check(const toml::table& table, const TaskNeed& need) const {
    if (need.gpus > 0)
      return true;
    const toml::node* const gpus = table.get("gpus");
    if (need.memory_bytes > 0 || !need.model.empty()) {
      values_.wrong(*gpus, "a GPU at least beside memory or model");
      return false;
    }
    if (need.cpus > 0)
      return true;
    if (gpus != nullptr) {
      values_.problems().add(
          position_of(gpus->source().begin),
          "expected gpus or cpus in needs, got gpus = 0 alone; say how many CPUs: cpus = 1");
    } else {
      values_.problems().add(position_of(table.source().begin),
                             "expected gpus or cpus in needs, got neither");
    }
    return false;
  }

  const int ranks_;
  const SpecValues& values_;
};

}  // namespace

// One table may stand without a list.
TaskNeeds read_alternatives(const toml::node& value, int ranks, const SpecValues& values) {
  const NeedReader reader(ranks, values);
  TaskNeeds needs;
  const auto add = [&](const toml::node& one) {
    const toml::table* const table = one.as_table();
    if (table == nullptr)
      return values.wrong(one, "a table ({ gpus = 1 }) in needs");
    if (auto need = reader.read(*table))
      needs.push_back(std::move(*need));
  };
  const toml::array* const list = value.as_array();
  if (value.is_table()) {
    add(value);
  } else if (list == nullptr) {
    values.wrong(value, "a table ({ gpus = 1 }) or a list of tables for needs");
  } else if (list->empty() || list->size() > kMaxAlternatives) {
    values.wrong(value, cat("from one to ", kMaxAlternatives, " alternatives in needs"));
  } else {
    for (const toml::node& one : *list)
      add(one);
  }
  return needs;
}

}  // namespace muster
