#include "muster/checkpoint/checkpoint_export.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/directory.h"
#include "muster/checkpoint/durable_file.h"
#include "muster/checkpoint/shown_text.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kCopiedAtOnce = 8 << 20;

std::string exported_name(const std::string& name, const ExportOptions& options) {
  const bool strips = name.starts_with(options.strip);
  return options.prefix + (strips ? name.substr(options.strip.size()) : name);
}

SafetensorsHeader renamed(const SafetensorsHeader& header, const ExportOptions& options) {
  SafetensorsHeader result{.tensors = {}, .metadata = header.metadata};
  for (const auto& [name, entry] : header.tensors) {
    const std::string other = exported_name(name, options);
    if (!other.empty() && result.tensors.emplace(other, entry).second) continue;
    throw Error(ErrorCode::invalid_argument,
                cat("export: expected a name of its own for each tensor, got '", shown_text(other), "' for '",
                    shown_text(name), "'; choose another --prefix or --strip"));
  }
  return result;
}

void check_target(const std::string& path, bool replace) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return;
  if (replace && S_ISREG(info.st_mode)) return;
  throw Error(ErrorCode::invalid_argument,
              S_ISREG(info.st_mode)
                  ? cat("export: expected a new file, got '", path, "', which exists; --force replaces it")
                  : cat("export: expected a file, got '", path, "', which is something else; name another"));
}

// A name for a file that is being written, which is removed again unless it was given its own.
struct AsideFile {
  explicit AsideFile(const std::string& path) : name(name_aside(path)) {}
  ~AsideFile() {
    if (!name.empty()) ::unlink(name.c_str());
  }
  AsideFile(const AsideFile&) = delete;
  AsideFile& operator=(const AsideFile&) = delete;

  // Of two that export to one name at once, one is told.
  void publish(const std::string& path, bool replace) {
    const unsigned flags = replace ? 0 : RENAME_NOREPLACE;
    int result = ::renameat2(AT_FDCWD, name.c_str(), AT_FDCWD, path.c_str(), flags);
    if (result != 0 && errno == EINVAL) result = ::link(name.c_str(), path.c_str());  // such a file system
    if (result != 0) fail_errno(cat("export: cannot give the file its name '", path, "'"), errno);
  }

  std::string name;
};

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

void copy_data(const SafetensorsFile& from, DurableFile& to, const std::function<void(size_t)>& on_bytes) {
  const uint64_t bytes = from.head().data_bytes;
  std::string piece(std::min(bytes, kCopiedAtOnce), '\0');
  for (uint64_t at = 0; at < bytes; at += kCopiedAtOnce) {
    const uint64_t size = std::min(kCopiedAtOnce, bytes - at);
    from.read(piece.data(), size, at);
    to.write(piece.data(), size);
    if (on_bytes) on_bytes(size);
  }
}

}  // namespace

size_t export_tensors(const SafetensorsFile& from, const std::string& path, const ExportOptions& options,
                      const std::function<void(size_t)>& on_bytes) {
  const SafetensorsHeader header = renamed(from.header(), options);
  const std::string json = format_safetensors_header(header);
  const uint64_t head_bytes = json.size();
  if (head_bytes > kMaxHeadBytes) from.refuse("names too long for a head");
  check_target(path, options.replace);
  const std::string folder = folder_of(path);
  check_space(folder, sizeof(head_bytes) + head_bytes + from.head().data_bytes);

  AsideFile aside(path);
  DurableFile file(folder, fs::path(aside.name).filename().string());
  file.write(&head_bytes, sizeof(head_bytes));
  file.write(json);
  copy_data(from, file, on_bytes);
  file.finish();
  aside.publish(path, options.replace);
  sync_folder(folder);
  return header.tensors.size();
}

}  // namespace muster
