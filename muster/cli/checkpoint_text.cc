// Tables shorten names and values, and show "-" for what a checkpoint does not tell. The JSON has
// everything, and null for what is not told.
#include "muster/cli/checkpoint_text.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/json_member.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/shown_text.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/draw/text_table.h"

namespace muster {

namespace {

using nlohmann::ordered_json;

// Longer texts are cut; the JSON has them whole.
constexpr size_t kShownName = 120;  // characters
constexpr size_t kShownValue = 200;
constexpr size_t kShownParent = 24;

// The document has only ASCII, so that no name can steer a terminal.
std::string checkpoint_document(const ordered_json& document) {
  return json_text(document, 2, true) + "\n";
}

std::string shown_state(const std::string& problem) {
  return problem.empty() ? "whole" : cat("damaged: ", shown_text(problem));
}

uint64_t elements_in(const TensorSource& source) {
  uint64_t count = 0;
  for (const auto& [name, tensor] : source.tensors())
    count += element_count(tensor.kind.shape);
  return count;
}

// Returns the model's tensors; nullptr if they are not shown. A file without a manifest is a model.
const ShownTensors* model_of(const CheckpointView& view, const std::vector<ShownTensors>& shown) {
  return element_where(shown, [&](const ShownTensors& tensors) {
    return !view.has_manifest || tensors.set.name == kModelFile;
  });
}

// "top1 0.912"; "-": the checkpoint has none.
std::string shown_metric(const std::optional<CheckpointMetric>& metric) {
  if (!metric)
    return "-";
  const auto value = metric->value ? cat(*metric->value) : "not finite";
  return cat(shown_text(metric->name, kShownName), " ", value);
}

// Adds rows that tell how far the training had come.
void add_position(TableRows& rows, const Manifest& manifest) {
  const auto& position = manifest.position;
  rows.push_back({"step", cat(position.step)});
  if (!manifest.parent.empty())
    rows.push_back({"after", shown_text(manifest.parent, kShownName)});
  rows.push_back({"ranks", cat(manifest.world_size)});
  if (manifest.metric)
    rows.push_back({"metric", shown_metric(manifest.metric)});
  const bool has_position =
      position.epoch != 0 || position.epoch_samples != 0 || position.samples_seen != 0;
  if (!has_position)
    return;
  const auto within = position.batch > 0 ? cat("batch ", position.batch)
                                         : cat(position.epoch_samples, " samples of it");
  rows.push_back({"epoch", cat(position.epoch, ", ", within)});
  // The samples seen may have passed the data set several times.
  const auto size = framed(", data set of ", text_of_count(position.dataset_size));
  if (position.samples_seen > 0)
    rows.push_back({"samples seen", cat(position.samples_seen, size)});
}

// The table has what a checkpoint tells about itself: how far the training had come, its model, its
// user's notes.
std::string facts_text(const CheckpointView& view, const std::vector<ShownTensors>& shown) {
  TableRows rows;
  if (view.has_manifest)
    add_position(rows, view.manifest);
  if (const auto* model = model_of(view, shown)) {
    rows.push_back({"parameters",
                    cat(elements_in(model->source),
                        " in ",
                        plural(model->source.tensors().size(), "tensor"),
                        ", buffers included")});
  }
  // A file without a manifest does not tell which optimizer trained it.
  const std::string optimizer = view.has_manifest ? optimizer_kinds(view) : "";
  if (!optimizer.empty())
    rows.push_back({"optimizer", shown_text(optimizer, kShownValue)});
  for (const auto& [name, value] : view.manifest.user)
    rows.push_back({cat("user: ", shown_text(name, kShownName)), shown_text(value, kShownValue)});
  if (!view.has_manifest && !shown.empty()) {
    for (const auto& [name, value] : shown[0].source.metadata())
      rows.push_back(
          {cat("metadata: ", shown_text(name, kShownName)), shown_text(value, kShownValue)});
  }
  return format_table({{"path"}, {shown_text(view.path)}}, rows);
}

// The beginning of a checksum is enough to compare by eye.
std::string files_text(const CheckpointView& view) {
  TableRows rows;
  for (const auto& file : view.files) {
    const auto* record = view.manifest.find(file.name);
    rows.push_back({shown_text(file.name, kShownName),
                    format_bytes(file.bytes),
                    record == nullptr ? "-" : shown_text(record->sha256.substr(0, 16))});
  }
  return format_table({{"file"}, {"size", true}, {"sha256 begins"}}, rows);
}

// The tensors of one set; a set of several files says how many there are.
std::string tensors_text(const ShownTensors& shown) {
  TableRows rows;
  for (const auto& [name, tensor] : shown.source.tensors()) {
    rows.push_back({shown_text(name, kShownName),
                    tensor.kind.dtype,
                    cat("[", join(tensor.kind.shape, ", "), "]"),
                    format_bytes(tensor_bytes(tensor.kind))});
  }
  const size_t files = shown.set.files.size();
  const auto of = cat("tensor of ",
                      shown_text(shown.set.name, kShownName),
                      files > 1 ? cat(" (", files, " files)") : std::string());
  return format_table({{of}, {"type"}, {"shape"}, {"size", true}}, rows);
}

// Names stand as they are: the document escapes what is not ASCII.
ordered_json tensors_json(const ShownTensors& shown) {
  ordered_json list = ordered_json::array();
  for (const auto& [name, tensor] : shown.source.tensors()) {
    list.push_back({{"name", name},
                    {"dtype", tensor.kind.dtype},
                    {"shape", tensor.kind.shape},
                    {"bytes", tensor_bytes(tensor.kind)}});
  }
  return list;
}

// Tensors that lie in one file stand with it. Those that ranks wrote together into several files
// are in sets_json().
ordered_json files_json(const CheckpointView& view, const std::vector<ShownTensors>& shown) {
  ordered_json list = ordered_json::array();
  for (const auto& file : view.files) {
    ordered_json item = {{"name", file.name}, {"bytes", file.bytes}};
    if (const auto* record = view.manifest.find(file.name))
      item["sha256"] = record->sha256;
    for (const ShownTensors& tensors : shown) {
      if (tensors.set.files.size() > 1 || tensors.set.files[0].name != file.name)
        continue;
      item["metadata"] = tensors.source.metadata();
      item["tensors"] = tensors_json(tensors);
    }
    list.push_back(std::move(item));
  }
  return list;
}

// The sets of tensors that are spread over several files.
ordered_json sets_json(const std::vector<ShownTensors>& shown) {
  ordered_json list = ordered_json::array();
  for (const ShownTensors& tensors : shown) {
    if (tensors.set.files.size() == 1)
      continue;
    list.push_back({{"name", tensors.set.name},
                    {"files", mapped(tensors.set.files, &ViewedFile::name)},
                    {"metadata", tensors.source.metadata()},
                    {"tensors", tensors_json(tensors)}});
  }
  return list;
}

ordered_json metric_json(const std::optional<CheckpointMetric>& metric) {
  if (!metric)
    return {};
  return {{"name", metric->name},
          {"larger_is_better", metric->larger_is_better},
          {"value", or_null(metric->value)}};
}

}  // namespace

// The caller has put the checkpoints in order, the last saved first.
std::string listed_text(const ListedCheckpoints& listed, const std::string& directory) {
  if (listed.empty())
    return cat("no checkpoint in '", shown_text(directory), "'\n");
  const bool has_metric = any_of(listed, [](const auto& row) { return row.metric.has_value(); });
  TableRows rows;
  rows.reserve(listed.size());
  for (const auto& row : listed) {
    const auto parent = text_or(shown_text(row.parent, kShownParent), "-");
    const std::string branch = row.is_abandoned ? "abandoned, " : "";
    const std::string best = row.is_best ? "best, " : "";
    rows.push_back({cat(row.step),
                    parent,
                    // Old manifests do not tell when they were written.
                    row.written_seconds == 0 ? "-" : format_local_time(row.written_seconds),
                    format_bytes(row.bytes),
                    text_of_count(row.world_size, "-"),
                    text_of(row.epoch, "-"),
                    text_of(row.samples_seen, "-"),
                    cat(branch, best, shown_state(row.problem))});
    if (has_metric)
      rows.back().insert(rows.back().end() - 1, shown_metric(row.metric));
  }
  TableColumns columns = {{"step", true},
                          {"after"},
                          {"written"},
                          {"size", true},
                          {"ranks", true},
                          {"epoch", true},
                          {"samples seen", true},
                          {"state"}};
  if (has_metric)
    columns.insert(columns.end() - 1, {"metric"});
  return format_table(columns, rows);
}

// A checkpoint of an older muster lacks some members, which are null.
std::string listed_json(const ListedCheckpoints& listed, const std::string& directory) {
  ordered_json list = ordered_json::array();
  for (const auto& row : listed) {
    ordered_json item = {{"step", row.step},
                         {"path", row.path},
                         {"serial", or_null(row.serial)},
                         {"parent", nullptr},
                         {"abandoned", row.is_abandoned},
                         {"written_seconds", row.written_seconds},
                         {"bytes", row.bytes},
                         {"world_size", nullptr},
                         {"epoch", or_null(row.epoch)},
                         {"samples_seen", or_null(row.samples_seen)},
                         {"metric", metric_json(row.metric)},
                         {"best", row.is_best},
                         {"whole", row.problem.empty()}};
    add_unless_default(item, "parent", row.parent);
    if (row.world_size > 0)
      item["world_size"] = row.world_size;
    add_unless_default(item, "problem", row.problem);
    list.push_back(std::move(item));
  }
  return checkpoint_document(
      {{"schema", "muster.checkpoints/1"}, {"folder", directory}, {"checkpoints", list}});
}

std::string view_text(const CheckpointView& view, const std::vector<ShownTensors>& shown) {
  return cat(facts_text(view, shown),
             "\n",
             files_text(view),
             sum_of<std::string>(
                 shown, [](const auto& tensors) { return cat("\n", tensors_text(tensors)); }));
}

// A file without a manifest has no position, and the document none of those members.
std::string view_json(const CheckpointView& view, const std::vector<ShownTensors>& shown) {
  ordered_json document = {{"schema", "muster.checkpoint_view/1"}, {"path", view.path}};
  if (view.has_manifest) {
    const auto& position = view.manifest.position;
    document["step"] = position.step;
    document["after"] = view.manifest.parent;
    document["epoch"] = position.epoch;
    document["batch"] = position.batch;
    document["epoch_samples"] = position.epoch_samples;
    document["samples_seen"] = position.samples_seen;
    document["dataset_size"] = position.dataset_size;
    document["world_size"] = view.manifest.world_size;
    document["optimizer"] = optimizer_kinds(view);
    document["user"] = view.manifest.user;
    document["metric"] = metric_json(view.manifest.metric);
  }
  if (const auto* model = model_of(view, shown))
    document["parameters"] = elements_in(model->source);
  document["files"] = files_json(view, shown);
  if (auto sets = sets_json(shown); !sets.empty())
    document["tensor_sets"] = std::move(sets);
  return checkpoint_document(document);
}

// A safetensors file from elsewhere has no checksum, and only its head can be compared with its
// size.
std::string verified_text(const VerifiedFiles& rows) {
  TableRows cells;
  for (const auto& row : rows) {
    std::string state = shown_state(row.problem);
    if (row.problem.empty() && !row.has_checksum)
      state = "whole by its header; no checksum";
    cells.push_back({shown_text(row.checkpoint),
                     shown_text(row.file, kShownName),
                     format_bytes(row.bytes),
                     state});
  }
  std::string text = format_table({{"checkpoint"}, {"file"}, {"size", true}, {"state"}}, cells);
  if (!all_of(rows, &VerifiedFile::has_checksum))
    text += "no checksums to compare where there is no manifest.json: heads and sizes alone\n";
  return text;
}

std::string verified_json(const VerifiedFiles& rows) {
  ordered_json list = ordered_json::array();
  for (const auto& row : rows) {
    ordered_json item = {{"path", row.checkpoint},
                         {"bytes", row.bytes},
                         {"checksum", row.has_checksum},
                         {"whole", row.problem.empty()}};
    add_unless_default(item, "file", row.file);
    add_unless_default(item, "problem", row.problem);
    list.push_back(std::move(item));
  }
  return checkpoint_document({{"schema", "muster.checkpoint_verify/1"}, {"files", list}});
}

}  // namespace muster
