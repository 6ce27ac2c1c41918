// What a rank knows and has while it runs: its place in the job, its device (already current), the process
// group over all ranks, the store. muster::run makes one and passes it to the user's function; nothing else
// can, so a group before the device is set, or DistributedDataParallel before a group, cannot be written.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/rank_env.h"
#include "muster/comm/process_group.h"
#include "muster/data/distributed_sampler.h"
#include "muster/data/loader.h"
#include "muster/parallel/mesh.h"
#include "muster/placement/plan.h"

namespace muster {

class Context {
 public:
  struct Parts {
    RankEnv env;
    RankPlan assignment;
    c10::Device device = c10::kCPU;
    ProcessGroup group;
    MeshShape mesh = {};
    std::vector<int64_t> batch_shares = {};
  };
  explicit Context(Parts parts) : parts_(std::move(parts)) {}

  int rank() const { return parts_.env.rank; }
  int local_rank() const { return parts_.env.local_rank; }
  int world_size() const { return parts_.env.world_size; }
  int local_world_size() const { return parts_.env.local_world_size; }
  bool is_main() const { return rank() == 0; }  // the rank that prints and saves

  c10::Device device() const { return parts_.device; }              // torch's: "cuda:1", "cpu"
  const RankPlan& assignment() const { return parts_.assignment; }  // which physical device, and why
  const RankEnv& env() const { return parts_.env; }                 // all that the launcher told
  ProcessGroup& process_group() { return parts_.group; }            // over all ranks
  const c10::intrusive_ptr<c10d::Store>& store() const { return parts_.group.store(); }
  const std::string& run_dir() const { return parts_.env.run_dir; }  // where this job writes
  // The folder `asked`, or where it is empty the job's; rank 0 makes it. Throws: invalid_argument where there
  // is none: a program that was started by another launcher.
  std::string run_dir(const std::string& asked) const;

  // The ranks as a grid with named axes, and the groups along them: `axes`, of which one may be -1 for the
  // rest, or without them those of `muster run --mesh`. Collective: yes. Throws: as Mesh; invalid_argument
  // for other axes than those of `muster run --mesh`, by which the GPUs are ordered (axes of one rank are
  // left out of account), and for none at all.
  Mesh mesh(std::vector<MeshAxis> axes = {});

  // This rank's samples of each step: its share of `muster run --global-batch`, or `otherwise`.
  int64_t batch_size(int64_t otherwise) const {
    return parts_.batch_shares.empty() ? otherwise : parts_.batch_shares[static_cast<size_t>(rank())];
  }

  // Whether this rank was asked to stop: by SIGTERM (of muster run, of a scheduler, at a time limit), SIGUSR1
  // or SIGINT. From the first call on these no longer end the rank, but for a second SIGINT.
  bool stop_requested();

  // Whether any rank was: the same answer on all ranks, which may save and return then. The ranks end with
  // exit code 75, and so does the job: start it again. Checkpoints::save_or_stop asks so.
  // Collective: yes; on the CPU.
  bool should_stop();

  // The answer of should_stop() before.
  bool stops() const { return stops_; }

  // A seed for this rank, different from every other rank's and run after run the same.
  uint64_t seed(uint64_t base) const { return base + static_cast<uint64_t>(rank()); }

  // LibTorch's generators of this rank's CPU and GPU begin from `seed`, the same on every rank, so that
  // models begin alike.
  void seed_all(uint64_t seed) const;

  // A sampler over `length` samples with this job's ranks filled in, and their shares of the global batch
  // where the plan has one (then loaders take batch_size(…), and losses are multiplied with Batch::weight).
  // Its first epoch compares the samplers of all ranks, so that none trains on another's samples. Throws:
  // invalid_argument when they differ (then on every rank).
  DistributedSampler sampler(int64_t length, SamplerOptions options = {});
  // The same over another order (sample_order.h).
  DistributedSampler sampler(SampleOrder order, SamplerOptions options = {});
  // The same for a mesh whose samples are dealt over one axis, `group`: ranks that differ along the others
  // alone (of tensor parallelism, of a pipeline) have the same samples. Throws: invalid_argument beside
  // `muster run --global-batch`, which divides batches over all ranks.
  DistributedSampler sampler(SampleOrder order, ProcessGroup group, SamplerOptions options = {});

  // Batches of this rank's part of `dataset`, on its device: `options` with this rank's share of the global
  // batch where the plan has one. Throws: as DataLoader's constructor.
  template <class D>
  DataLoader<D> loader(D dataset, DataLoaderOptions options, SamplerOptions sampling = {}) {
    const int64_t size = dataset.size();
    return loader(std::move(dataset), sampler(size, std::move(sampling)), options);
  }
  // The same with a sampler that cuts batches itself: cost_balanced() gives one with this job's ranks.
  template <class D>
  DataLoader<D> loader(D dataset, std::shared_ptr<BatchSampler> sampler, DataLoaderOptions options) {
    options.device = device();
    return {std::make_shared<const D>(std::move(dataset)), std::move(sampler), options};
  }
  // Its first epoch compares the ranks' orders and costs, as that of sampler().
  std::shared_ptr<BatchSampler> cost_balanced(SampleOrder order, std::vector<double> costs,
                                              CostBalancedOptions options);
  template <class D>
  DataLoader<D> loader(D dataset, DistributedSampler sampler, DataLoaderOptions options) {
    options.batch_size = batch_size(options.batch_size);
    options.device = device();
    return {std::make_shared<const D>(std::move(dataset)),
            std::make_shared<DistributedSampler>(std::move(sampler)), options};
  }

 private:
  Parts parts_;
  bool stops_ = false;
};

}  // namespace muster
