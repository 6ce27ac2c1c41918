#include "muster/placement/planner.h"

#include <algorithm>
#include <map>
#include <span>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/placement/batch_shares.h"
#include "muster/placement/checked_request.h"
#include "muster/placement/cpu_binding.h"
#include "muster/placement/plan_mesh.h"
#include "muster/placement/plan_notes.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/policy/rank_memory.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/placement/selection/scores.h"
#include "muster/placement/selection/selection.h"
#include "muster/placement/selection/usable_gpus.h"

namespace muster {
namespace {

struct HostGpus {
  UsableGpus usable = {};
  std::vector<UsableGpu> selected = {};
  bool named = true;  // --gpus means this host, by its name or because it names none
};

// A device of PolicyInput::host: a GPU, or one of its instances.
using DeviceKey = std::pair<size_t, int>;

DeviceKey key_of(const UsableGpu& gpu) {
  return {gpu.position, gpu.mig};
}

// Which local ranks are on each device.
using Sharers = std::map<DeviceKey, std::vector<int>>;

Sharers sharers_of(const std::vector<PolicyChoice>& choices) {
  Sharers sharers;
  for (size_t i = 0; i < choices.size(); ++i) {
    sharers[key_of(choices[i].gpu)].push_back(static_cast<int>(i));
  }
  return sharers;
}

class Planner {
 public:
  Planner(const Inventory& inventory, const Request& request)
      : inventory_(inventory),
        request_(request),
        hosts_(hosts_of_job(inventory, request)),
        policy_(find_policy(request.policy)) {}

  Plan make() {
    plan_.policy = request_.policy;
    plan_.visibility = request_.visibility;
    plan_.simulated = inventory_.simulated;
    const bool on_gpus = !request_.cpu_only && find_gpus();
    for (size_t i = 0; i < hosts_.size(); ++i) {
      const size_t first = plan_.ranks.size();
      on_gpus ? place_on_gpus(i) : place_on_cpu(i);
      for (const std::string& note : hosts_[i].host->notes)
        notes_.add(*hosts_[i].host, note);
      bind_to_cpus(*hosts_[i].host, request_.numa_binding, std::span(plan_.ranks).subspan(first));
    }
    check_any_rank();
    set_visibility();
    divide_batch();
    if (!request_.mesh.empty())
      set_mesh(plan_, request_.mesh, notes_);
    plan_.notes = notes_.finish(hosts_.size());
    plan_.warnings = notes_.warnings(hosts_.size());
    return std::move(plan_);
  }

 private:
  // Mask, health and selection of every host; true when any host has a GPU to use.
  bool find_gpus() {
    std::vector<const Host*> hosts;
    for (const JobHost& host : hosts_)
      hosts.push_back(host.host);
    check_selection_hosts(request_.gpus, hosts);
    bool any_sick = false;
    bool any_usable = false;
    bool any_selected = false;
    for (const JobHost& host : hosts_) {
      const HostGpus& gpus = gpus_.emplace_back(gpus_of(*host.host, host.masks));
      any_sick |= !gpus.usable.sick.empty();
      any_usable |= gpus.named && !gpus.usable.gpus.empty();
      any_selected |= !gpus.selected.empty();
    }
    if (any_usable && !any_selected)
      fail_with_nothing_left();
    // A machine whose GPUs are all broken is to be repaired, not quietly trained on with its CPU.
    for (size_t i = 0; i < gpus_.size() && !any_selected && any_sick; ++i) {
      if (!gpus_[i].usable.sick.empty())
        fail_without_gpu(*hosts[i], gpus_[i]);
    }
    return any_selected;
  }

  HostGpus gpus_of(const Host& host, const VisibilityMasks& masks) {
    HostGpus gpus{.usable = usable_gpus(host, masks)};
    gpus.named = part_for(request_.gpus, host) != nullptr;
    if (!gpus.named)
      return gpus;
    if (gpus.usable.mask_is_wrong) {
      notes_.warn(host, gpus.usable.mask_note);
    } else if (!gpus.usable.mask_note.empty()) {
      notes_.add(host, gpus.usable.mask_note);
    }
    for (const std::string& sick : gpus.usable.sick)
      notes_.warn(host, cat("left out ", sick));
    if (!gpus.usable.gpus.empty()) {
      gpus.selected = select_gpus(request_.gpus, host, gpus.usable, request_.scores);
    } else if (!flag_that_needs_gpus(request_).empty()) {
      fail_without_gpu(host, gpus);
    }
    return gpus;
  }

  [[noreturn]] void fail_without_gpu(const Host& host, const HostGpus& gpus) const {
    const std::string flag = flag_that_needs_gpus(request_);
    throw Error(ErrorCode::unavailable,
                cat(flag.empty() ? "plan" : flag,
                    ": expected a GPU that can be used, got none: ",
                    describe(host, gpus.usable),
                    "; --nproc-per-node cpu runs on CPU slots"));
  }

  [[noreturn]] void fail_with_nothing_left() const {
    std::string there;
    for (size_t i = 0; i < gpus_.size() && there.empty(); ++i) {
      if (gpus_[i].named)
        there = describe(*hosts_[i].host, gpus_[i].usable);
    }
    throw Error(ErrorCode::unavailable,
                printable(cat("--gpus ",
                              request_.gpus.text,
                              ": expected at least one GPU, got none that fits: ",
                              there,
                              unknown_memory(),
                              "; `muster devices` shows them all")));
  }

  // For a selection by memory: GPUs that it cannot judge.
  std::string unknown_memory() const {
    using Kind = SelectionItem::Kind;
    if (!request_.gpus.has({Kind::memory, Kind::free_memory}))
      return "";
    std::vector<std::string> labels;
    for (size_t i = 0; i < gpus_.size(); ++i) {
      for (const UsableGpu& device : gpus_[i].usable.gpus) {
        if (!knows_memory(*hosts_[i].host, device))
          labels.push_back(label_of(*hosts_[i].host, device));
      }
    }
    constexpr size_t kMaxNamed = 8;
    return labels.empty()
               ? ""
               : cat("; memory not known of ", join_first(std::move(labels), ", ", kMaxNamed));
  }

  RankPlan& add_rank(size_t host_at) {
    const int host_index = static_cast<int>(host_at);
    const bool first = plan_.ranks.empty() || plan_.ranks.back().host_index != host_index;
    const int local_rank = first ? 0 : plan_.ranks.back().local_rank + 1;
    RankPlan rank;
    rank.rank = static_cast<int>(plan_.ranks.size());
    rank.local_rank = local_rank;
    rank.host_index = host_index;
    rank.host = hosts_[host_at].host->name;
    return plan_.ranks.emplace_back(std::move(rank));
  }

  void add_cpu_rank(size_t host_at, int slot, std::string reason) {
    RankPlan& rank = add_rank(host_at);
    rank.device.cpu_slot = slot;
    rank.reason = std::move(reason);
    if (!weighs())
      return;
    const auto score = cpu_score(request_.scores, *hosts_[host_at].host);
    if (!score) {
      throw Error(
          ErrorCode::invalid_argument,
          cat("--global-batch: expected a score for each rank's device, got none for CPU slot ",
              slot,
              " of host ",
              rank.host,
              " (rank ",
              rank.rank,
              "); add 'cpu' to the scores"));
    }
    weights_.push_back(*score);
  }

  // Batch shares follow scores.
  bool weighs() const { return request_.global_batch > 0 && !request_.scores.empty(); }

  void place_on_cpu(size_t host_at) {
    const auto& [host, nproc, masks] = hosts_[host_at];
    const int slots = host->cpu_slots;
    if (!nproc && slots < 1) {
      throw Error(ErrorCode::invalid_argument,
                  cat("plan: expected at least 1 CPU slot on host ", host->name, ", got ", slots));
    }
    const int num_ranks = nproc.value_or(slots);
    const std::string why = request_.cpu_only ? "CPU asked for" : "no GPU";
    for (int i = 0; i < num_ranks; ++i)
      add_cpu_rank(host_at, i, cat(why, ": CPU slot ", i));
    std::string note = why;
    if (!request_.cpu_only)
      note += cat(" (", no_gpu_reason(host_at), ")");
    note += nproc ? cat(": ", plural(num_ranks, "rank"), " on CPU slots")
                  : cat(": ",
                        plural(slots, "CPU slot"),
                        ", one rank each; --cpu-slots N or MUSTER_CPU_SLOTS=N changes how many");
    if (!request_.cpu_only && expects_gpus(host_at)) {
      notes_.warn(*host, note);
    } else {
      notes_.add(*host, note);
    }
  }

  // Whether a job that says nothing of devices would be thought to run on GPUs there.
  bool expects_gpus(size_t host_at) const {
    return hosts_[host_at].host->gpus_expected || gpus_[host_at].usable.mask_is_wrong;
  }

  std::string no_gpu_reason(size_t host_at) const {
    const Host& host = *hosts_[host_at].host;
    const UsableGpus& usable = gpus_[host_at].usable;
    if (!usable.gpus.empty())
      return cat("none fits --gpus ", printable(request_.gpus.text));
    if (!usable.sick.empty())
      return "all unhealthy";
    if (!host.gpus.empty())
      return host.gpus[0].vendor == Vendor::amd ? "all hidden by ROCm's variables"
                                                : "all hidden by CUDA_VISIBLE_DEVICES";
    return host.gpu_note.empty() ? "none found" : host.gpu_note;
  }

  void place_on_gpus(size_t host_at) {
    const auto& [host, nproc, masks] = hosts_[host_at];
    const std::vector<UsableGpu>& gpus = gpus_[host_at].selected;
    if (!gpus_[host_at].named) {
      notes_.add(*host, "no rank there, since --gpus does not name it");
      return;
    }
    const PolicyInput input{*host, gpus, request_};
    const int capacity = gpus.empty() ? 0 : policy_.capacity(input) / request_.gpus_per_rank;
    if (capacity == 0 && !nproc) {
      notes_.warn(*host,
                  gpus.empty() ? cat("no GPU (",
                                     no_gpu_reason(host_at),
                                     "): no rank there, since other hosts have GPUs")
                               : cat("no rank there: ", why_none(input)));
      return;
    }
    const int asked = nproc.value_or(capacity);
    if (asked < capacity || !nproc)
      note_left_over(input, asked);
    const int on_gpus = asked > capacity ? surplus(input, asked, capacity) : asked;
    if (on_gpus > 0)
      place_by_policy(host_at, input, on_gpus);
    if (asked > on_gpus && request_.surplus == Surplus::cpu) {
      place_rest_on_cpu(host_at, asked - on_gpus, capacity);
    }
  }

  // Why `asked` ranks are too many where there are GPUs for all of them, in words to put after
  // others.
  std::string why_too_many(const PolicyInput& input, int asked) const {
    if (policy_.why_too_many == nullptr || input.gpus.empty())
      return "";
    return asked > std::ssize(input.gpus) ? "" : cat(": ", policy_.why_too_many(input, asked));
  }

  // GPUs that are named one by one are meant to be used; other selections are there to choose from.
  void note_left_over(const PolicyInput& input, int num_ranks) {
    const SelectionPart* const part = part_for(request_.gpus, input.host);
    if (policy_.name != std::string_view("sequential") || part == nullptr || !names_each(*part))
      return;
    const int each = request_.gpus_per_rank;
    std::vector<std::string> left;
    for (size_t i = static_cast<size_t>(num_ranks) * each; i < input.gpus.size(); ++i)
      left.push_back(label_of(input.host, input.gpus[i]));
    if (left.empty())
      return;
    notes_.warn(input.host,
                cat(join(left, ", "),
                    " of --gpus ",
                    printable(request_.gpus.text),
                    left.size() == 1 ? " is" : " are",
                    " not used: ",
                    plural(num_ranks, "rank"),
                    num_ranks == 1 ? "" : ", each",
                    " with ",
                    plural(each, "GPU"),
                    each == 1 ? "; --gpus-per-rank N gives each more" : ""));
  }

  std::string why_none(const PolicyInput& input) const {
    if (policy_.why_too_many != nullptr)
      return policy_.why_too_many(input, 1);
    return cat(
        plural(input.gpus.size(), "GPU"), ", fewer than --gpus-per-rank ", request_.gpus_per_rank);
  }

  // How many of the `asked` ranks go on GPUs when there are only `capacity`.
  int surplus(const PolicyInput& input, int asked, int capacity) {
    const std::string why = why_too_many(input, asked);
    const std::string there =
        request_.gpus_per_rank == 1
            ? cat(plural(capacity, "GPU"), why.empty() ? "" : " large enough")
            : cat(plural(input.gpus.size(), "GPU"), " for ranks of ", request_.gpus_per_rank);
    const std::string numbers = cat(plural(asked, "rank"), " asked for, ", there);
    if (request_.surplus == Surplus::cpu) {
      notes_.add(input.host,
                 cat(numbers, ": the other ", asked - capacity, " on CPU slots (--surplus cpu)"));
      if (request_.numa_binding != NumaBinding::none) {
        notes_.warn("ranks on CPU slots are bound to no CPUs (--numa-binding goes by the GPU)");
      }
      return capacity;
    }
    if (request_.surplus == Surplus::drop) {
      notes_.add(input.host, cat(numbers, ": ", asked - capacity, " left out (--surplus drop)"));
      return capacity;
    }
    if (request_.surplus == Surplus::share && !input.gpus.empty())
      return asked;
    throw Error(ErrorCode::invalid_argument,
                cat("--nproc-per-node: expected at most ",
                    capacity,
                    " ranks on host ",
                    input.host.name,
                    " (",
                    there,
                    "), got ",
                    asked,
                    why,
                    "; give ",
                    capacity > 0 ? cat("--nproc-per-node ", capacity, " or less, ") : "",
                    "or say what the others get: --surplus cpu, drop or share"));
  }

  void place_by_policy(size_t host_at, const PolicyInput& input, int num_ranks) {
    const std::vector<PolicyChoice> choices =
        policy_.choose(input, num_ranks * request_.gpus_per_rank);
    if (request_.gpus_per_rank > 1)
      return place_in_groups(host_at, choices);
    const Sharers sharers = sharers_of(choices);
    if (sharers.size() < choices.size())
      note_sharing(input.host, sharers, choices.size());
    check_memory(input, sharers);
    for (const PolicyChoice& choice : choices) {
      add_gpu_rank(host_at, choice, sharers.at(key_of(choice.gpu)).size());
    }
  }

  // Each rank gets the next few of the GPUs that the policy has chosen.
  void place_in_groups(size_t host_at, const std::vector<PolicyChoice>& choices) {
    const auto each = static_cast<size_t>(request_.gpus_per_rank);
    for (size_t first = 0; first < choices.size(); first += each) {
      add_gpu_rank(host_at, choices[first], 1);
      RankPlan& rank = plan_.ranks.back();
      for (size_t i = 1; i < each; ++i) {
        const UsableGpu& more = choices[first + i].gpu;
        rank.more_devices.push_back(device_of(host_at, more));
        if (weighs())
          weights_.back() +=
              need_score(request_.scores, *hosts_[host_at].host, more, "--global-batch");
      }
      check_group(rank);
    }
  }

  static void check_group(const RankPlan& rank) {
    for (const DeviceAssignment& more : rank.more_devices) {
      if (more.vendor == rank.device.vendor)
        continue;
      throw Error(ErrorCode::invalid_argument,
                  cat("--gpus-per-rank: expected GPUs of one vendor for each rank, got GPU ",
                      rank.device.index.value,
                      " and GPU ",
                      more.index.value,
                      " for rank ",
                      rank.rank,
                      " on host ",
                      rank.host,
                      "; choose them with --gpus"));
    }
  }

  DeviceAssignment device_of(size_t host_at, const UsableGpu& chosen) const {
    const Host& host = *hosts_[host_at].host;
    const Gpu& gpu = gpu_of(host, chosen);
    return {.kind = DeviceAssignment::Kind::gpu,
            .vendor = gpu.vendor,
            .uuid = uuid_of(host, chosen),
            .index = gpu.index,
            .pci = gpu.pci,
            .model = model_of(host, chosen),
            .ordinal = request_.visibility == Visibility::all ? chosen.ordinal : CudaOrdinal{}};
  }

  void add_gpu_rank(size_t host_at, const PolicyChoice& choice, size_t num_sharers) {
    const Host& host = *hosts_[host_at].host;
    const Gpu& gpu = gpu_of(host, choice.gpu);
    RankPlan& rank = add_rank(host_at);
    rank.device = device_of(host_at, choice.gpu);
    if (request_.visibility != Visibility::all)
      rank.device.ordinal = CudaOrdinal{rank.local_rank};
    rank.numa_node = numa_node_of(host, gpu);
    rank.cpus = gpu.near_cpus;
    rank.reason = choice.reason;
    if (num_sharers > 1)
      rank.reason += cat("; shared by ", num_sharers, " ranks");
    if (choice.gpu.mig >= 0)
      note_instance(host);
    if (!weighs())
      return;
    const double score = need_score(request_.scores, host, choice.gpu, "--global-batch");
    weights_.push_back(score / static_cast<double>(num_sharers));
  }

  // CUDA shows a process one instance at most, whatever CUDA_VISIBLE_DEVICES lists.
  void note_instance(const Host& host) {
    if (request_.gpus_per_rank > 1) {
      throw Error(ErrorCode::invalid_argument,
                  cat("--gpus-per-rank: expected whole GPUs, got a MIG instance of host ",
                      host.name,
                      ", and CUDA shows a process only one of them; leave --gpus-per-rank out"));
    }
    if (request_.visibility == Visibility::all) {
      throw Error(ErrorCode::invalid_argument,
                  cat("--visibility all: expected whole GPUs, got a MIG instance of host ",
                      host.name,
                      ", and CUDA shows a process only one of them; leave --visibility out"));
    }
    if (has_instances_ || request_.visibility != Visibility::job)
      return;
    has_instances_ = true;
    notes_.add("a process can use only one MIG instance: each rank sees only its own");
  }

  void note_sharing(const Host& host, const Sharers& sharers, size_t num_ranks) {
    if (request_.surplus != Surplus::share) {
      const auto twice = std::find_if(sharers.begin(), sharers.end(), [](const auto& entry) {
        return entry.second.size() > 1;
      });
      throw Error(ErrorCode::invalid_argument,
                  cat(policy_.name == std::string_view("list") && request_.choose
                          ? "Request::choose"
                          : cat("--policy ", policy_.name),
                      ": expected a GPU of its own for each rank, got GPU ",
                      host.gpus[twice->first.first].index.value,
                      " for local ranks ",
                      join(twice->second, " and "),
                      " of host ",
                      host.name,
                      "; --surplus share allows it"));
    }
    sharing_ = true;
    notes_.add(host,
               cat(num_ranks,
                   " ranks share ",
                   plural(sharers.size(), "GPU"),
                   " (--surplus share)",
                   request_.visibility == Visibility::job ? ", each sees its own GPU alone" : ""));
  }

  // Whatever the policy, no rank gets less free memory than it said it needs.
  void check_memory(const PolicyInput& input, const Sharers& sharers) const {
    if (request_.rank_memory_bytes.empty())
      return;
    for (const auto& [key, ranks] : sharers) {
      const UsableGpu device{key.first, {}, key.second};
      uint64_t left = free_memory_bytes(input.host, device);
      for (const int rank : ranks) {
        const uint64_t need = rank_memory_need(request_, rank);
        if (need > left) {
          throw Error(ErrorCode::invalid_argument,
                      cat("--rank-memory: expected ",
                          format_bytes(need),
                          " free for local rank ",
                          rank,
                          " of host ",
                          input.host.name,
                          ", got ",
                          knows_memory(input.host, device) ? format_bytes(left) : "not known",
                          " on ",
                          label_of(input.host, device),
                          ", which policy ",
                          policy_.name,
                          " gives it; --policy memory looks for one that has it"));
        }
        left -= need;
      }
    }
  }

  void place_rest_on_cpu(size_t host_at, int count, int num_gpus) {
    for (int i = 0; i < count; ++i) {
      add_cpu_rank(host_at, i, cat("surplus: ", plural(num_gpus, "GPU"), " taken; CPU slot ", i));
    }
  }

  void check_any_rank() const {
    if (!plan_.ranks.empty())
      return;
    throw Error(ErrorCode::unavailable,
                cat("plan: expected at least one rank, got none: ",
                    join(notes_.finish(hosts_.size()), "; "),
                    "; ask for less, or for other GPUs"));
  }

  // Each vendor's software counts its own GPUs, so local rank and ordinal differ on a host with
  // both.
  bool mixes_vendors() const {
    for (size_t i = 1; i < plan_.ranks.size(); ++i) {
      const RankPlan& a = plan_.ranks[i - 1];
      const RankPlan& b = plan_.ranks[i];
      const auto on_gpu = DeviceAssignment::Kind::gpu;
      if (a.host_index == b.host_index && a.device.kind == on_gpu && b.device.kind == on_gpu &&
          a.device.vendor != b.device.vendor) {
        return true;
      }
    }
    return false;
  }

  void set_visibility() {
    if (plan_.visibility == Visibility::job && mixes_vendors()) {
      plan_.visibility = Visibility::own;
      notes_.add("NVIDIA's and AMD's GPUs on one host: each rank sees its own GPU alone");
    }
    if ((sharing_ || has_instances_ || request_.gpus_per_rank > 1) &&
        plan_.visibility == Visibility::job) {
      plan_.visibility = Visibility::own;
    }
    if (plan_.visibility == Visibility::own || plan_.visibility == Visibility::own_first) {
      for (RankPlan& rank : plan_.ranks)
        count_own_first(rank);
    }
  }

  static void count_own_first(RankPlan& rank) {
    rank.device.ordinal = {};
    for (size_t i = 0; i < rank.more_devices.size(); ++i)
      rank.more_devices[i].ordinal = {static_cast<int>(i) + 1};
  }

  void divide_batch() {
    if (request_.global_batch == 0)
      return;
    plan_.global_batch = request_.global_batch;
    if (!weighs())
      weights_.assign(plan_.ranks.size(), 1);
    const std::vector<int64_t> shares = batch_shares(request_.global_batch, weights_);
    for (size_t i = 0; i < shares.size(); ++i)
      plan_.ranks[i].batch_share = shares[i];
  }

  const Inventory& inventory_;
  const Request& request_;
  const std::vector<JobHost> hosts_;
  const Policy& policy_;
  std::vector<HostGpus> gpus_ = {};   // of each host
  std::vector<double> weights_ = {};  // of each rank, when scores tell
  PlanNotes notes_ = {};
  Plan plan_ = {};
  bool sharing_ = false;
  bool has_instances_ = false;
};

}  // namespace

Plan plan(const Inventory& inventory, const Request& request) {
  const Request checked = checked_request(inventory, request);
  return Planner(inventory, checked).make();
}

}  // namespace muster
