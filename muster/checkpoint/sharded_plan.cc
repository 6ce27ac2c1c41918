// Which rank writes which pieces of a divided checkpoint, and into which file.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/peers.h"
#include "muster/checkpoint/sharded_checkpoint.h"

namespace muster {

namespace {

using nlohmann::json;

// A piece as a rank tells the others of it.
struct ToldPiece {
  std::string dtype;
  std::vector<int64_t> shape;
  Elements elements;
  bool is_first_ones = false;  // the first rank's that has it is saved
  std::string owner;
  bool is_own = false;
};

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

ToldPiece heard(const json& piece) {
  ToldPiece result{.dtype = piece[1],
                   .shape = piece[2].get<std::vector<int64_t>>(),
                   .elements = {},
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

[[noreturn]] void refuse_plan(const std::string& name,
                              const std::string& expected,
                              const std::string& got) {
  throw Error(ErrorCode::invalid_argument,
              cat("checkpoint: expected ",
                  expected,
                  " for '",
                  name,
                  "', got ",
                  got,
                  "; name each tensor of the whole model once"));
}

void check_owner(const std::string& name, const ToldPiece& mine, const ToldPiece& other) {
  if (mine.owner == other.owner)
    return;
  refuse_plan(name,
              "a unique name for each tensor",
              cat("it on ",
                  mine.owner.empty() ? "another rank" : mine.owner,
                  " and on ",
                  other.owner.empty() ? "another rank" : other.owner));
}

// The pieces of one tensor must make it whole.
void check_tensor(const std::string& name, const std::vector<SharedPiece>& pieces) {
  const ToldPiece& first = pieces.front().piece;
  int64_t there = 0;
  for (const SharedPiece& shared : pieces) {
    const auto& [piece, holders] = shared;
    if (piece.shape != first.shape || piece.dtype != first.dtype) {
      refuse_plan(name,
                  "one type and shape on every rank",
                  cat(first.dtype,
                      "[",
                      join(first.shape, ", "),
                      "] on rank ",
                      pieces.front().holders.front().first,
                      " and ",
                      piece.dtype,
                      "[",
                      join(piece.shape, ", "),
                      "] on rank ",
                      holders.front().first));
    }
    for (const SharedPiece& other : pieces) {
      if (&other == &shared)
        break;
      if (common_elements(other.piece.elements, piece.elements).empty())
        continue;
      refuse_plan(name,
                  "pieces that do not overlap",
                  cat(to_string(other.piece.elements),
                      " on rank ",
                      other.holders.front().first,
                      " and ",
                      to_string(piece.elements),
                      " on rank ",
                      holders.front().first));
    }
    there += element_count(piece.elements);
  }
  const int64_t whole = element_count(first.shape);
  if (there != whole)
    refuse_plan(name, cat("all of its ", whole, " elements on the ranks together"), cat(there));
}

// What each rank writes: the holder of a piece that has the least to write so far.
class WritingPlan {
 public:
  explicit WritingPlan(size_t ranks) : loads_(ranks), chosen_(ranks) {}

  void add(const char* list, const std::vector<json>& ranks) {
    std::map<std::string, std::vector<SharedPiece>> tensors;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      for (size_t i = 0; i < ranks[rank][list].size(); ++i)
        add_piece(ranks[rank][list][i][0],
                  tensors[ranks[rank][list][i][0]],
                  heard(ranks[rank][list][i]),
                  static_cast<int>(rank),
                  i);
    for (const auto& [name, pieces] : tensors) {
      check_tensor(name, pieces);
      for (const SharedPiece& shared : pieces)
        assign(list, shared);
    }
  }

  const std::vector<size_t>& chosen(int rank, const std::string& list) {
    return chosen_[static_cast<size_t>(rank)][list];
  }
  uint64_t bytes() const { return bytes_; }

 private:
  static void add_piece(const std::string& name,
                        std::vector<SharedPiece>& pieces,
                        ToldPiece piece,
                        int rank,
                        size_t place) {
    for (SharedPiece& shared : pieces) {
      if (shared.piece.elements != piece.elements || shared.piece.shape != piece.shape ||
          shared.piece.dtype != piece.dtype)
        continue;
      check_owner(name, shared.piece, piece);
      shared.holders.emplace_back(rank, place);
      return;
    }
    pieces.push_back({.piece = std::move(piece), .holders = {{rank, place}}});
  }

  void assign(const char* list, const SharedPiece& shared) {
    const auto writes_less = [&](const auto& a, const auto& b) {
      return loads_[static_cast<size_t>(a.first)] < loads_[static_cast<size_t>(b.first)];
    };
    const auto least =
        shared.piece.is_first_ones
            ? shared.holders.begin()
            : std::min_element(shared.holders.begin(), shared.holders.end(), writes_less);
    const uint64_t size = safetensors_element_size(shared.piece.dtype) *
                          static_cast<uint64_t>(element_count(shared.piece.elements));
    loads_[static_cast<size_t>(least->first)] += size;
    bytes_ += shared.piece.is_own ? size * shared.holders.size() : size;
    chosen_[static_cast<size_t>(least->first)][list].push_back(least->second);
  }

  std::vector<uint64_t> loads_;
  std::vector<std::map<std::string, std::vector<size_t>>> chosen_;
  uint64_t bytes_ = 0;
};

TensorPieces chosen_of(const TensorPieces& pieces, const std::vector<size_t>& places) {
  TensorPieces chosen;
  for (const size_t place : places)
    chosen.push_back(pieces[place]);
  return chosen;
}

TensorPieces own_of(const TensorPieces& pieces, int rank) {
  TensorPieces own;
  for (const TensorPiece& piece : pieces)
    if (piece.is_own && rank > 0)
      own.push_back(piece);
  return own;
}

}  // namespace

ShardedPlan plan_sharded_save(const ShardedState& state, ProcessGroup& group) {
  OptimizerPieces optimizer;
  TensorPieces parts;
  for (const auto& part : state.parts_in_pieces)
    parts.insert(parts.end(), part.pieces.begin(), part.pieces.end());
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
      throw Error(ErrorCode::invalid_argument,
                  "checkpoint: expected names in UTF-8, got other bytes; encode them first");
    }
  });
  std::vector<json> ranks;
  for (const std::string& text : group.all_gather_bytes(mine, "pieces of a checkpoint"))
    ranks.push_back(json::parse(text));

  // All ranks come to the same from here on, so all throw or none.
  WritingPlan writing(ranks.size());
  writing.add("model", ranks);
  writing.add("optimizer", ranks);
  writing.add("parts", ranks);
  ShardedPlan plan{
      .model = chosen_of(state.model, writing.chosen(group.rank(), "model")),
      .optimizer = chosen_of(optimizer.pieces, writing.chosen(group.rank(), "optimizer")),
      .parts = chosen_of(parts, writing.chosen(group.rank(), "parts")),
      .own_model = own_of(state.model, group.rank()),
      .own_optimizer = own_of(optimizer.pieces, group.rank()),
      .own_parts = own_of(parts, group.rank()),
      .description = {},
      .bytes = writing.bytes()};
  std::vector<std::string> descriptions;
  descriptions.reserve(ranks.size());
  for (const json& rank : ranks)
    descriptions.push_back(rank["description"]);
  plan.description = merge_descriptions(descriptions);
  return plan;
}

}  // namespace muster
