// Every rank writes its files and then a record of them into the folder that rank 0 has made. Rank
// 0 waits for the records of all ranks, makes the manifest of them, and gives the folder its name.
// So the threads that write in the background need no group, and a checkpoint is whole or absent.
#include "muster/checkpoint/sharded_save.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/base/zero_padded.h"
#include "muster/checkpoint/files/directory.h"
#include "muster/checkpoint/files/lineage.h"
#include "muster/checkpoint/files/tensor_source.h"
#include "muster/checkpoint/host_copies.h"
#include "muster/checkpoint/safetensors.h"
#include "muster/checkpoint/saved_tensors.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

using nlohmann::json;

constexpr uint64_t kSpareBytesOfRank = 1 << 20;  // heads, records, the file system's own
constexpr milliseconds kLookAgain{20};
constexpr std::chrono::seconds kLastWait{30};  // for the other ranks' parts, when the program ends

// "model-00001-of-00004.safetensors", as model hubs number the files of one set.
std::string file_of_rank(const char* kind, int rank, int size) {
  const auto number = [](int of) {
    return zero_padded(cat(of), 5);
  };
  return cat(kind, "-", number(rank), "-of-", number(size), ".safetensors");
}

// A rank's record lists its files with their checksums. It appears when all of them are written.
std::string record_of_rank(const std::string& folder, int rank) {
  return cat(folder, "/rank-", rank, ".json");
}

// Writes pieces into one file. Those that are not whole are flat there, and the file's metadata
// says which elements they have.
WrittenFile write_pieces(const std::string& folder,
                         const std::string& name,
                         const TensorPieces& pieces,
                         int64_t step) {
  NamedTensors tensors;
  PieceRecords records;
  for (const TensorPiece& piece : pieces) {
    const bool is_whole = piece.elements == all_elements(piece.shape);
    const Int64s shape = is_whole ? piece.shape : Int64s{-1};
    tensors.emplace(piece.name, piece.tensor.detach().reshape(shape));
    if (!is_whole)
      records[piece.name] = {.shape = piece.shape, .elements = piece.elements};
  }
  Metadata metadata = {{"format", "pt"}, {"step", cat(step)}};
  if (!records.empty())
    metadata[kPiecesKey] = format_piece_records(records);
  return write_safetensors(folder, name, tensors, metadata);
}

// Starts to copy pieces to the host, in the memory of `before` where it fits.
TensorPieces piece_copies(const TensorPieces& pieces,
                          const TensorPieces& before,
                          HostCopies& under_way) {
  NamedTensors old;
  for (const TensorPiece& piece : before)
    old.emplace(piece.name, piece.tensor);
  TensorPieces copies = pieces;
  for (TensorPiece& piece : copies)
    piece.tensor = under_way.start(piece.tensor, old[piece.name]);
  return copies;
}

// Returns the plan's lists of pieces, in an order that is always the same.
template <class Plan>
auto lists_of(Plan& plan) {
  return std::array{&plan.model,
                    &plan.optimizer,
                    &plan.parts,
                    &plan.own_model,
                    &plan.own_optimizer,
                    &plan.own_parts};
}

// The order is that of lists_of, which put_pieces relies on.
TensorPieces all_pieces(const ShardedPlan& plan) {
  return concatenated(lists_of(plan),
                      [](const TensorPieces* list) -> const TensorPieces& { return *list; });
}

// Puts `pieces`, which are in the order of all_pieces, in the place of the plan's.
void put_pieces(const TensorPieces& pieces, ShardedPlan& plan) {
  auto next = pieces.begin();
  for (TensorPieces* list : lists_of(plan))
    for (TensorPiece& piece : *list)
      piece = *next++;
}

// Parts are small, so their copies get new memory.
NamedTensors piece_copies(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors)
    copies.emplace(name, tensor.detach().cpu().clone());
  return copies;
}

}  // namespace

struct ShardedSave::Save {
  SaveOptions options;
  std::string folder;                // that is written into
  std::unique_ptr<Staging> staging;  // on rank 0
  ShardedPlan plan;                  // what this rank writes
  NamedTensors parts;                // on rank 0
  HostCopies copies;                 // of what is written in the background
  Manifest manifest;                 // what is known of it
  int rank = 0;

  std::thread thread;
  std::atomic<bool> is_part_written = false;
  std::atomic<bool> is_dropped = false;
  std::atomic<bool> is_published = false;
  std::atomic<bool> is_over = false;  // the thread has nothing left to do
  std::exception_ptr failure_of_part, failure_of_publishing;
};

ShardedSave::ShardedSave() = default;

// A program that ends well waits for its last checkpoint. One that fails does not, since it might
// wait for ranks that are gone.
ShardedSave::~ShardedSave() {
  if (!save_)
    return;
  const Deadline deadline(std::uncaught_exceptions() == 0 ? kLastWait : std::chrono::seconds(0));
  while (save_->thread.joinable() && !save_->is_over && !deadline.passed())
    std::this_thread::sleep_for(kLookAgain);
  end_thread();
  for (const auto& failure : {save_->failure_of_part, save_->failure_of_publishing}) {
    try {
      if (failure)
        std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      log_error("checkpoint: the previous checkpoint was not saved: ", error.what());
    }
  }
  const bool has_failed = save_->failure_of_part || save_->failure_of_publishing;
  if (save_->rank == 0 && !save_->is_published && !has_failed) {
    log_error("checkpoint: the previous checkpoint, of step ",
              save_->manifest.position.step,
              ", was not saved, since not all ranks finished it");
  }
}

// A background save copies the training's tensors, so that its steps change nothing in what is
// written.
std::string ShardedSave::start(const SaveOptions& options,
                               const ShardedState& state,
                               const TrainingPosition& position,
                               ProcessGroup& group,
                               bool background) {
  finish(group);
  const NoGradGuard no_grad;
  const ShardedPlan plan = plan_sharded_save(state, group);
  // The plan is made before anything of the folder is touched: it may refuse.
  auto save = std::make_unique<Save>();
  save->options = options;
  save->rank = group.rank();
  save->manifest = new_manifest(options, position, group.size(), plan.description);
  const Peers peers(group);
  peers.on_rank0([&] {
    make_directory(options.directory);
    remove_leftovers(options.directory);
    check_space(options.directory,
                plan.bytes + make_safetensors_head(state.parts).data_bytes +
                    kSpareBytesOfRank * group.size());
    save->manifest.serial = next_serial(options.directory, options.abandoned);
    save->staging = std::make_unique<Staging>(options.directory, position.step);
    save->folder = save->staging->path();
    save->parts = background ? piece_copies(state.parts) : state.parts;
  });
  // The folder's name has a random end, so rank 0 tells it.
  peers.share(save->folder);
  peers.together([&] {
    if (::access(save->folder.c_str(), W_OK) == 0)
      return;
    throw failed_precondition(
        "checkpoint: expected to write into '",
        save->folder,
        "', which rank 0 has made, got none here; a sharded checkpoint needs a folder that "
        "all hosts share");
  });
  save->plan = plan;
  if (background) {
    peers.together([&] { copy_ = piece_copies(all_pieces(plan), copy_, save->copies); });
    put_pieces(copy_, save->plan);
  }
  save_ = std::move(save);
  if (background) {
    const BlockedSignals blocked;  // in the thread, for good
    save_->thread = std::thread([this] { write_in_background(); });
  }
  return cat(options.directory, "/step-", position.step);
}

void ShardedSave::write_in_background() {
  write_part();
  if (save_->rank == 0)
    publish();
  save_->is_over = true;
}

// A rank's own record is its last file, so a record means that the part is whole. What this throws
// waits for finish(), where all ranks hear of it.
void ShardedSave::write_part() {
  Save& save = *save_;
  try {
    save.copies.wait();
    const int size = save.manifest.world_size;
    const int64_t step = save.manifest.position.step;
    json record = json::array();
    const auto note = [&](const WrittenFile& file) {
      check_content(save.folder, file);
      record.push_back({file.name, file.bytes, file.sha256});
    };
    const auto write = [&](const std::string& file, const TensorPieces& pieces) {
      if (!pieces.empty())
        note(write_pieces(save.folder, file, pieces, step));
    };
    write(file_of_rank("model", save.rank, size), save.plan.model);
    write(file_of_rank("optim", save.rank, size), save.plan.optimizer);
    write(file_of_rank("parts", save.rank, size), save.plan.parts);
    write(own_file(save.rank, "model"), save.plan.own_model);
    write(own_file(save.rank, "optim"), save.plan.own_optimizer);
    write(own_file(save.rank, "parts"), save.plan.own_parts);
    if (!save.parts.empty())
      note(write_safetensors(save.folder, kPartsFile, save.parts));
    write_file(record_of_rank(save.folder, save.rank), record.dump());
  } catch (...) {
    save.failure_of_part = std::current_exception();
  }
  save.is_part_written = true;
  save.is_part_written.notify_all();
}

// Takes the records of all ranks into the manifest, and waits for those that are not there yet. A
// rank that cannot write leaves none; then finish() ends the waiting, and the result is false.
bool ShardedSave::gather_records() {
  Save& save = *save_;
  for (const int rank : indices_below(save.manifest.world_size)) {
    const auto path = record_of_rank(save.folder, rank);
    while (::access(path.c_str(), R_OK) != 0) {
      if (save.is_dropped)
        return false;
      std::this_thread::sleep_for(kLookAgain);
    }
    for (const json& file : json::parse(read_small_file(path)))
      save.manifest.files.push_back({.name = file[0], .bytes = file[1], .sha256 = file[2]});
    std::filesystem::remove(path);
  }
  return true;
}

// Runs on rank 0, which alone knows the other ranks' records. What it throws waits for finish().
void ShardedSave::publish() {
  Save& save = *save_;
  try {
    if (!gather_records())
      return;
    write_manifest(save.folder, save.manifest);
    read_manifest(save.folder);
    const std::string path = save.staging->publish();
    save.is_published = true;
    remove_old(save.options, path);
  } catch (...) {
    save.failure_of_publishing = std::current_exception();
  }
}

// A dropped save ends soon: the thread looks for that while it waits for records.
void ShardedSave::end_thread() {
  save_->is_dropped = true;
  if (!save_->thread.joinable())
    return;
  const Span span("write checkpoint", Category::checkpoint);
  save_->thread.join();
}

// All ranks ask first whether every part was written: if one was not, rank 0 would wait for its
// record for ever.
void ShardedSave::finish(ProcessGroup& group) {
  if (!save_)
    return;
  const Peers peers(group);
  const bool is_background = save_->thread.joinable();
  if (!is_background)
    write_part();
  save_->is_part_written.wait(false);
  try {
    peers.together([&] {
      if (save_->failure_of_part)
        std::rethrow_exception(save_->failure_of_part);
    });
    peers.on_rank0([&] {
      if (is_background)
        save_->thread.join();
      if (!is_background)
        publish();
      if (save_->failure_of_publishing)
        std::rethrow_exception(save_->failure_of_publishing);
    });
  } catch (...) {
    end_thread();
    save_.reset();
    throw;
  }
  end_thread();
  save_.reset();
}

}  // namespace muster
