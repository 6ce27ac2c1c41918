// Tar files for tests, as tar writes them.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace muster::test {

inline std::string tar_of(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string out;
  for (const auto& [name, content] : files) {
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
    put(156, "0");
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
    out += header + content + std::string((512 - content.size() % 512) % 512, '\0');
  }
  return out + std::string(1024, '\0');
}

}  // namespace muster::test
