// A manifest is JSON with a checksum of itself, and says the size and the checksum of every file.
// It comes from a disk, so everything in it is checked for its type and its bounds.
#include "muster/checkpoint/files/manifest.h"

#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/json_depth.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/refusal.h"
#include "muster/base/shown_text.h"
#include "muster/base/version.h"

namespace muster {

namespace {

using nlohmann::json;

constexpr auto kSchema = "muster.checkpoint/1";
constexpr auto kChecksum = "sha256";  // of the manifest itself without this key, as compact JSON
constexpr uint64_t kMaxManifestBytes = 64 << 20;
constexpr int64_t kMaxSerial = int64_t{1} << 53;
constexpr int64_t kMaxWorldSize = 1 << 24;
constexpr size_t kMaxFiles = 1 << 18;  // four of each rank
constexpr size_t kMaxRanges = 1 << 20;

// The text that was found is cut short and cleaned: it is from a file.
[[noreturn]] void refuse_manifest(const std::string& name,
                                  const std::string& expected,
                                  const std::string& got) {
  FileRefusal{"checkpoint", "it is damaged, load another"}(name, expected, shown_text(got));
}

// The checksum of a document that does not have its own yet.
std::string checksum_of(const json& document) {
  const auto text = document.dump();
  Sha256 hash;
  hash.update(text.data(), text.size());
  return hash.hex();
}

// Returns the document without its checksum, which is found to be right.
json parse(const std::string& text, const std::string& name) {
  if (nests_too_deep(text))
    refuse_manifest(name, "a manifest of a few levels", "one that nests deeper");
  auto document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object())
    refuse_manifest(name, "a JSON object", text.empty() ? "an empty file" : "something else");
  if (document.value("schema", json()) != kSchema)
    refuse_manifest(name, cat("schema ", kSchema), document.value("schema", json()).dump());
  const json checksum = document.value(kChecksum, json());
  document.erase(kChecksum);
  if (checksum != checksum_of(document))
    refuse_manifest(name, "an unchanged manifest", "one whose checksum differs");
  return document;
}

// Throws: invalid_argument if the key is missing or is no whole number of 0 or more.
int64_t count_in(const json& object, const char* key, const std::string& name) {
  const auto value = object.value(key, json());
  if (!value.is_number_integer() || value.get<int64_t>() < 0)
    refuse_manifest(name, cat("a count as '", key, "'"), value.dump());
  return value.get<int64_t>();
}

// Throws: invalid_argument if the key is missing or is no text.
std::string text_in(const json& object, const char* key, const std::string& name) {
  const auto value = object.value(key, json());
  if (!value.is_string())
    refuse_manifest(name, cat("a text as '", key, "'"), value.dump());
  return value.get<std::string>();
}

// Whether a name cannot lead out of the checkpoint's folder.
bool is_plain_name(const std::string& name) {
  constexpr auto kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name[0] != '.' && name.find_first_not_of(kAllowed) == npos;
}

// A manifest from before there were branches has no list.
SerialRanges ranges_in(const json& object, const char* key, const std::string& name) {
  const auto list = object.value(key, json::array());
  SerialRanges ranges;
  const auto refuse = [&](const json& got) {
    refuse_manifest(name, cat("pairs of serial numbers as '", key, "'"), got.dump());
  };
  if (!list.is_array() || list.size() > kMaxRanges)
    refuse(list);
  for (const json& pair : list) {
    const bool is_pair = pair.is_array() && pair.size() == 2;
    if (!is_pair || !pair[0].is_number_integer() || !pair[1].is_number_integer())
      refuse(pair);
    const auto after = pair[0].get<int64_t>(), until = pair[1].get<int64_t>();
    if (after < 0 || until < after || until > kMaxSerial)
      refuse(pair);
    ranges.push_back({.after = after, .until = until});
  }
  return ranges;
}

// Older manifests lack some counts.
int64_t count_if_there(const json& object, const char* key, const std::string& name) {
  return object.contains(key) ? count_in(object, key, name) : 0;
}

// A checkpoint without an evaluation has none.
std::optional<CheckpointMetric> metric_in(const json& document, const std::string& name) {
  if (!document.contains("metric"))
    return std::nullopt;
  const json& metric = document["metric"];
  if (!metric.is_object())
    refuse_manifest(name, "a metric's record", metric.dump());
  const json direction = metric.value("larger_is_better", json());
  const json value = metric.value("value", json());
  const bool is_value = value.is_null() || value.is_number();
  if (!direction.is_boolean() || !is_value)
    refuse_manifest(name, "a metric with a direction and a number", metric.dump());
  CheckpointMetric found{.name = text_in(metric, "name", name),
                         .larger_is_better = direction.get<bool>()};
  if (value.is_number())
    found.value = value.get<double>();
  return found;
}

json json_of(const CheckpointMetric& metric) {
  json value;
  if (metric.value && std::isfinite(*metric.value))
    value = *metric.value;
  return {{"name", metric.name},
          {"larger_is_better", metric.larger_is_better},
          {"value", std::move(value)}};
}

// A file that is named twice could be checked against one record and read by the other.
std::vector<WrittenFile> files_in(const json& document, const std::string& name) {
  const auto files = document.value("files", json());
  if (!files.is_array() || files.empty() || files.size() > kMaxFiles)
    refuse_manifest(name, cat("a list of files, at most ", kMaxFiles, ","), files.dump());
  // Names are checked before any of the files is opened.
  std::vector<WrittenFile> records;
  StringSet names;
  for (const auto& file : files) {
    if (!file.is_object())
      refuse_manifest(name, "a file's record", file.dump());
    const auto file_name = text_in(file, "name", name);
    if (!is_plain_name(file_name) || !names.insert(file_name).second)
      refuse_manifest(name, "plain file names, each once", json(file_name).dump());
    const uint64_t bytes = count_in(file, "bytes", name);
    records.push_back({.name = file_name, .bytes = bytes, .sha256 = text_in(file, "sha256", name)});
  }
  return records;
}

// Throws: io if there is no such file; invalid_argument for a link or another thing.
uint64_t size_of_file(const std::string& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0)
    fail_errno(errno, "checkpoint: cannot find '", path, "'");
  if (!S_ISREG(info.st_mode))
    refuse_manifest(path, "a plain file", "another thing");
  return info.st_size;
}

}  // namespace

bool is_in(const SerialRanges& ranges, int64_t serial) {
  return any_of(ranges, [&](const SerialRange& range) {
    return serial > range.after && serial <= range.until;
  });
}

const WrittenFile* Manifest::find(const std::string& file) const {
  return element_with(files, file, &WrittenFile::name);
}

// Keys are sorted, so the checksum does not depend on the order here.
std::string format_manifest(const Manifest& manifest) {
  const auto files = mapped(manifest.files, [](const WrittenFile& file) {
    return json{{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}};
  });
  const auto abandoned = mapped(manifest.abandoned, [](const SerialRange& range) {
    return std::pair(range.after, range.until);
  });
  const auto& position = manifest.position;
  json document = {{"schema", kSchema},
                   {"muster_version", version()},
                   {"step", position.step},
                   {"serial", manifest.serial},
                   {"parent", manifest.parent},
                   {"abandoned", abandoned},
                   {"epoch", position.epoch},
                   {"batch", position.batch},
                   {"epoch_samples", position.epoch_samples},
                   {"samples_seen", position.samples_seen},
                   {"dataset_size", position.dataset_size},
                   {"world_size", manifest.world_size},
                   {"files", files},
                   {"user", manifest.user}};
  if (!manifest.optimizer.empty())
    document["optimizer"] = json::parse(manifest.optimizer);
  if (manifest.metric)
    document["metric"] = json_of(*manifest.metric);
  try {
    document[kChecksum] = checksum_of(document);
    return document.dump(2) + "\n";
  } catch (const json::exception&) {
    throw invalid_argument(
        "checkpoint: expected names and user texts in UTF-8, got other bytes; encode them first");
  }
}

void write_manifest(const std::string& folder, const Manifest& manifest) {
  DurableFile file(folder, kManifestFile);
  file.write(format_manifest(manifest));
  file.finish();
}

Manifest parse_manifest(const std::string& text, const std::string& name) {
  const auto document = parse(text, name);
  Manifest manifest;
  manifest.position = {.step = count_in(document, "step", name),
                       .epoch = count_in(document, "epoch", name),
                       .batch = count_in(document, "batch", name),
                       .epoch_samples = count_in(document, "epoch_samples", name),
                       .samples_seen = count_in(document, "samples_seen", name),
                       .dataset_size = count_if_there(document, "dataset_size", name)};
  manifest.serial = count_if_there(document, "serial", name);
  if (manifest.serial > kMaxSerial)
    refuse_manifest(name, "a serial number", cat(manifest.serial));
  if (document.contains("parent"))
    manifest.parent = text_in(document, "parent", name);
  manifest.abandoned = ranges_in(document, "abandoned", name);
  const auto world_size = count_in(document, "world_size", name);
  if (world_size < 1 || world_size > kMaxWorldSize)
    refuse_manifest(name, "a world size", cat(world_size));
  manifest.world_size = static_cast<int>(world_size);
  manifest.files = files_in(document, name);
  const auto user = document.value("user", json());
  if (!user.is_object())
    refuse_manifest(name, "texts by name as 'user'", user.dump());
  for (const auto& item : user.items())
    manifest.user[item.key()] = text_in(user, item.key().c_str(), name);
  if (document.contains("optimizer"))
    manifest.optimizer = document["optimizer"].dump();
  manifest.metric = metric_in(document, name);
  return manifest;
}

void check_step(const Manifest& manifest, const std::string& path) {
  if (cat("step-", manifest.position.step) == file_name(path))
    return;
  throw invalid_argument("checkpoint: expected the step of '",
                         path,
                         "', got a manifest of step ",
                         manifest.position.step,
                         "; its folder was renamed, or has files of another checkpoint");
}

// The size is looked at before the file is read into memory.
Manifest read_manifest_alone(const std::string& folder) {
  const auto path = cat(folder, "/", kManifestFile);
  if (size_of_file(path) > kMaxManifestBytes)
    refuse_manifest(path, "a manifest", "a file too large for one");
  return parse_manifest(read_small_file(path), path);
}

std::optional<Manifest> manifest_if_readable(const std::string& folder) {
  try {
    return read_manifest_alone(folder);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void check_size(const std::string& folder, const WrittenFile& file) {
  const auto path = cat(folder, "/", file.name);
  if (const auto bytes = size_of_file(path); bytes != file.bytes)
    refuse_manifest(path, cat(file.bytes, " bytes, as the manifest says,"), cat(bytes));
}

void check_content(const std::string& folder, const WrittenFile& file, const OnBytes& on_piece) {
  const auto path = cat(folder, "/", file.name);
  if (sha256_of_file(path, on_piece) != file.sha256)
    refuse_manifest(path, "content with the manifest's checksum", "other content");
}

// Sizes cost nothing to compare, and most damage changes them. verify_checkpoint reads everything.
Manifest read_manifest(const std::string& folder) {
  auto manifest = read_manifest_alone(folder);
  for (const auto& file : manifest.files)
    check_size(folder, file);
  return manifest;
}

Manifest verify_checkpoint(const std::string& folder) {
  auto manifest = read_manifest(folder);
  for (const auto& file : manifest.files)
    check_content(folder, file);
  return manifest;
}

}  // namespace muster
