// What is under way of one operation: MPI's requests, what each received must be, and what to do at
// the end.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace muster::mpi {

// MPI counts in int, and some of its implementations multiply that by the number of ranks or look
// into it without care: more goes in pieces.
inline constexpr size_t kPieceBytes = size_t{1} << 30;

class Flight {
 public:
  // Where MPI puts the request that a call makes.
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

  // Whether all is over; then the results are there. Throws: invalid_argument when a message has
  // another size than its receive; what check() throws.
  bool test();

  // A failed one may still be using its memory.
  bool idle() const;
  int source() const { return source_; }  // of the last message that came; -1: none

 private:
  static constexpr size_t kNotAMessage = static_cast<size_t>(-1);
  void check_message(size_t i, const MPI_Status& status);

  std::vector<MPI_Request> requests_;
  std::vector<size_t> expected_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::function<void()>> at_end_;
  int source_ = -1;
};

}  // namespace muster::mpi
