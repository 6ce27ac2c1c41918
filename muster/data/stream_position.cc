#include "muster/data/stream_position.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr size_t kStreamNumbers = 7;  // before those of the workers

void check_stream_number(const char* what, int64_t value, int64_t least) {
  if (value >= least) return;
  throw Error(ErrorCode::invalid_argument,
              cat("stream loader: expected ", what, " of at least ", least, ", got ", value));
}

}  // namespace

std::vector<int64_t> StreamPosition::values() const {
  std::vector<int64_t> all{epoch, step, batch, seed, rank, ranks, batch_size};
  all.insert(all.end(), read.begin(), read.end());
  return all;
}

StreamPosition StreamPosition::from_values(const std::vector<int64_t>& values) {
  const bool negative = std::any_of(values.begin(), values.end(), [&](const int64_t& value) {
    return value < 0 && &value != values.data() + 3;  // the seed
  });
  if (values.size() <= kStreamNumbers || negative)
    throw Error(ErrorCode::invalid_argument,
                cat("stream loader: expected a position of more than ", kStreamNumbers,
                    " numbers from 0 on, got [", join(values, ", "), "]; give what values() has given"));
  return {.epoch = values[0],
          .step = values[1],
          .batch = values[2],
          .seed = values[3],
          .rank = values[4],
          .ranks = values[5],
          .batch_size = values[6],
          .read = {values.begin() + kStreamNumbers, values.end()}};
}

void check_stream_options(const StreamLoaderOptions& options) {
  check_stream_number("a batch size", options.batch_size, 1);
  check_stream_number("batches a step", options.accumulate, 1);
  check_stream_number("workers", options.workers, 0);
  check_stream_number("batches ahead", options.ahead, 0);
  check_stream_number("ranks", options.ranks, 1);
  check_stream_number("a rank", options.rank, 0);
  if (options.rank >= options.ranks)
    throw Error(ErrorCode::invalid_argument,
                cat("stream loader: expected a rank below ", options.ranks, ", got ", options.rank,
                    "; pass rank and ranks of one group"));
}

void check_stream_position(const StreamPosition& position, const StreamLoaderOptions& options) {
  const auto check = [&](const char* what, int64_t saved, int64_t here) {
    if (saved == here) return;
    throw Error(
        ErrorCode::failed_precondition,
        cat("stream loader: expected to go on with the ", what, " of the saved position, ", saved, ", got ",
            here, "; the parts of a stream depend on the ", what, ": keep it, or begin with the next epoch"));
  };
  check("seed", position.seed, options.seed);
  check("number of ranks", position.ranks, options.ranks);
  check("rank", position.rank, options.rank);
  check("batch size", position.batch_size, options.batch_size);
  check("number of workers", static_cast<int64_t>(position.read.size()), std::max(options.workers, 1));
}

}  // namespace muster
