// A row of each rank, gathered as bytes: a plain struct, in place of words that are known by their
// numbers. All ranks run one program on processors of one byte order.
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/process_group.h"

namespace muster {

// Shapes: [1, bytes of the row].
template <class Row>
Tensor tensor_of_row(const Row& row) {
  static_assert(std::is_trivially_copyable_v<Row>);
  constexpr int64_t bytes = sizeof(Row);
  const Tensor tensor = at::empty({1, bytes}, kByte);
  std::memcpy(tensor.mutable_data_ptr(), &row, bytes);
  return tensor;
}

// Returns memory for the rows of all ranks. Shapes: [ranks, bytes of a row].
template <class Row>
Tensor empty_rows(const ProcessGroup& group) {
  constexpr int64_t bytes = sizeof(Row);
  return at::empty({group.size(), bytes}, kByte);
}

template <class Row>
std::vector<Row> rows_of(const Tensor& tensor) {
  static_assert(std::is_trivially_copyable_v<Row>);
  std::vector<Row> rows(tensor.size(0));
  std::memcpy(rows.data(), tensor.const_data_ptr(), tensor.nbytes());
  return rows;
}

// Returns the rows of all ranks, by rank. Collective: yes. Blocking: yes. Throws: as
// ProcessGroup::all_gather.
template <class Row>
std::vector<Row> all_gather_rows(ProcessGroup& group, const Row& mine) {
  const Tensor all = empty_rows<Row>(group);
  group.all_gather(all, tensor_of_row(mine));
  return rows_of<Row>(all);
}

}  // namespace muster
