// Every rank writes its call into its slot and arrives; when all have come, each compares the
// calls, so that ranks that call different operations are told so before any data moves. A small
// operation then has all its data in the slots. A larger one goes through the stages in rounds. A
// stage has two halves, and a round uses one of them: while a rank still reads one round's half,
// the others may already fill the next one's. The step between two rounds keeps anybody from
// filling a half that is still being read. Where all have their data in shared memory, whoever
// wants it reads it there, and one step says in the end that all have done so.
#include "muster/shm/collectives.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "muster/base/divided_up.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/leaving.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster::shm {

namespace {

constexpr size_t kCacheLine = 64;

// A block of an all_reduce in place: it is read again from the cache to be written to the others.
constexpr size_t kBlockBytes = 128 * kKiB;

bool reduces(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

// Whether a rank's slot or stage has a part for every rank; else it has one for all.
bool gives_every_rank_its_own(Kind kind) {
  return kind == Kind::reduce_scatter || kind == Kind::scatter || kind == Kind::all_to_all;
}

bool is_barrier(Kind kind) {
  return kind == Kind::barrier || kind == Kind::leave;
}

// Only the root has something to give.
bool comes_from_root(Kind kind) {
  return kind == Kind::broadcast || kind == Kind::scatter;
}

// Only the root gets something.
bool goes_to_root(Kind kind) {
  return kind == Kind::reduce || kind == Kind::gather;
}

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes != 0 && to != from)
    std::memcpy(to, from, bytes);
}

std::string describe_shape(const Call& call) {
  if (call.num_dims >= 0) {
    const auto shown = std::min<int64_t>(call.num_dims, std::ssize(call.dims));
    return cat(" [", join(Int64s(call.dims, call.dims + shown), ", "), "]");
  }
  return call.kind == Kind::all_to_all ? "" : cat(", ", call.count, " elements");
}

// "all_reduce sum Float [3, 4]", for the error of ranks whose calls differ.
std::string describe(const Call& call) {
  std::string text = to_string(call.kind);
  if (reduces(call.kind))
    text += cat(" ", to_string(call.op));
  if (goes_to_root(call.kind))
    text += cat(" to ", call.root);
  if (comes_from_root(call.kind))
    text += cat(" from ", call.root);
  if (is_barrier(call.kind))
    return text;
  text += cat(" ", to_string(call.type), describe_shape(call));
  if (call.number >= 0)
    text += cat(", number ", call.number);
  return text;
}

// Whether two ranks make the same call. An all_to_all may move different amounts, which
// check_same_sizes() compares; the operation counts only where one is reduced by.
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

// The length of a rank's part when `bytes` are dealt out to all. Parts begin on cache lines, and a
// line holds whole elements.
size_t share(size_t bytes, size_t ranks) {
  return bytes / ranks / kCacheLine * kCacheLine;
}

// The piece of a part that one round moves: nothing where the part has ended before.
Part part_of_round(const Part& part, size_t capacity, size_t round) {
  const size_t start = std::min(round * capacity, part.bytes);
  return {.data = part.data + start, .bytes = std::min(capacity, part.bytes - start)};
}

// The bytes of each rank in the rounds of an operation that is reduced and has one part: round by
// round every rank gets a chunk, until `total` is dealt out.
struct Chunks {
  size_t chunk;
  int ranks;
  size_t total;

  size_t rounds() const { return divided_up(total, chunk * ranks); }
  size_t start(size_t round, int rank) const {
    return std::min((round * ranks + rank) * chunk, total);
  }
  size_t size(size_t round, int rank) const {
    const size_t first = start(round, rank);
    return std::min(first + chunk, total) - first;
  }
};

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
  return name_in(kNames, kind);
}

void check_reduction(const Request& request) {
  if (!reduces(request.kind) || reduce_for(request.type, request.op) != nullptr)
    return;
  throw invalid_argument(to_string(request.kind),
                         ": expected an operation that ",
                         to_string(request.type),
                         " has, got ",
                         to_string(request.op));
}

bool Collectives::is_small(const Request& request) const {
  if (request.kind == Kind::all_to_all)
    return false;
  const size_t parts = gives_every_rank_its_own(request.kind) ? team_.size() : 1;
  return request.part_bytes() * parts <= kSlotBytes;
}

void Collectives::step(const Deadline& deadline) {
  team_.arrive();
  team_.wait_for_all(name(), deadline);
}

void Collectives::begin(const Request& request) {
  check_reduction(request);
  team_.check_here({to_string(request.kind)});
  ++sequence_;
  kind_ = request.kind;
  Call& call = team_.call(team_.rank(), sequence_);
  call = {.sequence = sequence_,
          .kind = request.kind,
          .op = request.op,
          .type = request.type,
          .root = request.root,
          .count = request.count,
          .offset = kElsewhere,
          .largest = 0,
          .num_dims = request.num_dims,
          .dims = {},
          .number = request.number};
  std::ranges::copy(request.dims, call.dims);
  if (request.kind == Kind::all_to_all) {
    give_sizes(request, call);
  } else if (is_small(request)) {
    give_small(request);
  } else {
    call.offset = offset_in_arena(data_of_all(request));
  }
  team_.arrive();
}

// An all_to_all puts into its slot what this rank sends to and wants from everybody, for all to
// compare.
void Collectives::give_sizes(const Request& request, Call& call) {
  auto* const sizes = reinterpret_cast<uint64_t*>(slot(team_.rank()));
  for (const int peer : indices_below(team_.size())) {
    sizes[peer] = request.in[peer].bytes;
    sizes[team_.size() + peer] = request.out[peer].bytes;
    call.largest = std::max<uint64_t>(call.largest, request.in[peer].bytes);
  }
}

// Puts the rank's data into its slot, where it has any to give.
void Collectives::give_small(const Request& request) {
  const size_t part = request.part_bytes();
  const bool gives = !comes_from_root(request.kind) || request.root == team_.rank();
  if (!gives || is_barrier(request.kind) || part == 0)
    return;
  std::byte* const mine = slot(team_.rank());
  if (!gives_every_rank_its_own(request.kind))
    return copy_bytes(mine, request.own_data(), part);
  for (const int peer : indices_below(team_.size()))
    copy_bytes(mine + peer * part, request.in[peer].data, part);
}

// What this rank gives all others, in one piece: nothing where it is in several, or goes to one.
Part Collectives::data_of_all(const Request& request) {
  if (request.kind == Kind::all_reduce)
    return request.out[0];
  if (request.kind == Kind::all_gather)
    return request.in[0];
  if (request.kind != Kind::reduce_scatter)
    return {};
  const Part& first = request.in[0];
  for (const size_t rank : indices_of(request.in)) {
    if (request.in[rank].data != first.data + rank * first.bytes)
      return {};
  }
  return {.data = first.data, .bytes = first.bytes * request.in.size()};
}

// The part's place in the shared memory; kElsewhere where it is not in this rank's arena.
uint64_t Collectives::offset_in_arena(const Part& part) const {
  const std::byte* const arena = team_.at(team_.layout().arena(team_.rank()));
  const std::byte* const end = arena + team_.layout().arena_bytes;
  if (part.bytes == 0 || part.data < arena || part.data + part.bytes > end)
    return kElsewhere;
  return part.data - team_.at(0);
}

void Collectives::finish(const Request& request, const Deadline& deadline) {
  team_.wait_for_all(name(), deadline);
  check_same_calls();
  if (request.kind == Kind::all_to_all)
    check_same_sizes();
  if (is_barrier(request.kind))
    return;
  if (is_small(request))
    return finish_small(request);
  if (request.kind == Kind::all_gather && all_in_shared_memory())
    return all_gather_in_place(request, deadline);
  if (request.kind == Kind::reduce_scatter && all_in_shared_memory())
    return reduce_scatter_in_place(request, deadline);
  if (request.kind == Kind::reduce_scatter)
    return reduce_scatter_staged(request, deadline);
  if (!reduces(request.kind))
    return move_staged(request, deadline);
  // A rank that has failed meanwhile may use its memory for something else: nobody writes there.
  team_.check_all_here(name());
  if (request.kind == Kind::all_reduce && all_in_shared_memory())
    return all_reduce_in_place(request, deadline);
  reduce_staged(request, deadline);
}

bool Collectives::all_in_shared_memory() const {
  for (const int rank : indices_below(team_.size())) {
    if (team_.call(rank, sequence_).offset == kElsewhere)
      return false;
  }
  return true;
}

void Collectives::check_same_calls() const {
  const Call& mine = team_.call(team_.rank(), sequence_);
  const auto number = static_cast<int64_t>(sequence_);
  for (const int rank : indices_below(team_.size())) {
    const Call& theirs = team_.call(rank, sequence_);
    if (same(mine, theirs))
      continue;
    if (mine.kind == Kind::leave)
      throw left_alone(number, team_.name(rank), describe(theirs));
    if (theirs.kind == Kind::leave)
      throw left(number, describe(mine), team_.name(rank));
    throw invalid_argument("collective #",
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
                           "; make all ranks issue the same operations in the same order");
  }
}

// Every rank looks at all pairs, so that all fail alike.
void Collectives::check_same_sizes() const {
  const int ranks = team_.size();
  const auto sizes = [&](int rank) {
    return reinterpret_cast<const uint64_t*>(slot(rank));
  };
  for (const int from : indices_below(ranks)) {
    for (const int to : indices_below(ranks)) {
      const uint64_t sent = sizes(from)[to];
      const uint64_t wanted = sizes(to)[ranks + from];
      if (sent == wanted)
        continue;
      throw invalid_argument("all_to_all #",
                             sequence_,
                             ": expected rank ",
                             team_.name(from),
                             " to send as many bytes as rank ",
                             team_.name(to),
                             " expects from it, got ",
                             sent,
                             " and ",
                             wanted,
                             " bytes; make the splits match");
    }
  }
}

void Collectives::finish_small(const Request& request) {
  const size_t part = request.part_bytes();
  const bool at_root = request.root == team_.rank();
  if (part == 0 || (goes_to_root(request.kind) && !at_root))
    return;
  if (reduces(request.kind))
    return reduce_small(request, part);
  if (request.kind == Kind::broadcast) {
    if (!at_root)
      copy_bytes(request.out[0].data, slot(request.root), part);
  } else if (request.kind == Kind::scatter) {
    copy_bytes(request.out[0].data, slot(request.root) + team_.rank() * part, part);
  } else {  // all_gather, gather
    for (const int rank : indices_below(team_.size()))
      copy_bytes(request.out[rank].data, slot(rank), part);
  }
}

void Collectives::reduce_small(const Request& request, size_t part) {
  const size_t skip = request.kind == Kind::reduce_scatter ? team_.rank() * part : 0;
  const void* sources[kMaxRanks];
  for (const int rank : indices_below(team_.size()))
    sources[rank] = slot(rank) + skip;
  reduce_for(request.type, request.op)(request.out[0].data, sources, team_.size(), request.count);
}

std::byte* Collectives::data_of(int rank) const {
  return team_.at(team_.call(rank, sequence_).offset);
}

// The step keeps a rank's data as they are until all have read them. One that has given up has not
// waited for it.
void Collectives::end_reading(const Deadline& deadline) {
  team_.check_nobody_gave_up(name());
  step(deadline);
}

void Collectives::all_gather_in_place(const Request& request, const Deadline& deadline) {
  copy_own_part(request);
  team_.for_others([&](int rank) {
    copy_bytes(request.out[rank].data, data_of(rank), request.out[rank].bytes);
  });
  end_reading(deadline);
}

void Collectives::reduce_scatter_in_place(const Request& request, const Deadline& deadline) {
  const void* sources[kMaxRanks];
  for (const int rank : indices_below(team_.size()))
    sources[rank] = data_of(rank) + team_.rank() * request.part_bytes();
  reduce_for(request.type, request.op)(request.out[0].data, sources, team_.size(), request.count);
  end_reading(deadline);
}

// Every rank reduces its share of all, and writes the result where all have theirs. Shares begin on
// cache lines, so that no two ranks write to one.
void Collectives::all_reduce_in_place(const Request& request, const Deadline& deadline) {
  const int ranks = team_.size();
  const int me = team_.rank();
  const size_t element = size_of(request.type);
  const size_t line = std::max<size_t>(1, kCacheLine / element);
  const size_t each = rounded_up(request.count / ranks, line);
  const size_t first = std::min(me * each, request.count);
  const size_t last = me + 1 == ranks ? request.count : std::min(first + each, request.count);
  const Reduce reduce = reduce_for(request.type, request.op);
  const void* sources[kMaxRanks];
  for (size_t at = first; at < last; at += kBlockBytes / element) {
    const size_t count = std::min(kBlockBytes / element, last - at);
    for (const int rank : indices_below(ranks))
      sources[rank] = data_of(rank) + at * element;
    std::byte* const result = request.out[0].data + at * element;
    reduce(result, sources, ranks, count);
    team_.for_others(
        [&](int rank) { copy_bytes(data_of(rank) + at * element, result, count * element); });
  }
  end_reading(deadline);
}

// In every round a rank gives the others what they reduce, reduces its own share, and takes theirs.
// It gives the next round's data before the step, which is then one for both.
void Collectives::reduce_staged(const Request& request, const Deadline& deadline) {
  const int ranks = team_.size();
  const int me = team_.rank();
  const size_t element = size_of(request.type);
  const Chunks chunks{.chunk = share(team_.layout().stage_bytes, ranks),
                      .ranks = ranks,
                      .total = request.count * element};
  const size_t rounds = chunks.rounds();
  const std::byte* const from = request.own_data();
  std::byte* const to = request.out.empty() ? nullptr : request.out[0].data;
  const Reduce reduce = reduce_for(request.type, request.op);
  const auto give = [&](size_t round) {
    team_.for_others([&](int rank) {
      copy_bytes(stage(me, round) + rank * chunks.chunk,
                 from + chunks.start(round, rank),
                 chunks.size(round, rank));
    });
  };
  give(0);
  step(deadline);
  for (const size_t round : indices_below(rounds)) {
    const void* sources[kMaxRanks];
    for (const int rank : indices_below(ranks))
      sources[rank] = stage(rank, round) + me * chunks.chunk;
    sources[me] = from + chunks.start(round, me);
    const size_t mine = chunks.size(round, me);
    if (mine != 0)
      reduce(results(me, round), sources, ranks, mine / element);
    if (to != nullptr)
      copy_bytes(to + chunks.start(round, me), results(me, round), mine);
    if (round + 1 < rounds)
      give(round + 1);
    step(deadline);
    if (to == nullptr)
      continue;
    team_.for_others([&](int rank) {
      copy_bytes(to + chunks.start(round, rank), results(rank, round), chunks.size(round, rank));
    });
  }
}

// Goes like reduce_staged(), but each rank keeps what it has reduced: nothing is taken from the
// others' results.
void Collectives::reduce_scatter_staged(const Request& request, const Deadline& deadline) {
  const int ranks = team_.size();
  const int me = team_.rank();
  const size_t element = size_of(request.type);
  const size_t chunk = share(team_.layout().stage_bytes, ranks);
  const size_t total = request.count * element;
  const size_t rounds = divided_up(total, chunk);
  const Reduce reduce = reduce_for(request.type, request.op);
  const auto size = [&](size_t round) {
    return std::min(chunk, total - round * chunk);
  };
  const auto give = [&](size_t round) {
    team_.for_others([&](int rank) {
      copy_bytes(
          stage(me, round) + rank * chunk, request.in[rank].data + round * chunk, size(round));
    });
  };
  give(0);
  step(deadline);
  for (const size_t round : indices_below(rounds)) {
    if (round + 1 < rounds)
      give(round + 1);
    const void* sources[kMaxRanks];
    for (const int rank : indices_below(ranks))
      sources[rank] = stage(rank, round) + me * chunk;
    sources[me] = request.in[me].data + round * chunk;
    reduce(request.out[0].data + round * chunk, sources, ranks, size(round) / element);
    if (round + 1 < rounds)
      step(deadline);
  }
}

// An operation that only moves data: in every round each rank puts what the others want into its
// stage, and takes what it wants from theirs. `capacity` is how much of a part a round moves.
void Collectives::move_staged(const Request& request, const Deadline& deadline) {
  const size_t stage_bytes = team_.layout().stage_bytes;
  const size_t capacity =
      gives_every_rank_its_own(request.kind) ? share(stage_bytes, team_.size()) : stage_bytes;
  const size_t rounds = rounds_to_move(request, capacity);
  copy_own_part(request);
  if (rounds == 0)
    return;
  give_round(request, capacity, 0);
  step(deadline);
  for (const size_t round : indices_below(rounds)) {
    if (round + 1 < rounds)
      give_round(request, capacity, round + 1);
    take_round(request, capacity, round);
    if (round + 1 < rounds)
      step(deadline);
  }
}

// All ranks go through as many rounds as the largest part of any of them needs.
size_t Collectives::rounds_to_move(const Request& request, size_t capacity) const {
  size_t largest = request.part_bytes();
  if (request.kind == Kind::all_to_all) {
    for (const int rank : indices_below(team_.size()))
      largest = std::max<size_t>(largest, team_.call(rank, sequence_).largest);
  }
  return divided_up(largest, capacity);
}

// A rank takes from itself what it sends to itself, past the stages.
void Collectives::copy_own_part(const Request& request) const {
  const int me = team_.rank();
  const bool at_root = request.root == me;
  if (comes_from_root(request.kind)) {
    if (at_root && gives_every_rank_its_own(request.kind))
      copy_bytes(request.out[0].data, request.in[me].data, request.out[0].bytes);
    return;
  }
  if (goes_to_root(request.kind) && !at_root)
    return;
  const Part& mine = request.in[gives_every_rank_its_own(request.kind) ? me : 0];
  copy_bytes(request.out[me].data, mine.data, request.out[me].bytes);
}

void Collectives::give_round(const Request& request, size_t capacity, size_t round) const {
  const int me = team_.rank();
  if (comes_from_root(request.kind) && request.root != me)
    return;
  std::byte* const to = stage(me, round);
  if (!gives_every_rank_its_own(request.kind)) {
    const Part& mine = request.in.empty() ? request.out[0] : request.in[0];
    const Part now = part_of_round(mine, capacity, round);
    return copy_bytes(to, now.data, now.bytes);
  }
  team_.for_others([&](int rank) {
    const Part now = part_of_round(request.in[rank], capacity, round);
    copy_bytes(to + rank * capacity, now.data, now.bytes);
  });
}

void Collectives::take_round(const Request& request, size_t capacity, size_t round) const {
  const int me = team_.rank();
  const bool at_root = request.root == me;
  const size_t skip = gives_every_rank_its_own(request.kind) ? me * capacity : 0;
  const auto take = [&](const Part& out, int from) {
    const Part now = part_of_round(out, capacity, round);
    copy_bytes(now.data, stage(from, round) + skip, now.bytes);
  };
  if (comes_from_root(request.kind)) {
    if (!at_root)
      take(request.out[0], request.root);
    return;
  }
  if (goes_to_root(request.kind) && !at_root)
    return;
  team_.for_others([&](int rank) { take(request.out[rank], rank); });
}

}  // namespace muster::shm
