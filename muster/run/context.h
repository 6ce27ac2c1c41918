// What a rank knows and has while it runs: its place in the job, its device (already current), the
// process group over all ranks, the store. muster::run makes one and passes it to the user's
// function; a task of a TaskSet has one of a single rank, if it asks for it. A program therefore
// cannot create a group before the device is set, or DistributedDataParallel before a group.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/never.h"
#include "muster/base/rank_env.h"
#include "muster/comm/process_group.h"
#include "muster/data/distributed_sampler.h"
#include "muster/data/loader.h"
#include "muster/data/stream_loader.h"
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
    MeshShape mesh{};
    std::vector<int64_t> batch_shares{};
    const std::atomic<int>* stop = nullptr;  // nonzero: stop, as if a signal had come
  };
  explicit Context(Parts parts) : parts_(std::move(parts)) {}

  int rank() const { return parts_.env.rank; }
  int local_rank() const { return parts_.env.local_rank; }
  int world_size() const { return parts_.env.world_size; }
  int local_world_size() const { return parts_.env.local_world_size; }
  bool is_main() const { return rank() == 0; }  // the rank that prints and saves

  c10::Device device() const { return parts_.device; }  // torch's: "cuda:1", "cpu"
  // The index of this rank's physical GPU, as `muster devices` and nvidia-smi count; nothing on a
  // CPU slot. torch's own number of it is device().index().
  std::optional<int> gpu() const { return gpu_index(parts_.assignment.device); }
  // The physical device, and why this rank has it.
  const RankPlan& assignment() const { return parts_.assignment; }
  const RankEnv& env() const { return parts_.env; }       // all that the launcher passed on
  ProcessGroup& process_group() { return parts_.group; }  // over all ranks
  const c10::intrusive_ptr<c10d::Store>& store() const { return parts_.group.store(); }
  const std::string& run_dir() const { return parts_.env.run_dir; }  // where this job writes
  // The folder `asked`, or the job's if `asked` is empty; rank 0 creates it.
  // Throws: invalid_argument if both are empty, as under another launcher.
  std::string run_dir(const std::string& asked) const;

  // Arranges the ranks in a grid with named axes, with a group along each. The axes are `axes` (one
  // size may be -1: the remaining ranks), or those of --mesh (RunOptions::mesh) if `axes` is empty.
  // Collective: yes.
  // Throws: as Mesh; invalid_argument if there are no axes, or if they differ from those of --mesh,
  // which order the GPUs (axes of size 1 are ignored).
  Mesh mesh(std::vector<MeshAxis> axes = {});

  // This rank's batch size per step: its share of --global-batch (RunOptions::global_batch), or
  // else `otherwise`.
  int64_t batch_size(int64_t otherwise) const {
    return parts_.batch_shares.empty() ? otherwise : parts_.batch_shares[rank()];
  }

  // Whether this rank was asked to stop: by SIGTERM (from muster run, a scheduler, or a time
  // limit), SIGUSR1 or SIGINT. From the first call on, these signals no longer end the rank, except
  // a second SIGINT.
  bool stop_requested();

  // Whether any rank was asked to stop. All ranks get the same answer, so that they can save and
  // return together. Ranks that then return end with exit code 75, and so does the job: start it
  // again to go on. Checkpoints::save_or_stop calls this. Collective: yes; on the CPU.
  bool should_stop();

  // The last answer of should_stop().
  bool stops() const { return stops_; }

  // From here on, every span and collective of this rank is in the job's timeline too: trace.json
  // in its run folder, as `muster run --trace` writes it from the start. Call it once: it compares
  // the hosts' clocks each time. A rank that cannot write its events warns, and is not in the
  // trace. Collective: yes. Throws: failed_precondition without a run folder, as under another
  // launcher.
  void trace();

  // A seed that differs on every rank and is the same in every run. For torch::manual_seed, before
  // a model is made that DistributedDataParallel makes equal: each rank then draws dropout and
  // noise of its own.
  uint64_t seed(uint64_t base) const { return base + rank(); }

  // Seeds LibTorch's generators of this rank's CPU and GPU with `seed`: the same on every rank, so
  // that models start equal that no DistributedDataParallel makes equal. All ranks then draw the
  // same noise: call torch::manual_seed(ctx.seed(…)) once the model is made.
  void seed_all(uint64_t seed) const;

  // A sampler over `length` samples for this job's ranks, with their shares of the global batch if
  // the plan has one (loaders then take batch_size(…), and losses are multiplied by Batch::weight).
  // Its first epoch compares the samplers of all ranks, so that no rank trains on another's
  // samples. Throws: invalid_argument on every rank when they differ.
  DistributedSampler sampler(int64_t length, SamplerOptions options = {});
  // A sampler over another order (sample_order.h).
  DistributedSampler sampler(SampleOrder order, SamplerOptions options = {});
  // A sampler for a mesh that distributes samples over one axis, `group`. Ranks that differ only
  // along other axes (tensor parallelism, a pipeline) get the same samples. Throws:
  // invalid_argument with a global batch, which divides batches over all ranks.
  DistributedSampler sampler(SampleOrder order, ProcessGroup group, SamplerOptions options = {});

  // Batches of this rank's part of `dataset`, on its device. If the plan has a global batch, this
  // rank's share of it replaces the batch size in `options`. `Given` is a dataset, or a
  // std::shared_ptr to one, which other loaders may share. Throws: as DataLoader's constructor.
  template <GivesDataset Given>
  DataLoader<DatasetOf<Given>> loader(Given dataset,
                                      DataLoaderOptions options,
                                      SamplerOptions sampling = {}) {
    const auto shared = shared_dataset(std::move(dataset));
    return loader(shared, sampler(shared->size(), std::move(sampling)), options);
  }
  // Batches of a sampler that forms them itself, such as that of cost_balanced().
  template <GivesDataset Given>
  DataLoader<DatasetOf<Given>> loader(Given dataset,
                                      std::shared_ptr<BatchSampler> sampler,
                                      DataLoaderOptions options) {
    options.device = device();
    return {shared_dataset(std::move(dataset)), std::move(sampler), options};
  }
  // A cost-balanced sampler for this job's ranks. Its first epoch compares the ranks' orders and
  // costs, as sampler()'s does.
  std::shared_ptr<BatchSampler> cost_balanced(SampleOrder order,
                                              std::vector<double> costs,
                                              CostBalancedOptions options);
  template <GivesDataset Given>
  DataLoader<DatasetOf<Given>> loader(Given dataset,
                                      DistributedSampler sampler,
                                      DataLoaderOptions options) {
    options.batch_size = batch_size(options.batch_size);
    options.device = device();
    return {shared_dataset(std::move(dataset)),
            std::make_shared<DistributedSampler>(std::move(sampler)),
            options};
  }

  // Batches of this rank's parts of `stream`, on its device. Throws: as StreamLoader's constructor;
  // invalid_argument with a global batch, whose shares a stream cannot follow.
  template <GivesStream Given>
  StreamLoader<StreamOf<Given>> loader(Given stream, StreamLoaderOptions options) {
    return {std::move(stream), stream_options(options)};
  }
  // What is neither: the text is the compiler's whole answer.
  template <class Given>
    requires(!GivesDataset<Given> && !GivesStream<Given>)
  int loader(const Given& /*given*/,
             const DataLoaderOptions& /*options*/,
             const SamplerOptions& /*sampling*/ = {}) {
    static_assert(
        kNever<Given>,
        "ctx.loader takes a dataset (IsDataset: Example, size() const, and get(index, rng) "
        "const or get_batch(rows, pinned) const) or a muster::Stream (IsStream)");
    return 0;
  }
  // With the options of a DataLoader.
  template <GivesStream Given, std::same_as<DataLoaderOptions> Options>
  StreamLoader<StreamOf<Given>> loader(Given stream, const Options& options) {
    return loader(std::move(stream), muster::stream_options(options));
  }

 private:
  StreamLoaderOptions stream_options(StreamLoaderOptions options) const;
  bool is_stopped_task() const;

  Parts parts_;
  bool stops_ = false;
};

}  // namespace muster
