// Tar files for tests, as tar writes them.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace muster::test {

// `type`: '0' a file, '1' a hard link to `target`, '2' a symbolic one.
inline std::string tar_entry(const std::string& name,
                             const std::string& content,
                             char type = '0',
                             const std::string& target = "") {
  std::string header(512, '\0');
  const auto put = [&](size_t at, const std::string& text) {
    header.replace(at, text.size(), text);
  };
  char size[12];
  std::snprintf(size, sizeof(size), "%011zo", content.size());
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, size);
  put(136, "00000000000");
  put(148, "        ");
  put(156, std::string(1, type));
  put(157, target);
  put(257,
      std::string("ustar\0"
                  "00",
                  8));
  unsigned sum = 0;
  for (const char c : header)
    sum += static_cast<unsigned char>(c);
  char checksum[8];
  std::snprintf(checksum, sizeof(checksum), "%06o", sum);
  put(148, std::string(checksum, 7) + " ");
  return header + content + std::string((512 - content.size() % 512) % 512, '\0');
}

inline std::string tar_end() {
  return std::string(1024, '\0');
}

inline std::string tar_of(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string out;
  for (const auto& [name, content] : files)
    out += tar_entry(name, content);
  return out + tar_end();
}

}  // namespace muster::test
