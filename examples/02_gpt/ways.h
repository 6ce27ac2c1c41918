// Which way of sharing the training over the ranks the command line asks for. Each is a file in ways/.
#pragma once

#include <memory>

#include "ways/data_parallel.h"
#include "ways/fully_sharded.h"
#include "ways/local_sgd.h"
#include "ways/pipeline.h"
#include "ways/sharded_optimizer.h"
#include "ways/tensor_parallel.h"

// `net` lies in host memory. Collective: yes.
inline std::unique_ptr<Way> make_way(const Gpt& net, const Options& options, muster::Context& ctx) {
  if (options.pp > 1) return std::make_unique<PipelineParallel>(net, options, ctx);
  if (options.tp > 1) return std::make_unique<TensorParallel>(net, options, ctx);
  if (options.local_sgd > 0) return std::make_unique<LocalSteps>(net, options, ctx);
  if (options.shard == "full") return std::make_unique<FullyShardedModel>(net, options, ctx);
  if (options.shard != "none") return std::make_unique<ShardedState>(net, options, ctx);
  return std::make_unique<DataParallel>(net, options, ctx);
}
