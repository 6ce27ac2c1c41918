// Hosts are taken one after the other: what can be used there and what is selected of it
// (job_gpus.h), how many ranks go on that (rank_counts.h), what the policy makes of it. Whatever
// depends on all ranks comes last: visibility, shares of the batch, the mesh and the notes.
#include "muster/placement/planner.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"
#include "muster/placement/batch_shares.h"
#include "muster/placement/checked_request.h"
#include "muster/placement/cpu_binding.h"
#include "muster/placement/job_gpus.h"
#include "muster/placement/plan_mesh.h"
#include "muster/placement/plan_network.h"
#include "muster/placement/plan_notes.h"
#include "muster/placement/policy/policy.h"
#include "muster/placement/rank_counts.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/placement/selection/scores.h"
#include "muster/placement/shared_gpus.h"
#include "muster/placement/unused_gpus.h"

namespace muster {
namespace {

// Whether two ranks on one host have GPUs of different vendors.
bool differ_in_vendor(const RankPlan& a, const RankPlan& b) {
  const bool are_beside = a.host_index == b.host_index && a.device.is_gpu() && b.device.is_gpu();
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
    throw invalid_argument("--gpus-per-rank: expected GPUs of one vendor for each rank, got GPU ",
                           rank.device.index.value,
                           " and GPU ",
                           more.index.value,
                           " for rank ",
                           rank.rank,
                           " on host ",
                           rank.host,
                           "; choose them with --gpus");
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
    const bool on_gpus = !request_.cpu_only && gpus_.find();
    for (const size_t i : indices_of(hosts_))
      place_on_host(i, on_gpus);
    check_any_rank();
    set_visibility();
    divide_batch();
    if (!request_.mesh.empty())
      set_mesh(plan_, request_.mesh, notes_);
    tell_network(plan_, request_.switches, notes_);
    plan_.notes = notes_.finish();
    plan_.warnings = notes_.warnings();
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
    for (const auto& note : host.notes)
      notes_.add(host, note);
    bind_to_cpus(host, request_.numa_binding, std::span(plan_.ranks).subspan(first));
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

  // Slots are numbered from 0, whatever ranks are on GPUs. A rank's reason is `why` and its slot.
  void add_cpu_ranks(size_t host_at, int count, const std::string& why) {
    for (int slot = 0; slot < count; ++slot)
      add_cpu_rank(host_at, slot, cat(why, "CPU slot ", slot));
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
      throw invalid_argument(
          "--global-batch: expected a score for each rank's device, got none for CPU slot ",
          slot,
          " of host ",
          rank.host,
          " (rank ",
          rank.rank,
          "); add 'cpu' to the scores");
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
      throw invalid_argument(
          "plan: expected at least 1 CPU slot on host ", host->name, ", got ", slots);
    }
    const int num_ranks = nproc.value_or(slots);
    const std::string why = request_.cpu_only ? "CPU asked for" : "no GPU";
    add_cpu_ranks(host_at, num_ranks, why + ": ");
    std::string note = why;
    if (!request_.cpu_only)
      note += cat(" (", gpus_.why_none_on(host_at), ")");
    if (nproc) {
      note += cat(": ", plural(num_ranks, "rank"), " on CPU slots");
    } else {
      note += cat(": ",
                  plural(slots, "CPU slot"),
                  ", one rank each; --cpu-slots N or MUSTER_CPU_SLOTS=N changes how many");
    }
    notes_.add(*host, note, !request_.cpu_only && gpus_.are_expected_on(host_at));
  }

  void place_on_gpus(size_t host_at) {
    const auto& [host, nproc, masks] = hosts_[host_at];
    const HostGpus& gpus = gpus_.on(host_at);
    if (!gpus.named) {
      notes_.add(*host, "no rank there, since --gpus does not name it");
      return;
    }
    const PolicyInput input{*host, gpus.selected, request_};
    if (!nproc && rank_capacity(policy_, input) == 0) {
      notes_.warn(*host, why_left_out(host_at, input));
      return;
    }
    const RankCounts counts = rank_counts(policy_, input, nproc, notes_);
    if (counts.on_gpus > 0)
      place_by_policy(host_at, input, counts.on_gpus);
    const auto taken = cat("surplus: ", plural(counts.on_gpus, "GPU"), " taken; ");
    add_cpu_ranks(host_at, counts.on_cpu, taken);
  }

  // Says why a host gets no rank while others have GPUs.
  std::string why_left_out(size_t host_at, const PolicyInput& input) const {
    if (!input.gpus.empty())
      return cat("no rank there: ", why_no_rank(policy_, input));
    return cat(
        "no GPU (", gpus_.why_none_on(host_at), "): no rank there, since other hosts have GPUs");
  }

  // Policies choose GPUs; ranks of several GPUs take them in groups, in the policy's order.
  void place_by_policy(size_t host_at, const PolicyInput& input, int num_ranks) {
    const PolicyChoices choices = policy_.choose(input, num_ranks * request_.gpus_per_rank);
    note_unused_gpus(policy_, input, choices, hosts_[host_at].nproc, notes_);
    if (request_.gpus_per_rank > 1)
      return place_in_groups(host_at, choices);
    const Sharers sharers = sharers_of(choices);
    check_sharing(policy_, input, sharers);
    if (sharers.size() < choices.size())
      note_sharing(input.host, sharers.size(), choices.size());
    check_rank_memory(policy_, input, sharers);
    for (const PolicyChoice& choice : choices)
      add_gpu_rank(host_at, choice, int_size(sharers.at(device_key(choice.gpu))));
  }

  // Each rank gets the next few of the GPUs that the policy has chosen.
  void place_in_groups(size_t host_at, const PolicyChoices& choices) {
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
    if (choice.gpu.is_instance())
      note_instance(host);
    if (!weighs())
      return;
    const double score = need_score(request_.scores, host, choice.gpu, "--global-batch");
    weights_.push_back(score / num_sharers);
  }

  // CUDA shows a process one instance at most, whatever CUDA_VISIBLE_DEVICES lists.
  void note_instance(const Host& host) {
    if (request_.gpus_per_rank > 1) {
      throw invalid_argument(
          "--gpus-per-rank: expected whole GPUs, got a MIG instance of host ",
          host.name,
          ", and CUDA shows a process only one of them; leave --gpus-per-rank out");
    }
    if (request_.visibility == Visibility::all) {
      throw invalid_argument("--visibility all: expected whole GPUs, got a MIG instance of host ",
                             host.name,
                             ", and CUDA shows a process only one of them; leave --visibility out");
    }
    if (has_instances_ || request_.visibility != Visibility::job)
      return;
    has_instances_ = true;
    notes_.add("a process can use only one MIG instance: each rank sees only its own");
  }

  void note_sharing(const Host& host, size_t num_gpus, size_t num_ranks) {
    sharing_ = true;
    const bool sees_own = request_.visibility == Visibility::job;
    notes_.add(host,
               cat(num_ranks,
                   " ranks share ",
                   plural(num_gpus, "GPU"),
                   " (--surplus share)",
                   sees_own ? ", each sees its own GPU alone" : ""));
  }

  // A plan without ranks has nothing to run; its notes say how that came.
  void check_any_rank() const {
    if (!plan_.ranks.empty())
      return;
    throw unavailable("plan: expected at least one rank, got none: ",
                      join(notes_.finish(), "; "),
                      "; ask for less, or for other GPUs");
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
    if (is_one_of(plan_.visibility, Visibility::own, Visibility::own_first))
      std::ranges::for_each(plan_.ranks, count_own_first);
  }

  // Without scores all ranks weigh the same.
  void divide_batch() {
    if (request_.global_batch == 0)
      return;
    plan_.global_batch = request_.global_batch;
    if (!weighs())
      weights_.assign(plan_.ranks.size(), 1);
    const Int64s shares = batch_shares(request_.global_batch, weights_);
    for (const size_t i : indices_of(shares))
      plan_.ranks[i].batch_share = shares[i];
  }

  const Inventory& inventory_;
  const Request& request_;
  const JobHosts hosts_;
  const Policy& policy_;
  PlanNotes notes_{hosts_.size()};
  JobGpus gpus_{request_, hosts_, notes_};
  Doubles weights_;  // of each rank, when scores tell
  Plan plan_;
  bool sharing_ = false;
  bool has_instances_ = false;
};

}  // namespace

Plan plan(const Inventory& inventory, const Request& request) {
  const Request checked = checked_request(inventory, request);
  return Planner(inventory, checked).make();
}

}  // namespace muster
