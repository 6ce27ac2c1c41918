// The part of one call that is under way in MPI: its requests, the length that each received
// message must have, and what to do at the end.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace muster::mpi {

// MPI counts in int, and some of its implementations multiply that by the number of ranks without
// looking: more bytes than these go in several messages.
inline constexpr size_t kPieceBytes = size_t{1} << 30;

class Flight {
 public:
  // MPI puts the request that it makes there.
  MPI_Request* add() {
    requests_.push_back(MPI_REQUEST_NULL);
    expected_.push_back(kNotAMessage);
    return &requests_.back();
  }
  MPI_Request* add_receive(size_t bytes) {
    requests_.push_back(MPI_REQUEST_NULL);
    expected_.push_back(bytes);
    return &requests_.back();
  }
  void at_end(std::function<void()> action) { at_end_.push_back(std::move(action)); }

  // Whether all is over; then the results are there. Throws: invalid_argument where a message has
  // another size than its receive; what check() throws.
  bool test();

  // Whether MPI uses its memory no more. A failed flight may still be using it.
  bool idle() const;
  int source() const { return source_; }  // of the last message that came; -1: none

 private:
  static constexpr size_t kNotAMessage = static_cast<size_t>(-1);
  void check_request(size_t i, int code);
  void check_message(size_t i, const MPI_Status& status);

  std::vector<MPI_Request> requests_;
  std::vector<size_t> expected_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::function<void()>> at_end_;
  int source_ = -1;
};

}  // namespace muster::mpi
