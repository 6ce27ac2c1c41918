// All ranks' positions are one vector of whole numbers: for each rank how many numbers follow, and
// the numbers. Their counts differ, since a worker may have several parts left.
#include "muster/checkpoint/training/stream_positions.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/training/tensor_bytes.h"

namespace muster {

namespace {

constexpr auto kPositions = "positions";

}  // namespace

// Loaders with different numbers of workers divide the stream in different ways, so their parts
// overlap.
SavedState stream_positions(ProcessGroup& group, const StreamPosition& mine) {
  Int64s all;
  size_t workers = 0;
  for (const auto& bytes : group.all_gather_bytes(text_of_values(mine.values()))) {
    const auto of_rank = values_in<int64_t>(bytes);
    const auto position = StreamPosition::from_values(of_rank);
    if (workers == 0)
      workers = position.left.size();
    if (position.left.size() != workers) {
      throw failed_precondition(
          "checkpoints: expected stream loaders with the same number of workers on every "
          "rank, got others on rank 0 and rank ",
          position.rank,
          "; their parts would overlap: give every rank the same number");
    }
    all.push_back(std::ssize(of_rank));
    append_all(all, of_rank);
  }
  SavedState state;
  state.tensors[kPositions] = at::tensor(all, kLong);
  return state;
}

// The counts are from a file, so they are compared with what is left.
StreamPositions positions_of_ranks(const std::string& owner, const SavedState& state) {
  const Tensor all = state.tensor(owner, kPositions).contiguous();
  // The tensor may be of a damaged file, or of another part of that name.
  const auto refuse = [&](const std::string& got) {
    throw invalid_argument("checkpoints: expected the positions of all ranks in the stream of '",
                           owner,
                           "', got ",
                           got,
                           "; take the loader out, or begin anew");
  };
  if (all.dim() != 1 || all.scalar_type() != kLong)
    refuse(tensor_text(all));
  StreamPositions positions;
  const int64_t* at = all.const_data_ptr<int64_t>();
  for (const int64_t* const end = at + all.numel(); at != end;) {
    const int64_t count = *at++;
    if (count < 0 || count > end - at)
      refuse(cat(count, " numbers of a position where ", end - at, " are left"));
    positions.push_back(StreamPosition::from_values({at, at + count}));
    at += count;
  }
  return positions;
}

// The manifest has room for one place: the epoch that all ranks have come to.
TrainingPosition place_in_streams(const SavedState& state) {
  TrainingPosition place{.epoch = INT64_MAX};
  for (const auto& position : positions_of_ranks("stream", state)) {
    place.epoch = std::min(place.epoch, position.epoch);
    place.epoch_samples += position.examples;
  }
  return place;
}

}  // namespace muster
