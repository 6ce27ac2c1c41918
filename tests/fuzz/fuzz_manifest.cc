#include <cstdlib>
#include <nlohmann/json.hpp>

#include "muster/base/json_depth.h"
#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/files/sha256.h"
#include "muster/checkpoint/files/tensor_source.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

namespace {

// Nothing of it leads out of the checkpoint's folder, and as a text and back it is the same.
void check_manifest(const Manifest& manifest) {
  if (manifest.position.step < 0 || manifest.position.samples_seen < 0 || manifest.world_size < 1)
    std::abort();
  for (const WrittenFile& file : manifest.files) {
    if (file.name.empty() || file.name[0] == '.' || file.name.find('/') != std::string::npos)
      std::abort();
    if (manifest.find(file.name) != &file)
      std::abort();
  }
  const Manifest again = parse_manifest(format_manifest(manifest), "fuzz");
  if (again.position != manifest.position || again.files.size() != manifest.files.size() ||
      again.user != manifest.user)
    std::abort();
}

// With the checksum that belongs to it, which a fuzzer cannot guess.
std::string with_checksum(const std::string& text) {
  if (nests_too_deep(text))
    return text;
  auto document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object())
    return text;
  document["schema"] = "muster.checkpoint/1";
  document.erase("sha256");
  const std::string content = document.dump();
  Sha256 hash;
  hash.update(content.data(), content.size());
  document["sha256"] = hash.hex();
  return document.dump();
}

void check_pieces_text(const std::string& text) {
  const PieceRecords records = parse_piece_records(text, "fuzz");
  if (format_piece_records(parse_piece_records(format_piece_records(records), "fuzz")) !=
      format_piece_records(records))
    std::abort();
  for (const auto& [name, record] : records) {
    const int64_t total = element_count(record.shape);
    if (total < 0 || element_count(record.elements) < 0)
      std::abort();
    if (wrong_elements(record.elements, total).empty() && element_count(record.elements) > total)
      std::abort();
  }
}

}  // namespace

// Of a checkpoint, and of a sharded one what each file says of its pieces.
void fuzz_manifest(const std::string& text) {
  answer_or_error([&] { check_manifest(parse_manifest(text, "fuzz")); });
  answer_or_error([&] { check_manifest(parse_manifest(with_checksum(text), "fuzz")); });
  answer_or_error([&] { check_pieces_text(text); });
}

}  // namespace muster
