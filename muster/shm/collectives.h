// The collectives of a team, over plain memory. A small one takes one step: every rank puts its
// data into its slot, arrives, and takes the others' from theirs. A larger one goes in rounds
// through the ranks' stages, which fit the caches. An all_reduce, all_gather or reduce_scatter of
// memory that all ranks can see needs neither rounds nor stages.
//
// An operation has two halves, so that one thread can start it and another wait for it: begin()
// never blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "muster/shm/reduce.h"
#include "muster/shm/team.h"

namespace muster::shm {

struct Part {
  std::byte* data = nullptr;
  size_t bytes = 0;
  // Of a message, both sides of which must have the same: the type's name, which lives for ever,
  // and the bytes of an element. Without a name any message fits that is as long.
  const char* type = nullptr;
  size_t element = 1;
};

// One collective, as one rank wants it. Its parts depend on the kind (one: a tensor; all: one a
// rank):
//   all_reduce, broadcast   out: one, which is also what goes in
//   reduce                  in: one; out: one, at the root
//   all_gather              in: one; out: all            gather    the same, out at the root alone
//   reduce_scatter          in: all; out: one            scatter   the same, in at the root alone
//   all_to_all              in: all; out: all
struct Request {
  Kind kind = Kind::barrier;
  Op op = Op::sum;
  Type type = Type::other;
  int root = 0;
  uint64_t count = 0;  // elements of a part
  std::vector<Part> in{};
  std::vector<Part> out{};
  int64_t num_dims = -1;  // of a part's tensor, to compare and for messages; -1: not told
  std::array<int64_t, kComparedDims> dims{};
  int64_t number = -1;  // to compare; -1: none

  size_t part_bytes() const { return count * size_of(type); }
  // The rank's own data, of a kind with one part going in.
  const std::byte* own_data() const { return in.empty() ? out[0].data : in[0].data; }
};

const char* to_string(Kind kind);

// Throws: invalid_argument where the request's type does not have its operation.
void check_reduction(const Request& request);

class Collectives {
 public:
  explicit Collectives(Team& team) : team_(team) {}

  // Says what this rank does, gives what is small, arrives. Throws: invalid_argument for an
  // operation that the type does not have; nothing has been said then.
  void begin(const Request& request);

  // Waits for the others, and does the rest. Throws: as Team::wait_for_all; invalid_argument on
  // every rank when the calls differ, with both sides; the team is as good as before then.
  void finish(const Request& request, const Deadline& deadline);

  // It fits the slots, and takes one step.
  bool is_small(const Request& request) const;

  // "all_reduce #12", of the operation that was begun last.
  Step name() const { return {to_string(kind_), sequence_}; }

 private:
  void check_same_calls() const;
  void check_same_sizes() const;
  void give_sizes(const Request& request, Call& call);
  void give_small(const Request& request);
  static Part data_of_all(const Request& request);
  uint64_t offset_in_arena(const Part& part) const;
  bool all_in_shared_memory() const;
  std::byte* data_of(int rank) const;  // where all have theirs in shared memory

  void finish_small(const Request& request);
  void reduce_small(const Request& request, size_t part);
  void all_gather_in_place(const Request& request, const Deadline& deadline);
  void reduce_scatter_in_place(const Request& request, const Deadline& deadline);
  void all_reduce_in_place(const Request& request, const Deadline& deadline);
  void reduce_staged(const Request& request, const Deadline& deadline);
  void reduce_scatter_staged(const Request& request, const Deadline& deadline);
  void move_staged(const Request& request, const Deadline& deadline);
  void copy_own_part(const Request& request) const;
  void give_round(const Request& request, size_t capacity, size_t round) const;
  void take_round(const Request& request, size_t capacity, size_t round) const;
  size_t rounds_to_move(const Request& request, size_t capacity) const;
  void step(const Deadline& deadline);
  void end_reading(const Deadline& deadline);

  std::byte* slot(int rank) const { return team_.at(team_.layout().slot_data(rank, sequence_)); }
  std::byte* stage(int rank, uint64_t round) const {
    return team_.at(team_.layout().stage(rank, round));
  }
  std::byte* results(int rank, uint64_t round) const {
    return stage(rank, round) + team_.layout().stage_bytes;
  }

  Team& team_;
  uint64_t sequence_ = 0;
  Kind kind_ = Kind::barrier;
};

}  // namespace muster::shm
