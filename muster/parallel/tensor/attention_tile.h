// Attention of some queries to some keys, tile by tile, for ring_attention.cc: what one block of
// keys adds to an output, and to the gradients. Only one tile's scores exist at a time. Knows
// nothing of ranks.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"

namespace muster {

struct TileOptions {
  double scale = 1;
  int64_t tile = 512;  // queries, and keys, at a time
};

// The attention accumulated so far, in the type of the computation. Shapes: out [batch, heads,
// queries, width], log_sum [batch, heads, queries].
struct Attended {
  Tensor out;
  Tensor log_sum;  // log of the sum of exp(score); -infinity at the start
};

// The type in which tiles of `type` are computed: float for half types.
ScalarType attention_type(ScalarType type);

// The empty accumulation.
Attended nothing_attended(const Tensor& q);

// Adds the keys `k`, `v` to `attended`, in place. `diagonal`: query i sees keys 0 … i. Shapes: k, v
// [batch, heads, keys, width].
void attend(const Tensor& q,
            const Tensor& k,
            const Tensor& v,
            bool diagonal,
            const TileOptions& options,
            Attended attended);

struct AttentionGradients {
  Tensor q, k, v;  // in the type of the computation
};

// Adds the contribution of the same keys to the gradients, in place. `attended` is the final result
// over all keys; `out` is the output's gradient, and `weighted` [batch, heads, queries] the sum
// over the width of that times the output.
void attend_backward(const Tensor& q,
                     const Tensor& k,
                     const Tensor& v,
                     bool diagonal,
                     const TileOptions& options,
                     const Tensor& log_sum,
                     const Tensor& out,
                     const Tensor& weighted,
                     AttentionGradients gradients);

}  // namespace muster
