// The new file is laid out from the heads of the old ones. Its tensors are then copied in pieces,
// into a file of another name, which gets its own when all of it is on the disk.
#include "muster/checkpoint/files/export.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/no_copy.h"
#include "muster/base/shown_text.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/directory.h"
#include "muster/checkpoint/files/durable_file.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kCopiedAtOnce = 8 << 20;

// The name of a tensor in the new file.
std::string exported_name(const std::string& name, const ExportOptions& options) {
  const bool strips = name.starts_with(options.strip);
  return options.prefix + (strips ? name.substr(options.strip.size()) : name);
}

// Returns the names in the source by those in the new file. Throws: invalid_argument for a name
// that is empty, or that two tensors have.
StringMap exported_names(const TensorSource& source, const ExportOptions& options) {
  StringMap names;
  for (const auto& [from, tensor] : source.tensors()) {
    const auto to = exported_name(from, options);
    if (!to.empty() && names.emplace(to, from).second)
      continue;
    throw invalid_argument("export: expected a unique name for each tensor, got '",
                           shown_text(to),
                           "' for '",
                           shown_text(from),
                           "'; choose another --prefix or --strip");
  }
  return names;
}

// Refuses to replace what the caller did not ask to replace.
void check_target(const std::string& path, bool replace) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0)
    return;
  if (!S_ISREG(info.st_mode)) {
    throw invalid_argument(
        "export: expected a file, got '", path, "', which is something else; name another");
  }
  if (!replace) {
    throw invalid_argument(
        "export: expected a new file, got '", path, "', which exists; --force replaces it");
  }
}

// The name of a file while it is being written. The file is removed if it still has that name at
// the end.
struct AsideFile : NoCopy {
  explicit AsideFile(const std::string& path) : name(name_aside(path)) {}
  ~AsideFile() {
    if (!name.empty())
      ::unlink(name.c_str());
  }

  // When two export to one name at once, one of them fails here.
  void publish(const std::string& path, bool replace) {
    const auto rename = [&] {
      return ::rename(name.c_str(), path.c_str()) == 0 ? 0 : errno;
    };
    if (const int error = replace ? rename() : rename_if_new(name, path); error != 0)
      fail_errno(error, "export: cannot give the file its name '", path, "'");
  }

  std::string name;
};

// A name alone lies in the present folder.
std::string folder_of(const std::string& path) {
  const auto folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Copies a tensor in pieces, however large it is.
void copy_tensor(const TensorSource& from,
                 const std::string& name,
                 const TensorEntry& kind,
                 DurableFile& to,
                 const OnBytes& on_bytes) {
  const auto element = static_cast<int64_t>(safetensors_element_size(kind.dtype));
  const int64_t count = tensor_units(kind), at_once = kCopiedAtOnce / element;
  std::string piece;
  for (int64_t at = 0; at < count; at += at_once) {
    const int64_t length = std::min(at_once, count - at);
    piece.resize(length * element);
    from.read(name, {{.begin = at, .length = length}}, piece.data());
    to.write(piece);
    if (on_bytes)
      on_bytes(piece.size());
  }
}

}  // namespace

// Everything that can be refused is refused before the first byte is written.
size_t export_tensors(const TensorSource& from,
                      const std::string& path,
                      const ExportOptions& options,
                      const OnBytes& on_bytes) {
  if (const auto holes = from.incomplete(); !holes.empty()) {
    throw invalid_argument("export: expected all of '",
                           shown_text(holes[0]),
                           "', got some of it; a rank's file is missing");
  }
  const auto names = exported_names(from, options);
  SafetensorsHeader header{.metadata = from.metadata()};
  for (const auto& [to, name] : names)
    header.tensors.emplace(to, from.tensors().at(name).kind);
  const uint64_t data_bytes = lay_out(header);
  const auto json = format_safetensors_header(header);
  const uint64_t head_bytes = json.size();
  if (head_bytes > kMaxHeadBytes) {
    throw invalid_argument("export: expected a header of at most ",
                           kMaxHeadBytes,
                           " bytes, got ",
                           head_bytes,
                           "; choose shorter names");
  }
  check_target(path, options.replace);
  const auto folder = folder_of(path);
  check_space(folder, sizeof(head_bytes) + head_bytes + data_bytes);

  // Nobody sees the file under its name before all of it is on the disk.
  AsideFile aside(path);
  DurableFile file(folder, file_name(aside.name));
  file.write(&head_bytes, sizeof(head_bytes));
  file.write(json);
  for (const auto& [to, entry] : tensors_by_place(header))
    copy_tensor(from, names.at(to), entry, file, on_bytes);
  file.finish();
  aside.publish(path, options.replace);
  sync_folder(folder);
  return names.size();
}

}  // namespace muster
