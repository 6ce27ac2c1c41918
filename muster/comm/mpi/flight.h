// The part of one call that is under way in MPI: its requests, what each received message must be,
// and what to do at the end.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/functions.h"
#include "muster/base/lists.h"
#include "muster/shm/message_frame.h"

namespace muster::mpi {

// MPI counts in int, and some of its implementations multiply that by the number of ranks without
// looking: more bytes than these go in several messages.
inline constexpr size_t kPieceBytes = size_t{1} << 30;

class Flight {
 public:
  // MPI puts the request that it makes there. A receive has the bytes of its message.
  MPI_Request* add(size_t bytes = kNotAMessage) {
    requests_.push_back(MPI_REQUEST_NULL);
    expected_.push_back(bytes);
    return &requests_.back();
  }
  // At the end `sent`, which MPI has written, must fit; `rank` is this rank.
  void expect_frame(const shm::MessageFrame& wanted,
                    std::shared_ptr<const shm::MessageFrame> sent,
                    int rank) {
    wanted_ = wanted;
    sent_ = std::move(sent);
    rank_ = rank;
  }
  void at_end(Callback action) { at_end_.push_back(std::move(action)); }

  // Whether all is over; then the results are there. Throws: invalid_argument, when all is over,
  // where a message is not as its receiver expects; what check() throws.
  bool test();

  // Whether MPI uses its memory no more. A failed flight may still be using it.
  bool idle() const;
  int source() const { return source_; }  // of the last message that came; -1: none

 private:
  static constexpr size_t kNotAMessage = static_cast<size_t>(-1);
  void check_request(size_t i, int code);
  void check_message(size_t i, const MPI_Status& status);
  void check_one(size_t i, int code);

  std::vector<MPI_Request> requests_;
  Indices expected_;
  std::vector<MPI_Status> statuses_;
  std::vector<Callback> at_end_;
  std::optional<Error> refusal_;  // of a message of another length
  shm::MessageFrame wanted_;
  std::shared_ptr<const shm::MessageFrame> sent_;
  int rank_ = -1;
  int source_ = -1;
};

}  // namespace muster::mpi
