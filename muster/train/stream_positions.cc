#include "muster/train/stream_positions.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr const char* kPositions = "positions";

}  // namespace

SavedState stream_positions(ProcessGroup& group, const StreamPosition& mine) {
  const std::vector<int64_t> values = mine.values();
  const size_t bytes = values.size() * sizeof(int64_t);
  const auto by_rank = group.all_gather_bytes({reinterpret_cast<const char*>(values.data()), bytes});
  at::Tensor all = at::empty({group.size(), std::ssize(values)}, at::kLong);
  char* to = reinterpret_cast<char*>(all.mutable_data_ptr<int64_t>());
  for (size_t rank = 0; rank < by_rank.size(); ++rank, to += bytes) {
    if (by_rank[rank].size() != by_rank[0].size()) {
      throw Error(ErrorCode::failed_precondition,
                  cat("checkpoints: expected stream loaders with the same number of workers on every rank, "
                      "got others on rank 0 and rank ",
                      rank, "; their parts would overlap: give every rank the same number"));
    }
    if (by_rank[rank].size() == bytes) std::memcpy(to, by_rank[rank].data(), bytes);
  }
  SavedState state;
  state.tensors[kPositions] = all;
  return state;
}

StreamPosition own_stream_position(const ProcessGroup& group, const std::string& owner,
                                   const SavedState& state) {
  const at::Tensor all = state.tensor(owner, kPositions).contiguous();
  if (all.dim() != 2 || all.scalar_type() != at::kLong || all.size(0) != group.size()) {
    const int64_t ranks = all.dim() > 0 ? all.size(0) : 0;
    throw Error(
        ErrorCode::failed_precondition,
        cat("checkpoints: expected the place in the stream of '", owner, "' for ", group.size(),
            " ranks, got that of ", ranks, "; a stream can only go on with the same number of ranks: start ",
            ranks, ", or begin anew"));
  }
  const int64_t* first = all.const_data_ptr<int64_t>() + group.rank() * all.size(1);
  return StreamPosition::from_values({first, first + all.size(1)});
}

TrainingPosition place_in_streams(const SavedState& state) {
  const at::Tensor& all = state.tensor("stream", kPositions);
  TrainingPosition place{.epoch = std::numeric_limits<int64_t>::max()};
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    const int64_t* first = all.const_data_ptr<int64_t>() + rank * all.size(1);
    const auto position = StreamPosition::from_values({first, first + all.size(1)});
    place.epoch = std::min(place.epoch, position.epoch);
    place.epoch_samples += std::accumulate(position.read.begin(), position.read.end(), int64_t{0});
  }
  return place;
}

}  // namespace muster
