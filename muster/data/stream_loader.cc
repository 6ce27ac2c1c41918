// The parts of stream_loader.h that do not depend on the type of example: texts and errors. An
// example of a stream has no number in a data set, so messages name its part and its place there.
#include "muster/data/stream_loader.h"

#include <string>

#include "muster/base/error.h"

namespace muster {

namespace streaming {

constexpr int64_t kMostBadInARow = 1000;  // a connection that is lost throws for ever

std::string place_in_stream(const StreamRemainder& left) {
  return cat("part ", left.part, " of ", left.parts, ", at example ", left.next);
}

// The caller is in a handler, whose exception is counted, or else thrown on.
void note_bad_example(Shared& shared, const StreamRemainder& left, int64_t* in_a_row) {
  if (!shared.options.skip_bad || ++*in_a_row > kMostBadInARow)
    throw;
  shared.bad.add(left.next,
                 cat("part ", left.part, " of ", left.parts, ": ", text_of_current_exception()));
}

}  // namespace streaming

void fail_empty_stream(const StreamPosition& position) {
  throw failed_precondition(
      "stream loader: expected an epoch with at least 1 batch of this rank, got none in epoch ",
      position.epoch,
      " (rank ",
      position.rank,
      " of ",
      position.ranks,
      "); use a smaller batch size, fewer ranks or workers, or turn drop_last off");
}

}  // namespace muster
