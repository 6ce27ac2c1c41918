// How many bytes a rank needs to train a GPT (examples/02_gpt/gpt.h, AdamW) by each way of dividing
// the work, and how deep a model fits into a device. These are pure formulas, which
// benchmarks/memory_bench.cc holds against measured peaks; docs/parallel/README.md has them written
// out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/mesh_shape.h"

namespace muster {

// As GptOptions of the example, and what a step is made of.
struct ModelSizes {
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t context = 0;
  int64_t vocabulary = 0;
  int64_t batch = 0;  // sequences a step of each data-parallel rank
  bool tied = false;
  bool bf16 = false;          // autocast: parameters, gradients and the optimizer stay fp32
  int64_t micro_batches = 0;  // of a pipeline's step; 0: one a sequence
  bool operator==(const ModelSizes&) const = default;
};

// "layers=24,width=2048,heads=16,context=1024,vocabulary=50304,batch=8[,precision=bf16][,tied=1]
// [,micro_batches=8]". Throws: invalid_argument naming the member that is missing, unknown, given
// twice, no number from 1, or does not fit the others.
ModelSizes parse_model(std::string_view text);

int64_t num_parameters(const ModelSizes& model);

// The things that the data-parallel ranks shard instead of each having all of them.
enum class Sharding { none, optimizer, gradients, all };

struct ModelDivision {
  std::string name{};  // "ZeRO-1"
  Sharding sharding = Sharding::none;
  int data = 1;  // ranks along each axis
  int pipeline = 1;
  int tensor = 1;
};

// Over so many ranks: DDP, ZeRO-1, ZeRO-2, fully sharded, tensor parallel and pipeline, each with
// all of them. With a mesh of axes out of dp, pp and tp: the four first, along dp. Throws:
// invalid_argument for another axis.
std::vector<ModelDivision> model_divisions(int num_ranks, const MeshShape& mesh);

// Why the model cannot be divided so, "16 heads over 3 ranks"; empty: it can.
std::string obstacle(const ModelSizes& model, const ModelDivision& division);

struct RankBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;  // what forward keeps for backward
  int64_t other = 0;  // of backward, of what is gathered or reduced, or of the optimizer's step
  // Of all these, what is there only when others are gone: activations before the optimizer's step;
  // without DistributedDataParallel gradients come as activations go.
  int64_t apart = 0;
  int64_t total() const { return parameters + gradients + optimizer + activations + other - apart; }
  bool operator==(const RankBytes&) const = default;
};

// The bytes of the rank that needs most. The model must be one that can be divided so.
RankBytes rank_bytes(const ModelSizes& model, const ModelDivision& division);

// The most layers, all else being equal, with which a rank needs no more than `bytes`; 0: not even
// one.
int64_t most_layers(ModelSizes model, const ModelDivision& division, int64_t bytes);

}  // namespace muster
