// Kinds that MPI has are started as they are; others are made of messages (gather, scatter,
// all_to_all). Half types are reduced as float, which is what shared memory does, and averages are
// sums that are divided at the end. What is too long for one call goes in several.
#include "muster/comm/mpi/start.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"

namespace muster::mpi {

namespace {

using shm::Kind;
using shm::Op;
using shm::Type;

constexpr int kTag = 0;  // of a collective's messages: their order tells them apart

// Types that MPI does not have.
bool is_half(Type type) {
  return type == Type::f16 || type == Type::bf16;
}

// Converts `count` values from one array to another.
template <class From, class To>
void convert(const void* from, void* to, size_t count) {
  const auto* in = static_cast<const From*>(from);
  std::transform(
      in, in + count, static_cast<To*>(to), [](From value) { return static_cast<To>(value); });
}

template <class T>
void divide(std::byte* data, size_t count, int by) {
  auto* values = reinterpret_cast<T*>(data);
  std::for_each(values, values + count, [by](T& value) { value /= static_cast<T>(by); });
}

// Divides sums by the number of ranks. A complex number is two real ones.
void average(Type type, std::byte* data, size_t count, int ranks) {
  if (type == Type::f64)
    return divide<double>(data, count, ranks);
  if (type == Type::c64)
    return divide<float>(data, 2 * count, ranks);
  if (type == Type::c128)
    return divide<double>(data, 2 * count, ranks);
  divide<float>(data, count, ranks);
}

// A tensor's part as MPI reduces it: half types become float, and are rounded once at the end.
struct Operand {
  Operand(Type type, const Part& part, bool read) : type(type), part(part), data(part.data) {
    count = part.bytes / size_of(type);
    if (!is_half(type))
      return;
    wide = std::shared_ptr<float[]>(new float[std::max<size_t>(count, 1)]);
    data = reinterpret_cast<std::byte*>(wide.get());
    if (read && type == Type::f16)
      convert<c10::Half, float>(part.data, data, count);
    if (read && type == Type::bf16)
      convert<c10::BFloat16, float>(part.data, data, count);
  }

  // Does what is left to do when the reduced values are in `data`.
  void finish(Op op, int ranks) const {
    if (op == Op::avg)
      average(is_half(type) ? Type::f32 : type, data, count, ranks);
    if (type == Type::f16)
      convert<float, c10::Half>(data, part.data, count);
    if (type == Type::bf16)
      convert<float, c10::BFloat16>(data, part.data, count);
  }

  size_t element_bytes() const { return is_half(type) ? sizeof(float) : size_of(type); }

  Type type;
  Part part;
  std::byte* data;
  size_t count = 0;
  std::shared_ptr<float[]> wide;
};

// Calls `piece(first byte, elements)` for as much as goes at once; also for no elements, since
// MPI's ranks must all make the call.
template <class Piece>
void in_pieces(size_t count, size_t element_bytes, Piece&& piece) {
  const size_t most = kPieceBytes / element_bytes;
  size_t first = 0;
  do {
    const size_t elements = std::min(most, count - first);
    piece(first * element_bytes, static_cast<int>(elements));
    first += elements;
  } while (first < count);
}

// A long message goes as several. `peer` may be MPI_ANY_SOURCE in a receive that is one of MPI's.
void start_send(const Part& data, int peer, int tag, MPI_Comm comm, Flight& flight) {
  in_pieces(data.bytes, 1, [&](size_t at, int count) {
    check(MPI_Isend(data.data + at, count, MPI_BYTE, peer, tag, comm, flight.add()), "MPI_Isend");
  });
}

void start_receive(const Part& data, int peer, int tag, MPI_Comm comm, Flight& flight) {
  in_pieces(data.bytes, 1, [&](size_t at, int count) {
    check(MPI_Irecv(data.data + at, count, MPI_BYTE, peer, tag, comm, flight.add(count)),
          "MPI_Irecv");
  });
}

// Whether the ranks' parts lie behind each other, equally long, so that MPI can take all at once.
bool is_one_piece(const std::vector<Part>& parts) {
  size_t bytes = 0;
  for (const Part& part : parts) {
    if (part.data != parts[0].data + bytes || part.bytes != parts[0].bytes)
      return false;
    bytes += part.bytes;
  }
  return bytes <= kPieceBytes;
}

// Whether the part shares memory with any of the others.
bool overlap(const Part& part, const std::vector<Part>& parts) {
  return any_of(parts, [&](const Part& other) {
    return part.data < other.data + other.bytes && other.data < part.data + part.bytes;
  });
}

// A collective that is being started.
class Start {
 public:
  Start(const Request& request,
        const Communicators& group,
        const Reductions& reductions,
        Flight& flight)
      : request_(request), group_(group), op_(reductions.of(request.op)), flight_(flight) {}

  // Reduces in the caller's memory, or in the wide copy of halves.
  void all_reduce() {
    const Operand all(request_.type, request_.out[0], true);
    in_pieces(all.count, all.element_bytes(), [&](size_t at, int count) {
      check(MPI_Iallreduce(MPI_IN_PLACE,
                           all.data + at,
                           count,
                           type_of(all.type),
                           op_,
                           group_.collectives,
                           flight_.add()),
            "MPI_Iallreduce");
    });
    flight_.at_end([all, op = request_.op, ranks = group_.size] { all.finish(op, ranks); });
  }

  // Reduces `in` of every rank to `out` at the root, which may be the same memory.
  void reduce(int root, const Part& in, const Part& out) {
    const Operand given(request_.type, in, true);
    const bool at_root = root == group_.rank;
    const bool in_place = at_root && in.data == out.data;
    const Operand result = !at_root || in_place ? given : Operand(request_.type, out, false);
    in_pieces(given.count, given.element_bytes(), [&](size_t at, int count) {
      const void* const from = in_place ? MPI_IN_PLACE : given.data + at;
      void* const to = at_root ? result.data + at : nullptr;
      check(MPI_Ireduce(
                from, to, count, type_of(given.type), op_, root, group_.collectives, flight_.add()),
            "MPI_Ireduce");
    });
    flight_.at_end([given, result, at_root, op = request_.op, ranks = group_.size] {
      if (at_root)
        result.finish(op, ranks);
    });
  }

  void reduce_to_root() {
    reduce(request_.root, request_.in[0], group_.rank == request_.root ? request_.out[0] : Part{});
  }

  // MPI has no collective for parts that lie apart or overlap the result: each is a reduce then.
  void reduce_scatter() {
    const Part& out = request_.out[0];
    if (is_half(request_.type) || !is_one_piece(request_.in) || overlap(out, request_.in)) {
      for (const int root : indices_below(group_.size))
        reduce(root, in(root), out);
      return;
    }
    const Operand mine(request_.type, out, false);
    check(MPI_Ireduce_scatter_block(in(0).data,
                                    out.data,
                                    static_cast<int>(mine.count),
                                    type_of(mine.type),
                                    op_,
                                    group_.collectives,
                                    flight_.add()),
          "MPI_Ireduce_scatter_block");
    flight_.at_end([mine, op = request_.op, ranks = group_.size] { mine.finish(op, ranks); });
  }

  // Nothing is reduced, so the type does not matter.
  void broadcast() {
    const Part& data = request_.out[0];
    in_pieces(data.bytes, 1, [&](size_t at, int count) {
      check(MPI_Ibcast(
                data.data + at, count, MPI_BYTE, request_.root, group_.collectives, flight_.add()),
            "MPI_Ibcast");
    });
  }

  // Parts that lie apart go as messages.
  void all_gather() {
    const Part& given = request_.in[0];
    if (!is_one_piece(request_.out)) {
      for (const int peer : indices_below(group_.size))
        exchange(peer, &given, &out(peer));
      return;
    }
    const auto count = static_cast<int>(given.bytes);
    const bool in_place = given.data == out(group_.rank).data;
    check(MPI_Iallgather(in_place ? MPI_IN_PLACE : given.data,
                         count,
                         MPI_BYTE,
                         out(0).data,
                         count,
                         MPI_BYTE,
                         group_.collectives,
                         flight_.add()),
          "MPI_Iallgather");
  }

  // exchange() does nothing between a rank and itself where only one side is given.
  void gather() {
    exchange(request_.root, &request_.in[0], nullptr);
    if (group_.rank != request_.root)
      return;
    for (const int peer : indices_below(group_.size))
      exchange(peer, nullptr, &out(peer));
    copy(request_.in[0], out(group_.rank));
  }

  void scatter() {
    exchange(request_.root, nullptr, &request_.out[0]);
    if (group_.rank != request_.root)
      return;
    for (const int peer : indices_below(group_.size))
      exchange(peer, &in(peer), nullptr);
    copy(in(group_.rank), request_.out[0]);
  }

  void all_to_all() {
    for (const int peer : indices_below(group_.size))
      exchange(peer, &in(peer), &out(peer));
  }

  void barrier() { check(MPI_Ibarrier(group_.collectives, flight_.add()), "MPI_Ibarrier"); }

 private:
  const Part& in(int rank) const { return request_.in[rank]; }
  const Part& out(int rank) const { return request_.out[rank]; }

  static void copy(const Part& from, const Part& to) {
    if (from.data != to.data && from.bytes != 0)
      std::memmove(to.data, from.data, std::min(from.bytes, to.bytes));
  }

  // Either of the two may be nothing. The receive is started first, so that MPI can deliver at
  // once.
  void exchange(int peer, const Part* sent, const Part* received) {
    if (peer == group_.rank) {
      if (sent != nullptr && received != nullptr)
        copy(*sent, *received);
      return;
    }
    if (received != nullptr)
      start_receive(*received, peer, kTag, group_.collectives, flight_);
    if (sent != nullptr)
      start_send(*sent, peer, kTag, group_.collectives, flight_);
  }

  const Request& request_;
  const Communicators& group_;
  MPI_Op op_;
  Flight& flight_;
};

}  // namespace

// The flight gets the requests that MPI makes, and what is to be done at the end.
void start(const Request& request,
           const Communicators& group,
           const Reductions& reductions,
           Flight& flight) {
  Start starting(request, group, reductions, flight);
  constexpr std::pair<Kind, void (Start::*)()> kOperations[] = {
      {Kind::all_reduce, &Start::all_reduce},
      {Kind::reduce, &Start::reduce_to_root},
      {Kind::reduce_scatter, &Start::reduce_scatter},
      {Kind::broadcast, &Start::broadcast},
      {Kind::all_gather, &Start::all_gather},
      {Kind::gather, &Start::gather},
      {Kind::scatter, &Start::scatter},
      {Kind::all_to_all, &Start::all_to_all}};
  const auto operation = lookup(kOperations, request.kind, &Start::barrier);  // also to leave
  (starting.*operation)();
}

void start_message(
    const Part& data, int peer, int tag, const Communicators& group, Flight& flight) {
  const auto frame = std::make_shared<shm::MessageFrame>(shm::frame_of(data, tag));
  check(MPI_Isend(frame.get(), sizeof(*frame), MPI_BYTE, peer, tag, group.frames, flight.add()),
        "MPI_Isend");
  flight.at_end([frame] {});  // it lives as long as the flight
  start_send(data, peer, tag, group.messages, flight);
}

void start_receive_message(
    const Part& data, int peer, int tag, const Communicators& group, Flight& flight) {
  const auto frame = std::make_shared<shm::MessageFrame>();
  check(MPI_Irecv(frame.get(),
                  sizeof(*frame),
                  MPI_BYTE,
                  peer,
                  tag,
                  group.frames,
                  flight.add(sizeof(*frame))),
        "MPI_Irecv");
  flight.expect_frame(shm::frame_of(data, tag), frame, group.rank);
  start_receive(data, peer, tag, group.messages, flight);
}

}  // namespace muster::mpi
