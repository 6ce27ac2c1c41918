// Which rank writes which pieces of a sharded checkpoint. Every rank tells the others what it has,
// and all of them make the same plan of it: a piece that several ranks have is written by the one
// that has the least to write so far.
#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/peers.h"
#include "muster/checkpoint/sharded_checkpoint.h"

namespace muster {

namespace {

using nlohmann::json;

// A piece as a rank tells the others of it.
struct ToldPiece {
  std::string dtype;
  Int64s shape;
  Elements elements{};
  bool is_first_ones = false;  // the first rank that has it saves it
  std::string owner;
  bool is_own = false;
};

// Describes this rank's pieces for the other ranks. heard() reads it.
json told(const TensorPieces& pieces) {
  json all = json::array();
  for (const TensorPiece& piece : pieces) {
    json runs = json::array();
    for (const ElementRun& run : piece.elements)
      runs.push_back({run.begin, run.length, run.stride, run.count});
    all.push_back({piece.name,
                   tensor_entry(piece.tensor.scalar_type(), {}).dtype,
                   piece.shape,
                   runs,
                   piece.is_buffer || piece.is_own,
                   piece.owner,
                   piece.is_own});
  }
  return all;
}

// Reads what told() of another rank has written.
ToldPiece heard(const json& piece) {
  ToldPiece result{.dtype = piece[1],
                   .shape = piece[2].get<Int64s>(),
                   .is_first_ones = piece[4],
                   .owner = piece[5],
                   .is_own = piece[6]};
  for (const json& run : piece[3])
    result.elements.push_back(
        {.begin = run[0], .length = run[1], .stride = run[2], .count = run[3]});
  return result;
}

// A piece that one rank or several have, and who they are.
struct SharedPiece {
  ToldPiece piece;
  std::vector<std::pair<int, size_t>> holders;  // rank, and place in its list
};

// All ranks come to the same plan, so all of them throw this or none.
[[noreturn]] void refuse_plan(const std::string& name,
                              const std::string& expected,
                              const std::string& got) {
  throw invalid_argument("checkpoint: expected ",
                         expected,
                         " for '",
                         name,
                         "', got ",
                         got,
                         "; name each tensor of the whole model once");
}

// Names the owner of a piece in a message.
std::string owner_or_rank(const std::string& owner) {
  return owner.empty() ? "another rank" : owner;
}

// Refuses one name for the tensors of two owners, such as two stages of a pipeline.
void check_owner(const std::string& name, const ToldPiece& mine, const ToldPiece& other) {
  if (mine.owner == other.owner)
    return;
  refuse_plan(name,
              "a unique name for each tensor",
              cat("it on ", owner_or_rank(mine.owner), " and on ", owner_or_rank(other.owner)));
}

// Returns "F32[2, 3] on rank 1", for errors.
std::string kind_and_rank(const SharedPiece& shared) {
  const auto& [piece, holders] = shared;
  const std::string kind = to_string(TensorEntry{.dtype = piece.dtype, .shape = piece.shape});
  return cat(kind, " on rank ", holders.front().first);
}

// Returns "[0, 4) on rank 1", for errors.
std::string elements_and_rank(const SharedPiece& shared) {
  return cat(to_string(shared.piece.elements), " on rank ", shared.holders.front().first);
}

// The pieces of one tensor make it whole if they do not overlap and add up to it.
void check_tensor(const std::string& name, const std::vector<SharedPiece>& pieces) {
  const SharedPiece& first = pieces.front();
  int64_t there = 0;
  for (const SharedPiece& shared : pieces) {
    const ToldPiece& piece = shared.piece;
    if (piece.shape != first.piece.shape || piece.dtype != first.piece.dtype)
      refuse_plan(name,
                  "one type and shape on every rank",
                  cat(kind_and_rank(first), " and ", kind_and_rank(shared)));
    for (const SharedPiece& other : pieces) {
      if (&other == &shared)
        break;
      if (!common_elements(other.piece.elements, piece.elements).empty())
        refuse_plan(name,
                    "pieces that do not overlap",
                    cat(elements_and_rank(other), " and ", elements_and_rank(shared)));
    }
    there += element_count(piece.elements);
  }
  const int64_t whole = element_count(first.piece.shape);
  if (there != whole)
    refuse_plan(name, cat("all of its ", whole, " elements on the ranks together"), cat(there));
}

// Chooses for each piece the rank that writes it.
class WritingPlan {
 public:
  explicit WritingPlan(size_t ranks) : loads_(ranks), chosen_(ranks) {}

  void add(const char* list, const std::vector<json>& ranks) {
    std::map<std::string, std::vector<SharedPiece>> tensors;
    for (const int rank : int_indices_of(ranks)) {
      const json& pieces = ranks[rank][list];
      for (const size_t i : indices_of(pieces)) {
        const std::string& name = pieces[i][0].get_ref<const std::string&>();
        add_piece(name, tensors[name], heard(pieces[i]), rank, i);
      }
    }
    for (const auto& [name, pieces] : tensors) {
      check_tensor(name, pieces);
      for (const SharedPiece& shared : pieces)
        assign(list, shared);
    }
  }

  const Indices& chosen(int rank, const std::string& list) { return chosen_[rank][list]; }
  uint64_t bytes() const { return bytes_; }

 private:
  static void add_piece(const std::string& name,
                        std::vector<SharedPiece>& pieces,
                        ToldPiece piece,
                        int rank,
                        size_t place) {
    const auto same = std::ranges::find_if(pieces, [&](const SharedPiece& shared) {
      const bool is_same_kind =
          shared.piece.shape == piece.shape && shared.piece.dtype == piece.dtype;
      return is_same_kind && shared.piece.elements == piece.elements;
    });
    if (same == pieces.end()) {
      pieces.push_back({.piece = std::move(piece), .holders = {{rank, place}}});
      return;
    }
    check_owner(name, same->piece, piece);
    same->holders.emplace_back(rank, place);
  }

  void assign(const char* list, const SharedPiece& shared) {
    const auto& [piece, holders] = shared;
    const auto load_of = [&](const auto& holder) {
      return loads_[holder.first];
    };
    const auto [rank, place] =
        piece.is_first_ones ? holders.front() : *std::ranges::min_element(holders, {}, load_of);
    const uint64_t size = safetensors_element_size(piece.dtype) * element_count(piece.elements);
    loads_[rank] += size;
    bytes_ += piece.is_own ? size * holders.size() : size;
    chosen_[rank][list].push_back(place);
  }

  std::vector<uint64_t> loads_;  // bytes that each rank writes
  std::vector<std::map<std::string, Indices>> chosen_;
  uint64_t bytes_ = 0;
};

// Returns the pieces at these places of the list.
TensorPieces chosen_of(const TensorPieces& pieces, const Indices& places) {
  return mapped(places, [&](const size_t place) { return pieces[place]; });
}

// Rank 0's own pieces are among the shared ones.
TensorPieces own_of(const TensorPieces& pieces, int rank) {
  return rank == 0 ? TensorPieces() : filtered(pieces, &TensorPiece::is_own);
}

}  // namespace

// Only descriptions are exchanged; each rank writes its pieces from its own memory.
ShardedPlan plan_sharded_save(const ShardedState& state, ProcessGroup& group) {
  OptimizerPieces optimizer;
  TensorPieces parts = concatenated(state.parts_in_pieces, &ShardedState::Part::pieces);
  std::string mine;
  Peers(group).together([&] {
    check_pieces(state.model);
    if (state.optimizer)
      optimizer = optimizer_pieces(state.optimizer->parameters, *state.optimizer->optimizer);
    check_pieces(optimizer.pieces);
    check_pieces(parts);
    try {
      mine = json{{"model", told(state.model)},
                  {"optimizer", told(optimizer.pieces)},
                  {"parts", told(parts)},
                  {"description", optimizer.description}}
                 .dump();
    } catch (const json::exception&) {
      throw invalid_argument(
          "checkpoint: expected names in UTF-8, got other bytes; encode them first");
    }
  });
  std::vector<json> ranks = mapped(group.all_gather_bytes(mine, "pieces of a checkpoint"),
                                   [&](const auto& text) { return json::parse(text); });

  // All ranks come to the same from here on, so all throw or none.
  WritingPlan writing(ranks.size());
  writing.add("model", ranks);
  writing.add("optimizer", ranks);
  writing.add("parts", ranks);
  // Each rank has described the optimizer of its own parameters.
  const Strings descriptions =
      mapped(ranks, [](const json& rank) -> std::string { return rank["description"]; });
  return {.model = chosen_of(state.model, writing.chosen(group.rank(), "model")),
          .optimizer = chosen_of(optimizer.pieces, writing.chosen(group.rank(), "optimizer")),
          .parts = chosen_of(parts, writing.chosen(group.rank(), "parts")),
          .own_model = own_of(state.model, group.rank()),
          .own_optimizer = own_of(optimizer.pieces, group.rank()),
          .own_parts = own_of(parts, group.rank()),
          .description = merge_descriptions(descriptions),
          .bytes = writing.bytes()};
}

}  // namespace muster
