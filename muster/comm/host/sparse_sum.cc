// The ranks first gather how many entries each of them has; then indices and values, padded to the
// longest. Every rank adds up the same lists in rank order.
#include "muster/comm/host/sparse_sum.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

// Gathers every rank's `part`, padded to `rows` rows of one length.
Tensor gathered(const Tensor& part, int64_t rows, int ranks, const AllGather& all_gather) {
  const int64_t columns = c10::multiply_integers(part.sizes().slice(1));
  auto padded = at::zeros({rows, columns}, part.options());
  padded.slice(0, 0, part.size(0)).copy_(part.reshape({part.size(0), columns}));
  auto all = at::empty({ranks * rows, columns}, part.options());
  all_gather(all, padded);
  return all;
}

}  // namespace

// Entries with the same indices are added up by coalesce().
Tensor sparse_sum(const Tensor& tensor, int ranks, const AllGather& all_gather) {
  const Tensor mine = tensor.to(kCPU).coalesce();
  // The number of entries, and the shape, which must be the same everywhere.
  auto facts = at::full({1, mine.dim() + 1}, mine._nnz(), kLong);
  for (const int64_t dim : indices_below(mine.dim()))
    facts[0][dim + 1] = mine.size(dim);
  const Tensor counts = gathered(facts, 1, ranks, all_gather);
  if (!counts.slice(1, 1).eq(facts.slice(1, 1)).all().item<bool>()) {
    throw invalid_argument(
        "all_reduce: expected the same shape on every rank, got other shapes than [",
        sizes_text(mine),
        "]");
  }
  const int64_t most = counts.select(1, 0).max().item<int64_t>();
  if (most == 0)
    return mine;
  const Tensor indices = gathered(mine.indices().t().contiguous(), most, ranks, all_gather);
  const Tensor values = gathered(mine.values(), most, ranks, all_gather);
  Tensors their_indices, their_values;
  for (const int rank : indices_below(ranks)) {
    const int64_t first = rank * most, count = counts[rank][0].item<int64_t>();
    auto shape = mine.values().sizes().vec();
    shape[0] = count;
    their_indices.push_back(indices.slice(0, first, first + count).t());
    their_values.push_back(values.slice(0, first, first + count).reshape(shape));
  }
  const auto sum =
      at::sparse_coo_tensor(at::cat(their_indices, 1), at::cat(their_values), mine.sizes());
  return sum.coalesce();
}

}  // namespace muster
