// Attention in tiles, as FlashAttention computes it: the scores of one tile of queries and one of
// keys at a time, so the whole matrix is never in memory. Results of tiles are merged by the
// logarithm of their sums. The backward computes the weights again from it.
#include "muster/parallel/tensor/attention_tile.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <limits>

namespace muster {

namespace {

struct TileRange {
  int64_t begin;
  int64_t length;
};

Tensor tile_of(const Tensor& x, TileRange range) {
  return x.narrow(2, range.begin, range.length);
}

// Calls visit(queries, keys) for each pair of tiles of which something is seen.
template <class Visit>
void each_tile(int64_t queries, int64_t keys, int64_t tile, bool diagonal, const Visit& visit) {
  for (int64_t q = 0; q < queries; q += tile) {
    const TileRange rows{q, std::min(tile, queries - q)};
    const int64_t seen = diagonal ? std::min(keys, q + rows.length) : keys;
    for (int64_t k = 0; k < seen; k += tile)
      visit(rows, TileRange{k, std::min(tile, seen - k)});
  }
}

// [batch, heads, queries, keys], -infinity where a query does not see.
Tensor scores_of(const Tensor& q,
                 const Tensor& k,
                 TileRange rows,
                 TileRange columns,
                 bool diagonal,
                 double scale) {
  Tensor scores = at::matmul(q, k.transpose(2, 3)).mul_(scale);
  if (!diagonal || columns.begin + columns.length <= rows.begin + 1)
    return scores;
  const auto count = scores.options().dtype(kLong);
  const Tensor query = at::arange(rows.begin, rows.begin + rows.length, count).unsqueeze(1);
  const Tensor key = at::arange(columns.begin, columns.begin + columns.length, count);
  return scores.masked_fill_(key > query, -std::numeric_limits<double>::infinity());
}

}  // namespace

// Halves are too narrow for sums over a whole sequence.
ScalarType attention_type(ScalarType type) {
  return type == kHalf || type == kBFloat16 ? kFloat : type;
}

// A sum of nothing has the logarithm -infinity, so the first tile counts alone.
Attended nothing_attended(const Tensor& q) {
  const auto options = q.options().dtype(attention_type(q.scalar_type()));
  return {
      .out = at::zeros(q.sizes(), options),
      .log_sum = at::full(
          {q.size(0), q.size(1), q.size(2)}, -std::numeric_limits<double>::infinity(), options)};
}

// `attended` and the new part are each a mean by its own weights. Together they count in proportion
// to the sums of their weights, which are kept as logarithms.
void attend(const Tensor& q,
            const Tensor& k,
            const Tensor& v,
            bool diagonal,
            const TileOptions& options,
            Attended attended) {
  const ScalarType type = attended.out.scalar_type();
  each_tile(q.size(2), k.size(2), options.tile, diagonal, [&](TileRange rows, TileRange columns) {
    Tensor weights = scores_of(tile_of(q, rows).to(type),
                               tile_of(k, columns).to(type),
                               rows,
                               columns,
                               diagonal,
                               options.scale);
    const Tensor largest = weights.amax(-1);
    weights.sub_(largest.unsqueeze(-1)).exp_();
    const Tensor sum = weights.sum(-1);
    const Tensor log_sum = sum.log().add_(largest);
    Tensor before = tile_of(attended.log_sum, rows);
    Tensor out = tile_of(attended.out, rows);
    const Tensor together = at::logaddexp(before, log_sum);
    const Tensor part = at::matmul(weights, tile_of(v, columns).to(type));
    out.mul_((before - together).exp_().unsqueeze(-1));
    out.add_(part.mul_((largest - together).exp_().unsqueeze(-1)));
    before.copy_(together);
  });
}

// `weighted` is the sum of gradient times output of each query, which all its tiles subtract.
void attend_backward(const Tensor& q,
                     const Tensor& k,
                     const Tensor& v,
                     bool diagonal,
                     const TileOptions& options,
                     const Tensor& log_sum,
                     const Tensor& out,
                     const Tensor& weighted,
                     AttentionGradients gradients) {
  const ScalarType type = gradients.q.scalar_type();
  each_tile(q.size(2), k.size(2), options.tile, diagonal, [&](TileRange rows, TileRange columns) {
    const Tensor query = tile_of(q, rows).to(type), key = tile_of(k, columns).to(type);
    const Tensor out_tile = tile_of(out, rows).to(type);
    const Tensor weights = scores_of(query, key, rows, columns, diagonal, options.scale)
                               .sub_(tile_of(log_sum, rows).unsqueeze(-1))
                               .exp_();
    tile_of(gradients.v, columns).add_(at::matmul(weights.transpose(2, 3), out_tile));
    Tensor scores = at::matmul(out_tile, tile_of(v, columns).to(type).transpose(2, 3));
    scores.sub_(tile_of(weighted, rows).unsqueeze(-1)).mul_(weights).mul_(options.scale);
    tile_of(gradients.q, rows).add_(at::matmul(scores, key));
    tile_of(gradients.k, columns).add_(at::matmul(scores.transpose(2, 3), query));
  });
}

}  // namespace muster
