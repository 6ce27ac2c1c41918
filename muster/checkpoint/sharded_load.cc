// Reading back what each rank holds from a checkpoint that ranks have written in parts, of any
// number of ranks.
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/lineage.h"
#include "muster/checkpoint/peers.h"
#include "muster/checkpoint/safetensors.h"
#include "muster/checkpoint/saved_tensors.h"
#include "muster/checkpoint/sharded_checkpoint.h"

namespace muster {

namespace {

struct Candidate {
  std::string path;
  bool is_abandoned = false;  // SavedFolder::is_abandoned
};

// The folders, the last saved first, that may be loaded, as rank 0 sees them.
std::vector<Candidate> candidates(const std::string& directory,
                                  const LoadOptions& options,
                                  const Peers& peers) {
  std::string paths;
  peers.on_rank0([&] {
    for (const auto& [step, path, is_abandoned] :
         list_by_saving(directory, options.only, options.accept)) {
      try {
        if (options.accept && !options.accept(read_manifest_alone(path)))
          continue;
      } catch (const Error& error) {  // whose it is cannot be told
        log(LogLevel::warn, cat("checkpoint: '", path, "' is skipped: ", error.message()));
        continue;
      }
      paths += cat(is_abandoned ? "-" : "+", path, '\n');
    }
  });
  peers.share(paths);
  std::vector<Candidate> found;
  for (const std::string& line : split(paths, '\n'))
    if (!line.empty())
      found.push_back({.path = line.substr(1), .is_abandoned = line[0] == '-'});
  return found;
}

// The ranks compare the files with their checksums, each some of them. Throws: the same error on
// every rank, so that all try the next one or none; failed_precondition for a rank that does not
// see the folder.
Manifest verified_by_all(const std::string& path, ProcessGroup& group) {
  const Peers peers(group);
  std::string text;
  peers.on_rank0([&] { text = read_small_file(cat(path, "/", kManifestFile)); });
  peers.share(text);
  Manifest manifest = parse_manifest(text, path);  // alike on every rank
  if (cat("step-", manifest.position.step) != path.substr(path.rfind('/') + 1)) {
    throw Error(ErrorCode::invalid_argument,
                cat("checkpoint: expected the step of '",
                    path,
                    "', got a manifest of step ",
                    manifest.position.step,
                    "; its folder was renamed, or has files of another checkpoint"));
  }
  const bool sees = ::access(path.c_str(), R_OK) == 0;
  std::string problem = sees ? "" : "unseen";
  try {
    for (size_t i = 0; sees && i < manifest.files.size(); ++i) {
      check_size(path, manifest.files[i]);
      if (static_cast<int>(i % static_cast<size_t>(peers.size())) == peers.rank())
        check_content(path, manifest.files[i]);
    }
  } catch (const Error& error) {
    problem = cat("damaged", error.message());
  }
  const auto problems = group.all_gather_bytes(problem, "whether a checkpoint is whole");
  for (int rank = 0; rank < std::ssize(problems); ++rank) {
    if (problems[static_cast<size_t>(rank)] != "unseen")
      continue;
    throw Error(ErrorCode::failed_precondition,
                cat("checkpoint: expected every rank to read '",
                    path,
                    "', which rank 0 sees, got none on rank ",
                    group.job_rank(rank),
                    "; a model that is divided over ranks is loaded from a folder that "
                    "all hosts share"));
  }
  for (int rank = 0; rank < std::ssize(problems); ++rank) {
    const std::string& said = problems[static_cast<size_t>(rank)];
    if (!said.empty())
      throw Error(ErrorCode::io, cat(said.substr(7), " (rank ", group.job_rank(rank), ")"));
  }
  return manifest;
}

// Without second names of a tied weight that was saved under another of its names alone.
TensorPieces pieces_to_load(const TensorPieces& pieces, const TensorEntries& saved) {
  std::set<const c10::TensorImpl*> there;
  for (const TensorPiece& piece : pieces)
    if (saved.contains(piece.name))
      there.insert(piece.tensor.unsafeGetTensorImpl());
  TensorPieces found;
  for (const TensorPiece& piece : pieces)
    if (saved.contains(piece.name) || !there.contains(piece.tensor.unsafeGetTensorImpl()))
      found.push_back(piece);
  return found;
}

// Of the parts in pieces those that were saved. A new part of the program is not among them, and
// keeps what it has.
std::vector<ShardedState::Part> saved_parts(const ShardedState& state, const SavedTensors& saved) {
  std::vector<ShardedState::Part> found;
  for (const auto& part : state.parts_in_pieces) {
    const auto& tensors = saved.source().tensors();
    const auto first = tensors.lower_bound(part.prefix);
    if (first != tensors.end() && first->first.starts_with(part.prefix))
      found.push_back(part);
  }
  return found;
}

void check_pieces_of(const TensorPieces& pieces,
                     const SavedTensors& saved,
                     const std::string& path) {
  const TensorEntries entries = saved.entries(pieces);
  for (const TensorPiece& piece : pieces_to_load(pieces, entries)) {
    const TensorEntry mine = tensor_entry(piece.tensor.scalar_type(), piece.shape);
    const auto found = entries.find(piece.name);
    const bool is_there = found != entries.end();
    if (is_there && found->second.same_kind(mine))
      continue;
    throw Error(ErrorCode::invalid_argument,
                cat("load: expected ",
                    to_string(mine),
                    " '",
                    piece.name,
                    "' in '",
                    path,
                    "', as in the model, got ",
                    is_there ? to_string(found->second) : "no tensor of that name",
                    "; load it into the model that it was saved from"));
  }
  if (const auto holes = saved.source().incomplete(); !holes.empty()) {
    throw Error(ErrorCode::invalid_argument,
                cat("load: expected all of '",
                    holes[0],
                    "' in '",
                    path,
                    "', got some of it; a rank's file is missing"));
  }
}

// What was saved and no rank has a piece of.
void check_nothing_left(const TensorPieces& pieces,
                        const TensorSource& source,
                        const std::string& path,
                        ProcessGroup& group) {
  std::string names;
  for (const TensorPiece& piece : pieces) {
    names += piece.name + '\n';
    for (const std::string& alias : piece.aliases)
      names += alias + '\n';
  }
  std::set<std::string> known;
  for (const std::string& theirs : group.all_gather_bytes(names, "tensors of a model"))
    for (const std::string& name : split(theirs, '\n'))
      known.insert(name);
  for (const auto& [name, tensor] : source.tensors()) {
    if (known.contains(name))
      continue;
    throw Error(ErrorCode::invalid_argument,
                cat("load: expected only tensors of the model in '",
                    path,
                    "', got '",
                    name,
                    "' as well; load it into the model that it was saved from"));
  }
}

// Where ranks saved each their own, and these are others, or do not train alone.
void tell_of_means(const SavedTensors& model,
                   const SavedTensors& optimizer,
                   const ShardedState& state,
                   int ranks) {
  const int owners = std::max(model.owners(), optimizer.owners());
  const TensorPieces& mine = state.optimizer ? state.optimizer->parameters : state.model;
  const bool is_own =
      std::any_of(mine.begin(), mine.end(), [](const auto& piece) { return piece.is_own; });
  if (owners == 0 || (is_own && owners == ranks))
    return;
  log(LogLevel::info,
      cat("resume: ",
          owners,
          " ranks had their own ",
          model.owners() > 0 ? "model and optimizer" : "optimizer",
          "; the ",
          ranks,
          " that go on begin with their mean"));
}

// Each rank reads it by itself.
struct PartsFile {
  std::optional<SafetensorsFile> file;
  TensorEntries entries;

  NamedTensors read(const std::string& prefix, const NamedTensors& into) const {
    NamedTensors tensors;
    for (const auto& [name, entry] : entries) {
      if (!name.starts_with(prefix))
        continue;
      const std::string own = name.substr(prefix.size());
      tensors[own] = room_for(own, entry, into);
      read_tensor_into(tensors[own], *file, name, entry);
    }
    return tensors;
  }
};

LoadedCheckpoint load_pieces(const std::string& path,
                             const Manifest& manifest,
                             const ShardedState& state,
                             ProcessGroup& group,
                             const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const Peers peers(group);
  LoadedCheckpoint loaded{.path = path,
                          .serial = manifest.serial,
                          .abandoned = manifest.abandoned,
                          .position = manifest.position,
                          .world_size = manifest.world_size,
                          .user = manifest.user};
  SavedTensors model, optimizer, parts_of_ranks;
  std::vector<ShardedState::Part> in_pieces;
  const auto saved = [&](const char* kind) {
    return SavedTensors(path, manifest, kind, group.rank(), group.size());
  };
  std::string mine;  // this rank's optimizer's description
  peers.together([&] {
    check_pieces(state.model);
    auto parts = std::make_shared<PartsFile>();
    if (manifest.find(kPartsFile) != nullptr) {
      parts->file.emplace(cat(path, "/", kPartsFile));
      parts->entries = parts->file->header().tensors;
    }
    if (options.check_parts)
      options.check_parts(parts->entries);
    parts_of_ranks = saved("parts");
    in_pieces = saved_parts(state, parts_of_ranks);
    for (const auto& part : in_pieces)
      check_pieces_of(part.pieces, parts_of_ranks, path);
    loaded.read_parts = [parts, peers, in_pieces](const std::string& prefix,
                                                  const NamedTensors& into) {
      for (const auto& part : in_pieces)
        if (part.prefix == prefix)
          return into;  // it has been read, with the model
      NamedTensors tensors;
      peers.together([&] { tensors = parts->read(prefix, into); });
      return tensors;
    };
    model = saved("model");
    check_pieces_of(state.model, model, path);
    if (!state.optimizer)
      return;
    optimizer = saved("optim");
    mine = optimizer_pieces(state.optimizer->parameters, *state.optimizer->optimizer).description;
  });
  check_nothing_left(state.model, model.source(), path, group);
  const std::string all =
      merge_descriptions(group.all_gather_bytes(mine, "optimizers of a checkpoint"));
  std::function<void()> restore_state;
  peers.together([&] {
    if (!state.optimizer)
      return;
    restore_state = prepare_optimizer(state.optimizer->parameters,
                                      *state.optimizer->optimizer,
                                      manifest.optimizer,
                                      optimizer.entries(state.optimizer->parameters),
                                      [&](TensorPiece& piece) { optimizer.fetch(piece); });
    check_same_parameters(all, manifest.optimizer);
  });
  peers.together([&] {
    for (const TensorPiece& piece : pieces_to_load(state.model, model.entries(state.model)))
      model.fetch(piece);
    for (const auto& part : in_pieces)
      for (const TensorPiece& piece :
           pieces_to_load(part.pieces, parts_of_ranks.entries(part.pieces)))
        parts_of_ranks.fetch(piece);
  });
  if (restore_state)
    restore_state();
  if (group.rank() == 0)
    tell_of_means(model, optimizer, state, group.size());
  return loaded;
}

}  // namespace

bool is_sharded(const Manifest& manifest) {
  for (const WrittenFile& file : manifest.files)
    if (file.name.starts_with("model-"))
      return true;
  return false;
}

std::optional<LoadedCheckpoint> load_latest_sharded(const std::string& directory,
                                                    const ShardedState& state,
                                                    ProcessGroup& group,
                                                    const LoadOptions& options) {
  const Peers peers(group);
  std::string problems;
  for (const auto& [path, is_abandoned] : candidates(directory, options, peers)) {
    std::optional<Manifest> manifest;
    try {
      manifest = verified_by_all(path, group);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::io && error.code() != ErrorCode::invalid_argument)
        throw;
      if (group.rank() == 0)
        log(LogLevel::warn, cat("checkpoint: '", path, "' is skipped: ", error.message()));
      problems += cat("\n  ", path, ": ", error.message());
    }
    if (!manifest)
      continue;
    if (is_abandoned && group.rank() == 0)
      warn_of_abandoned(path);
    return load_pieces(path, *manifest, state, group, options);
  }
  if (problems.empty())
    return std::nullopt;
  throw Error(ErrorCode::io,
              cat("checkpoint: expected a whole one in '",
                  directory,
                  "', got only damaged ones; remove them to start anew:",
                  problems));
}

}  // namespace muster
