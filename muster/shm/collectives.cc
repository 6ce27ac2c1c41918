#include "muster/shm/collectives.h"

#include <algorithm>
#include <cstring>

#include "muster/base/error.h"
#include "muster/base/leaving.h"
#include "muster/base/strings.h"

namespace muster::shm {

namespace {

constexpr size_t kCacheLine = 64;

bool reduces(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

// Of one rank's slot or stage: a part for every rank, or one for all.
bool gives_every_rank_its_own(Kind kind) {
  return kind == Kind::reduce_scatter || kind == Kind::scatter || kind == Kind::all_to_all;
}

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes != 0 && to != from)
    std::memcpy(to, from, bytes);
}

bool is_barrier(Kind kind) {
  return kind == Kind::barrier || kind == Kind::leave;
}

std::string describe(const Call& call) {
  std::string text = to_string(call.kind);
  if (reduces(call.kind))
    text += cat(" ", to_string(static_cast<Op>(call.op)));
  if (call.kind == Kind::reduce || call.kind == Kind::gather)
    text += cat(" to ", call.root);
  if (call.kind == Kind::broadcast || call.kind == Kind::scatter)
    text += cat(" from ", call.root);
  if (is_barrier(call.kind))
    return text;
  text += cat(" ", to_string(static_cast<Type>(call.type)));
  if (call.num_dims >= 0) {
    const size_t shown = std::min<size_t>(static_cast<size_t>(call.num_dims), std::size(call.dims));
    text += cat(" [", join(std::vector<int64_t>(call.dims, call.dims + shown), ", "), "]");
  } else if (call.kind != Kind::all_to_all) {
    text += cat(", ", call.count, " elements");
  }
  if (call.number >= 0)
    text += cat(", number ", call.number);
  return text;
}

bool same(const Call& a, const Call& b) {
  if (a.sequence != b.sequence || a.kind != b.kind || a.type != b.type)
    return false;
  if (reduces(a.kind) && a.op != b.op)
    return false;
  if (a.root != b.root || a.number != b.number || a.num_dims != b.num_dims)
    return false;
  if (a.kind != Kind::all_to_all && a.count != b.count)
    return false;
  const int64_t dims = std::clamp<int64_t>(a.num_dims, 0, std::ssize(a.dims));
  return std::equal(a.dims, a.dims + dims, b.dims);
}

// What every rank has to give in a small operation.
size_t given_bytes(const Request& request, size_t ranks) {
  const size_t part = request.count * size_of(request.type);
  return gives_every_rank_its_own(request.kind) ? part * ranks : part;
}

const std::byte* own_data(const Request& request) {
  return request.in.empty() ? request.out[0].data : request.in[0].data;
}

// Where in a stage the part for `rank` lies when `bytes` are dealt out to all.
size_t share(size_t bytes, size_t ranks) {
  return bytes / ranks / kCacheLine * kCacheLine;
}

}  // namespace

const char* to_string(Kind kind) {
  constexpr const char* kNames[] = {"barrier",
                                    "all_reduce",
                                    "reduce",
                                    "broadcast",
                                    "all_gather",
                                    "reduce_scatter",
                                    "all_to_all",
                                    "gather",
                                    "scatter",
                                    "shutdown"};
  return static_cast<size_t>(kind) < std::size(kNames) ? kNames[static_cast<size_t>(kind)] : "?";
}

bool Collectives::is_small(const Request& request) const {
  return request.kind != Kind::all_to_all &&
         given_bytes(request, static_cast<size_t>(team_.size())) <= kSlotBytes;
}

void Collectives::step(const Deadline& deadline) {
  team_.arrive();
  team_.wait_for_all(name(), deadline);
}

void Collectives::begin(const Request& request) {
  if (reduces(request.kind) && reduce_for(request.type, request.op) == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                cat(to_string(request.kind),
                    ": expected an operation that ",
                    to_string(request.type),
                    " has, got ",
                    to_string(request.op)));
  }
  team_.check_here({to_string(request.kind)});
  ++sequence_;
  kind_ = request.kind;
  Call& call = team_.call(team_.rank(), sequence_);
  call = {.sequence = sequence_,
          .kind = request.kind,
          .op = static_cast<uint32_t>(request.op),
          .type = static_cast<uint32_t>(request.type),
          .root = request.root,
          .count = request.count,
          .offset = kElsewhere,
          .largest = 0,
          .num_dims = request.num_dims,
          .dims = {},
          .number = request.number};
  std::copy(request.dims.begin(), request.dims.end(), call.dims);
  const auto ranks = static_cast<size_t>(team_.size());
  std::byte* const mine = slot(team_.rank());
  if (request.kind == Kind::all_to_all) {
    // What it sends to and wants from everybody, for all to compare.
    auto* const sizes = reinterpret_cast<uint64_t*>(mine);
    for (size_t peer = 0; peer < ranks; ++peer) {
      sizes[peer] = request.in[peer].bytes;
      sizes[ranks + peer] = request.out[peer].bytes;
      call.largest = std::max<uint64_t>(call.largest, request.in[peer].bytes);
    }
  } else if (is_small(request)) {
    const bool gives = (request.kind != Kind::broadcast && request.kind != Kind::scatter) ||
                       request.root == team_.rank();
    if (gives && !is_barrier(request.kind) && request.count != 0) {
      if (gives_every_rank_its_own(request.kind)) {
        const size_t part = request.count * size_of(request.type);
        for (size_t peer = 0; peer < ranks; ++peer)
          copy_bytes(mine + peer * part, request.in[peer].data, part);
      } else {
        copy_bytes(mine, own_data(request), request.count * size_of(request.type));
      }
    }
  } else if (request.kind == Kind::all_reduce) {
    const std::byte* const data = request.out[0].data;
    const std::byte* const arena = team_.at(team_.layout().arena(team_.rank()));
    if (data >= arena && data + request.out[0].bytes <= arena + team_.layout().arena_bytes)
      call.offset = static_cast<uint64_t>(data - team_.at(0));
  }
  team_.arrive();
}

void Collectives::finish(const Request& request, const Deadline& deadline) {
  team_.wait_for_all(name(), deadline);
  compare_calls(request);
  if (is_barrier(request.kind))
    return;
  if (is_small(request))
    return finish_small(request);
  if (request.kind == Kind::reduce_scatter)
    return reduce_scatter_staged(request, deadline);
  if (!reduces(request.kind))
    return move_staged(request, deadline);
  // Nobody writes into the memory of a rank that has failed meanwhile, and may use it for something
  // else.
  team_.check_all_here(name());
  bool in_place = request.kind == Kind::all_reduce;
  for (int rank = 0; rank < team_.size(); ++rank)
    in_place &= team_.call(rank, sequence_).offset != kElsewhere;
  return in_place ? all_reduce_in_place(request, deadline) : reduce_staged(request, deadline);
}

void Collectives::compare_calls(const Request& request) const {
  const Call& mine = team_.call(team_.rank(), sequence_);
  for (int rank = 0; rank < team_.size(); ++rank) {
    const Call& theirs = team_.call(rank, sequence_);
    if (same(mine, theirs))
      continue;
    if (mine.kind == Kind::leave)
      throw left_alone(static_cast<int64_t>(sequence_), team_.name(rank), describe(theirs));
    if (theirs.kind == Kind::leave)
      throw left(static_cast<int64_t>(sequence_), describe(mine), team_.name(rank));
    throw Error(ErrorCode::invalid_argument,
                cat("collective #",
                    sequence_,
                    team_.group(),
                    ": expected the same call on every rank, got '",
                    describe(mine),
                    "' on rank ",
                    team_.name(team_.rank()),
                    " and '",
                    describe(theirs),
                    "' on rank ",
                    team_.name(rank),
                    "; make all ranks issue the same operations in the same order"));
  }
  if (request.kind != Kind::all_to_all)
    return;
  const auto ranks = static_cast<size_t>(team_.size());
  const auto sizes = [&](size_t rank) {
    return reinterpret_cast<const uint64_t*>(slot(static_cast<int>(rank)));
  };
  for (size_t from = 0; from < ranks; ++from) {
    for (size_t to = 0; to < ranks; ++to) {
      if (sizes(from)[to] == sizes(to)[ranks + from])
        continue;
      throw Error(ErrorCode::invalid_argument,
                  cat("all_to_all #",
                      sequence_,
                      ": expected rank ",
                      team_.name(static_cast<int>(from)),
                      " to send as many bytes as rank ",
                      team_.name(static_cast<int>(to)),
                      " expects from it, got ",
                      sizes(from)[to],
                      " and ",
                      sizes(to)[ranks + from],
                      " bytes; make the splits match"));
    }
  }
}

void Collectives::finish_small(const Request& request) {
  const int ranks = team_.size();
  const auto me = static_cast<size_t>(team_.rank());
  const size_t part = request.count * size_of(request.type);
  const bool at_root = request.root == team_.rank();
  if (part == 0)
    return;
  switch (request.kind) {
    case Kind::reduce:
      if (!at_root)
        return;
      [[fallthrough]];
    case Kind::all_reduce:
    case Kind::reduce_scatter: {
      const size_t skip = request.kind == Kind::reduce_scatter ? me * part : 0;
      const void* sources[kMaxRanks];
      for (int rank = 0; rank < ranks; ++rank)
        sources[rank] = slot(rank) + skip;
      reduce_for(request.type, request.op)(request.out[0].data, sources, ranks, request.count);
      return;
    }
    case Kind::broadcast:
      if (!at_root)
        copy_bytes(request.out[0].data, slot(request.root), part);
      return;
    case Kind::scatter:
      copy_bytes(request.out[0].data, slot(request.root) + me * part, part);
      return;
    case Kind::gather:
      if (!at_root)
        return;
      [[fallthrough]];
    case Kind::all_gather:
      for (int rank = 0; rank < ranks; ++rank)
        copy_bytes(request.out[static_cast<size_t>(rank)].data, slot(rank), part);
      return;
    case Kind::all_to_all:
    case Kind::leave:
    case Kind::barrier:
      return;
  }
}

// Every rank reduces its share of all, and writes the result where all have theirs.
void Collectives::all_reduce_in_place(const Request& request, const Deadline& deadline) {
  constexpr size_t kBlockBytes = size_t{128}
                                 << 10;  // read again from the cache, to be written to the others
  const auto ranks = static_cast<size_t>(team_.size());
  const auto me = static_cast<size_t>(team_.rank());
  const size_t element = size_of(request.type);
  const size_t line = std::max<size_t>(1, kCacheLine / element);
  const size_t each = (request.count / ranks + line - 1) / line * line;
  const size_t first = std::min(me * each, request.count);
  const size_t last = me + 1 == ranks ? request.count : std::min(first + each, request.count);
  const Reduce reduce = reduce_for(request.type, request.op);
  const void* sources[kMaxRanks];
  for (size_t at = first; at < last; at += kBlockBytes / element) {
    const size_t count = std::min(kBlockBytes / element, last - at);
    for (size_t rank = 0; rank < ranks; ++rank)
      sources[rank] = team_.at(team_.call(static_cast<int>(rank), sequence_).offset) + at * element;
    std::byte* const result = request.out[0].data + at * element;
    reduce(result, sources, team_.size(), count);
    for (size_t rank = 0; rank < ranks; ++rank)
      if (rank != me)
        copy_bytes(const_cast<std::byte*>(static_cast<const std::byte*>(sources[rank])),
                   result,
                   count * element);
  }
  step(deadline);
}

// Round by round: every rank gives the others what they reduce, reduces its own share, and takes
// theirs. What is given in the next round is given before the step, which is then one for both.
void Collectives::reduce_staged(const Request& request, const Deadline& deadline) {
  const auto ranks = static_cast<size_t>(team_.size());
  const auto me = static_cast<size_t>(team_.rank());
  const size_t element = size_of(request.type);
  const size_t chunk =
      share(team_.layout().stage_bytes, ranks);  // bytes; a line holds whole elements
  const size_t total = request.count * element;
  const size_t rounds = (total + chunk * ranks - 1) / (chunk * ranks);
  const std::byte* const from = own_data(request);
  std::byte* const to = request.out.empty() ? nullptr : request.out[0].data;
  const Reduce reduce = reduce_for(request.type, request.op);
  const auto start = [&](size_t round, size_t rank) {
    return std::min((round * ranks + rank) * chunk, total);
  };
  const auto size = [&](size_t round, size_t rank) {
    return std::min(start(round, rank) + chunk, total) - start(round, rank);
  };
  const auto give = [&](size_t round) {
    for (size_t rank = 0; rank < ranks; ++rank)
      if (rank != me)
        copy_bytes(stage(team_.rank(), round) + rank * chunk,
                   from + start(round, rank),
                   size(round, rank));
  };
  give(0);
  step(deadline);
  for (size_t round = 0; round < rounds; ++round) {
    const void* sources[kMaxRanks];
    for (size_t rank = 0; rank < ranks; ++rank)
      sources[rank] = stage(static_cast<int>(rank), round) + me * chunk;
    sources[me] = from + start(round, me);
    const size_t mine = size(round, me);
    if (mine != 0)
      reduce(results(team_.rank(), round), sources, team_.size(), mine / element);
    if (to != nullptr)
      copy_bytes(to + start(round, me), results(team_.rank(), round), mine);
    if (round + 1 < rounds)
      give(round + 1);
    step(deadline);
    for (size_t rank = 0; rank < ranks && to != nullptr; ++rank)
      if (rank != me)
        copy_bytes(
            to + start(round, rank), results(static_cast<int>(rank), round), size(round, rank));
  }
}

void Collectives::reduce_scatter_staged(const Request& request, const Deadline& deadline) {
  const auto ranks = static_cast<size_t>(team_.size());
  const auto me = static_cast<size_t>(team_.rank());
  const size_t element = size_of(request.type);
  const size_t chunk = share(team_.layout().stage_bytes, ranks);
  const size_t total = request.count * element;
  const size_t rounds = (total + chunk - 1) / chunk;
  const Reduce reduce = reduce_for(request.type, request.op);
  const auto size = [&](size_t round) {
    return std::min(chunk, total - round * chunk);
  };
  const auto give = [&](size_t round) {
    for (size_t rank = 0; rank < ranks; ++rank)
      if (rank != me)
        copy_bytes(stage(team_.rank(), round) + rank * chunk,
                   request.in[rank].data + round * chunk,
                   size(round));
  };
  give(0);
  step(deadline);
  for (size_t round = 0; round < rounds; ++round) {
    if (round + 1 < rounds)
      give(round + 1);
    const void* sources[kMaxRanks];
    for (size_t rank = 0; rank < ranks; ++rank)
      sources[rank] = stage(static_cast<int>(rank), round) + me * chunk;
    sources[me] = request.in[me].data + round * chunk;
    reduce(request.out[0].data + round * chunk, sources, team_.size(), size(round) / element);
    if (round + 1 < rounds)
      step(deadline);
  }
}

// The operations that only move data: everybody puts what others want into its stage, and takes
// from theirs what it wants.
void Collectives::move_staged(const Request& request, const Deadline& deadline) {
  const auto ranks = static_cast<size_t>(team_.size());
  const auto me = static_cast<size_t>(team_.rank());
  const bool own_parts = gives_every_rank_its_own(request.kind);
  const size_t capacity =
      own_parts ? share(team_.layout().stage_bytes, ranks) : team_.layout().stage_bytes;
  const bool from_root = request.kind == Kind::broadcast || request.kind == Kind::scatter;
  const bool to_root = request.kind == Kind::gather;
  const bool at_root = request.root == team_.rank();
  size_t largest = request.count * size_of(request.type);
  if (request.kind == Kind::all_to_all) {
    for (int rank = 0; rank < team_.size(); ++rank)
      largest = std::max<size_t>(largest, team_.call(rank, sequence_).largest);
  }
  const size_t rounds = (largest + capacity - 1) / capacity;
  const auto piece = [&](const Part& part, size_t round) {
    const size_t start = std::min(round * capacity, part.bytes);
    return Part{.data = part.data + start, .bytes = std::min(capacity, part.bytes - start)};
  };
  const auto give = [&](size_t round) {
    if (from_root && !at_root)
      return;
    if (!own_parts) {
      const Part mine = piece(request.in.empty() ? request.out[0] : request.in[0], round);
      return copy_bytes(stage(team_.rank(), round), mine.data, mine.bytes);
    }
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (rank == me)
        continue;
      const Part part = piece(request.in[rank], round);
      copy_bytes(stage(team_.rank(), round) + rank * capacity, part.data, part.bytes);
    }
  };
  const auto take = [&](const Part& out, size_t rank, size_t round) {
    const Part part = piece(out, round);
    copy_bytes(part.data,
               stage(static_cast<int>(rank), round) + (own_parts ? me * capacity : 0),
               part.bytes);
  };
  // Its own part a rank takes from itself.
  if (from_root && at_root && own_parts)
    copy_bytes(request.out[0].data, request.in[me].data, request.out[0].bytes);
  if (!from_root && !(to_root && !at_root))
    copy_bytes(request.out[me].data, request.in[own_parts ? me : 0].data, request.out[me].bytes);
  if (rounds == 0)
    return;
  give(0);
  step(deadline);
  for (size_t round = 0; round < rounds; ++round) {
    if (round + 1 < rounds)
      give(round + 1);
    if (from_root) {
      if (!at_root)
        take(request.out[0], static_cast<size_t>(request.root), round);
    } else if (!to_root || at_root) {
      for (size_t rank = 0; rank < ranks; ++rank)
        if (rank != me)
          take(request.out[rank], rank, round);
    }
    if (round + 1 < rounds)
      step(deadline);
  }
}

}  // namespace muster::shm
