// Brings the outputs of all ranks to rank 0, batch by batch, in the order of the dataset. The part
// of predict() that knows no type.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/train/ordered_rows.h"

namespace muster::evaluation {

struct PredictionExchangeOptions {
  int64_t dataset_size = 0;
  // The samples that this rank's loader has skipped, and those of them from before.
  std::function<Int64s()> skipped{};
  int64_t skipped_before = 0;
  // Pieces may lack the samples that were skipped, and differ in the shape of their rows. Otherwise
  // all samples are rows of one tensor.
  bool in_pieces = true;
  // Called on rank 0 with the next rows, on the CPU.
  std::function<void(const IndexedRows&)> write{};
};

class PredictionExchange {
 public:
  PredictionExchange(ProcessGroup& group, PredictionExchangeOptions options);

  // Runs `body`, which calls give() for each of this rank's batches; then waits for those of other
  // ranks. Collective: yes. Throws: on every rank, what any rank has thrown; invalid_argument if
  // samples are repeated or missing.
  void run(const std::function<void()>& body);

  // Shapes: of the outputs [indices, …]. Collective: yes, with give() or the end of run() on other
  // ranks. Throws: as run().
  void give(const IndexedRows& mine);

 private:
  struct Said;
  void exchange(const IndexedRows& mine, bool is_over);
  std::string message(const IndexedRows& mine, bool is_over);
  static Said read(const std::string& message);
  void fail_if_any(const std::vector<Said>& all);
  void take_in(const std::vector<Said>& all, const TensorLists& parts);

  ProcessGroup& group_;
  PredictionExchangeOptions options_;
  OrderedRows rows_;
  int64_t skipped_told_;
  bool are_over_ = false;   // all ranks
  bool is_failed_ = false;  // and all ranks know
  std::exception_ptr failure_;
};

}  // namespace muster::evaluation
