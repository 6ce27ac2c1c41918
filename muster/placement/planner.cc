#include "muster/placement/planner.h"

#include <algorithm>
#include <map>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/policy.h"
#include "muster/placement/selection.h"
#include "muster/placement/usable_gpus.h"

namespace muster {
namespace {

// Notes as they arise host by host; the same note of several hosts is one note that names them.
class Notes {
 public:
  void add(const Host& host, const std::string& text) {
    auto [entry, is_new] = hosts_.try_emplace(text);
    if (is_new) order_.push_back(text);
    entry->second.push_back(host.name);
  }

  std::vector<std::string> finish(size_t num_hosts) const {
    std::vector<std::string> notes;
    for (const std::string& text : order_) notes.push_back(prefix(hosts_.at(text), num_hosts) + text);
    return notes;
  }

 private:
  static std::string prefix(const std::vector<std::string>& names, size_t num_hosts) {
    constexpr size_t kMaxNamed = 4;
    if (num_hosts == 1) return "";
    if (names.size() == 1) return cat("host ", names[0], ": ");
    if (names.size() == num_hosts) return "every host: ";
    if (names.size() <= kMaxNamed) return cat("hosts ", join(names, ", "), ": ");
    return cat("hosts ", names[0], ", ", names[1], " and ", names.size() - 2, " more: ");
  }

  std::map<std::string, std::vector<std::string>> hosts_;
  std::vector<std::string> order_;
};

struct HostGpus {
  UsableGpus usable;
  std::vector<UsableGpu> selected;
};

std::string plural(size_t count, const char* word) {
  return cat(count, " ", word, count == 1 ? "" : "s");
}

// Rewrites a request into what the code below relies on, or refuses it.
Request checked(const Inventory& inventory, Request request) {
  const auto refuse = [](const std::string& message) { throw Error(ErrorCode::invalid_argument, message); };
  if (inventory.hosts.empty())
    refuse(cat("plan: expected at least one host, got none (", inventory.source, ")"));
  if (request.nproc_per_node && *request.nproc_per_node < 1) {
    refuse(cat("--nproc-per-node: expected at least 1 rank, got ", *request.nproc_per_node));
  }
  if (request.policy.empty()) request.policy = request.map.empty() ? "sequential" : "list";
  if (!request.map.empty() && request.policy != "list") {
    refuse(cat("--map: expected policy list, got ", request.policy, "; leave --policy out"));
  }
  find_policy(request.policy);
  if (request.cpu_only && (request.gpu_only || !request.gpus.empty() || request.policy == "list")) {
    refuse(cat("plan: expected either CPU slots or GPUs, got both (",
               request.gpu_only        ? "--nproc-per-node gpu"
               : !request.gpus.empty() ? cat("--gpus ", request.gpus)
                                       : "--map",
               "); leave one out"));
  }
  return request;
}

class Planner {
 public:
  Planner(const Inventory& inventory, const Request& request)
      : inventory_(inventory),
        request_(request),
        policy_(find_policy(request.policy)),
        selection_(parse_selection(request.gpus)) {}

  Plan make() {
    plan_.policy = request_.policy;
    plan_.visibility = request_.visibility;
    plan_.simulated = inventory_.simulated;
    if (!request_.cpu_only) find_gpus();
    const bool on_gpus = std::any_of(hosts_.begin(), hosts_.end(),
                                     [](const HostGpus& host) { return !host.selected.empty(); });
    for (size_t i = 0; i < inventory_.hosts.size(); ++i) {
      on_gpus ? place_on_gpus(i) : place_on_cpu(inventory_.hosts[i]);
    }
    if (sharing_ && plan_.visibility == Visibility::job) plan_.visibility = Visibility::own;
    if (plan_.visibility == Visibility::own || plan_.visibility == Visibility::own_first) {
      for (RankPlan& rank : plan_.ranks) rank.device.ordinal = {};
    }
    plan_.notes = notes_.finish(inventory_.hosts.size());
    return std::move(plan_);
  }

 private:
  bool gpus_asked_for() const {
    return request_.gpu_only || !request_.gpus.empty() || request_.policy == "list";
  }

  // Mask, health and selection of every host; true when any host has a GPU to use.
  bool find_gpus() {
    size_t num_gpus = 0;
    for (const Host& host : inventory_.hosts) {
      HostGpus gpus{.usable = usable_gpus(host, request_.visible_mask), .selected = {}};
      if (!gpus.usable.mask_note.empty()) notes_.add(host, gpus.usable.mask_note);
      for (const std::string& sick : gpus.usable.sick) notes_.add(host, cat("left out ", sick));
      if (!gpus.usable.gpus.empty()) {
        gpus.selected = select_gpus(selection_, host, gpus.usable);
      } else if (gpus_asked_for()) {
        fail_without_gpu(host, gpus);
      }
      num_gpus += gpus.selected.size();
      hosts_.push_back(std::move(gpus));
    }
    // A machine whose GPUs are all broken is to be repaired, not quietly trained on with its CPU.
    for (size_t i = 0; i < hosts_.size() && num_gpus == 0; ++i) {
      if (!hosts_[i].usable.sick.empty()) fail_without_gpu(inventory_.hosts[i], hosts_[i]);
    }
    return num_gpus > 0;
  }

  [[noreturn]] void fail_without_gpu(const Host& host, const HostGpus& gpus) const {
    const std::string asked = request_.gpu_only        ? "--nproc-per-node gpu"
                              : !request_.gpus.empty() ? cat("--gpus ", request_.gpus)
                              : gpus_asked_for()       ? "--map"
                                                       : "plan";
    throw Error(ErrorCode::unavailable,
                cat(asked, ": expected a GPU that can be used, got none: ", describe(host, gpus.usable),
                    "; --nproc-per-node cpu runs on CPU slots"));
  }

  RankPlan& add_rank(const Host& host) {
    const int host_index = static_cast<int>(&host - inventory_.hosts.data());
    const bool first = plan_.ranks.empty() || plan_.ranks.back().host_index != host_index;
    const int local_rank = first ? 0 : plan_.ranks.back().local_rank + 1;
    RankPlan rank;
    rank.rank = static_cast<int>(plan_.ranks.size());
    rank.local_rank = local_rank;
    rank.host_index = host_index;
    rank.host = host.name;
    return plan_.ranks.emplace_back(std::move(rank));
  }

  void place_on_cpu(const Host& host) {
    const int slots = host.cpu_slots;
    if (!request_.nproc_per_node && slots < 1) {
      throw Error(ErrorCode::invalid_argument,
                  cat("plan: expected at least 1 CPU slot on host ", host.name, ", got ", slots));
    }
    const int num_ranks = request_.nproc_per_node.value_or(slots);
    const std::string why = request_.cpu_only ? "CPU asked for" : "no GPU";
    for (int i = 0; i < num_ranks; ++i) {
      RankPlan& rank = add_rank(host);
      rank.device.cpu_slot = i;
      rank.reason = cat(why, ": CPU slot ", i);
    }
    std::string note = why;
    if (!request_.cpu_only) note += cat(" (", no_gpu_reason(host), ")");
    if (request_.nproc_per_node) {
      notes_.add(host, cat(note, ": ", plural(static_cast<size_t>(num_ranks), "rank"), " on CPU slots"));
    } else {
      notes_.add(host, cat(note, ": ", plural(static_cast<size_t>(slots), "CPU slot"),
                           ", one rank each; --cpu-slots N or MUSTER_CPU_SLOTS=N changes how many"));
    }
  }

  std::string no_gpu_reason(const Host& host) const {
    const auto host_at = static_cast<size_t>(&host - inventory_.hosts.data());
    if (!hosts_[host_at].usable.sick.empty()) return "all unhealthy";
    if (!host.gpus.empty()) return "all hidden by CUDA_VISIBLE_DEVICES";
    return host.gpu_note.empty() ? "none found" : host.gpu_note;
  }

  void place_on_gpus(size_t host_at) {
    const Host& host = inventory_.hosts[host_at];
    const std::vector<UsableGpu>& gpus = hosts_[host_at].selected;
    const PolicyInput input{host, gpus, request_};
    const int capacity = gpus.empty() ? 0 : policy_.capacity(input);
    if (capacity == 0 && !request_.nproc_per_node) {
      notes_.add(host, cat("no GPU (", no_gpu_reason(host), "): no rank there, since other hosts have GPUs"));
      return;
    }
    const int asked = request_.nproc_per_node.value_or(capacity);
    const int on_gpus = asked > capacity ? surplus(host, asked, capacity) : asked;
    if (on_gpus > 0) place_by_policy(input, on_gpus);
    if (asked > on_gpus && request_.surplus == Surplus::cpu)
      place_rest_on_cpu(host, asked - on_gpus, capacity);
  }

  // How many of the `asked` ranks go on GPUs when there are only `capacity`.
  int surplus(const Host& host, int asked, int capacity) {
    const std::string numbers = cat(plural(static_cast<size_t>(asked), "rank"), " asked for, ",
                                    plural(static_cast<size_t>(capacity), "GPU"));
    if (request_.surplus == Surplus::cpu) {
      notes_.add(host, cat(numbers, ": the other ", asked - capacity, " on CPU slots (--surplus cpu)"));
      return capacity;
    }
    if (request_.surplus == Surplus::drop) {
      notes_.add(host, cat(numbers, ": ", asked - capacity, " left out (--surplus drop)"));
      return capacity;
    }
    if (request_.surplus == Surplus::share && capacity > 0) return asked;
    throw Error(ErrorCode::invalid_argument,
                cat("--nproc-per-node: expected at most ", capacity, " ranks on host ", host.name, " (",
                    plural(static_cast<size_t>(capacity), "GPU"), "), got ", asked, "; give ",
                    capacity > 0 ? cat("--nproc-per-node ", capacity, " or less, ") : "",
                    "or say what the others get: --surplus cpu, drop or share"));
  }

  void place_by_policy(const PolicyInput& input, int num_ranks) {
    const std::vector<PolicyChoice> choices = policy_.choose(input, num_ranks);
    std::map<size_t, std::vector<int>> ranks_of;  // position of a GPU → local ranks on it
    for (size_t i = 0; i < choices.size(); ++i)
      ranks_of[choices[i].gpu.position].push_back(static_cast<int>(i));
    const bool shared = ranks_of.size() < choices.size();
    if (shared) note_sharing(input.host, ranks_of, choices.size());
    for (const PolicyChoice& choice : choices) {
      const Gpu& gpu = input.host.gpus[choice.gpu.position];
      RankPlan& rank = add_rank(input.host);
      rank.device.kind = DeviceAssignment::Kind::cuda;
      rank.device.uuid = gpu.uuid;
      rank.device.index = gpu.index;
      rank.device.model = gpu.model;
      const bool untouched = request_.visibility == Visibility::all;
      rank.device.ordinal = untouched ? choice.gpu.ordinal : CudaOrdinal{rank.local_rank};
      rank.reason = choice.reason;
      const size_t sharers = ranks_of[choice.gpu.position].size();
      if (sharers > 1) rank.reason += cat("; shared by ", sharers, " ranks");
    }
  }

  void note_sharing(const Host& host, const std::map<size_t, std::vector<int>>& ranks_of, size_t num_ranks) {
    if (request_.surplus != Surplus::share) {
      const auto twice = std::find_if(ranks_of.begin(), ranks_of.end(),
                                      [](const auto& entry) { return entry.second.size() > 1; });
      throw Error(ErrorCode::invalid_argument,
                  cat("--policy ", policy_.name, ": expected a GPU of its own for each rank, got GPU ",
                      host.gpus[twice->first].index.value, " for local ranks ", join(twice->second, " and "),
                      " of host ", host.name, "; --surplus share allows it"));
    }
    sharing_ = true;
    notes_.add(host, cat(num_ranks, " ranks share ", plural(ranks_of.size(), "GPU"), " (--surplus share)",
                         request_.visibility == Visibility::job ? ", each sees its own GPU alone" : ""));
  }

  void place_rest_on_cpu(const Host& host, int count, int num_gpus) {
    for (int i = 0; i < count; ++i) {
      RankPlan& rank = add_rank(host);
      rank.device.cpu_slot = i;
      rank.reason = cat("surplus: ", plural(static_cast<size_t>(num_gpus), "GPU"), " taken; CPU slot ", i);
    }
  }

  const Inventory& inventory_;
  const Request& request_;
  const Policy& policy_;
  const Selection selection_;
  std::vector<HostGpus> hosts_;
  Notes notes_;
  Plan plan_;
  bool sharing_ = false;
};

}  // namespace

Plan make_plan(const Inventory& inventory, const Request& request) {
  const Request valid = checked(inventory, request);
  return Planner(inventory, valid).make();
}

}  // namespace muster
