// Attention of some queries to some keys, tile by tile, for ring_attention.cc: what one block of keys adds to
// an output, and to the gradients. Scores exist for one tile at a time. Knows nothing of ranks.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster {

struct TileOptions {
  double scale = 1;
  int64_t tile = 512;  // queries, and keys, at a time
};

// What has been attended to so far. Shapes: out [batch, heads, queries, width], log_sum [batch, heads,
// queries]; of the type that is computed in.
struct Attended {
  at::Tensor out;
  at::Tensor log_sum;  // of the exponentials of all scores; -infinity before the first
};

// The type that tiles of `type` are computed in: float for half types.
at::ScalarType attention_type(at::ScalarType type);

// Nothing attended to yet.
Attended nothing_attended(const at::Tensor& q);

// Adds the keys `k`, `v` to `attended`, in place. `diagonal`: query i sees keys 0 … i. Shapes: k, v [batch,
// heads, keys, width].
void attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool diagonal,
            const TileOptions& options, Attended attended);

struct AttentionGradients {
  at::Tensor q, k, v;  // of the type that is computed in
};

// Adds what the same keys are to the gradients, in place. `attended` is the end result over all keys; `out`
// is the output's gradient, and `weighted` [batch, heads, queries] its sum with the output over the width.
void attend_backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool diagonal,
                     const TileOptions& options, const at::Tensor& log_sum, const at::Tensor& out,
                     const at::Tensor& weighted, AttentionGradients gradients);

}  // namespace muster
