// Rows stay in the tensors in which they came. What is taken is joined from these once.
#include "muster/train/ordered_rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/train/evaluation_batches.h"

namespace muster::evaluation {

namespace {

std::string row_text(const at::Tensor& tensor) {
  return cat(c10::toString(tensor.scalar_type()), " [", join(tensor.sizes().slice(1), ", "), "]");
}

}  // namespace

void OrderedRows::check_like_before(const std::vector<at::Tensor>& outputs) {
  if (like_.empty())
    for (const at::Tensor& output : outputs)
      like_.push_back(output.narrow(0, 0, 0).clone());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string before = row_text(like_[i]), now = row_text(outputs[i]);
    if (before != now) {
      throw Error(ErrorCode::invalid_argument,
                  cat("predict: expected rows of one type and shape in all batches, got ",
                      before,
                      " and ",
                      now,
                      "; pad them to one length, or predict with a batch of 1 into a list"));
    }
  }
}

void OrderedRows::add(IndexedRows rows) {
  check_like_before(rows.outputs);
  const auto block = std::make_shared<const std::vector<at::Tensor>>(std::move(rows.outputs));
  int64_t place = 0;
  for (const int64_t index : rows.indices) {
    const bool is_new = index >= next_ && !waiting_.contains(index);
    if (!is_new)
      refuse_samples("predict", size_, cat("sample ", index, " twice"), /*repeats=*/true);
    waiting_[index] = {block, place++};
    ++came_;
  }
}

std::vector<OrderedRows::Row> OrderedRows::rows_that_follow(std::vector<int64_t>& indices) {
  std::vector<Row> rows;
  for (;; ++next_) {
    const auto found = waiting_.find(next_);
    if (found == waiting_.end() && skipped_.erase(next_) == 0)
      return rows;
    if (found == waiting_.end())
      continue;
    rows.push_back(found->second);
    indices.push_back(next_);
    waiting_.erase(found);
  }
}

IndexedRows OrderedRows::take() {
  IndexedRows taken;
  const std::vector<Row> rows = rows_that_follow(taken.indices);
  if (rows.empty())
    return taken;
  // Where each block's rows begin in the joined ones.
  std::map<const void*, int64_t> begins;
  std::vector<const std::vector<at::Tensor>*> blocks;
  std::vector<int64_t> order;
  int64_t joined = 0;
  for (const Row& row : rows) {
    const auto [begin, is_new] = begins.emplace(row.block.get(), joined);
    if (is_new) {
      blocks.push_back(row.block.get());
      joined += row.block->empty() ? 0 : row.block->front().size(0);
    }
    order.push_back(begin->second + row.place);
  }
  const at::Tensor places = at::tensor(order, at::kLong);
  for (size_t i = 0; i < like_.size(); ++i) {
    std::vector<at::Tensor> parts = mapped(blocks, [&](const auto* block) { return (*block)[i]; });
    taken.outputs.push_back(at::cat(parts).index_select(0, places));
  }
  return taken;
}

void OrderedRows::check_complete() const {
  if (next_ != size_ || !waiting_.empty())
    refuse_samples("predict", size_, cat(came_), /*repeats=*/false);
}

}  // namespace muster::evaluation
