// Puts rows that come in any order into the order of their indices, and gives those away that
// follow without a gap. It holds only the rows that wait for an earlier one. For predict().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"

namespace muster::evaluation {

// Tensors with a row for each index.
struct IndexedRows {
  Int64s indices{};
  Tensors outputs{};
};

class OrderedRows {
 public:
  // `size`: of the dataset. `of_one_shape`: all rows have the same; otherwise those that are taken
  // together.
  OrderedRows(int64_t size, bool of_one_shape) : size_(size), of_one_shape_(of_one_shape) {}

  // Throws: invalid_argument for an index that came before, and for rows of another type or shape
  // than those before.
  void add(IndexedRows rows);
  // Nothing comes for this index.
  void skip(int64_t index) { skipped_.insert(index); }
  // The rows that are next, up to one of another shape. Empty if the next one has not come.
  IndexedRows take();
  // Throws: invalid_argument if rows are missing.
  void check_complete() const;

 private:
  struct Row {
    std::shared_ptr<const Tensors> block;
    int64_t place;

    bool has_shape_of(const Row& other) const;
  };
  void check_like_before(const Tensors& outputs);
  std::vector<Row> rows_that_follow(Int64s& indices);

  int64_t size_;
  bool of_one_shape_;
  int64_t next_ = 0;
  int64_t came_ = 0;
  std::map<int64_t, Row> waiting_;
  std::set<int64_t> skipped_;
  Tensors like_;  // no row of each output
};

}  // namespace muster::evaluation
