// Every rank reads its own elements of a sharded checkpoint, whatever number of ranks wrote it, and
// of one that rank 0 wrote whole. Rank 0 says which folders there are, so that all ranks come to
// the same one. Nothing of the training changes before every rank has found that all of it fits.
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/files/lineage.h"
#include "muster/checkpoint/image.h"
#include "muster/checkpoint/model_state.h"
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

// Returns the folders that may be loaded, as rank 0 sees them; the last saved comes first.
std::vector<Candidate> candidates(const std::string& directory,
                                  const LoadOptions& options,
                                  const Peers& peers) {
  std::string paths;
  peers.on_rank0([&] {
    for (const auto& [step, path, is_abandoned] :
         list_by_saving(directory, options.only, options.accept))
      if (is_accepted(path, options.accept))
        paths += cat(is_abandoned ? "-" : "+", path, '\n');
  });
  peers.share(paths);
  std::vector<Candidate> found;
  for (const auto& line : split(paths, '\n'))
    if (!line.empty())
      found.push_back({.path = line.substr(1), .is_abandoned = line[0] == '-'});
  return found;
}

// A rank tells the others by these words that it cannot load a checkpoint.
constexpr std::string_view kUnseen = "unseen";
constexpr std::string_view kDamaged = "damaged";  // and the message

// Compares this rank's share of the files with their checksums. Returns "" if they are whole.
std::string own_problem(const std::string& path, const Manifest& manifest, const Peers& peers) {
  if (::access(path.c_str(), R_OK) != 0)
    return std::string(kUnseen);
  try {
    int turn = 0;
    for (const WrittenFile& file : manifest.files) {
      check_size(path, file);
      if (turn == peers.rank())
        check_content(path, file);
      turn = (turn + 1) % peers.size();
    }
    return "";
  } catch (const Error& error) {
    return cat(kDamaged, error.message());
  }
}

// The ranks compare the files with their checksums, each some of them. Throws: the same error on
// every rank, so that all try the next one or none; failed_precondition for a rank that does not
// see the folder.
Manifest verified_by_all(const std::string& path, ProcessGroup& group) {
  const Peers peers(group);
  std::string text;
  peers.on_rank0([&] { text = read_small_file(cat(path, "/", kManifestFile)); });
  peers.share(text);
  // A text that cannot be parsed is refused by every rank in the same way.
  Manifest manifest = parse_manifest(text, path);  // alike on every rank
  check_step(manifest, path);
  const auto problems =
      group.all_gather_bytes(own_problem(path, manifest, peers), "whether a checkpoint is whole");
  const auto unseen = std::ranges::find(problems, kUnseen);
  if (unseen != problems.end()) {
    const int rank = static_cast<int>(unseen - problems.begin());
    throw failed_precondition(
        "checkpoint: expected every rank to read '",
        path,
        "', which rank 0 sees, got none on rank ",
        group.job_rank(rank),
        "; a model that is divided over ranks is loaded from a folder that all hosts share");
  }
  const auto damaged =
      std::ranges::find_if(problems, [](const auto& problem) { return !problem.empty(); });
  if (damaged != problems.end()) {
    const int rank = static_cast<int>(damaged - problems.begin());
    throw Error(
        ErrorCode::io, damaged->substr(kDamaged.size()), " (rank ", group.job_rank(rank), ")");
  }
  return manifest;
}

// Returns the pieces without the second names of a tied weight that was saved under another of its
// names alone.
TensorPieces pieces_to_load(const TensorPieces& pieces, const TensorEntries& saved) {
  TensorImpls there;
  for (const TensorPiece& piece : pieces)
    if (saved.contains(piece.name))
      there.insert(piece.tensor.unsafeGetTensorImpl());
  return filtered(pieces, [&](const TensorPiece& piece) {
    return saved.contains(piece.name) || !there.contains(piece.tensor.unsafeGetTensorImpl());
  });
}

// Returns those parts in pieces that were saved. A new part of the program is not among them, and
// keeps what it has.
std::vector<ShardedState::Part> parts_that_were_saved(const ShardedState& state,
                                                      const SavedTensors& saved) {
  std::vector<ShardedState::Part> found;
  for (const auto& part : state.parts_in_pieces) {
    const auto& tensors = saved.source().tensors();
    const auto first = tensors.lower_bound(part.prefix);
    if (first != tensors.end() && first->first.starts_with(part.prefix))
      found.push_back(part);
  }
  return found;
}

// Averages of half weights are of fp32, and were once saved in the weights' type.
bool is_widened(const TensorEntry& saved, const TensorEntry& mine) {
  const bool is_half = saved.dtype == "BF16" || saved.dtype == "F16";
  return is_half && mine.dtype == "F32" && saved.shape == mine.shape;
}

// Checks that the checkpoint has all of these pieces, with the model's types and shapes.
void check_pieces_of(const TensorPieces& pieces,
                     const SavedTensors& saved,
                     const std::string& path,
                     bool may_be_half = false) {
  const TensorEntries entries = saved.entries(pieces);
  for (const TensorPiece& piece : pieces_to_load(pieces, entries)) {
    const TensorEntry mine = tensor_entry(piece.tensor.scalar_type(), piece.shape);
    const TensorEntry* const found = value_at(entries, piece.name);
    if (found != nullptr && (found->same_kind(mine) || (may_be_half && is_widened(*found, mine))))
      continue;
    refuse_saved(path,
                 cat(to_string(mine), " '", piece.name, "'"),
                 found != nullptr ? to_string(*found) : "no tensor of that name");
  }
  saved.source().require_whole("load", path);
}

// Refuses tensors that were saved and that no rank has a piece of. Collective: yes.
void check_nothing_left(const TensorPieces& pieces,
                        const TensorSource& source,
                        const std::string& path,
                        ProcessGroup& group) {
  std::string names;
  for (const TensorPiece& piece : pieces) {
    names += piece.name + '\n';
    for (const auto& alias : piece.aliases)
      names += alias + '\n';
  }
  StringSet known;
  for (const auto& theirs : group.all_gather_bytes(names, "tensors of a model"))
    for (const auto& name : split(theirs, '\n'))
      known.insert(name);
  for (const auto& [name, tensor] : source.tensors()) {
    if (known.contains(name))
      continue;
    throw invalid_argument("load: expected only tensors of the model in '",
                           path,
                           "', got '",
                           name,
                           "' as well; load it into the model that it was saved from");
  }
}

// Logs that ranks begin with a mean: each rank saved its own tensors, and there are other ranks
// now, or ranks that do not train alone.
void tell_of_means(const SavedTensors& model,
                   const SavedTensors& optimizer,
                   const ShardedState& state,
                   int ranks) {
  const int owners = std::max(model.owners(), optimizer.owners());
  const TensorPieces& mine = state.optimizer ? state.optimizer->parameters : state.model;
  const bool is_own = any_of(mine, &TensorPiece::is_own);
  if (owners == 0 || (is_own && owners == ranks))
    return;
  log_info("resume: ",
           owners,
           " ranks had their own ",
           model.owners() > 0 ? "model and optimizer" : "optimizer",
           "; the ",
           ranks,
           " that go on begin with their mean");
}

// The file of rank 0's parts, which each rank reads by itself.
struct PartsFile {
  std::optional<SafetensorsFile> file;
  TensorEntries entries;

  NamedTensors read(const std::string& prefix, const NamedTensors& into) const {
    return read_below(prefix, entries, into, [&](const auto& name, const auto& entry, auto& old) {
      const Tensor tensor = room_for(entry, old);
      read_tensor_into(tensor, *file, name, entry);
      return tensor;
    });
  }
};

// Reads one checkpoint on this rank, in steps that all ranks take together.
class ShardedLoad {
 public:
  ShardedLoad(const std::string& path,
              const Manifest& manifest,
              const ShardedState& state,
              ProcessGroup& group)
      : path_(path), manifest_(manifest), state_(state), group_(group), peers_(group) {}

  LoadedCheckpoint load(const LoadOptions& options) {
    peers_.together([&] { open(options); });
    check_nothing_left(state_.model, model_.source(), path_, group_);
    const auto all =
        merge_descriptions(group_.all_gather_bytes(optimizer_here_, "optimizers of a checkpoint"));
    InstallState restore_optimizer_state;
    peers_.together([&] {
      if (state_.optimizer)
        restore_optimizer_state = prepared_optimizer(all);
    });
    peers_.together([&] { fetch_tensors(); });
    if (restore_optimizer_state)
      restore_optimizer_state();
    if (group_.rank() == 0)
      tell_of_means(model_, optimizer_, state_, group_.size());
    LoadedCheckpoint loaded = loaded_from(path_, manifest_);
    loaded.read_parts = parts_reader();
    return loaded;
  }

 private:
  SavedTensors saved(const char* kind) const {
    return {path_, manifest_, kind, group_.rank(), group_.size()};
  }

  // Opens the files and checks that they have what this rank holds.
  void open(const LoadOptions& options) {
    check_pieces(state_.model);
    if (manifest_.find(kPartsFile) != nullptr) {
      parts_->file.emplace(cat(path_, "/", kPartsFile));
      parts_->entries = parts_->file->header().tensors;
    }
    if (options.check_parts)
      options.check_parts(parts_->entries);
    parts_of_ranks_ = saved("parts");
    in_pieces_ = parts_that_were_saved(state_, parts_of_ranks_);
    for (const auto& part : in_pieces_)
      check_pieces_of(part.pieces, parts_of_ranks_, path_, /*may_be_half=*/true);
    model_ = saved("model");
    check_pieces_of(state_.model, model_, path_);
    if (!state_.optimizer)
      return;
    optimizer_ = saved("optim");
    optimizer_here_ =
        optimizer_pieces(state_.optimizer->parameters, *state_.optimizer->optimizer).description;
  }

  // `all` describes the optimizers of all ranks together.
  InstallState prepared_optimizer(const std::string& all) {
    const TensorPieces& parameters = state_.optimizer->parameters;
    auto restore = prepare_optimizer(parameters,
                                     *state_.optimizer->optimizer,
                                     manifest_.optimizer,
                                     optimizer_.entries(parameters),
                                     [&](TensorPiece& piece) { optimizer_.fetch(piece); });
    check_same_parameters(all, manifest_.optimizer);
    return restore;
  }

  void fetch_tensors() {
    const auto fetch = [](const TensorPieces& pieces, const SavedTensors& from) {
      for (const TensorPiece& piece : pieces_to_load(pieces, from.entries(pieces)))
        from.fetch(piece);
    };
    fetch(state_.model, model_);
    for (const auto& part : in_pieces_)
      fetch(part.pieces, parts_of_ranks_);
  }

  // Parts in pieces have been read with the model, into the memory that is asked for again here.
  ReadParts parts_reader() const {
    return [parts = parts_, peers = peers_, in_pieces = in_pieces_](const std::string& prefix,
                                                                    const NamedTensors& into) {
      if (contains(in_pieces, prefix, &ShardedState::Part::prefix))
        return into;
      NamedTensors tensors;
      peers.together([&] { tensors = parts->read(prefix, into); });
      return tensors;
    };
  }

  const std::string& path_;
  const Manifest& manifest_;
  const ShardedState& state_;
  ProcessGroup& group_;
  Peers peers_;
  SavedTensors model_, optimizer_, parts_of_ranks_;
  std::shared_ptr<PartsFile> parts_ = std::make_shared<PartsFile>();
  std::vector<ShardedState::Part> in_pieces_;
  std::string optimizer_here_;  // the description of this rank's optimizer
};

// Returns nothing for a damaged checkpoint, which is skipped. Rank 0 warns of it.
std::optional<Manifest> manifest_if_whole(const std::string& path,
                                          ProcessGroup& group,
                                          SkippedCheckpoints& skipped) {
  try {
    return verified_by_all(path, group);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io && error.code() != ErrorCode::invalid_argument)
      throw;
    skipped.add(path, error, /*warns=*/group.rank() == 0);
    return std::nullopt;
  }
}

}  // namespace

bool is_sharded(const Manifest& manifest) {
  return any_of(manifest.files,
                [](const WrittenFile& file) { return file.name.starts_with("model-"); });
}

std::optional<LoadedCheckpoint> load_latest_sharded(const std::string& directory,
                                                    const ShardedState& state,
                                                    ProcessGroup& group,
                                                    const LoadOptions& options) {
  SkippedCheckpoints skipped;
  for (const auto& [path, is_abandoned] : candidates(directory, options, Peers(group))) {
    const auto manifest = manifest_if_whole(path, group, skipped);
    if (!manifest)
      continue;
    if (is_abandoned && group.rank() == 0)
      warn_of_abandoned(path);
    const NoGradGuard no_grad;
    return ShardedLoad(path, *manifest, state, group).load(options);
  }
  skipped.refuse_if_any(directory);
  return std::nullopt;
}

}  // namespace muster
