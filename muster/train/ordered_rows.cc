// Rows stay in the tensors in which they came. What is taken is joined from these once.
#include "muster/train/ordered_rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/train/evaluation_batches.h"

namespace muster::evaluation {

namespace {

// What must be alike: the type, and the shape of a row.
std::string row_text(const Tensor& tensor, bool of_one_shape) {
  const std::string type = toString(tensor.scalar_type());
  return of_one_shape ? cat(type, " [", join(tensor.sizes().slice(1), ", "), "]") : type;
}

}  // namespace

void OrderedRows::check_like_before(const Tensors& outputs) {
  if (like_.empty())
    for (const Tensor& output : outputs)
      like_.push_back(output.narrow(0, 0, 0).clone());
  for (const size_t i : indices_of(outputs)) {
    const auto before = row_text(like_[i], of_one_shape_);
    const auto now = row_text(outputs[i], of_one_shape_);
    if (before != now) {
      throw invalid_argument(
          "predict: expected rows of one type",
          of_one_shape_ ? " and shape" : "",
          " in all batches, got ",
          before,
          " and ",
          now,
          of_one_shape_ ? "; take them piece by piece, with a function, or pad them to one length"
                        : "; convert them to one type");
    }
  }
}

void OrderedRows::add(IndexedRows rows) {
  check_like_before(rows.outputs);
  const auto block = std::make_shared<const Tensors>(std::move(rows.outputs));
  int64_t place = 0;
  for (const int64_t index : rows.indices) {
    const bool is_new = index >= next_ && !waiting_.contains(index);
    if (!is_new)
      refuse_samples("predict", size_, cat("sample ", index, " twice"), /*repeats=*/true);
    waiting_[index] = {block, place++};
    ++came_;
  }
}

// Rows of one block have one shape.
bool OrderedRows::Row::has_shape_of(const Row& other) const {
  const auto is_alike = [](const Tensor& a, const Tensor& b) {
    return a.sizes().slice(1) == b.sizes().slice(1);
  };
  return block == other.block || std::ranges::equal(*block, *other.block, is_alike);
}

std::vector<OrderedRows::Row> OrderedRows::rows_that_follow(Int64s& indices) {
  std::vector<Row> rows;
  for (;; ++next_) {
    const auto found = waiting_.find(next_);
    if (found == waiting_.end() && skipped_.erase(next_) == 0)
      return rows;
    if (found == waiting_.end())
      continue;
    if (!rows.empty() && !found->second.has_shape_of(rows.front()))
      return rows;
    rows.push_back(found->second);
    indices.push_back(next_);
    waiting_.erase(found);
  }
}

IndexedRows OrderedRows::take() {
  IndexedRows taken;
  const auto rows = rows_that_follow(taken.indices);
  if (rows.empty())
    return taken;
  // Where each block's rows begin in the joined ones.
  std::map<const void*, int64_t> begins;
  std::vector<const Tensors*> blocks;
  Int64s order;
  int64_t joined = 0;
  for (const Row& row : rows) {
    const auto [begin, is_new] = begins.emplace(row.block.get(), joined);
    if (is_new) {
      blocks.push_back(row.block.get());
      joined += row.block->empty() ? 0 : row.block->front().size(0);
    }
    order.push_back(begin->second + row.place);
  }
  const Tensor places = at::tensor(order, kLong);
  for (const size_t i : indices_of(like_)) {
    Tensors parts = mapped(blocks, [&](const auto* block) { return (*block)[i]; });
    taken.outputs.push_back(at::cat(parts).index_select(0, places));
  }
  return taken;
}

void OrderedRows::check_complete() const {
  if (next_ != size_ || !waiting_.empty())
    refuse_samples("predict", size_, cat(came_), /*repeats=*/false);
}

}  // namespace muster::evaluation
