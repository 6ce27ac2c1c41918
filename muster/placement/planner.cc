#include "muster/placement/planner.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/device/numbers.h"
#include "muster/placement/batch_shares.h"
#include "muster/placement/checked_request.h"
#include "muster/placement/cpu_binding.h"
#include "muster/placement/plan_mesh.h"
#include "muster/placement/plan_network.h"
#include "muster/placement/plan_notes.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/policy/rank_memory.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/placement/selection/scores.h"
#include "muster/placement/selection/selection.h"
#include "muster/placement/selection/usable_gpus.h"

// Hosts are taken one after the other: what can be used there, what is selected of it, what the
// policy makes of that. Whatever depends on all ranks comes last: visibility, shares of the batch,
// the mesh and the notes.

namespace muster {
namespace {

struct HostGpus {
  UsableGpus usable = {};
  std::vector<UsableGpu> selected = {};
  bool named = true;  // --gpus means this host, by its name or because it names none
};

// A device of PolicyInput::host: a GPU, or one of its instances.
using DeviceKey = std::pair<size_t, int>;

// Ranks on two instances of one GPU do not share a device.
DeviceKey key_of(const UsableGpu& gpu) {
  return {gpu.position, gpu.mig};
}

// The local ranks on each device.
using Sharers = std::map<DeviceKey, std::vector<int>>;

Sharers sharers_of(const std::vector<PolicyChoice>& choices) {
  Sharers sharers;
  int local_rank = 0;
  for (const PolicyChoice& choice : choices)
    sharers[key_of(choice.gpu)].push_back(local_rank++);
  return sharers;
}

bool is_on_gpu(const RankPlan& rank) {
  return rank.device.kind == DeviceAssignment::Kind::gpu;
}

// Whether two ranks on one host have GPUs of different vendors.
bool differ_in_vendor(const RankPlan& a, const RankPlan& b) {
  const bool are_beside = a.host_index == b.host_index && is_on_gpu(a) && is_on_gpu(b);
  return are_beside && a.device.vendor != b.device.vendor;
}

// A rank's devices are its first ones; their ordinals count from 0.
void count_own_first(RankPlan& rank) {
  rank.device.ordinal = {};
  int next = 1;
  for (DeviceAssignment& more : rank.more_devices)
    more.ordinal = {next++};
}

// One process can use only one vendor's GPUs.
void check_group(const RankPlan& rank) {
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

// Makes one plan. `host_at` is everywhere a position among the job's hosts.
class Planner {
 public:
  Planner(const Inventory& inventory, const Request& request)
      : inventory_(inventory),
        request_(request),
        hosts_(hosts_of_job(inventory, request)),
        policy_(find_policy(request.policy)) {}

  // The order of these steps is that of the documentation in planner.h.
  Plan make() {
    plan_.policy = request_.policy;
    plan_.visibility = request_.visibility;
    plan_.simulated = inventory_.simulated;
    const bool on_gpus = !request_.cpu_only && find_gpus();
    for (size_t i = 0; i < hosts_.size(); ++i)
      place_on_host(i, on_gpus);
    check_any_rank();
    set_visibility();
    divide_batch();
    if (!request_.mesh.empty())
      set_mesh(plan_, request_.mesh, notes_);
    tell_network(plan_, request_.switches, notes_);
    plan_.notes = notes_.finish(hosts_.size());
    plan_.warnings = notes_.warnings(hosts_.size());
    return std::move(plan_);
  }

 private:
  void place_on_host(size_t host_at, bool on_gpus) {
    const Host& host = *hosts_[host_at].host;
    const size_t first = plan_.ranks.size();
    if (on_gpus) {
      place_on_gpus(host_at);
    } else {
      place_on_cpu(host_at);
    }
    for (const std::string& note : host.notes)
      notes_.add(host, note);
    bind_to_cpus(host, request_.numa_binding, std::span(plan_.ranks).subspan(first));
  }

  // Applies mask, health and selection to every host; true when any host has a GPU to use.
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
    if (any_sick && !any_selected)
      fail_with_sick_gpus();
    return any_selected;
  }

  // A machine whose GPUs are all broken is to be repaired, not quietly trained on with its CPU.
  [[noreturn]] void fail_with_sick_gpus() const {
    const auto sick =
        std::ranges::find_if(gpus_, [](const HostGpus& gpus) { return !gpus.usable.sick.empty(); });
    fail_without_gpu(*hosts_[sick - gpus_.begin()].host, *sick);
  }

  // A host that --gpus does not mean is looked at too, since errors tell what it has.
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

  // The error begins with the flag that asks for GPUs, or with the plan when none does.
  [[noreturn]] void fail_without_gpu(const Host& host, const HostGpus& gpus) const {
    const std::string flag = flag_that_needs_gpus(request_);
    const std::string operation = flag.empty() ? "plan" : flag;
    throw Error(ErrorCode::unavailable,
                cat(operation,
                    ": expected a GPU that can be used, got none: ",
                    describe(host, gpus.usable),
                    "; --nproc-per-node cpu runs on CPU slots"));
  }

  // The devices that there are tell the user what the selection could have been.
  [[noreturn]] void fail_with_nothing_left() const {
    // The first host that --gpus means stands for all of them.
    const auto named = std::ranges::find_if(gpus_, &HostGpus::named);
    const std::string there =
        named == gpus_.end() ? "" : describe(*hosts_[named - gpus_.begin()].host, named->usable);
    throw Error(ErrorCode::unavailable,
                printable(cat("--gpus ",
                              request_.gpus.text,
                              ": expected at least one GPU, got none that fits: ",
                              there,
                              unknown_memory(),
                              "; `muster devices` shows them all")));
  }

  // Names the GPUs that a selection by memory cannot judge.
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
    if (labels.empty())
      return "";
    return cat("; memory not known of ", join_first(std::move(labels), ", ", kMaxNamed));
  }

  // Ranks are added host by host, so the last one tells whether this host is new.
  RankPlan& add_rank(size_t host_at) {
    RankPlan rank;
    rank.rank = int_size(plan_.ranks);
    rank.host_index = static_cast<int>(host_at);
    const bool is_first = plan_.ranks.empty() || plan_.ranks.back().host_index != rank.host_index;
    rank.local_rank = is_first ? 0 : plan_.ranks.back().local_rank + 1;
    rank.host = hosts_[host_at].host->name;
    return plan_.ranks.emplace_back(std::move(rank));
  }

  // A CPU slot has a score of its own where shares of the batch follow scores.
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

  // Whether batch shares follow scores.
  bool weighs() const { return request_.global_batch > 0 && !request_.scores.empty(); }

  // Without a number of ranks every slot gets one. The note says why there is no GPU.
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
    if (nproc) {
      note += cat(": ", plural(num_ranks, "rank"), " on CPU slots");
    } else {
      note += cat(": ",
                  plural(slots, "CPU slot"),
                  ", one rank each; --cpu-slots N or MUSTER_CPU_SLOTS=N changes how many");
    }
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

  // The reason is the last step that left no GPU: selection, health, masks, or the machine.
  std::string no_gpu_reason(size_t host_at) const {
    const Host& host = *hosts_[host_at].host;
    const UsableGpus& usable = gpus_[host_at].usable;
    if (!usable.gpus.empty())
      return cat("none fits --gpus ", printable(request_.gpus.text));
    if (!usable.sick.empty())
      return "all unhealthy";
    if (host.gpus.empty())
      return host.gpu_note.empty() ? "none found" : host.gpu_note;
    const bool is_amd = host.gpus[0].vendor == Vendor::amd;
    return is_amd ? "all hidden by ROCm's variables" : "all hidden by CUDA_VISIBLE_DEVICES";
  }

  // The number of ranks is the one that was asked for, or as many as the policy can place.
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
      notes_.warn(*host, why_left_out(host_at, input));
      return;
    }
    const int asked = nproc.value_or(capacity);
    if (asked < capacity || !nproc)
      note_left_over(input, asked);
    const int on_gpus = asked > capacity ? surplus(input, asked, capacity) : asked;
    if (on_gpus > 0)
      place_by_policy(host_at, input, on_gpus);
    if (asked > on_gpus && request_.surplus == Surplus::cpu)
      place_rest_on_cpu(host_at, asked - on_gpus, capacity);
  }

  // Says why a host gets no rank while others have GPUs.
  std::string why_left_out(size_t host_at, const PolicyInput& input) const {
    if (!input.gpus.empty())
      return cat("no rank there: ", why_none(input));
    return cat("no GPU (", no_gpu_reason(host_at), "): no rank there, since other hosts have GPUs");
  }

  // Says why `asked` ranks are too many where there are GPUs for all of them, in words to put after
  // others.
  // Too few GPUs need no explanation.
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
    for (const UsableGpu& gpu : input.gpus | std::views::drop(num_ranks * each))
      left.push_back(label_of(input.host, gpu));
    if (left.empty())
      return;
    const char* const are = left.size() == 1 ? " is" : " are";
    const char* const each_of_several = num_ranks == 1 ? "" : ", each";
    const char* const advice = each == 1 ? "; --gpus-per-rank N gives each more" : "";
    notes_.warn(input.host,
                cat(join(left, ", "),
                    " of --gpus ",
                    printable(request_.gpus.text),
                    are,
                    " not used: ",
                    plural(num_ranks, "rank"),
                    each_of_several,
                    " with ",
                    plural(each, "GPU"),
                    advice));
  }

  // A policy that goes by more than the number of GPUs says itself what is missing.
  std::string why_none(const PolicyInput& input) const {
    if (policy_.why_too_many != nullptr)
      return policy_.why_too_many(input, 1);
    return cat(
        plural(input.gpus.size(), "GPU"), ", fewer than --gpus-per-rank ", request_.gpus_per_rank);
  }

  // Says how many ranks' GPUs there are: "3 GPUs large enough", "5 GPUs for ranks of 2".
  std::string gpus_there(const PolicyInput& input, int capacity, bool by_size) const {
    if (request_.gpus_per_rank > 1)
      return cat(plural(input.gpus.size(), "GPU"), " for ranks of ", request_.gpus_per_rank);
    return cat(plural(capacity, "GPU"), by_size ? " large enough" : "");
  }

  // Returns how many of the `asked` ranks go on GPUs when there are only `capacity`.
  int surplus(const PolicyInput& input, int asked, int capacity) {
    const std::string why = why_too_many(input, asked);
    const std::string there = gpus_there(input, capacity, !why.empty());
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
    const std::string fewer = capacity > 0 ? cat("--nproc-per-node ", capacity, " or less, ") : "";
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
                    fewer,
                    "or say what the others get: --surplus cpu, drop or share"));
  }

  // Policies choose GPUs; ranks of several GPUs take them in groups, in the policy's order.
  void place_by_policy(size_t host_at, const PolicyInput& input, int num_ranks) {
    const std::vector<PolicyChoice> choices =
        policy_.choose(input, num_ranks * request_.gpus_per_rank);
    if (request_.gpus_per_rank > 1)
      return place_in_groups(host_at, choices);
    const Sharers sharers = sharers_of(choices);
    if (sharers.size() < choices.size())
      note_sharing(input.host, sharers, choices.size());
    check_memory(input, sharers);
    for (const PolicyChoice& choice : choices)
      add_gpu_rank(host_at, choice, int_size(sharers.at(key_of(choice.gpu))));
  }

  // Each rank gets the next few of the GPUs that the policy has chosen.
  void place_in_groups(size_t host_at, const std::vector<PolicyChoice>& choices) {
    const Host& host = *hosts_[host_at].host;
    auto left = std::span(choices);
    while (!left.empty()) {
      const auto group = left.first(request_.gpus_per_rank);
      left = left.subspan(group.size());
      add_gpu_rank(host_at, group[0], 1);
      RankPlan& rank = plan_.ranks.back();
      for (const PolicyChoice& more : group.subspan(1)) {
        rank.more_devices.push_back(device_of(host_at, more.gpu));
        if (weighs())
          weights_.back() += need_score(request_.scores, host, more.gpu, "--global-batch");
      }
      check_group(rank);
    }
  }

  // The ordinal is filled in later, unless the rank sees what the launcher sees.
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

  // Ranks that share a GPU divide its score among them.
  void add_gpu_rank(size_t host_at, const PolicyChoice& choice, int num_sharers) {
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
    weights_.push_back(score / num_sharers);
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

  // Sharing a GPU must be asked for, since it is mostly a mistake.
  void note_sharing(const Host& host, const Sharers& sharers, size_t num_ranks) {
    if (request_.surplus != Surplus::share)
      fail_with_shared_gpu(host, sharers);
    sharing_ = true;
    const bool sees_own = request_.visibility == Visibility::job;
    notes_.add(host,
               cat(num_ranks,
                   " ranks share ",
                   plural(sharers.size(), "GPU"),
                   " (--surplus share)",
                   sees_own ? ", each sees its own GPU alone" : ""));
  }

  [[noreturn]] void fail_with_shared_gpu(const Host& host, const Sharers& sharers) const {
    const auto shared =
        std::ranges::find_if(sharers, [](const auto& entry) { return entry.second.size() > 1; });
    const auto& [device, ranks] = *shared;
    const bool by_function = policy_.name == std::string_view("list") && request_.choose;
    throw Error(ErrorCode::invalid_argument,
                cat(by_function ? "Request::choose" : cat("--policy ", policy_.name),
                    ": expected a GPU of its own for each rank, got GPU ",
                    host.gpus[device.first].index.value,
                    " for local ranks ",
                    join(ranks, " and "),
                    " of host ",
                    host.name,
                    "; --surplus share allows it"));
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
        if (need > left)
          fail_with_little_memory(input.host, device, rank, left);
        left -= need;
      }
    }
  }

  [[noreturn]] void fail_with_little_memory(const Host& host,
                                            const UsableGpu& device,
                                            int local_rank,
                                            uint64_t left) const {
    throw Error(ErrorCode::invalid_argument,
                cat("--rank-memory: expected ",
                    format_bytes(rank_memory_need(request_, local_rank)),
                    " free for local rank ",
                    local_rank,
                    " of host ",
                    host.name,
                    ", got ",
                    knows_memory(host, device) ? format_bytes(left) : "not known",
                    " on ",
                    label_of(host, device),
                    ", which policy ",
                    policy_.name,
                    knows_memory(host, device)
                        ? " gives it; --policy memory looks for one that has it"
                        : " gives it; leave --rank-memory out, or plan for a file (--inventory) "
                          "that says the GPU's memory"));
  }

  // Slots are numbered from 0, as if there were no GPUs.
  void place_rest_on_cpu(size_t host_at, int count, int num_gpus) {
    for (int i = 0; i < count; ++i) {
      add_cpu_rank(host_at, i, cat("surplus: ", plural(num_gpus, "GPU"), " taken; CPU slot ", i));
    }
  }

  // A plan without ranks has nothing to run; its notes say how that came.
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
    return std::ranges::adjacent_find(plan_.ranks, differ_in_vendor) != plan_.ranks.end();
  }

  // Where local rank and ordinal are not the same number, a rank cannot see all of its host's GPUs.
  void set_visibility() {
    if (plan_.visibility == Visibility::job && mixes_vendors()) {
      plan_.visibility = Visibility::own;
      notes_.add("NVIDIA's and AMD's GPUs on one host: each rank sees its own GPU alone");
    }
    const bool needs_own = sharing_ || has_instances_ || request_.gpus_per_rank > 1;
    if (plan_.visibility == Visibility::job && needs_own)
      plan_.visibility = Visibility::own;
    if (plan_.visibility == Visibility::own || plan_.visibility == Visibility::own_first)
      std::ranges::for_each(plan_.ranks, count_own_first);
  }

  // Without scores all ranks weigh the same.
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
